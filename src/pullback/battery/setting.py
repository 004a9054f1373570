"""One case called again in another setting, such as a checkpoint: where its result parts from the plain call's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, one_line
from pullback.battery.trials import Difference, Result, Trial
from pullback.finding import Finding


@dataclass(frozen=True)
class Setting:
    """How a case is called, and how a fault that shows there is told.

    Attributes:
        subject: Whose.
        case: The arguments.
        rule: The code of the fault.
        where: The setting as a sentence begins with it: ``under a lock``.
        alone: What it is compared with, as a sentence ends: ``without a lock``.
        repro: The lines that show the fault, for an order of the derivative and for whether values differ.
        what: What is varied, for the finding's own ``where``.
        evidence: What marks the setting in a report for machines.
    """

    subject: Subject
    case: Case
    rule: str
    where: str
    alone: str
    repro: Callable[[int, bool], str]
    what: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)

    def fault(self, expected: Result, got: Callable[[], Result], *, order: int = 1) -> Finding | None:
        """The finding if what `got` gives, in the setting, isn't what is expected; None if it is."""
        try:
            found = expected.differs_from(got())
        except ForwardRaised as raised:
            return self.raises("forward", raised.error, order=order)
        except BackwardRaised as raised:
            return self.raises("backward" if order == 1 else "the second derivative", raised.error, order=order)
        return self.differs(found, order=order) if found is not None else None

    def second_fault(self, plain: Trial, got: Callable[[], Result]) -> Finding | None:
        """The same for second derivatives, where the plain call has any."""
        if self.subject.orders < 2:
            return None
        try:
            expected = plain.again(plain.forward())
        except (ForwardRaised, BackwardRaised):
            return None
        return self.fault(expected, got, order=2)

    def raises(self, what: str, error: BaseException, *, order: int = 1) -> Finding:
        """The finding that `what` raises in the setting."""
        text = one_line(error)
        return self.subject.finding(
            self.rule,
            self.case,
            f"{self.where}, {what} raises: {text}",
            what=self.what,
            expected=f"what comes {self.alone}",
            got=text,
            repro=self.repro(order, False),
            evidence={**self.evidence, "raised": type(error).__name__},
        )

    def differs(self, found: Difference, *, order: int = 1) -> Finding:
        """The finding that a result is another one in the setting."""
        is_value = found.kind == "value"
        return self.subject.finding(
            self.rule,
            self.case,
            f"{self.where}, the {'second derivative' if order > 1 else found.kind} is another one",
            argument="" if is_value else found.name,
            output=found.name if is_value else "",
            what=self.what,
            expected=f"{found.mismatch.expected}, as {self.alone}",
            got=found.mismatch.got,
            repro=self.repro(order, is_value),
            evidence={**found.mismatch.evidence, **self.evidence},
        )
