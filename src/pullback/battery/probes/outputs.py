"""Each output has its own gradient, and an unused output counts as zeros."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.compare import compare
from pullback.battery.draws import draws
from pullback.battery.leaves import is_float
from pullback.battery.nodes import call_backward, node_of
from pullback.battery.numerics import flat
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.probes.first_order import gradients_by_output, ignored_output
from pullback.battery.repro import unused_lines
from pullback.battery.repro_effects import untracked_lines
from pullback.battery.subject import BackwardRaised, Case, Subject
from pullback.battery.tolerances import SAME, for_gradients
from pullback.battery.truth import Truth, truth_of
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Differentiate each output alone, the others unused, and compare with zeros for the others."""
    tried = 0
    for case in subject.cases:
        found = list(_marked(subject, case))
        yield from found
        tried += len(found)
        truth = truth_of(subject, case)
        if isinstance(truth, str):
            yield Note(truth)
        elif len(truth.outputs) > 1:
            tried += 1
            yield from _each(subject, truth)
    if not tried:
        raise NotApplicable("there is only one output that can be differentiated")


def _marked(subject: Subject, case: Case) -> Iterator[Finding]:
    """An output that forward marks non-differentiable, and whose gradient backward nevertheless makes use of."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    marked = [place for place, output in enumerate(outputs) if is_float(output.tensor)]
    marked = [place for place in marked if not outputs[place].tensor.requires_grad]
    node = node_of(subject, outputs) if marked else None
    if node is None or draws(subject, case).backward:
        return
    zeros = [torch.zeros_like(output.tensor.detach()) for output in outputs]
    for place in marked:
        name = outputs[place].name
        given = [subject.cotangent(z) if i == place else z for i, z in enumerate(zeros)]
        try:
            used, unused = (_returned(subject, case, cotangents) for cotangents in (given, zeros))
        except BackwardRaised:
            return
        for argument, entry in used.items():
            other = unused.get(argument)
            if isinstance(entry, torch.Tensor) and compare(_tensor(other), entry.detach(), SAME) is not None:
                yield subject.finding(
                    "PB209",
                    case,
                    f"backward makes a gradient of {argument} from that of {name}, which forward marks as "
                    "non-differentiable: none ever comes",
                    argument=argument,
                    output=name,
                    expected=f"{name} that requires grad, or a backward that makes nothing of its gradient",
                    got=f"{name}.requires_grad is False",
                    remedy="Don't mark it: only outputs without a derivative, such as indices, are non-differentiable.",
                    repro=untracked_lines(subject, case, name),
                )
                return


def _returned(subject: Subject, case: Case, cotangents: list[torch.Tensor]) -> dict[str, object]:
    """What backward returns for some cotangents, marked outputs included."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    return call_backward(subject, node_of(subject, outputs), inputs, outputs, cotangents).by_name()


def _tensor(entry: object) -> torch.Tensor | None:
    return entry.detach() if isinstance(entry, torch.Tensor) else None


def _each(subject: Subject, truth: Truth) -> Iterator[Finding]:
    nonlinear = subject.definition is not None and subject.definition.nonlinear_backward
    for place, expected in gradients_by_output(subject, truth):
        inputs = subject.fresh(truth.case)
        outputs = subject.call(inputs)
        position = truth.outputs[place]
        name = outputs[position].name
        others = ", ".join(outputs[other].name for other in truth.outputs if other != position)
        first = expected[0][0].name
        repro = unused_lines(subject, truth.case, first, position)
        try:
            alone = subject.gradients([outputs[position]], [truth.cotangents[place]], inputs.varying)
        except BackwardRaised as raised:
            yield subject.finding(
                "PB210",
                truth.case,
                f"backward raises when only {name} is used and {others} isn't: {raised}",
                expected="the gradient that zeros for the unused outputs give",
                got=str(raised),
                what=f"{name} alone",
                repro=repro,
            )
            continue
        for (leaf, with_zeros), got in zip(expected, alone, strict=True):
            tolerance = SAME if truth.case.exact else for_gradients(leaf.tensor.dtype)
            bad = compare(with_zeros, got, tolerance, scale=truth.scales[leaf.name])
            if bad is not None:
                yield subject.finding(
                    "PB210",
                    truth.case,
                    f"the gradient of {leaf.name} is another when {others} is unused than for zeros in its place",
                    argument=leaf.name,
                    what=f"{name} alone",
                    expected=bad.expected,
                    got=bad.got,
                    evidence=bad.evidence,
                    repro=unused_lines(subject, truth.case, leaf.name, position),
                )
        if not nonlinear and all(_is_nothing(got) for _, got in expected):
            for leaf, got in expected:
                bad = truth.judge(leaf, place, got)
                if bad is not None:
                    yield ignored_output(subject, truth, place, leaf, bad)
                    break


def _is_nothing(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not bool(flat(gradient).any())


PROBE = Probe("outputs", "each output has its own gradient, and an unused output counts as zeros", run)
