"""A double_backward in its one-return form belongs to an elementwise function: the Jacobian is diagonal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace

import torch

from pullback.battery.compare import compare
from pullback.battery.curves import shifted
from pullback.battery.nodes import attributes_of, entry_names, node_of
from pullback.battery.numerics import flat, size_of
from pullback.battery.observe import named_arguments, passed
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.repro import jacobian_lines
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import SAME
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Move a part of the argument's elements, and see that only these elements of the output move."""
    if subject.definition is None or subject.definition.double_backward is None:
        raise NotApplicable("there is no double_backward")
    short = [case for case in subject.cases if _is_short(subject, case)]
    if not short:
        raise NotApplicable("double_backward has its general form")
    for case in short:
        yield from _diagonal(subject, case)


def _is_short(subject: Subject, case: Case) -> bool:
    """Whether double_backward, called as it would be for this case, returns a single tensor."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if len(inputs.varying) != 1 or len(outputs) != 1 or node is None:
        return False
    definition = subject.definition
    assert definition is not None
    assert definition.double_backward is not None
    attributes = {
        **attributes_of(node),
        "saved_tensors": tuple(node.saved_tensors),
        "needs_input_grad": tuple(node.needs_input_grad),
        "grad_outputs": tuple(subject.cotangent(output.tensor) for output in outputs),
    }
    wanted = inputs.varying[0]
    tensors = passed(subject, inputs)
    modules = {name for name, value in named_arguments(subject, inputs) if isinstance(value, torch.nn.Module)}
    given = [
        subject.cotangent(wanted.tensor) if tensors.get(name) is wanted.tensor else None
        for name in entry_names(subject, node, inputs)
        if name not in modules  # a module's parameters have entries, the module itself has none
    ]
    try:
        with torch.no_grad():
            returned = definition.double_backward(SimpleNamespace(**attributes), *given)
    except RAISED:  # a fault of its own, for the second-order probe to report
        return False
    return isinstance(returned, torch.Tensor)


def _diagonal(subject: Subject, case: Case) -> Iterator[Finding]:
    leaf = subject.fresh(case).varying[0]
    start = subject.call(subject.fresh(case, requires=()))[0].tensor
    if start.shape != leaf.tensor.shape:
        yield _not_diagonal(
            subject, case, leaf.name, f"output of shape {tuple(leaf.tensor.shape)}", str(tuple(start.shape))
        )
        return
    count = flat(leaf.tensor).numel()
    for mask in _masks(count):
        inputs = shifted(subject, case, leaf.name, mask.to(torch.float64), 0.01 * size_of(leaf.tensor))
        there = subject.call(inputs)[0].tensor
        outside = ~mask
        bad = compare(flat(start)[outside], flat(there)[outside], SAME)
        if bad is not None:
            moved, still = int(mask.nonzero()[0]), int(outside.nonzero()[bad.index[0]])
            yield _not_diagonal(
                subject,
                case,
                leaf.name,
                f"output element {still} unmoved when {leaf.name}'s element {moved} and others move",
                f"it moves by {bad.max_error:.3g}",
            )
            return


def _masks(count: int) -> Iterator[torch.Tensor]:
    """For every two elements, a mask that holds the one and not the other: the binary digits of their numbers."""
    numbers = torch.arange(count)
    for digit in range(max(count - 1, 0).bit_length()):
        mask = (numbers >> digit) & 1 == 1
        yield mask
        yield ~mask


def _not_diagonal(subject: Subject, case: Case, argument: str, expected: str, got: str) -> Finding:
    return subject.finding(
        "PB212",
        case,
        f"double_backward returns one tensor, and an output element depends on other elements of {argument}",
        argument=argument,
        expected=expected,
        got=got,
        repro=jacobian_lines(subject, case),
    )


PROBE = Probe(
    "short_form", "a double_backward that returns one tensor belongs to an elementwise function", run, order=2
)
