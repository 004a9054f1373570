"""Several backwards through one call: each gives what it gives by itself, and what one gave stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

from pullback.battery.compare import Mismatch
from pullback.battery.draws import draws
from pullback.battery.leaves import copy_of, is_dense
from pullback.battery.observe import difference
from pullback.battery.oracle import elsewhere
from pullback.battery.raised import RAISED
from pullback.battery.repro_standing import changed_gradient_lines, later_lines, summed_lines, value_held_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, one_line
from pullback.battery.trials import Result, Trial, by_name
from pullback.finding import Finding

_CHANGE = -2
"""What a grad_output is multiplied by in place."""

_KEEP = (
    "Keep nothing of one backward for the next, neither on ctx nor in memory that is handed out: compute from "
    "grad_output and what was saved, into new tensors."
)


def on_one_graph(subject: Subject, case: Case, trial: Trial, alone: Result) -> Iterator[Finding]:
    """Differentiate a call along other cotangents, then with create_graph, then again as at first.

    Args:
        subject: Whose.
        case: The arguments.
        trial: Calls of the case.
        alone: What such a call gives by itself.
    """
    if draws(subject, case).backward:
        return
    others = [_turned(subject.cotangent(cotangent)) for cotangent in trial.cotangents]
    fresh = trial.forward()
    try:
        expected = by_name(fresh.inputs.varying, subject.gradients(fresh.outputs, others, fresh.inputs.varying))
    except BackwardRaised:
        return  # other values than the sample's, or another layout: other probes tell it
    call = trial.forward()
    leaves = call.inputs.varying

    def pulled(cotangents: list[Tensor]) -> dict[str, Tensor | None]:
        return by_name(leaves, subject.gradients(call.outputs, cotangents, leaves, retain_graph=True))

    first = pulled(trial.cotangents)
    held = {name: None if gradient is None else gradient.clone() for name, gradient in first.items()}
    steps: tuple[tuple[str, dict[str, Tensor | None], Callable[[], dict[str, Tensor | None]]], ...] = (
        ("along another grad_output", expected, lambda: pulled(others)),
        ("along the first grad_output", dict(alone.gradients), lambda: pulled(trial.cotangents)),
    )
    for what, wanted, made in steps:
        try:
            found = _apart(wanted, made())
        except BackwardRaised as raised:
            yield _finding(subject, case, f"a later backward through one call, {what}, raises", raised.error)
            return
        if found is not None:
            yield _finding(subject, case, f"a later backward through one call, {what}, gives another gradient", *found)
            return
        changed = _apart(held, first)
        if changed is not None:
            message = "a gradient changes when backward runs again: both lie in the same memory"
            yield _finding(subject, case, message, *changed)
            return
    yield from _changed_in_place(subject, case, trial)
    with suppress(BackwardRaised):  # second_order tells it
        given = [c.clone() for c in trial.cotangents]
        created = by_name(leaves, subject.gradients(call.outputs, given, leaves, create_graph=True))
        found = _apart(dict(alone.gradients), {name: None if g is None else g.detach() for name, g in created.items()})
        if found is not None:
            message = "a later backward through one call, with create_graph=True, gives another gradient"
            yield _finding(subject, case, message, *found, created=True)
            return
        found = _apart(dict(alone.gradients), pulled(trial.cotangents))
        if found is not None:
            message = "a later backward through one call, after one with create_graph=True, gives another gradient"
            yield _finding(subject, case, message, *found, created=True)


def _changed_in_place(subject: Subject, case: Case, trial: Trial) -> Iterator[Finding]:
    """Differentiate a call twice along the same tensor, which is changed in place in between, as a buffer is."""
    call, fresh = trial.forward(), trial.forward()
    given = [copy_of(cotangent) for cotangent in trial.cotangents]
    leaves = call.inputs.varying
    try:
        subject.gradients(call.outputs, given, leaves, retain_graph=True, share=True)
        for cotangent in given:
            cotangent.copy_(_CHANGE * cotangent)
        expected = by_name(leaves, subject.gradients(fresh.outputs, given, fresh.inputs.varying))
        got = by_name(leaves, subject.gradients(call.outputs, given, leaves, share=True))
    except BackwardRaised:
        return  # other values than the sample's: other probes tell it
    found = _apart(expected, got)
    if found is not None:
        message = (
            "a later backward through one call, along the grad_output of the first, changed in place, gives another"
        )
        yield _finding(subject, case, f"{message} gradient", *found, repro=changed_gradient_lines(subject, case))


def held_and_added_up(subject: Subject, case: Case, trial: Trial, alone: Result) -> Iterator[Finding]:
    """Hold a result while the function is called again on other values; add up two gradients on ``.grad``.

    Args:
        subject: Whose.
        case: The arguments.
        trial: Calls of the case.
        alone: What such a call gives by itself.
    """
    call = trial.forward()
    held = {output.name: output.tensor.detach().clone() for output in call.outputs}
    with suppress(ForwardRaised), torch.no_grad():  # other values may be none that forward takes
        other = subject.fresh(elsewhere(subject, case), requires=())
        later = subject.call(other)  # which is held, too
        changed = _apart(dict(held), {output.name: output.tensor.detach() for output in call.outputs})
        if changed is not None:
            message = "a value changes when the function is called again: both lie in the same memory"
            yield _finding(subject, case, message, *changed, other=True)
            return
        del later
    call = trial.forward()
    tracked = [(o.tensor, c) for o, c in zip(call.outputs, trial.cotangents, strict=True) if o.tensor.requires_grad]
    leaves = call.inputs.varying
    if not tracked or not leaves or draws(subject, case).backward:
        return
    try:
        for _ in range(2):
            subject.reseed()
            torch.autograd.backward(
                [tensor for tensor, _ in tracked],
                [copy_of(cotangent) for _, cotangent in tracked],
                inputs=[leaf.tensor for leaf in leaves],
                retain_graph=True,
            )
    except RAISED:
        return  # as from a second backward, which is told
    found = {leaf.name: leaf.tensor.grad for leaf in leaves}
    for leaf in leaves:
        leaf.tensor.grad = None
    twice = {name: None if gradient is None else gradient * 2 for name, gradient in alone.gradients.items()}
    apart = _apart(twice, found)
    if apart is not None:
        message = "two backwards leave on .grad another sum than that of their gradients"
        yield _finding(subject, case, message, *apart, summed=True)


def _turned(cotangent: Tensor) -> Tensor:
    """The cotangent with its last two axes in another order of memory."""
    if not is_dense(cotangent) or cotangent.dim() < 2:
        return cotangent
    return cotangent.transpose(-1, -2).contiguous().transpose(-1, -2)


def _dense(tensor: Tensor | None) -> Tensor | None:
    """A gradient as its elements can be pointed at: those of a table are sparse."""
    return tensor if tensor is None or tensor.layout is torch.strided else tensor.to_dense()


def _apart(expected: dict[str, Tensor | None], got: dict[str, Tensor | None]) -> tuple[Mismatch, str] | None:
    for name, one in expected.items():
        mismatch = difference(_dense(one), _dense(got[name]))
        if mismatch is not None:
            return mismatch, name
    return None


def _finding(
    subject: Subject,
    case: Case,
    message: str,
    found: Mismatch | BaseException,
    name: str = "",
    *,
    created: bool = False,
    other: bool = False,
    summed: bool = False,
    repro: str = "",
) -> Finding:
    raised = isinstance(found, BaseException)
    text = one_line(found) if isinstance(found, BaseException) else ""
    return subject.finding(
        "PB504",
        case,
        f"{message}: {text}" if raised else f"{message}, and not by itself" if "later" in message else message,
        argument=name,
        expected="no error" if isinstance(found, BaseException) else found.expected,
        got=text if isinstance(found, BaseException) else found.got,
        remedy=_KEEP,
        evidence={} if isinstance(found, BaseException) else found.evidence,
        repro=repro
        if repro
        else value_held_lines(subject, case, elsewhere(subject, case))
        if other
        else summed_lines(subject, case)
        if summed
        else later_lines(subject, case, created=created, held="changes" in message),
    )
