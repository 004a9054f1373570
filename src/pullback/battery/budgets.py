"""What rounding may cost: an error budget for each element of a result that was computed below float64.

The conditioning is measured, not guessed. A reference in float64 is run a few times with its arguments, its cotangents
and the result of each of its operators changed by one unit of the lower dtype, up or down at random (Monte Carlo
arithmetic: D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997). By how much an element changes is what
a kernel that rounds as often loses there: much where terms cancel, little elsewhere. The numbers and their reasons are
in `pullback.battery.tolerances`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pullback.battery.compare import Mismatch, compare
from pullback.battery.leaves import address, is_float, tensors
from pullback.battery.numerics import flat, signs, unflat
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.tolerances import (
    AVERAGE_ROUNDINGS,
    COMMON_ROUNDINGS,
    EXACT,
    ROUNDINGS,
    SHAKES,
    Precision,
)
from pullback.torch_private import TorchDispatchMode

Results = Sequence["torch.Tensor | None"]
"""Several results of one computation, such as the gradients of all leaves."""


class _Rounds(TorchDispatchMode):
    """Changes what each operator gives by one unit, up or down at random.

    Views and in-place operators give no new numbers of their own. Whole numbers stay: they are masks, counts and
    indices, which no kernel rounds.
    """

    def __init__(self, unit: float, random: torch.Generator) -> None:
        super().__init__()
        self._unit, self._random = unit, random

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {address(tensor) for _, tensor in tensors((args, dict(kwargs or {})), "")}
        for _, tensor in tensors(result, ""):
            if tensor.dtype in (torch.float64, torch.complex128) and address(tensor) not in known:
                self._change(tensor)
        return result

    def _change(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if not bool((parts == parts.round()).all()):
            tensor.mul_(1 + self._unit * _signs(tensor, self._random))


def _signs(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return signs(tensor.numel(), random).reshape(tensor.shape).to(tensor.device)


@dataclass(frozen=True)
class Shake:
    """One random rounding of everything, to a unit.

    Attributes:
        unit: The size of a rounding, relative.
        random: Where its signs come from.
        arguments: Whether arguments and cotangents are rounded too; not where that leaves the domain of a function.
    """

    unit: float
    random: torch.Generator
    arguments: bool = True

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """A floating tensor with each of its numbers changed by one unit."""
        if not self.arguments or not is_float(tensor) or tensor.layout is not torch.strided:
            return tensor
        numbers = flat(tensor)
        return unflat(numbers * (1 + self.unit * signs(numbers.numel(), self.random).to(numbers)), tensor)

    @contextmanager
    def operators(self) -> Iterator[None]:
        """Round what each operator gives."""
        with _Rounds(self.unit, self.random):
            yield


@dataclass(frozen=True, eq=False)
class Budgets:
    """The budgets of several results of one computation.

    Args:
        precision: That of the coarsest dtype in it.
        terms: How many terms a sum in it may have: the number of elements of its largest tensor.
        exact: The results in float64.
        shaken: Computes them again under a `Shake`.
        random: For the signs.
        sizes: Those of the terms that each result is a sum of, where they cancel; those of the results unless given.
        results: How many roundings of the whole a difference has: two where a result that rounds is compared with one.
    """

    precision: Precision
    terms: int
    exact: Results
    shaken: Callable[[Shake], Results]
    random: torch.Generator
    sizes: Results | None = None
    results: int = 1

    def judge(self, place: int, got: torch.Tensor | None) -> Mismatch | None:
        """How the result at a place differs from the exact one, beyond its budget; None where it doesn't."""
        exact = self.exact[place]
        if exact is None or got is None or exact.shape != got.shape:  # there is nothing that could be rounded
            return compare(exact, got, EXACT)
        wanted, came = flat(exact), flat(got)
        usual = (wanted == came) | (wanted.isnan() & came.isnan())
        error = torch.where(usual, 0.0, (came - wanted))
        given = self.sizes[place] if self.sizes is not None else exact
        sizes = flat(given if given is not None else exact).abs().nan_to_num(0.0, 0.0, 0.0)
        if self._is_within(error, wanted, sizes, torch.zeros_like(wanted)):
            return None  # well conditioned or not: a budget only grows with it, and it takes time to find out
        if self._is_within(error, wanted, sizes, self._conditioning[place]):
            return None
        return compare(exact, got.to(exact.dtype), EXACT)

    @cached_property
    def _conditioning(self) -> list[torch.Tensor]:
        """For each result by how much its elements change under a rounding, as a root mean square."""
        exact = [flat(result) if result is not None else torch.zeros(0, dtype=torch.float64) for result in self.exact]
        squares = [torch.zeros_like(result) for result in exact]
        tries = [shaken for _ in range(SHAKES) if (shaken := self._once()) is not None]
        for shaken in tries:
            for square, known, result in zip(squares, exact, shaken, strict=True):
                if result is not None and known.numel():
                    square += torch.where(known.isfinite(), flat(result) - known, 0.0) ** 2
        if not tries:
            return [torch.full_like(square, float("inf")) for square in squares]
        return [(square / len(tries)).sqrt().nan_to_num(float("inf")) for square in squares]

    def _once(self) -> Results | None:
        for arguments in (True, False):
            try:
                return self.shaken(Shake(self.precision.unit, self.random, arguments))
            except (ForwardRaised, BackwardRaised):
                continue
        return None

    def _is_within(
        self, error: torch.Tensor, wanted: torch.Tensor, sizes: torch.Tensor, conditioning: torch.Tensor
    ) -> bool:
        """Whether the errors are within the budgets: each one, their average, and what they have in common."""
        if not bool(error.isfinite().all()):
            return False
        average = float((sizes**2).mean().sqrt())
        growth = 1.0 + self.precision.sums / self.precision.unit * float(self.terms) ** 0.5
        budget = growth * (self.precision.unit * (sizes + average) + conditioning) + self.precision.smallest
        budget = self.results**0.5 * budget
        if bool((error.abs() > ROUNDINGS * budget).any()):
            return False
        most = AVERAGE_ROUNDINGS + ROUNDINGS / error.numel() ** 0.5  # of a few elements nothing is an average
        if float((error**2).mean()) > most**2 * float((budget**2).mean()):
            return False
        size = float((sizes**2).sum())
        common = abs(float((error * wanted.nan_to_num(0.0, 0.0, 0.0)).sum()))
        chance = ROUNDINGS * float(((budget * sizes) ** 2).sum().sqrt())
        allowed = self.results**0.5 * COMMON_ROUNDINGS * growth * self.precision.unit * size
        return bool(common <= allowed + chance)
