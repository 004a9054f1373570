"""A sample with another number, flag or choice among its arguments: one at a time, those left at their default too.

A scale of 1 hides that backward forgets it, and what is written for the last axis is right for that axis alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pullback.battery.defaults import choices
from pullback.battery.samples import Sample
from pullback.battery.subject import Subject

_MOST = 4
"""How many arguments are exchanged."""

_SHARE = 0.73
"""A number is made smaller by this factor: probabilities stay in range, and bfloat16 holds few of the products."""

_TOLERANCE = 1e-2
"""A number below this size may be one that an iteration stops at: with 0 in its place that would never end."""


def parameters_of(subject: Subject) -> Mapping[str, inspect.Parameter]:
    """The parameters by their names; empty where no signature can be read."""
    try:
        known = subject.definition
        return (known.signature if known is not None else inspect.signature(subject.function)).parameters
    except (TypeError, ValueError):
        return {}


def with_other_numbers(subject: Subject, sample: Sample) -> Iterator[tuple[str, object, Sample]]:
    """The sample with one number, flag or choice exchanged.

    Yields:
        The argument's name, its new value, and the sample that has it. Several for some arguments, the likeliest to be
        taken first.
    """
    parameters = parameters_of(subject)
    given = {**dict(zip(subject.argument_names, sample.args, strict=False)), **sample.kwargs}
    left = {n: p.default for n, p in parameters.items() if n not in given and p.default is not p.empty}
    found = 0
    for name, value in {**given, **left}.items():
        others = _others(value)
        if not others and name in parameters:
            others = choices(parameters[name], value)
        found += bool(others)
        if found > _MOST:
            return
        yield from ((name, other, made) for other in others if (made := _with(subject, sample, name, other)))


def _others(value: object) -> list[object]:
    """Other numbers of the same kind, first one that is nearer to 0 if it can be: sizes and places stay in range."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value - 1] if value > 1 else [value + 1, value - 1] if value else [1]
    if not isinstance(value, float) or not math.isfinite(value):
        return []
    nearer = float(f"{_SHARE * value:.6g}")
    return [nearer, 0.0] if abs(value) >= _TOLERANCE else [nearer if value else 0.5]


def _with(subject: Subject, sample: Sample, name: str, value: object) -> Sample | None:
    """The sample with this value for an argument; None where that can't be passed."""
    names, count, parameters = subject.argument_names, len(sample.args), parameters_of(subject)
    if name in names[:count]:
        place = names.index(name)
        return replace(sample, args=(*sample.args[:place], value, *sample.args[place + 1 :]))
    parameter = parameters.get(name)
    if name in sample.kwargs or (parameter is not None and parameter.kind is parameter.KEYWORD_ONLY):
        return replace(sample, kwargs={**sample.kwargs, name: value})
    ordered = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    between = ordered[count : [p.name for p in ordered].index(name)]
    if sample.kwargs or any(p.default is p.empty for p in between):
        return None
    return replace(sample, args=(*sample.args, *(p.default for p in between), value))
