"""The templates of the documentation of losses of vectors, which ``row_docs`` fills."""

from __future__ import annotations

FUNCTION_DOC = """``{formula}`` of each row, fused.

{replaces}Source of the formula: {source}.

{about}

Args:
{operands}
{options}

Returns:
    Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
    dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
    mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in {vectors}, weight and
    normalizer, any number of times.

Raises:
    TypeError: an argument has the wrong type, for example a list instead of a tensor.
    ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
        ``batch_dims`` is negative or above the rank of the rows{of_margin}.
    RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
        or nested; ``dtype`` is not a floating one{of_number}.
    IndexError: the operands have no dimension of vectors.

Example:
{example}
"""

MODULE_DOC = """``{formula}`` of each row: the module of :func:`cudaloss.{function}`.

{replaces}Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
    ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

Raises:
    TypeError: when the module is called, as the function does.
    ValueError: likewise.
    RuntimeError: likewise.
    IndexError: likewise.

Example:
    >>> import torch, cudaloss
    >>> criterion = cudaloss.{module}(reduction="none")
    >>> criterion({called}).shape
    torch.Size([2])
"""

FIRST_OPERAND = """(Tensor): {what}, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
    kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
    computes its own shard."""
OTHER_OPERAND = """(Tensor): {what}, with a floating dtype and a shape that broadcasts with the first operand's."""
LABEL = """(Tensor): 1 or -1 for each row, with any real dtype; of shape ``(N,)`` if the vectors are ``(N, D)``, or
    ``()`` if they are ``(D,)``."""
