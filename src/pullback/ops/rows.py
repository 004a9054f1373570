"""What the normalisations share: the rows that they work on, their precision, and a sum of gradients over all rows.

A row is what is normalised together: the elements of the last axes, H in number. An input of shape (B, T, H), or
(B, T, H₁, H₂) with normalized_shape (H₁, H₂), has M = B·T rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops.arguments import check_tensors
from pullback.ops.chunks import threads
from pullback.torch_private import transforms_active

_PIECE = 2**16
"""How many elements one thread widens at a time: a quarter of a MiB in float32, which stays in a core's cache."""

Gradients: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""By the rows, the weight and the bias."""


def axes_of(name: str, input: Tensor, normalized_shape: int | Sequence[int], **parameters: Tensor | None) -> int:
    """How many axes of the input make a row; the arguments of a normalisation are judged on the way.

    Args:
        name: What the user called.
        input: What is normalised.
        normalized_shape: The shape of a row, or H alone.
        **parameters: Tensors of the shape of a row, by name.

    Returns:
        The number of entries of normalized_shape.

    Raises:
        OperationError: PB130, for a dtype that isn't a real floating-point one, or shapes that don't fit.
    """
    check_tensors(name, (*parameters,), input=input, **parameters)
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if not input.is_floating_point():
        raise OperationError(
            "PB130",
            f"{name} normalises real floating-point numbers; `input` has others.",
            expected="input of float64, float32, bfloat16 or float16",
            got=f"input of {input.dtype}",
            remedy="Convert the input, as by input.float().",
        )
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise OperationError(
            "PB130",
            f"{name} normalises over the last axes of `input`, and `normalized_shape` isn't their shape.",
            expected="normalized_shape of at least one entry, equal to the end of input's shape",
            got=f"normalized_shape {list(shape)} for an input of shape {list(input.shape)}",
            remedy="Give the sizes of the axes to normalise over, as input.shape[-1:] for the last one.",
        )
    for parameter, value in parameters.items():
        if value is not None and (tuple(value.shape) != shape or not value.is_floating_point()):
            raise OperationError(
                "PB130",
                f"{name} has one entry of `{parameter}` for each element of a row.",
                expected=f"{parameter} of shape {list(shape)}, of floating-point numbers",
                got=f"{parameter} of shape {list(value.shape)}, of {value.dtype}",
                remedy=f"Give {parameter} the shape that normalized_shape has.",
            )
    return len(shape)


def rows_of(tensor: Tensor, axes: int) -> Tensor:
    """The rows as a contiguous matrix (M, H); a view where the memory allows it."""
    batch, row = tensor.shape[: tensor.dim() - axes], tensor.shape[tensor.dim() - axes :]
    return tensor.reshape(math.prod(batch), math.prod(row)).contiguous()


def row_shape(tensor: Tensor, axes: int) -> torch.Size:
    """The shape of one row."""
    return tensor.shape[tensor.dim() - axes :]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What a dtype is computed in: the low ones in float32, as PyTorch does."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def widened(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A parameter as one row of memory, in the dtype that is computed in."""
    return None if parameter is None else parameter.to(dtype).flatten().contiguous()


def low_on_cpu(x: Tensor) -> bool:
    """Whether PyTorch's kernels take rows in a low dtype together with parameters and statistics in the wide one."""
    return x.dtype != wide(x.dtype) and x.device.type == "cpu" and not whole()


def whole() -> bool:
    """Whether to write operations whole: a compiler divides them itself, and vmap refuses to write in parts."""
    return torch.compiler.is_compiling() or transforms_active()


def pieces(dtype: torch.dtype, into: Sequence[Tensor], of: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Matrices of as many rows, some rows of each at a time.

    Args:
        dtype: What `of` is widened to.
        into: Handed out as views.
        of: Handed out as wide copies, each in memory that the next piece overwrites; as views if they are wide.
    """
    many = max(1, _PIECE * threads() // max(1, of[0].shape[1]))
    buffers = [None if tensor.dtype == dtype else tensor.new_empty(many, tensor.shape[1], dtype=dtype) for tensor in of]
    for part in zip(*(tensor.split(many) for tensor in (*into, *of)), strict=True):
        given = zip(buffers, part[len(into) :], strict=True)
        copies = (some if buffer is None else buffer[: some.shape[0]].copy_(some) for buffer, some in given)
        yield *part[: len(into)], *copies


def in_wide(of_rows: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Values of rows and one number for each, computed in the wide dtype.

    A low dtype is widened piece by piece, so that no wide copy of the input's size is made.

    Args:
        of_rows: Gives values and numbers (M, 1) of some rows, all wide.
        x: The rows (M, H).

    Returns:
        The values in x's dtype, the numbers wide.
    """
    dtype = wide(x.dtype)
    if x.dtype == dtype or whole():
        y, number = of_rows(x.to(dtype))
        return y.to(x.dtype), number
    out, numbers = torch.empty_like(x), x.new_empty(x.shape[0], 1, dtype=dtype)
    for place, numbers_place, some in pieces(dtype, (out, numbers), (x,)):
        y, number = of_rows(some)
        place.copy_(y)
        numbers_place.copy_(number)
    return out, numbers


def summed_gradients(
    of_rows: Callable[[Tensor, Tensor, Tensor, Tensor], Gradients],
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    by_pieces: bool = False,
) -> Gradients:
    """The gradients of a normalisation, computed and summed in the wide dtype.

    A low dtype is widened piece by piece, as in `in_wide`; the sums over rows stay wide.

    Args:
        of_rows: Gives the gradients for some rows, from cotangent, input, mean and 1/σ, all wide.
        g: The cotangent (M, H).
        x: The rows (M, H).
        mean: One for each row (M, 1), wide.
        rstd: 1/σ, or what is in its place, as mean.
        by_pieces: Whether rows that are wide are taken piece by piece too. PyTorch's kernel adds up one row after the
            other, which over thousands of rows rounds many times; a sum of the sums of pieces is far nearer.

    Returns:
        The gradient by the rows in x's dtype; those by weight and bias wide.
    """
    dtype = rstd.dtype
    if whole() or (x.dtype == dtype and not (by_pieces and x.device.type == "cpu")):
        gx, gweight, gbias = of_rows(g.to(dtype), x.to(dtype), mean, rstd)
        return None if gx is None else gx.to(x.dtype), gweight, gbias
    out = g.new_empty(x.shape, dtype=x.dtype)  # of g, which alone has the batch where cotangents come in one
    gx, weights, biases = None, [], []
    for place, some_mean, some_rstd, some_g, some_x in pieces(dtype, (out, mean, rstd), (g, x)):
        gx, gweight, gbias = of_rows(some_g, some_x, some_mean, some_rstd)
        if gx is not None:
            place.copy_(gx)
        weights.append(gweight)
        biases.append(gbias)
    return None if gx is None else out, _total(weights), _total(biases)


def _total(sums: list[Tensor | None]) -> Tensor | None:
    """The sum of the pieces' sums, by PyTorch's own summation, which adds up in a tree."""
    there = [one for one in sums if one is not None]
    return torch.stack(there).sum(0) if there else None
