"""The same call gives the same result: repeated, differentiated twice, interleaved and reordered with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.draws import draws
from pullback.battery.histories import on_the_same_tensors, whatever_came_before
from pullback.battery.lower import Lowered, or_in_lower
from pullback.battery.one_graph import held_and_added_up, on_one_graph
from pullback.battery.oracle import elsewhere
from pullback.battery.other_numbers import with_other_numbers
from pullback.battery.paths import passed_over, telling, tells
from pullback.battery.probe import Note, Probe
from pullback.battery.randomness import own_seed
from pullback.battery.repro import backward_lines
from pullback.battery.repro_effects import again_lines, mixed_lines, spoiled_saved_lines
from pullback.battery.standing import settings_kept, whoever_asks
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.tolerances import for_gradients
from pullback.battery.trials import Result, Trial, first_results
from pullback.finding import Finding
from pullback.rules import Severity
from pullback.torch_private import boxes_gradients, clears_on_access

_COARSE = (
    "The difference is that of a few roundings below float64: where a kernel rounds by chance or adds in any order, "
    "refuse float64 in forward, and it is judged by the error budget of the dtypes that it is for."
)

_VALUES, _DRAWN = "other values", "other random numbers"


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Repeat each case, then mix it with a call on other values."""
    yield from or_in_lower(subject, _each(subject), _repeated)


def _each(subject: Subject) -> Iterator[Finding | Note]:
    for case in subject.cases:
        found = False
        for result in _repeated(subject, case):
            found = found or isinstance(result, Finding)
            yield result
        if not found:
            yield from _mixed(subject, case)
    yield from passed_over(subject, "repeated, and mixed with calls of the next sample, alone")


def _repeated(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    first: Result | None = None
    try:
        trial = Trial(subject, case)
        first = trial.alone()
        first_results(subject).setdefault(case, first.copied())
        second = trial.alone()
    except (ForwardRaised, BackwardRaised) as raised:
        if first is None and isinstance(raised, BackwardRaised) and _is_of_its_cotangents(subject, case, trial):
            yield Note(f"{case.label}: backward raises for some cotangents, repeated or not ({raised})")
            return
        what = "forward" if isinstance(raised, ForwardRaised) else "backward"
        message = f"{what} raises when the same call is repeated: {raised}"
        yield _depends(subject, case, message, None, again_lines(subject, case, values=what == "forward"))
        return
    found = first.differs_from(second)
    if found is not None:
        kind, mismatch, _ = found
        repro = again_lines(subject, case, values=kind == "value")
        coarse = case.exact and first.differs_from(second, for_gradients(torch.bfloat16)) is None
        remedy = _COARSE if coarse else ""
        yield _depends(subject, case, f"the same call, repeated, gave another {kind}", mismatch, repro, remedy)
        return
    call = trial.forward()
    once = trial.backward(call, retain_graph=True)
    try:
        twice = trial.backward(call, retain_graph=True)
    except BackwardRaised as raised:
        if _frees_on_purpose(subject):
            yield Note(f"{case.label}: backward frees what it saved, so it was not repeated")
        else:
            yield subject.finding(
                "PB125",
                case,
                f"backward raises when it runs a second time, with retain_graph=True: {raised}",
                severity=Severity.WARNING,
                remedy="Leave what backward reads in place: PyTorch frees saved tensors by itself.",
                repro=backward_lines(subject, case, times=2),
                got=str(raised),
            )
        return
    found = once.differs_from(twice)
    if found is not None:
        yield subject.finding(
            "PB404",
            case,
            "a second backward through the same call gave another gradient: the first one changed what it reads",
            expected=found[1].expected,
            got=found[1].got,
            evidence=found[1].evidence,
            repro=spoiled_saved_lines(subject, case),
        )
        return
    if tells(subject, case):
        yield from on_one_graph(subject, case, trial, first)
    asked = list(whoever_asks(subject, case, first, thorough=case.exact and case in telling(subject)))
    yield from asked
    if case in telling(subject):
        yield from () if asked else held_and_added_up(subject, case, trial, first)
        yield from settings_kept(subject, case)


def _is_of_its_cotangents(subject: Subject, case: Case, trial: Trial) -> bool:
    """Whether a backward that raised at once raises so each time, and for others it doesn't: no state is at fault.

    An iteration may not converge for some, above all in a lower dtype, where others were taken before.
    """
    try:
        trial.alone()
    except BackwardRaised:
        try:
            Trial(replace(subject, seed=own_seed(subject.seed, "other cotangents")), case).alone()
        except BackwardRaised:
            return isinstance(case, Lowered)
        except ForwardRaised:
            return False
        return True
    except ForwardRaised:
        return False
    return False


def _mixed(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """Mix the case with calls on other arguments, until one makes a difference."""
    for label, other in _others(subject, case):
        by = replace(subject, seed=own_seed(subject.seed, label)) if label == _DRAWN else subject
        try:
            trials = Trial(subject, case), Trial(by, other)
            found = _mixed_with(*trials, label)
        except (ForwardRaised, BackwardRaised) as refused:
            yield Note(f"refused: {label}, {case.label} ({refused})")
            continue
        if found is not None:
            repro = mixed_lines(subject, case, other, found.order)
            yield _depends(subject, case, found.message, found.mismatch, repro)
            return
        if label == _VALUES:
            yield from _in_a_row(subject, case, other, trials)


def _in_a_row(subject: Subject, case: Case, other: Case, trials: tuple[Trial, Trial]) -> Iterator[Finding]:
    """Calls one after another, on tensors of their own and on the same ones."""
    found = list(whatever_came_before(subject, case, other, trials))
    yield from found
    if not found and not subject.in_place:
        numbers = [(name, replace(case, sample=made)) for name, _, made in with_other_numbers(subject, case.sample)]
        yield from on_the_same_tensors(subject, case, other, numbers, trials[0])


def _others(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Calls to mix with: other values, another number or flag in place of each, other draws, the next sample."""
    if case.may_vary("values") and case in telling(subject):
        yield _VALUES, elsewhere(subject, case)
        seen: set[str] = set()
        for name, _, sample in with_other_numbers(subject, case.sample):
            if name not in seen:
                seen.add(name)
                yield f"another {name}", replace(case, sample=sample)
    if draws(subject, case).forward:
        yield _DRAWN, case
    if len(subject.cases) > 1:
        following = subject.cases[(subject.cases.index(case) + 1) % len(subject.cases)]
        yield following.label, following


@dataclass(frozen=True)
class _Difference:
    """What a call between forward and backward changed, and in which order the backwards came."""

    message: str
    order: str
    mismatch: Mismatch | None


def _mixed_with(trial: Trial, other: Trial, label: str) -> _Difference | None:
    alone, other_alone = trial.alone(), other.alone()
    for order in ("first in, first out", "last in, first out", "without grad"):
        call = trial.forward()
        later = other.forward(track=order != "without grad")
        try:
            if order == "last in, first out":
                other_mixed = other.backward(later)
                mixed = trial.backward(call)
            else:
                mixed = trial.backward(call)
                other_mixed = other.backward(later) if order == "first in, first out" else other_alone
        except BackwardRaised as raised:
            message = f"backward raises when another call came between it and its forward ({label}, {order}): {raised}"
            return _Difference(message, order, None)
        found = alone.differs_from(mixed) or other_alone.differs_from(other_mixed)
        if found is not None:
            between = f"another call between forward and backward ({label}, {order})"
            message = f"with {between}, the {found[0]} is another one"
            return _Difference(message, order, found[1])
    return None


def _frees_on_purpose(subject: Subject) -> bool:
    return clears_on_access(subject.function) or boxes_gradients(subject.function)


def _depends(
    subject: Subject, case: Case, message: str, mismatch: Mismatch | None, repro: str, remedy: str = ""
) -> Finding:
    return subject.finding(
        "PB504",
        case,
        message,
        expected=mismatch.expected if mismatch is not None else "no error",
        got=mismatch.got if mismatch is not None else message.rpartition(": ")[2],
        evidence=mismatch.evidence if mismatch is not None else {},
        remedy=remedy,
        repro=repro,
    )


PROBE = Probe(
    "repeats",
    "a call gives the same values and gradients when it is repeated, differentiated twice, or mixed with other calls",
    run,
)
