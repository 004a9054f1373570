"""A wrong gradient that may be meant: a reversal, a scaling, a mask. One finding says how to declare it.

Nobody can tell a reversal layer from a lost sign. What tells them apart is a declaration: the surrogate, whose
derivative backward implements, which the check then proves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pullback.battery.draws import draws
from pullback.battery.samples import GUESSED
from pullback.battery.subject import Subject
from pullback.battery.truth import Truth
from pullback.battery.verdict import with_remark
from pullback.finding import Finding

_FACTOR = re.compile(r"^it is (?P<factor>\S+)(?: \(.*\))? times the right one everywhere$")
_MASK = re.compile(r"^it is zero (where|in \d+ of) .*right elsewhere$")
_FORMULA = "<forward's formula>"


@dataclass(frozen=True)
class _Meaning:
    """What a gradient may be on purpose.

    Attributes:
        noun: In a word: ``reversal``.
        returns: What the surrogate returns.
        otherwise: What to do where it isn't meant.
    """

    noun: str
    returns: str
    otherwise: str


def if_meant(subject: Subject, truth: Truth, found: Mapping[str, Finding]) -> Iterator[Finding]:
    """The findings on wrong gradients of one sample, by argument: as they are, or one where they look meant.

    All arguments have to be alike: of a function of two arguments, of which one gradient is reversed, no surrogate has
    both derivatives.
    """
    if draws(subject, truth.case).backward:
        for finding in found.values():
            message = f"{finding.message}; backward draws random numbers"
            yield replace(finding, message=message, remedy=_of_noise(subject))
        return
    meanings = {_meaning(finding) for finding in found.values()}
    meaning = next(iter(meanings), None)
    due = {
        leaf.name
        for leaf in subject.fresh(truth.case).varying
        if leaf.name in found or not all(truth.is_zero(leaf.name, place) for place in range(len(truth.outputs)))
    }
    if truth.source == "surrogate" or len(meanings) != 1 or meaning is None or due != set(found):
        yield from found.values()
        return
    (first, *others), (name, *names) = found.values(), found
    yield replace(
        first,
        message=first.message + (f"; the same holds for {_listed(names)}" if others else ""),
        where=first.where.replace(f"argument {name}", f"arguments {_listed(list(found))}", 1)
        if others
        else first.where,
        remedy=_remedy(subject, meaning),
        repro=with_remark(first.repro),
        evidence={**first.evidence, **({"arguments": list(found)} if others else {}), "meant": meaning.noun},
    )


def _meaning(finding: Finding) -> _Meaning | None:
    pattern = str(finding.evidence.get("diagnosis", ""))
    if finding.rule != "PB203":
        return None
    if pattern.startswith("its sign is wrong everywhere"):
        return _Meaning("reversal", f"-{_FORMULA}", "Change the sign in backward")
    factor = _FACTOR.match(pattern)
    if factor is not None:
        times = factor["factor"]
        return _Meaning("scaling", f"{times} * {_FORMULA}", f"Take the factor {times} out of backward")
    if _MASK.match(pattern):  # not where a row or an element is zero: that is what a kernel forgets
        return _Meaning("mask", f"{_FORMULA[:-1]}, of a clamped argument>", "Take the mask out of backward")
    return None


def _of_noise(subject: Subject) -> str:
    """What to do about a gradient that is another one at each call."""
    return (
        "If they are to be those that forward drew, a mask for instance, keep that on ctx: drawn again it is another "
        "one. If the noise is meant, write nonlinear_backward = True in the class."
        + (f" {GUESSED}" if subject.samples.guessed else "")
    )


def _remedy(subject: Subject, meaning: _Meaning) -> str:
    arguments = ", ".join(name for name in subject.argument_names if name.isidentifier()) or "x"
    return (
        f"{meaning.otherwise}; or, if the {meaning.noun} is meant, declare the function whose derivative backward "
        f"implements, and the check proves it: @staticmethod def surrogate({arguments}): return {meaning.returns}."
        + (f" {GUESSED}" if subject.samples.guessed else "")
    )


def _listed(names: list[str]) -> str:
    return " and ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])
