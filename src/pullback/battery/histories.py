"""One call after another: what a call gives doesn't depend on which one came before it.

What is remembered may go by anything that two calls share: the incoming gradient, an argument's values, the tensor that
was passed. So the calls follow each other such that each comes after one that shares the arguments or the cotangent,
and after one that doesn't; some get the very tensors of an earlier call, changed in place in between, as an optimiser
changes a parameter. Where a call gives two results, one of them was another call's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from pullback.battery.leaves import replace as replace_tensors
from pullback.battery.observe import identical
from pullback.battery.oracle import moved
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro_histories import Step, history_lines, same_tensors_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import Case, Inputs, Subject
from pullback.battery.trials import Call, Difference, Result, Trial
from pullback.finding import Finding

_FACTOR = -0.75
"""What the cotangents of the third call are, in multiples of the first one's."""

_ALONE_UP_TO = 8
"""So many tensors are changed one by one."""

_IN_EARLIER = "in tensors that an earlier call got with other values"

STEPS = (
    Step(0, "by itself"),
    Step(1, "after a call with the same grad_output"),
    Step(0, "in tensors that didn't require grad in an earlier call", held=True),
    Step(2, "after the same call with another grad_output"),
    Step(1, _IN_EARLIER, held=True),
    Step(2, _IN_EARLIER, held=True),
    Step(0, "after a call under torch.no_grad()", prelude="no_grad"),
    Step(0, "after a backward with create_graph=True", prelude="create_graph"),
)
"""Call 1 has other values than call 0, and call 2 another cotangent.

Each of the three comes after both of the others, so after one that shares what the other doesn't.
"""

_REMEDY = (
    "Keep nothing of a call for later ones, neither in the module nor on a tensor; or go by all that it depends on: "
    "values change in place, and the tensor, its address and its shape stay."
)


class _Held:
    """Tensors that are passed again and again, with the values of each call written to them; frozen in the first."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._inputs: Inputs | None = None

    def with_values_of(self, case: Case) -> Inputs | None:
        """The tensors with the case's values; None where they can't be written to."""
        if self._inputs is None:
            frozen = self._subject.fresh(case, requires=())
            with suppress(ForwardRaised):
                self._subject.call(frozen)
            for leaf in frozen.leaves:
                leaf.tensor.requires_grad_(leaf.name in case.varying)
            self._inputs = Inputs(frozen.args, frozen.kwargs, frozen.leaves)
        try:
            with torch.no_grad():
                for leaf, other in zip(self._inputs.leaves, self._subject.fresh(case).leaves, strict=True):
                    leaf.tensor.copy_(other.tensor)
        except RuntimeError:  # elements of an expanded tensor share memory
            return None
        return self._inputs


def whatever_came_before(subject: Subject, case: Case, other: Case, trials: tuple[Trial, Trial]) -> Iterator[Finding]:
    """A finding if a call gives another result after one call than after another.

    Args:
        subject: Whose.
        case: The arguments.
        other: The same with other values.
        trials: Calls of each.
    """
    first, second = trials
    third = copy.copy(first)
    third.cotangents = [_FACTOR * cotangent for cotangent in first.cotangents]
    ways = ((case, first), (other, second), (case, third))
    held = _Held(subject)
    known: dict[int, tuple[int, Result]] = {}
    for place, step in enumerate(STEPS):
        values, trial = ways[step.which]
        try:
            _before(subject, step, second)
            inputs = held.with_values_of(values) if step.held and not subject.in_place else None
            result = trial.backward(trial.forward(inputs=inputs))
        except (ForwardRaised, BackwardRaised) as raised:
            if step.which not in known:
                return  # other values than the sample's: other probes tell it
            method = "forward" if isinstance(raised, ForwardRaised) else "backward"
            repro = history_lines(subject, case, other, STEPS, (0, place), values=False)
            message = f"{method} raises {step.after}: {raised}"
            yield subject.finding(
                "PB504", case, message, expected="no error", got=str(raised), remedy=_REMEDY, repro=repro
            )
            return
        earlier, expected = known.setdefault(step.which, (place, result.copied()))
        found = expected.differs_from(result)
        if found is not None:
            message = f"the {found.kind} is another one {step.after} than {STEPS[earlier].after}"
            yield _differs(subject, case, other, message, (earlier, place), found)
            return


def on_the_same_tensors(
    subject: Subject, case: Case, other: Case, numbers: Sequence[tuple[str, Case]], trial: Trial
) -> Iterator[Finding]:
    """A finding if a call on the tensors of an earlier one gives another result where only one argument is another.

    Args:
        subject: Whose.
        case: The arguments.
        other: The same with other values, which one tensor after the other gets in place.
        numbers: The same with another number, and the argument's name.
        trial: Calls of the case.
    """
    given, exchanged = subject.fresh(case), {leaf.name: leaf.tensor.detach() for leaf in subject.fresh(other).leaves}
    names = [leaf.name for leaf in given.leaves if not identical(leaf.tensor.detach(), exchanged[leaf.name])]
    tensors = names[:_ALONE_UP_TO] if len(given.leaves) > 1 else []
    changes = [
        (f"of which {name} was changed in place", _exchanged(subject, case, exchanged, tensors[: place + 1]), name)
        for place, name in enumerate(tensors)
    ]
    steps: list[tuple[str, Case, str, Result]] = []
    for how, variant, name in [*((f"with another {name}", made, "") for name, made in numbers), *changes]:
        try:
            call = trial.forward(inputs=subject.fresh(variant))
            if len(call.outputs) != len(trial.cotangents):
                continue  # a flag that asks for another output
            alone = trial.backward(call)
        except (ForwardRaised, BackwardRaised):  # other values than the sample's: other probes tell it
            if name:
                break  # what comes after has them, too
            continue
        steps.append((how, variant, name, alone.copied()))
    for place, (how, variant, name, expected) in enumerate(steps):
        earlier = [changed for _, _, changed, _ in steps[:place] if changed]
        try:
            if not earlier:
                _put(subject, given, case)
                trial.backward(trial.forward(inputs=given))
            _put(subject, given, variant)
        except RuntimeError:  # elements of an expanded tensor share memory
            return

        def lines(_: int, values: bool, variant: Case = variant, changed: Sequence[str] = (*earlier, name)) -> str:
            return same_tensors_lines(subject, case, variant, [one for one in changed if one], values=values)

        where = f"on the tensors of the call before, {how}"
        setting = Setting(subject, case, "PB504", where, "on new tensors", lines)
        finding = setting.fault(expected, lambda v=variant: trial.backward(_on(subject, trial, v, given)))  # type: ignore[misc]  # v is bound
        if finding is not None:
            yield replace(finding, remedy=_REMEDY)
            return


def _put(subject: Subject, given: Inputs, case: Case) -> None:
    """Write a case's values to the tensors that hold others; to no other, whose versions stay."""
    with torch.no_grad():
        for leaf, wanted in zip(given.leaves, subject.fresh(case).leaves, strict=True):
            if not identical(leaf.tensor, wanted.tensor):
                leaf.tensor.copy_(wanted.tensor)


def _exchanged(subject: Subject, case: Case, values: Mapping[str, torch.Tensor], names: Sequence[str]) -> Case:
    return moved(subject, case, lambda name, tensor: values[name] if name in names else tensor)


def _on(subject: Subject, trial: Trial, variant: Case, given: Inputs) -> Call:
    """A call with what is no tensor of one case, and the tensors of another call."""
    inputs = subject.fresh(variant)
    tensors = {id(one.tensor): other.tensor for one, other in zip(inputs.leaves, given.leaves, strict=True)}
    args, kwargs = (replace_tensors(nest, lambda t: tensors.get(id(t), t)) for nest in (inputs.args, inputs.kwargs))
    return trial.forward(inputs=Inputs(args, kwargs, given.leaves))


def _before(subject: Subject, step: Step, other: Trial) -> None:
    """Make the call that comes before a step, if there is one; what it raises is no matter of the step."""
    with suppress(ForwardRaised, BackwardRaised):
        if step.prelude:
            call = other.forward(track=step.prelude != "no_grad")
            if step.prelude == "create_graph":
                given = [cotangent.clone() for cotangent in other.cotangents]
                subject.gradients(call.outputs, given, call.inputs.varying, create_graph=True)


def _differs(
    subject: Subject, case: Case, other: Case, message: str, places: tuple[int, int], found: Difference
) -> Finding:
    is_value = found.kind == "value"
    return subject.finding(
        "PB504",
        case,
        message,
        argument="" if is_value else found.name,
        output=found.name if is_value else "",
        expected=found.mismatch.expected,
        got=found.mismatch.got,
        remedy=_REMEDY,
        evidence=found.mismatch.evidence,
        repro=history_lines(subject, case, other, STEPS, places, values=is_value),
    )
