"""Each output has its own gradient, and an unused output counts as zeros."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.compare import compare
from pullback.battery.numerics import flat
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.probes.first_order import gradients_by_output, ignored_output
from pullback.battery.repro import unused_lines
from pullback.battery.subject import BackwardRaised, Subject
from pullback.battery.tolerances import SAME, for_gradients
from pullback.battery.truth import Truth, truth_of
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Differentiate each output alone, the others unused, and compare with zeros for the others."""
    tried = 0
    for case in subject.cases:
        truth = truth_of(subject, case)
        if isinstance(truth, str):
            yield Note(truth)
        elif len(truth.outputs) > 1:
            tried += 1
            yield from _each(subject, truth)
    if not tried:
        raise NotApplicable("there is only one output that can be differentiated")


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
