"""One cause, one finding: which finding explains which, in one table.

A fault shows in many experiments: a wrong first derivative makes the second wrong too, a list that autograd can't see
leaves every gradient `None`. `merge` drops what another finding explains, and joins what several samples, or several
probes, show of the same fault.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pullback.finding import Finding
from pullback.rules import Severity


class Scope(enum.Enum):
    """Where a cause explains its consequences."""

    EVERYWHERE = "everywhere"
    SAME_ARGUMENT = "for the same argument"
    NO_ARGUMENT = "where the consequence names no argument"


@dataclass(frozen=True)
class Explains:
    """One row: where `cause` is found, its `consequences` within `scope` are no faults of their own.

    Attributes:
        cause: The rule that explains.
        scope: Where.
        consequences: The rules that it explains.
        though_milder: Whether a cause may explain what is more severe; as a rule a warning can't hide an error.
    """

    cause: str
    scope: Scope
    consequences: tuple[str, ...]
    though_milder: bool = False


_GRADIENTS = (
    "PB203", "PB204", "PB205", "PB206", "PB207", "PB208", "PB209", "PB210", "PB211", "PB212", "PB213", "PB214",
    "PB215", "PB216", "PB405", "PB406", "PB407", "PB408", "PB505", "PB506", "PB507", "PB509",
    "PB515", "PB517", "PB518", "PB519", "PB520",
)  # fmt: skip
_LATER = ("PB205", "PB206", "PB207")

TABLE: tuple[Explains, ...] = (
    # Nothing after a forward that raises, or tensors that autograd can't see, says anything about the derivative.
    Explains("PB501", Scope.EVERYWHERE, ("PB121", "PB125", "PB201", *_GRADIENTS, "PB502", "PB302", "PB601", "PB304")),
    Explains("PB502", Scope.EVERYWHERE, ("PB121", "PB125", "PB201", *_GRADIENTS, "PB302", "PB601", "PB304")),
    Explains("PB125", Scope.EVERYWHERE, ("PB121",)),
    Explains("PB201", Scope.EVERYWHERE, ("PB125", *_GRADIENTS)),
    Explains("PB202", Scope.EVERYWHERE, ("PB125", *_GRADIENTS)),
    Explains("PB109", Scope.EVERYWHERE, ("PB125", *_GRADIENTS)),
    # A forward that writes to its argument, or remembers earlier calls, is another function at each call.
    Explains("PB401", Scope.EVERYWHERE, ("PB121", *_GRADIENTS, "PB504", "PB302", "PB301")),
    Explains("PB402", Scope.EVERYWHERE, ("PB121", *_GRADIENTS, "PB504", "PB302", "PB301")),
    Explains("PB403", Scope.EVERYWHERE, (*_GRADIENTS, "PB504", "PB404")),
    Explains("PB404", Scope.EVERYWHERE, (*_GRADIENTS, "PB504", "PB125", "PB301")),
    Explains("PB504", Scope.EVERYWHERE, ("PB121", "PB125", *_GRADIENTS, "PB302", "PB303", "PB306", "PB219")),
    # An output whose gradient is dropped makes the gradients wrong for that output.
    Explains("PB209", Scope.EVERYWHERE, ("PB203", "PB204", *_LATER, "PB211", "PB304", "PB507", "PB515")),
    Explains("PB210", Scope.EVERYWHERE, ("PB125", "PB209")),
    # What isn't linear can't be a vector-Jacobian product, so it also differs from one.
    Explains("PB211", Scope.SAME_ARGUMENT, ("PB203", "PB216", "PB212", *_LATER, "PB507", "PB509")),
    Explains("PB216", Scope.SAME_ARGUMENT, ("PB203", "PB212", *_LATER, "PB506", "PB507")),
    Explains("PB219", Scope.EVERYWHERE, ("PB203", "PB505", "PB506", "PB515", "PB517", "PB518")),
    Explains("PB503", Scope.EVERYWHERE, ("PB306",)),
    # Low precision shows as a small difference from the exact derivative.
    Explains("PB215", Scope.SAME_ARGUMENT, ("PB211", "PB214", "PB507"), though_milder=True),
    Explains("PB214", Scope.SAME_ARGUMENT, ("PB211", *_LATER, "PB507")),
    # What pullback itself says of a gradient that isn't the reference's, which rounding alone may be the reason of.
    Explains("PB214", Scope.NO_ARGUMENT, ("PB203",)),
    # A gradient that is wrong to begin with is wrong in each further experiment.
    Explains("PB203", Scope.SAME_ARGUMENT, ("PB208", "PB212", *_LATER, "PB408", "PB505", "PB506", "PB507")),
    Explains("PB204", Scope.SAME_ARGUMENT, ("PB203", "PB208", *_LATER, "PB408", "PB505", "PB506", "PB507", "PB601")),
    # A flag that guards another argument's gradient leaves it out here and computes it in vain there.
    Explains("PB208", Scope.EVERYWHERE, ("PB601",)),
    Explains("PB213", Scope.SAME_ARGUMENT, ("PB125", "PB203", "PB208", *_LATER, "PB505")),
    # Higher orders: the named cause before the bare number.
    Explains("PB212", Scope.EVERYWHERE, ("PB205", "PB507")),
    Explains("PB206", Scope.EVERYWHERE, ("PB205", "PB207", "PB303")),
    Explains("PB207", Scope.EVERYWHERE, ("PB205",)),
    # Where no jvp is written, forward mode is the derivative of backward by grad_output, which double_backward gives.
    Explains("PB205", Scope.EVERYWHERE, ("PB507",)),
    # An argument or output that is kept on ctx is a tensor on ctx, and leaks.
    Explains("PB302", Scope.EVERYWHERE, ("PB303", "PB306", *_LATER)),
    Explains("PB303", Scope.EVERYWHERE, ("PB306",)),
    # A jvp that raises for one argument gives no tangent to compare for another.
    Explains("PB508", Scope.EVERYWHERE, ("PB507",)),
    # Checkpointing is made of hooks; a race, or a second run, may show in compiled code too.
    Explains("PB519", Scope.EVERYWHERE, ("PB515", "PB518", "PB407")),  # the memory around it is another in each layout
    Explains("PB518", Scope.EVERYWHERE, ("PB515",)),
    Explains("PB520", Scope.EVERYWHERE, ("PB509", "PB515")),  # memory outside of the call has no room for a batch
    # Memory order: raising and being wrong are one fault, and who reads raw memory leaves the graph.
    Explains("PB405", Scope.EVERYWHERE, ("PB406", "PB205", "PB207")),
    Explains("PB406", Scope.EVERYWHERE, ("PB205",)),
)
"""Read as: where the cause is found, its consequences (within the scope) are left out."""

_ALIKE = ("PB211", "PB214", "PB215", "PB216", "PB601")
"""Rules that say of each argument the same, with one remedy: one finding stands for all of them, and names them."""

_OF_NUMBERS = ("PB203", "PB204", "PB205", "PB206", "PB207", "PB217", "PB405", "PB406", "PB507")
"""Rules that compare the gradient of each argument: where one probe finds the same of several and the errors have no
pattern, or the same one, the slip is most often in what their formulas share, a slope or a tensor that was saved."""

_WORST_FIRST = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.HINT: 2}


def merge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that stand for a cause of their own, worst first; each rule once for each argument and output."""
    findings = list(findings)
    causes = [finding for finding in findings if not any(_explains(cause, finding) for cause in findings)]
    joined: dict[tuple[object, ...], list[Finding]] = {}
    for finding in causes:
        joined.setdefault(_key(finding), []).append(finding)
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for group in joined.values():
        one = _join(group)
        alike.setdefault(_across(one), []).append(one)
    return tuple(sorted((_as_one(group) for group in alike.values()), key=lambda f: _WORST_FIRST[f.severity]))


def _explains(cause: Finding, finding: Finding) -> bool:
    """Whether `cause` makes `finding` a mere consequence."""
    milder = _WORST_FIRST[cause.severity] > _WORST_FIRST[finding.severity]
    return any(
        row.cause == cause.rule
        and finding.rule in row.consequences
        and _within(row.scope, cause, finding)
        and (row.though_milder or not milder)
        for row in TABLE
    )


def _within(scope: Scope, cause: Finding, finding: Finding) -> bool:
    if scope is Scope.EVERYWHERE:
        return True
    theirs = finding.evidence.get("argument")
    return theirs is None or (scope is Scope.SAME_ARGUMENT and theirs == cause.evidence.get("argument"))


def _key(finding: Finding) -> tuple[object, ...]:
    """What makes two findings the same fault: the rule and the thing at fault, not the sample or the probe."""
    evidence = finding.evidence
    argument = evidence.get("argument") if finding.rule not in _ALIKE else None
    names = (evidence.get(key) for key in ("output", "tensor", "said"))
    return finding.rule, finding.severity, argument, *names


def _join(group: list[Finding]) -> Finding:
    """One finding for a fault that several samples or probes show: the first, with a count of the rest."""
    first = group[0]
    samples = sorted({sample for finding in group if isinstance(sample := finding.evidence.get("sample"), int)})
    if len(samples) > 1:
        first = replace(first, evidence={**first.evidence, "samples": samples})
    return _with_arguments(first, group) if first.rule in _ALIKE else first


def _across(finding: Finding) -> tuple[object, ...]:
    """What makes two findings on different arguments one fault."""
    known = finding.evidence
    if finding.rule not in _OF_NUMBERS or "argument" not in known or "arguments" in known:
        return (id(finding),)
    names = (known.get(key) for key in ("output", "tensor", "said", "diagnosis"))
    return finding.rule, finding.severity, finding.probe, *names


def _as_one(group: list[Finding]) -> Finding:
    """The finding with the largest error, with all arguments by name and all samples."""
    if len(group) == 1:
        return group[0]
    worst = max(group, key=_error)  # the first of those that are equally bad
    samples = sorted({sample for finding in group for sample in _samples(finding)})
    if len(samples) > 1:
        worst = replace(worst, evidence={**worst.evidence, "samples": samples})
    return _with_arguments(worst, [worst, *(finding for finding in group if finding is not worst)])


def _error(finding: Finding) -> float:
    error = finding.evidence.get("max_error")
    return float(error) if isinstance(error, (int, float)) else 0.0


def _samples(finding: Finding) -> list[int]:
    listed = finding.evidence.get("samples", [finding.evidence.get("sample")])
    return [sample for sample in listed if isinstance(sample, int)] if isinstance(listed, list) else []


def _with_arguments(first: Finding, group: list[Finding]) -> Finding:
    """The first finding, with the other arguments of which the same is found."""
    arguments = list(dict.fromkeys(str(finding.evidence.get("argument", "")) for finding in group))
    others = arguments[1:]
    if not others:
        return first
    dtypes = {str(finding.evidence.get("argument", "")): finding.evidence.get("dtype") for finding in reversed(group)}
    labels = [name if dtypes[name] == first.evidence.get("dtype") else f"{name} ({dtypes[name]})" for name in others]
    message = f"{first.message}; {_also(first.rule, labels)}"
    where = first.where.replace(f"argument {arguments[0]}", f"arguments {_listed(arguments)}", 1)
    return replace(first, message=message, where=where, evidence={**first.evidence, "arguments": arguments})


def _also(rule: str, others: list[str]) -> str:
    """What holds of the other arguments, too."""
    gradients, are = ("gradients", "are") if len(others) > 1 else ("gradient", "is")
    if rule == "PB601":
        return f"the {gradients} of {_listed(others)}, too, {are} computed where not asked for"
    return f"the same holds for {_listed(others)}"


def _listed(names: list[str]) -> str:
    return " and ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])
