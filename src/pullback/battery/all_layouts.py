"""All arguments and all gradients in one other layout at once: a kernel may ask whether several are contiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pullback.battery.arrangements import arrangements
from pullback.battery.compare import compare, natural_scale
from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro_layouts import everything_lines
from pullback.battery.subject import Case, Change, Leaf, Output, Subject
from pullback.battery.tolerances import SAME
from pullback.finding import Finding

LAYOUTS = ("transposed", "channels last", "sliced")


def all_at_once(subject: Subject, case: Case) -> Iterator[Finding]:
    """The first layout in which gradients are others than where all is contiguous; once each is right by itself."""
    drawn = draws(subject, case)
    if not case.exact or drawn.forward or drawn.backward or subject.in_place:
        return
    for layout in LAYOUTS:
        finding = _in_layout(subject, case, layout)
        if finding is not None:
            yield finding
            return


def _in_layout(subject: Subject, case: Case, layout: str) -> Finding | None:
    def change(_: str, tensor: torch.Tensor) -> torch.Tensor:
        return arranged(tensor, layout)

    named = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    if all(arranged(tensor, layout) is tensor for tensor in named):
        return None
    outputs = subject.call(subject.fresh(case))
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    leaves, plain = _pulled(subject, case, cotangents, None)
    try:
        _, other = _pulled(subject, case, [arranged(cotangent, layout) for cotangent in cotangents], change)
    except ForwardRaised:
        return None
    except BackwardRaised as raised:
        return _finding(subject, case, layout, min(case.varying), "raises", "the gradient", str(raised))
    for leaf, one, two in zip(leaves, plain, other, strict=True):
        scale = natural_scale([output.tensor for output in outputs], cotangents, leaf.tensor)
        bad = compare(one, two, SAME, scale=scale)
        if bad is not None:
            return _finding(subject, case, layout, leaf.name, "is wrong", bad.expected, bad.got)
    return None


def arranged(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in a layout; as it is where it has too few axes for that."""
    if not is_float(tensor) or not is_dense(tensor):
        return tensor
    return next((other for label, _, other in arrangements(tensor) if label == layout), tensor)


def _pulled(
    subject: Subject, case: Case, cotangents: Sequence[torch.Tensor], change: Change | None
) -> tuple[tuple[Leaf, ...], tuple[torch.Tensor | None, ...]]:
    inputs = subject.fresh(case, change=change)
    outputs: tuple[Output, ...] = subject.call(inputs)
    return inputs.varying, subject.gradients(outputs, cotangents, inputs.varying)


def _finding(subject: Subject, case: Case, layout: str, argument: str, how: str, expected: str, got: str) -> Finding:
    return subject.finding(
        "PB407",
        case,
        f"the gradient of {argument} {how} where all arguments and gradients are {layout}, and right where one is",
        argument=argument,
        what=f"all {layout}",
        expected=f"{expected}, as where all are contiguous",
        got=got,
        evidence={"layout": layout},
        repro=everything_lines(subject, case, argument, layout),
    )
