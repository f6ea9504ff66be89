"""A language model of transformers with our loss, of its logits or of its head: :func:`patch_transformers`."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import functional as _functional

__all__ = ["PatchedModel", "patch_transformers"]

_HEADS = (None, "fast", "least")


class PatchedModel:
    """What :func:`cudaloss.patch_transformers` returns. It is in effect until :meth:`restore`, or to the end of a
    ``with`` block.

    Attributes:
        model: the model that was given.
    """

    def __init__(self, model: Any, head: str | None) -> None:
        self.model = model
        self._kind, self._own = type(model), vars(model).pop("_loss_function", None)
        self._theirs: Any = model.loss_function
        self._layer: Any = model.get_output_embeddings()
        self._in_effect = True
        if head is None:
            model.loss_function = _loss_of_logits
        else:
            _become(self._layer, _Head)
            _become(model, _without_logits(self._kind))
            model._memory_of_head = head

    def restore(self) -> None:
        """Gives the model its own loss and head back. A second call does nothing."""
        if not self._in_effect:
            return
        self._in_effect = False
        vars(self.model).pop("_memory_of_head", None)
        vars(self.model).pop("_loss_function", None)
        if type(self._layer) is _Head:
            _become(self._layer, nn.Linear)
        if type(self.model) is _without_logits(self._kind):
            _become(self.model, self._kind)
        elif type(self.model) is not self._kind:  # FSDP, say, has made another class of ours since
            self._own = self._theirs
        if self._own is not None:
            self.model.loss_function = self._own

    def __enter__(self) -> PatchedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def _become(module: Any, kind: type) -> None:
    module.__class__ = kind


def _call(labels: Tensor, device: torch.device, **given: Any) -> dict[str, Any]:
    """The keywords of a loss of rows, from those that a model gives its ``loss_function``."""
    index, items, target = (given.get(name) for name in ("ignore_index", "num_items_in_batch", "shift_labels"))
    index = -100 if index is None else index
    if target is None:  # a position foretells the next one
        target = nn.functional.pad(labels, (0, 1), value=index)[..., 1:]
    items = items.to(device).reshape(()) if isinstance(items, Tensor) else items
    return {"target": target.to(device), "normalizer": items, "ignore_index": index, "dtype": torch.float32}


def _loss_of_logits(logits: Tensor, labels: Tensor, vocab_size: int, **given: Any) -> Tensor:
    """transformers' ForCausalLMLoss, from logits of any dtype."""
    call = _call(labels, logits.device, **given)
    call["target"] = call["target"].reshape(-1)
    return _functional.cross_entropy(logits.reshape(-1, vocab_size), **call)


class _Head(nn.Linear):
    """A model's last layer. While the model computes a loss without logits, it returns the hidden states as they are.
    The loss is computed in a second call of the layer: what gathers a sharded weight acts on calls of modules."""

    options: dict[str, Any] | None = None  # of the loss, in such a forward
    passed: Tensor | None = None

    def forward(self, input: Tensor, loss: Callable[..., Tensor] | None = None) -> Tensor:
        if loss is not None:
            return loss(input, self.weight, linear_bias=self.bias)
        if self.options is None:
            return super().forward(input)
        self.passed = input
        return input


def _unserved(model: Any, what: str) -> RuntimeError:
    return RuntimeError(f"cudaloss.patch_transformers with head: {type(model).__name__} {what}; patch it without head")


def _loss_of_states(self: Any, logits: Tensor, labels: Tensor, vocab_size: int, **given: Any) -> Tensor:
    """The ``loss_function`` of a model without logits: the head has passed it hidden states in their place."""
    head = self.get_output_embeddings()
    options = getattr(head, "options", None)
    if options is None:
        return _loss_of_logits(logits, labels, vocab_size, **given)
    if logits is not head.passed:
        raise _unserved(self, "changes its logits between its head and its loss")
    head.options = head.passed = None
    call = _call(labels, logits.device, **given) | options
    return head(logits, loss=functools.partial(_functional.linear_cross_entropy, **call))


@functools.cache
def _names(kind: type, attribute: str) -> bool:
    """Whether a forward of the class has such an attribute in its code."""
    forwards = (inspect.unwrap(vars(base)["forward"]) for base in kind.__mro__ if "forward" in vars(base))
    return any(attribute in getattr(getattr(forward, "__code__", None), "co_names", ()) for forward in forwards)


def _without_softcap(config: Any, kind: type) -> tuple[Any, float | None]:
    """The configuration with which a forward leaves the softcap to the loss, and the softcap."""
    softcap = getattr(config, "final_logit_softcapping", None)
    if softcap is None or not _names(kind, "final_logit_softcapping"):
        return config, None
    config = copy.copy(config)
    config.final_logit_softcapping = None
    return config, softcap


@functools.cache
def _without_logits(kind: Any) -> Any:
    """The model's class with a forward that makes no logits in training, if it has labels. A class, because a model's
    own ``forward`` would be the first model's in its copies."""

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **given: Any) -> Any:
        if not self.training or given.get("labels") is None or self._memory_of_head is None:
            return kind.forward(self, *args, **given)
        head, config = self.get_output_embeddings(), self.config
        if not isinstance(head, _Head):
            raise _unserved(self, f"has got another head, {type(head).__module__}.{type(head).__name__}")
        self.config, softcap = _without_softcap(config, kind)
        head.options = {"softcap": softcap, "memory": self._memory_of_head}
        try:
            found = kind.forward(self, *args, **given)
            if head.options is not None:
                raise _unserved(self, "has not called its loss_function")
        finally:
            head.options, head.passed, self.config = None, None, config
        if isinstance(found, tuple):
            return found[0], *found[2:]
        return type(found)(**{name: value for name, value in found.items() if name != "logits"})

    own = {"forward": forward, "_loss_function": _loss_of_states, "_memory_of_head": None}
    return type(kind.__name__, (kind,), own | {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _check(model: Any, head: Any) -> None:
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        more = "; its get_base_model() is one" if hasattr(model, "get_base_model") else ""
        raise TypeError(f"model must be a transformers.PreTrainedModel, got {type(model).__name__}{more}")
    if head not in _HEADS:
        raise ValueError(f"head must be None, 'fast' or 'least', got {head!r}")
    theirs = importlib.import_module("transformers.loss.loss_utils").ForCausalLMLoss
    name, loss = type(model).__name__, model.loss_function
    if loss is _loss_of_logits or getattr(loss, "__func__", None) is _loss_of_states:
        raise RuntimeError(f"model is patched already: call restore() of what patch_transformers returned ({name})")
    if loss is not theirs or not _names(type(model), "loss_function"):
        got = "a loss of its own" if loss is theirs else getattr(loss, "__name__", repr(loss))
        raise ValueError(
            f"model must compute transformers' ForCausalLMLoss in its loss_function, got {name} with {got}"
        )
    layer = model.get_output_embeddings()
    if head is not None and type(layer) is not nn.Linear:
        raise ValueError(
            f"with head={head!r} model's last layer must be a torch.nn.Linear, got {name} with {type(layer).__name__}"
        )


def patch_transformers(model: nn.Module, *, head: str | None = None) -> PatchedModel:
    """Gives a causal language model of transformers our cross entropy as its ``loss_function``, in place.

    The model then calls :func:`cudaloss.cross_entropy` with its logits, which are not copied to float32. With `head` it
    calls :func:`cudaloss.linear_cross_entropy` with its hidden states and its head's weight, and makes no logits in
    training. Labels are shifted, or taken as ``shift_labels``, and -100 or ``ignore_index`` does not count.
    ``num_items_in_batch``, which ``Trainer`` counts over the micro-batches of a step, divides the sum. The loss is
    float32, like the model's own.

    Served are models whose loss is transformers' ``ForCausalLMLoss``: its ``...ForCausalLM`` and ``GPT2LMHeadModel``,
    and those of images and text that compute it. With `head` the last layer must be a ``torch.nn.Linear``, whose result
    is the logits or has only ``final_logit_softcapping`` applied. A model that scales its logits is not served then.

    Args:
        model (transformers.PreTrainedModel): the model; of a PEFT model its ``get_base_model()``. Patch it before it is
            wrapped or compiled.
        head (str, optional): ``"fast"`` or ``"least"``, what ``memory`` of ``linear_cross_entropy`` takes: in training
            mode, calls with ``labels`` return no ``logits``. In evaluation mode, and in calls without labels, they do.
            Default: the logits are made.

    Returns:
        PatchedModel: a context manager that gives the model its own loss back at its end; without ``with`` call its
        ``restore()``.

    Shape:
        The model's arguments and results stay as they are: labels of shape ``(batch, positions)``, and a 0-d loss.

    Raises:
        TypeError: if `model` is not a ``transformers.PreTrainedModel``.
        ValueError: if `model` computes another loss, or `head` is none of these, or its last layer not a ``Linear``.
        RuntimeError: if `model` is patched already. In a call with `head`: if the model changes its logits before its
            loss, or its last layer was replaced.

    Example:
        >>> import torch, cudaloss
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))
        >>> tokens = torch.randint(50, (2, 8))
        >>> with cudaloss.patch_transformers(model, head="least"):
        ...     outputs = model(input_ids=tokens, labels=tokens)
        >>> outputs.loss.shape, outputs.logits
        (torch.Size([]), None)
    """
    _check(model, head)
    return PatchedModel(model, head)
