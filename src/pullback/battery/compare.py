"""Whether two tensors agree, and if not, by how much and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pullback.battery.numerics import flat, size_of
from pullback.battery.tolerances import Tolerance


@dataclass(frozen=True)
class Mismatch:
    """The largest difference between an expected and an obtained tensor.

    Attributes:
        expected: The expected number, or tensor where it is short.
        got: The same of what came.
        max_error: The largest difference.
        index: Where it is, as an index into the tensor; empty for a 0-d one.
    """

    expected: str
    got: str
    max_error: float
    index: tuple[int, ...] = ()

    @property
    def evidence(self) -> dict[str, object]:
        """What a finding keeps of it."""
        return {"max_error": self.max_error, "index": list(self.index)}


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
        return Mismatch(*texts, mismatch.max_error, mismatch.index)
    if expected.shape != got.shape:
        return Mismatch(f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}", float("inf"))
    return _compare(expected, got, tolerance, scale)


def _compare(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, scale: float) -> Mismatch | None:
    wanted, came = flat(expected), flat(got)
    if wanted.numel() == 0:
        return None
    same = (wanted == came) | (wanted.isnan() & came.isnan())
    error = torch.where(same, 0.0, (wanted - came).abs())
    error = torch.where(error.isnan(), float("inf"), error)
    finite = wanted[wanted.isfinite()].abs()
    largest = max(float(finite.max()) if finite.numel() else 0.0, scale)
    allowed = tolerance.rtol * wanted.abs().nan_to_num(0.0, 0.0, 0.0) + tolerance.atol * largest
    excess = torch.where(same, -1.0, error - allowed)
    if not bool((excess > 0).any()):
        return None
    worst = int(error.argmax())
    place = worst // 2 if expected.is_complex() else worst
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape)) if expected.dim() else ()
    return Mismatch(_text(expected, place), _text(got, place), float(error[worst]), index)


def natural_scale(outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor], argument: torch.Tensor) -> float:
    """The size that a gradient has where nothing cancels: that of output times cotangent over argument."""
    sizes = [size_of(output) * size_of(cotangent) for output, cotangent in zip(outputs, cotangents, strict=True)]
    return max(sizes, default=0.0) / size_of(argument)


def _text(tensor: torch.Tensor, place: int) -> str:
    """The whole tensor if it is short, else its element at `place`."""
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
