"""Two results of one program that should be one, as for another layout: how far rounding lets them part.

In float64 only the order of sums may differ. Below it nobody says what is exact: here the first result stands for it,
and the budget of `pullback.battery.budgets` says how far a second one may lie from it, with the conditioning that the
program itself shows where its arguments and cotangents are rounded at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pullback.battery.budgets import Budgets, Shake
from pullback.battery.compare import Mismatch, compare
from pullback.battery.leaves import is_float
from pullback.battery.oracle import in_double, largest
from pullback.battery.randomness import own_seed
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import EXACT, SAME, Tolerance, precision_of

Named = Mapping[str, "torch.Tensor | None"]
"""Results by name: values by output, gradients by argument."""


@dataclass(frozen=True, eq=False)
class Own:
    """What a program gave for a case, to compare with what it gives for the same case in another setting.

    Args:
        subject: Whose.
        case: The case.
        expected: What it gave.
        again: Gives it again with whatever is rounded by a `Shake`: arguments and cotangents.
        exactly: How near results in float64 have to be.
        sizes: Those of the terms that a result is a sum of, where they cancel.
    """

    subject: Subject
    case: Case
    expected: Named
    again: Callable[[Shake], Named]
    exactly: Tolerance = SAME
    sizes: Named = field(default_factory=dict)

    def differs(self, name: str, got: torch.Tensor | None, *, scale: float = 0.0) -> Mismatch | None:
        """How a result in the other setting differs, beyond what rounding explains; None where it doesn't.

        Args:
            name: Which.
            got: What came; None counts as zeros.
            scale: The size of the terms that a value is a sum of, for float64.
        """
        expected = self.expected[name]
        one = expected if expected is not None else got
        if self.case.exact or one is None or not is_float(one):
            return compare(expected, got, self.exactly, scale=scale)
        if compare(expected, got, EXACT) is None:
            return None
        if expected is None or got is None or expected.shape != got.shape:
            return compare(expected, got, self.exactly, scale=scale)
        return self._budgets.judge(list(self.expected).index(name), got)

    @cached_property
    def _budgets(self) -> Budgets:
        known = list(self.expected.values())
        floats = [t for t in known if t is not None and is_float(t)]
        named = [t for _, _, t in self.subject.named_tensors(self.case.sample) if is_float(t)]
        _, precision = precision_of(t.dtype for t in (*floats, *named))
        return Budgets(
            precision,
            largest(self.subject, self.case, floats),
            [in_double(t) if t is not None else None for t in known],
            self._shaken,
            torch.Generator().manual_seed(own_seed(self.subject.seed, f"roundings of {self.case.label}")),
            [self.sizes.get(name, t) for name, t in self.expected.items()],
            results=2,
        )

    def _shaken(self, shake: Shake) -> list[torch.Tensor | None]:
        found = self.again(shake)
        return [found.get(name, known) for name, known in self.expected.items()]
