"""What a run did not test, said plainly: the last part of every report."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from pullback.battery.battery import PROBES
from pullback.battery.other_numbers import parameters_of
from pullback.battery.probe import Probe
from pullback.battery.subject import Subject
from pullback.battery.tolerances import EVERY_ELEMENT_UP_TO, SMALLEST_SHARE
from pullback.finding import Outcome, Status

_NOT_BUILT = (
    "what no probe looks at: torch.func transforms (vmap is tried); nested forward mode; dynamic shapes and generated "
    "code under torch.compile; float16 under autocast; races within one operator; distributed training"
)


def untested(subject: Subject, probes: Iterable[Probe], outcomes: Mapping[str, Outcome]) -> tuple[str, ...]:
    """Sentences about what this run left out."""
    ran = {probe.name for probe in probes}
    sentences = []
    left_out = [name for name in PROBES if name not in ran]
    if left_out:
        sentences.append(f"probes that were left out: {', '.join(left_out)}")
    if subject.orders < 2:
        sentences.append("second derivatives (orders=1)")
    else:
        sentences.append("derivatives above the second")
    for name, outcome in outcomes.items():
        if outcome.status is Status.SKIPPED and name not in subject.inapplicable:
            sentences.append(f"{name}: {outcome.reason}")
    sentences += dict.fromkeys(subject.left_out)
    sentences += _at_default(subject)
    sentences += _sizes(subject)
    sentences.append(f"devices other than {subject.runs_on.type}")
    sentences.append(_NOT_BUILT)
    return tuple(sentences)


def _at_default(subject: Subject) -> list[str]:
    """The arguments that no sample gives, or but as they are by default, where that leaves a path untried.

    A bias that is never there has no gradient, and what a flag or a choice turns on isn't run.
    """
    parameters = parameters_of(subject)
    given: set[str] = set()
    for sample in subject.samples.samples:
        by_place = zip(parameters, sample.args, strict=False)
        values = (*by_place, *sample.kwargs.items())
        given |= {name for name, value in values if name in parameters and value is not parameters[name].default}
    left: dict[str, list[str]] = {}
    for name, parameter in parameters.items():
        chosen = parameter.default is None or isinstance(parameter.default, (bool, str, enum.Enum))
        if chosen and name not in given:
            left.setdefault(str(parameter.default), []).append(name)
    return [
        f"{', '.join(names)} (left at {'its' if len(names) == 1 else 'their'} default {value})"
        for value, names in left.items()
    ]


def _sizes(subject: Subject) -> list[str]:
    if subject.reference is not None or subject.surrogate is not None:
        return []
    large = sorted(
        {
            leaf.name
            for case in subject.cases
            for leaf in subject.fresh(case).varying
            if leaf.tensor.numel() > EVERY_ELEMENT_UP_TO
        }
    )
    if not large:
        return []
    return [
        f"single elements of {', '.join(large)}: compared through dense random projections, so a wrong element is "
        f"missed only where its error is below {SMALLEST_SHARE:.0e} of the gradient's norm"
    ]
