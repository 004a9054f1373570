"""Who writes where: forward to its arguments; backward to grad_output, to what was saved, to arguments and outputs.

Values are compared before and after, so a write that goes round the version counters is seen too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import torch

from pullback.battery.compare import compare
from pullback.battery.flags import REMEDY, reflagged
from pullback.battery.leaves import is_float
from pullback.battery.left_alone import left_alone_elsewhere
from pullback.battery.lower import or_in_lower
from pullback.battery.nodes import node_of
from pullback.battery.observe import SavedTensors, Snapshot, difference, passed, saved_name, storage_of
from pullback.battery.paths import telling, tells
from pullback.battery.probe import Note, Probe
from pullback.battery.repro_effects import bumped_lines, spoiled_gradient_lines, spoiled_saved_lines, written_lines
from pullback.battery.repro_standing import written_when_lines
from pullback.battery.subject import BackwardRaised, Case, Inputs, Subject
from pullback.battery.tolerances import SAME
from pullback.finding import Finding
from pullback.rules import Severity


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Snapshot everything that a call touches, before and after forward and backward."""
    yield from or_in_lower(subject, _each(subject), _in_both)


def _in_both(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """A conversion to the dtype that a tensor has gives that tensor, so forward may write in one dtype alone, too."""
    yield from _in_forward(subject, case)
    yield from _in_backward(subject, case)


def _each(subject: Subject) -> Iterator[Finding | Note]:
    for case in subject.cases:
        found = list(_in_both(subject, case))
        yield from found
        if case in telling(subject) and not any(isinstance(result, Finding) for result in found):
            yield from left_alone_elsewhere(subject, case)


def _in_forward(subject: Subject, case: Case) -> Iterator[Finding]:
    inputs = subject.fresh(case)
    tensors = passed(subject, inputs)
    required = {name for name, tensor in tensors.items() if tensor.requires_grad}
    before = Snapshot(tensors)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)

    def is_marked(tensor: torch.Tensor) -> bool:
        returned = any(output.tensor is tensor for output in outputs)
        return (node is not None and tensor.grad_fn is node) or (tensor.grad_fn is None and returned)

    changed = list(before.changed())
    for name in changed:
        tensor = tensors[name]
        marked = is_marked(tensor)
        if subject.definition is None and tensor.grad_fn is not None:
            continue  # plain PyTorch keeps its own books
        if marked and before.bumped(name):
            continue
        rule = "PB401" if before.bumped(name) else "PB402"
        unseen = "" if rule == "PB401" else ", and its version counter did not move"
        # A buffer without a gradient is often updated on purpose, and its version warns whoever saved it.
        is_buffer = rule == "PB401" and name not in required
        is_free = is_buffer and _gives_the_same_again(subject, case)
        yield subject.finding(
            rule,
            case,
            f"forward changed {name} in place{unseen}"
            + ("" if marked else "; it is not marked dirty")
            + (", and no result depends on what it held" if is_free else ""),
            argument=name,
            severity=Severity.HINT if is_free else Severity.WARNING if is_buffer else None,
            remedy="If the update is meant, as that of running statistics, leave it." if is_free else "",
            repro=written_lines(subject, case, name),
            expected=_values(before, name)[0],
            got=_values(before, name)[1],
        )

    if subject.definition is not None:
        back = (name for name in sorted(required - {*changed}) if before.bumped(name) and not is_marked(tensors[name]))
        yield from (_put_back(subject, case, name) for name in back)
        yield from _reflagged(subject, case, inputs, "forward")


def _reflagged(subject: Subject, case: Case, inputs: Inputs, method: str) -> Iterator[Finding]:
    """The findings of arguments that aren't to autograd what they were."""
    for name, flag in reflagged(inputs).items():
        yield subject.finding(
            flag.rule(method),
            case,
            f"{method} changes {name}{flag.asked} in place",
            argument=name,
            expected=f"{flag.expected}, as before",
            got=flag.got,
            remedy=REMEDY,
            repro=written_when_lines(subject, case, name, case.varying, "", method, flag.asked),
        )


def _put_back(subject: Subject, case: Case, name: str) -> Finding:
    """The finding of an argument that is changed and changed back: whoever has saved it is told that it was changed."""
    return subject.finding(
        "PB401",
        case,
        f"forward writes to {name} in place, though it holds the same values in the end: what was saved of it before "
        "can't be read any more",
        argument=name,
        expected="a version counter that stays",
        got="one that moves",
        repro=bumped_lines(subject, case, name),
    )


def _gives_the_same_again(subject: Subject, case: Case) -> bool:
    """Whether a second call on what the first one left gives the same: a checkpoint would make such a call."""
    inputs = subject.fresh(case)
    first = [output.tensor.detach().clone() for output in subject.call(inputs)]
    second = [output.tensor.detach() for output in subject.call(inputs)]
    return all(difference(one, other) is None for one, other in zip(first, second, strict=False))


def _in_backward(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    inputs = subject.fresh(case)
    saved = SavedTensors()
    with saved:
        outputs = subject.call(inputs)
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    known = {**passed(subject, inputs), **{output.name: output.tensor for output in outputs}}
    kept = {} if subject.definition is None else saved.tensors
    names = {saved_name(i, tensor, known): tensor for i, tensor in enumerate(kept)}
    gradients_in = {f"grad_{output.name}": c for output, c in zip(outputs, cotangents, strict=True)}
    before, before_gradients = Snapshot({**names, **known}), Snapshot(gradients_in)
    reflagged_before = reflagged(inputs)
    try:
        subject.gradients(outputs, cotangents, inputs.varying, retain_graph=True, share=True)
    except BackwardRaised as raised:
        yield Note(f"{case.label}: backward raised: {raised}")
    for name in before_gradients.changed():
        yield subject.finding(
            "PB403",
            case,
            f"backward changed {name} in place",
            what=name,
            repro=spoiled_gradient_lines(subject, case, name.removeprefix("grad_")),
            expected=_values(before_gradients, name)[0],
            got=_values(before_gradients, name)[1],
        )
    seen: set[int | None] = set()
    for name in before.changed():
        storage = storage_of(before.tensors[name])
        if storage in seen:
            continue
        seen.add(storage)
        yield subject.finding(
            "PB404",
            case,
            f"backward changed {name} in place" + ("" if before.bumped(name) else ", unseen by its version counter"),
            what=name,
            repro=spoiled_saved_lines(subject, case, _own_name(name, known)),
            expected=_values(before, name)[0],
            got=_values(before, name)[1],
        )
    if subject.definition is not None and not reflagged_before:
        yield from _reflagged(subject, case, inputs, "backward")
        yield from _cotangents_reflagged(subject, case, cotangents) if tells(subject, case) else ()


def _cotangents_reflagged(subject: Subject, case: Case, cotangents: Sequence[torch.Tensor]) -> Iterator[Finding]:
    """The finding of a grad_output that requires grad after backward and didn't before, or the other way round."""
    for required in (False, True):
        inputs = subject.fresh(case)
        outputs = subject.call(inputs)
        given = [c.detach().clone().requires_grad_(required and is_float(c)) for c in cotangents]
        with suppress(BackwardRaised):  # as told above
            subject.gradients(outputs, given, inputs.varying, share=True)
        pairs = zip(outputs, given, strict=True)
        name = next((o.name for o, g in pairs if is_float(g) and g.requires_grad != required), None)
        if name is not None:
            yield subject.finding(
                "PB330",
                case,
                f"backward changes grad_{name}.requires_grad in place",
                what=f"grad_{name}",
                expected=f"{required}, as before",
                got=str(not required),
                remedy="Leave grad_output as it came: requires_grad_() and detach_() change it for whoever passed it, "
                "and g.detach() is a tensor of your own.",
                repro=spoiled_gradient_lines(subject, case, name, f".requires_grad_({required})", ".requires_grad"),
            )
            return


def _own_name(name: str, known: Mapping[str, object]) -> str:
    """The argument or output that a saved tensor is; empty for others."""
    inner = name.partition("(")[2].rstrip(")")
    return next((candidate for candidate in (name, inner) if candidate in known), "")


def _values(before: Snapshot, name: str) -> tuple[str, str]:
    """The expected and the obtained values of a tensor that should not have changed."""
    mismatch = compare(before.values[name], before.tensors[name].detach(), SAME)
    if mismatch is None:
        return "no change", "a change in the last digits"
    return f"{mismatch.expected}, as before", mismatch.got


PROBE = Probe(
    "writes",
    "forward changes only arguments that it marks dirty, backward neither grad_output nor saved tensors",
    run,
)
