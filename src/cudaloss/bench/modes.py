"""How a loss is called: dtypes and layouts of its operands, its further arguments, and PyTorch's way to the same
result."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._call.modes import DTYPES
from .._losses.table import SPECS

Shape = tuple[int, ...]
Loss = Callable[..., Tensor]
Idiom = Callable[..., Tensor]  # with a loss's function, the operands and the arguments
Layout = Callable[[Shape, torch.dtype, str], Tensor]  # makes an operand of that shape, dtype and device


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of input and target."""

    input: torch.dtype
    target: torch.dtype

    @classmethod
    def parse(cls, text: str) -> Dtypes:
        """Of ``bfloat16``, or of a pair ``bfloat16/float32``."""
        known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
        names = text.split("/")
        if len(names) > 2 or not all(name in known for name in names):
            raise argparse.ArgumentTypeError(f"a dtype or a pair input/target of {', '.join(known)}, not {text!r}")
        found = cls(known[names[0]], known[names[-1]])
        if found.is_mixed and found.autocast is None:
            raise argparse.ArgumentTypeError(
                f"{text}: PyTorch's losses take a mixed pair under autocast only, to "
                "which one of the two must be float16 or bfloat16"
            )
        return found

    @property
    def is_mixed(self) -> bool:
        return self.input != self.target

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of the autocast for a call with a mixed pair."""
        lower = [dtype for dtype in (self.input, self.target) if dtype in (torch.float16, torch.bfloat16)]
        return lower[0] if self.is_mixed and lower else None

    def __str__(self) -> str:
        names = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in (self.input, self.target))
        return "/".join(names)


FLOAT32 = Dtypes(torch.float32, torch.float32)
BFLOAT16 = Dtypes(torch.bfloat16, torch.bfloat16)
MIXED = Dtypes(torch.bfloat16, torch.float32)


def _filled(x: Tensor) -> Tensor:
    return x.uniform_() if x.is_floating_point() else x.random_(0, 2)


def dense(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    return _filled(torch.empty(shape, dtype=dtype, device=device))


def channels_last(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    return _filled(torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last))


def sliced(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    """``x[..., :-8]`` of a wider tensor."""
    return dense((*shape[:-1], shape[-1] + 8), dtype, device)[..., :-8]


def by_column(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    """A number for each column; the caller expands it."""
    return dense(shape[-1:], dtype, device)


def by_row(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    """A number for each row; the caller expands it."""
    return dense((*shape[:-1], 1), dtype, device)


def misaligned(offset: int) -> Layout:
    """`offset` elements into a larger tensor."""

    def layout(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
        return dense((torch.Size(shape).numel() + offset,), dtype, device)[offset:].view(shape)

    return layout


@dataclass(frozen=True)
class Call:
    """A use of a loss, for cudaloss and for PyTorch. Without an idiom: ``loss(input, target)``."""

    ours: Idiom | None = None
    op: Idiom | None = None  # if the op itself is called in another way than the function
    eager: Idiom | None = None
    compiled: Idiom | None = None  # for torch.compile, if it does not fuse eager's best form
    indexed: Idiom | None = None  # a rival of its own, in eager PyTorch
    # In the input's shape and dtype, on a device.
    arguments: Callable[[Shape, torch.dtype, str], tuple[Tensor, ...]] = lambda shape, dtype, device: ()
    bytes_an_element: int = 0  # the least bytes of the arguments that must be read
    full_sized: int = 0  # how many of them have the input's size and dtype
    inputs: str = ""  # the numbers, if not those of the row
    one_row: bool = False  # the target is one row, shared by all rows of the input


PLAIN = Call()
MASK = Call(
    ours=lambda loss, x, y, mask: loss(x, y, mask=mask),
    eager=lambda loss, x, y, mask: (loss(x, y, reduction="none") * mask).sum() / mask.sum(),
    indexed=lambda loss, x, y, mask: loss(x[mask], y[mask]),
    arguments=lambda shape, dtype, device: (torch.randint(2, shape, dtype=torch.bool, device=device),),
    bytes_an_element=2,  # once for the count that divides the gradients, and once for the pass
)
ROW_WEIGHTS = Call(
    ours=lambda loss, x, y, weight: loss(x, y, weight=weight),
    # Eager sums the elements with one weight before it multiplies: no second tensor of losses, forward or backward.
    eager=lambda loss, x, y, weight: (
        (loss(x, y, reduction="none").sum((0, 1, 3)) * weight.flatten()).sum()
        / (weight.sum() * (x.numel() // weight.numel()))
    ),
    compiled=lambda loss, x, y, weight: (
        (loss(x, y, reduction="none") * weight).sum() / (weight.sum() * (x.numel() // weight.numel()))
    ),
    arguments=lambda shape, dtype, device: (torch.rand(1, 1, shape[2], 1, device=device),),
)
PER_SAMPLE = Call(
    ours=lambda loss, x, y: loss(x, y, batch_dims=1).sum(),
    eager=lambda loss, x, y: loss(x, y, reduction="none").mean((1, 2, 3)).sum(),
)
SAMPLE_WEIGHTS = Call(
    ours=lambda loss, x, y, weight: (loss(x, y, batch_dims=1) * weight).sum(),
    eager=lambda loss, x, y, weight: (loss(x, y, reduction="none").mean((1, 2, 3)) * weight).sum(),
    arguments=lambda shape, dtype, device: (torch.rand(shape[0], device=device),),
)
INTEGER_TARGET = Call(eager=lambda loss, x, y: loss(x, y.float()))
SCALED_SUM = Call(
    ours=lambda loss, x, y: loss(x, y, reduction="sum", scale=0.3),
    eager=lambda loss, x, y: 0.3 * loss(x, y, reduction="sum"),
)


def _mean_of_singles(loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    return loss(x, y, reduction="none").mean()


SINGLES = Call(ours=_mean_of_singles, eager=_mean_of_singles)


def _smooth_l1_of(x: Tensor, y: Tensor, beta: Tensor) -> Tensor:
    """The mean of smooth L1 with a tensor of betas, which PyTorch's own does not take."""
    d = (x - y).abs()
    return torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta).mean()


def _given_as(keyword: str) -> Idiom:
    return lambda loss, x, y, numbers: loss(x, y, **{keyword: numbers})


# Within (0, 1), as a quantile must be, and not near 0, where a beta makes almost nothing quadratic.
def _numbers(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device).uniform_(0.2, 0.8)


def _for_classes(keyword: str, eager: Idiom | None = None, op: str | None = None) -> Call:
    """A number for each column, given as `keyword`, and to the op as `op`; to PyTorch too, if it has no idiom of its
    own."""
    return Call(
        ours=_given_as(keyword),
        op=_given_as(op or keyword),
        eager=eager or _given_as(keyword),
        arguments=lambda shape, dtype, device: (_numbers(shape[-1:], torch.float32, device),),
    )


POS_WEIGHTS = _for_classes("pos_weight")
CLASS_WEIGHTS = _for_classes("weight")
QUANTILES = _for_classes("quantile", op="quantile_tensor")
BETAS = _for_classes("beta", eager=lambda loss, x, y, betas: _smooth_l1_of(x, y, betas), op="beta_tensor")

# A variance for each element, which has a gradient of its own.
VARIANCE = Call(
    ours=_given_as("var"),
    eager=_given_as("var"),
    arguments=lambda shape, dtype, device: (_numbers(shape, dtype, device).add_(1).requires_grad_(),),
    bytes_an_element=4,  # the gradient
    full_sized=1,
)

# By loss: the plain call, for losses that PyTorch does not compute without a third operand.
WITH_THIRD = {
    "gaussian_nll": Call(
        ours=_given_as("var"),
        eager=_given_as("var"),
        arguments=lambda shape, dtype, device: (_numbers(shape, dtype, device).add_(1),),  # for a loss above 0
        full_sized=1,
    ),
    "margin_ranking": Call(
        ours=_given_as("target"),
        eager=_given_as("target"),
        arguments=lambda shape, dtype, device: (torch.randint(2, shape, dtype=dtype, device=device).mul_(2).sub_(1),),
        full_sized=1,
    ),
}


@dataclass(frozen=True)
class Mode:
    """A call without grad, or with its backward."""

    name: str
    meaning: str = ""
    call: Call = PLAIN
    training: bool = True
    dtypes: Dtypes | None = None  # None: those that the user asks for
    layouts: tuple[Layout, Layout] = (dense, dense)  # of input and target
    factor: float | None = None  # multiplies the loss before its backward
    both: bool = False  # both operands need a gradient, otherwise only the input
    compiled: bool = False  # cudaloss's function inside torch.compile, compared only with torch.compile
    only: tuple[str, ...] = tuple(spec.name for spec in SPECS)

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that can be called in this mode."""
        is_own = len(self.only) == 1
        return tuple(name for name in self.only if self.call is PLAIN or is_own or name not in WITH_THIRD)


# Not a multiple of a vector from the start of the allocation, and not at the same distance as the other operand.
_MISALIGNED = (misaligned(1), misaligned(3))

FORWARD = Mode("forward", training=False)
STEP = Mode("step", "the input needs a gradient")
FORWARD_MODES = (FORWARD, Mode("misaligned", training=False, layouts=_MISALIGNED))
TRAINING_MODES = (
    STEP,
    Mode("scaled", "and the loss is multiplied by a number before its backward", factor=0.5),
    Mode("misaligned", "and the operands are slices of larger tensors", layouts=_MISALIGNED),
    Mode("both", "both operands need gradients", both=True),
    Mode("compiled", "cudaloss inside torch.compile, beside torch.compile of PyTorch's", compiled=True),
)

# PyTorch's idiom of a weighted mean divides by the sum of the weights.
_OVER_WEIGHTS = tuple(spec.name for spec in SPECS if not spec.mean_over_count)
MASKED_FORWARD = Mode("masked_forward", call=MASK, training=False)
MASKED = Mode("masked", "a bool mask that selects half of the elements", MASK)
FEATURES = (
    MASKED,
    Mode("weighted", "a weight for each row of an image, the mean over the weights", ROW_WEIGHTS, only=_OVER_WEIGHTS),
    Mode("per_sample", "a mean for each sample, summed", PER_SAMPLE),
    Mode("per_sample_weighted", "a mean for each sample, times a weight and summed", SAMPLE_WEIGHTS),
    Mode("nhwc_nchw", "a channels_last input against a contiguous target", layouts=(channels_last, dense)),
    Mode("nhwc", "both operands channels_last", layouts=(channels_last, channels_last)),
    Mode("autocast", "a bf16 input against an fp32 target under autocast", dtypes=MIXED),
    Mode("masked_autocast", "autocast's operands with a mask", MASK, dtypes=MIXED),
    Mode("integer_target", "a uint8 target", INTEGER_TARGET, dtypes=Dtypes(torch.float32, torch.uint8)),
    Mode("sliced", "both operands slices x[..., :-8] of wider tensors", layouts=(sliced, sliced)),
    Mode("bf16_columns", "bf16, a target for each column", dtypes=BFLOAT16, layouts=(dense, by_column)),
    Mode("bf16_rows", "bf16, a target for each row", dtypes=BFLOAT16, layouts=(dense, by_row)),
    Mode("masked_rows", "a target for each row, and a mask", MASK, layouts=(dense, by_row)),
    Mode("scaled_sum", "0.3 times the sum", SCALED_SUM),
)

_BCE, _QUANTILE, _SMOOTH_L1 = ("binary_cross_entropy_with_logits",), ("quantile",), ("smooth_l1",)
_PROBABILITIES = ("binary_cross_entropy",)  # which has few kernels of its own
# Single losses' own features, on a matrix of samples and classes.
OWN_FEATURES = (
    Mode("logits", "binary cross entropy, fp32", only=_BCE),
    Mode("bf16_logits", "binary cross entropy, bf16", dtypes=BFLOAT16, only=_BCE),
    Mode("pos_weights", "binary cross entropy, a pos_weight for each class", POS_WEIGHTS, only=_BCE),
    Mode("class_weights", "binary cross entropy, a weight for each class", CLASS_WEIGHTS, only=_BCE),
    Mode("singles", "binary cross entropy, single losses and their mean, fp32", SINGLES, only=_BCE),
    Mode(
        "fp32_singles",
        "binary cross entropy of probabilities, single losses and their mean, fp32",
        SINGLES,
        only=_PROBABILITIES,
    ),
    Mode(
        "bf16_singles",
        "binary cross entropy of probabilities, single losses and their mean, bf16",
        SINGLES,
        dtypes=BFLOAT16,
        only=_PROBABILITIES,
    ),
    Mode("quantile", "quantile loss, one quantile", only=_QUANTILE),
    Mode("quantiles", "quantile loss, a quantile for each column", QUANTILES, only=_QUANTILE),
    Mode("betas", "smooth L1, a beta for each column", BETAS, only=_SMOOTH_L1),
    Mode("variance", "Gauss, a var that needs a gradient", VARIANCE, only=("gaussian_nll",)),
)
