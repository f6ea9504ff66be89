"""The arguments and bodies of the functions and modules for losses of rows, for the templates of ``source``."""

from __future__ import annotations

from collections.abc import Iterable

from cudaloss._options import Row
from cudaloss._row_options import options_of
from cudaloss._specs import Argument, RowSpec

FUNCTION_BODY = """\
    {legacy}own = {own}
    if not is_dynamo_compiling():
        result = _fused_{name}(
            {first_two}, reduction, own, dtype, {weight}, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_{name}({first_two}, reduction, own, dtype, {weight}, mask, normalizer, scale, batch_dims)
"""


def _keywords(rows: Iterable[Row | Argument]) -> list[str]:
    return [f"{row.name}: {row.annotation} = {row.default}" for row in rows]


def fields(spec: RowSpec, legacy: str) -> dict[str, str]:
    """The values for the templates of ``source``."""
    own, options = {row.name: row for row in spec.arguments}, options_of(spec)
    annotations = {"size_average": "bool | None", "reduce": "bool | None", "reduction": "str"}
    annotations |= {name: row.annotation for name, row in own.items()}
    defaults = {"size_average": None, "reduce": None, "reduction": f'"{spec.reduction}"'}
    defaults |= {name: row.default for name, row in own.items()}
    between = ",\n{indent}"
    given = between.join(f"{name}: {annotations[name]} = {defaults[name]}" for name in spec.signature.split())
    behind = _keywords(row for row in spec.arguments if row.only_keyword)
    of_module = [row for row in options if row.of_module]
    of_call = [row for row in options if not row.of_module]
    kept = [*((name, row.annotation) for name, row in own.items()), *((row.name, row.annotation) for row in of_module)]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in kept)]]
    return {
        "name": spec.name,
        "operands": between.join(f"{name}: Tensor" for name in spec.operands),
        "passed": ",\n            ".join(spec.operands),
        "first_two": ", ".join(spec.operands[:2]),
        "weight": options[0].name,
        "function": spec.function,
        "module": spec.module,
        "options": given,
        "module_options": given,
        "keywords": between.join([*behind, *_keywords(options)]),
        "module_keywords": between.join([*behind, *_keywords(of_module)]),
        "call_arguments": "",
        "call_keywords": between.join(_keywords(of_call)),
        "legacy": legacy,
        "own": ", ".join(
            name if name in own or name in spec.operands else repr(default) for name, default in spec.given.items()
        ),
        "store": "\n        ".join(
            f'keep(self, "{name}", {name})' if annotation.startswith("Tensor") else f"self.{name} = {name}"
            for name, annotation in kept
        ),
        "typed": "\n    ".join(f"{name}: {annotation}" for name, annotation in kept if annotation.startswith("Tensor")),
        "forward": ",\n            ".join([*forwarded, *(f"{row.name}={row.name}" for row in of_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own),
    }
