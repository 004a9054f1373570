"""Whether two tensors agree, and if not, by how much and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod

import torch

from pullback.battery.leaves import is_dense
from pullback.battery.numerics import flat, size_of
from pullback.battery.tolerances import Tolerance
from pullback.finding import MAP_SIDE, ErrorMap


@dataclass(frozen=True)
class Mismatch:
    """The largest difference between an expected and an obtained tensor.

    Attributes:
        expected: The expected number, or tensor where it is short.
        got: The same of what came.
        max_error: The largest difference.
        index: Where it is, as an index into the tensor; empty for a 0-d one.
        error_map: Where else there are some, if every element was compared.
    """

    expected: str
    got: str
    max_error: float
    index: tuple[int, ...] = ()
    error_map: ErrorMap | None = None

    @property
    def evidence(self) -> dict[str, object]:
        """What a finding keeps of it."""
        known: dict[str, object] = {"max_error": self.max_error, "index": list(self.index)}
        return known if self.error_map is None else {**known, "error_map": self.error_map.evidence}


_SHORT = 6


def compare(
    expected: torch.Tensor | None, got: torch.Tensor | None, tolerance: Tolerance, *, scale: float = 0.0
) -> Mismatch | None:
    """The largest difference beyond `tolerance`, or None.

    Args:
        expected: What should have come; None counts as zeros.
        got: What came; None counts as zeros.
        tolerance: How far they may lie apart. NaN equals NaN.
        scale: The size of the terms that a value is a sum of, where that is larger than the values themselves: what
            should cancel to 0 may leave a rounding of that size.
    """
    if expected is None and got is None:
        return None
    if expected is None or got is None:
        known = expected if expected is not None else got
        assert known is not None
        zeros = torch.zeros_like(known)
        mismatch = compare(*((known, zeros) if got is None else (zeros, known)), tolerance, scale=scale)
        if mismatch is None:
            return None
        none, value = "None", mismatch.expected if got is None else mismatch.got
        texts = (value, none) if got is None else ("None or zeros", value)
        return Mismatch(*texts, mismatch.max_error, mismatch.index, mismatch.error_map)
    if expected.shape != got.shape:
        return Mismatch(f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}", float("inf"))
    if is_dense(expected) and is_dense(got) and expected.dtype is got.dtype and torch.equal(expected, got):
        return None  # as most results of one program are, to the bit; to see that takes a tenth of what follows
    return _compare(expected, got, tolerance, scale)


def _compare(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, scale: float) -> Mismatch | None:
    wanted, came = flat(expected), flat(got)
    if wanted.numel() == 0:
        return None
    distance, size = float((wanted - came).abs().max()), float(wanted.abs().max())
    if distance <= tolerance.atol * max(size, scale) and isfinite(size):
        return None  # that settles nearly all that aren't the same to the bit, by a few operators
    same = (wanted == came) | (wanted.isnan() & came.isnan())
    error = torch.where(same, 0.0, (wanted - came).abs())
    error = torch.where(error.isnan(), float("inf"), error)
    finite = wanted[wanted.isfinite()].abs()
    largest = max(float(finite.max()) if finite.numel() else 0.0, scale)
    allowed = tolerance.rtol * wanted.abs().nan_to_num(0.0, 0.0, 0.0) + tolerance.atol * largest
    excess = torch.where(same, -1.0, error - allowed)
    beyond = excess > 0
    if not bool(beyond.any()):
        return None
    worst = int(error.argmax())
    place = worst // 2 if expected.is_complex() else worst
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape)) if expected.dim() else ()
    errors = map_of(torch.where(beyond, error, 0.0), expected)
    return Mismatch(_text(expected, place), _text(got, place), float(error[worst]), index, errors)


def map_of(errors: torch.Tensor, like: torch.Tensor) -> ErrorMap | None:
    """The picture of a tensor's errors, pooled by their largest.

    Args:
        errors: The errors as `flat` orders elements, complex numbers as pairs; 0 where the tensor is right.
        like: The tensor, for its shape and dtype.

    Returns:
        The map; None for a tensor without elements.
    """
    shape = tuple(like.shape)
    if errors.numel() == 0:
        return None
    if like.is_complex():
        errors = errors.reshape(-1, 2).amax(-1)
    leading, rows, columns = prod(shape[:-2]), *(1, 1, *shape)[-2:]
    plane = errors.reshape(leading, rows, columns).amax(0)
    height, width = -(-rows // MAP_SIDE), -(-columns // MAP_SIDE)
    padding = (0, -columns % width, 0, -rows % height)  # zeros, which no largest error notices
    padded = torch.nn.functional.pad(plane, padding)
    blocks = padded.reshape(-(-rows // height), height, -(-columns // width), width)
    values = tuple(tuple(_three_digits(error) for error in row) for row in blocks.amax((1, 3)).tolist())
    return ErrorMap(shape=shape, block=(leading, height, width), values=values)


def _three_digits(error: float) -> float | None:
    return float(f"{error:.3g}") if error < float("inf") else None


def natural_scale(outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor], argument: torch.Tensor) -> float:
    """The size that a gradient has where nothing cancels: that of output times cotangent over argument."""
    sizes = [size_of(output) * size_of(cotangent) for output, cotangent in zip(outputs, cotangents, strict=True)]
    return max(sizes, default=0.0) / size_of(argument)


def _text(tensor: torch.Tensor, place: int) -> str:
    """The whole tensor if it is short, else its element at `place`."""
    tensor = tensor if is_dense(tensor) else tensor.to_dense()
    if tensor.numel() <= _SHORT:
        return number(tensor)
    return f"{number(tensor.detach().reshape(-1)[place])} at {list(_index(tensor, place))}"


def _index(tensor: torch.Tensor, place: int) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape))


def number(value: torch.Tensor | float) -> str:
    """A number, or a short tensor as nested lists, to six significant digits."""
    if isinstance(value, torch.Tensor):
        return str(_rounded(value.detach().resolve_conj().tolist())).replace("'", "")
    return str(_rounded(value))


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, complex):
        return complex(float(f"{value.real:.6g}"), float(f"{value.imag:.6g}"))
    return float(f"{value:.6g}") if isinstance(value, float) else value
