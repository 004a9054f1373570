"""A backward that is declared not to be linear, against what its author says that it should return."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pullback.battery.away import FIRST_FEW, numbered
from pullback.battery.compare import compare
from pullback.battery.complexes import made_complex
from pullback.battery.grown import grown, stacked, with_equal_sizes
from pullback.battery.leaves import replace as exchange
from pullback.battery.leaves import tensors
from pullback.battery.observe import named_arguments
from pullback.battery.oracle import moved
from pullback.battery.other_numbers import with_other_numbers
from pullback.battery.probe import Note, Skip
from pullback.battery.raised import RAISED
from pullback.battery.redrawn import OTHER_VALUES, redrawn
from pullback.battery.repro import expectation_lines
from pullback.battery.subject import Case, Inputs, Subject, outputs_in
from pullback.battery.tolerances import LOWER, SAME, for_gradients
from pullback.finding import Finding

_COTANGENT_SIZES = (1e-2, 1.0, 30.0)

_NUMBER = 920
"""Variants are numbered from here on."""


def against_expectation(subject: Subject) -> Iterator[Finding | Note]:
    """A backward that is declared not to be linear is compared with what its author says it should return."""
    definition = subject.definition
    expected_backward = definition.expected_backward if definition is not None else None
    if expected_backward is None:
        raise Skip("backward is declared not to be linear, and there is no expected_backward to compare it with")
    for place, case in enumerate(subject.cases):
        found: list[Finding] = []
        for size in _COTANGENT_SIZES:
            found = found or list(_one_expectation(subject, case, size, expected_backward))
        if not found and place < FIRST_FEW:
            found = list(_of_variants(subject, case, expected_backward))
        yield from found


def takes_a_batch(subject: Subject, case: Case) -> bool:
    """Whether what the author says of backward is so said that several cotangents at once are no harder than one."""
    expected_backward = subject.definition.expected_backward if subject.definition is not None else None
    if expected_backward is None:
        return False
    twin = subject.fresh(case, requires=())
    returned = subject.raw_call(subject.fresh(case))
    plain = exchange(returned, lambda tensor: tensor.detach())
    tracked = [output.tensor for output in outputs_in(returned) if output.tensor.requires_grad]

    def one(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arriving = dict(zip(map(id, tracked), cotangents, strict=True))
        given = exchange(returned, lambda t: arriving[id(t)] if id(t) in arriving else torch.zeros_like(t))
        expected = expected_backward(twin.args, _as_tuple(plain), _as_tuple(given))
        return tuple(tensor for _, tensor in tensors(expected, ""))

    try:
        with torch.no_grad():
            torch.vmap(one)(*(torch.stack([subject.cotangent(tensor) for _ in range(2)]) for tensor in tracked))
    except RAISED:
        return False
    return True


def _of_variants(subject: Subject, case: Case, expected_backward: Callable[..., Any]) -> Iterator[Finding]:
    """The first variant of a case for which backward and expected_backward part; what either refuses is passed over."""
    for number, (what, variant) in enumerate(_variants(subject, case), _NUMBER):
        for size in _COTANGENT_SIZES:
            try:
                there = numbered(case, variant, number)
                found = list(_one_expectation(subject, case, size, expected_backward, there, what))
            except RAISED:
                break
            if found:
                yield from found
                return


def _variants(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    if case.may_vary("values"):
        yield from ((OTHER_VALUES, variant) for variant in redrawn(subject, case))
        numbers = with_other_numbers(subject, case.sample)
        yield from ((f"{name}={value!r}", replace(case, sample=sample)) for name, value, sample in numbers)
    if case.may_vary("shape"):
        yield from itertools.islice(grown(subject, case), 1)
        yield from with_equal_sizes(subject, case)
        yield "another axis in front of each tensor", stacked(subject, case)
    if not (case.exact and case.may_vary("dtype")):
        return
    yield "complex arguments", made_complex(subject, case)
    for dtype in LOWER:

        def down(_: str, tensor: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        yield str(dtype).removeprefix("torch."), replace(moved(subject, case, down), exact=False)


def _one_expectation(
    subject: Subject,
    case: Case,
    size: float,
    expected_backward: Callable[..., Any],
    variant: Case | None = None,
    what: str = "",
) -> Iterator[Finding]:
    sample, case = case, variant or case
    inputs = subject.fresh(case)
    returned = subject.raw_call(inputs)
    outputs = outputs_in(returned)
    tracked = [output for output in outputs if output.tensor.requires_grad]
    cotangents = [subject.cotangent(output.tensor) * size for output in tracked]
    arriving = {id(output.tensor): cotangent for output, cotangent in zip(tracked, cotangents, strict=True)}
    given = exchange(returned, lambda t: arriving[id(t)] if id(t) in arriving else torch.zeros_like(t))
    gradients = subject.gradients(tracked, cotangents, inputs.varying)
    twin = subject.fresh(case, requires=())
    with torch.no_grad():
        plain = exchange(returned, lambda tensor: tensor.detach())
        expected = expected_backward(twin.args, _as_tuple(plain), _as_tuple(given))
    wanted = _by_leaf(subject, twin, expected)
    for leaf, got in zip(inputs.varying, gradients, strict=True):
        owed = wanted.get(leaf.name)
        if not case.exact and owed is not None:
            owed = owed.to(leaf.tensor.dtype)
        bad = compare(owed, got, SAME if case.exact else for_gradients(leaf.tensor.dtype))
        if bad is not None:
            yield subject.finding(
                "PB203",
                sample,
                f"{f'with {what}, ' if what else ''}the gradient of {leaf.name} differs from expected_backward",
                argument=leaf.name,
                what=what,
                expected=bad.expected,
                got=bad.got,
                evidence={**bad.evidence, "against": "expected_backward", "cotangent_size": size},
                remedy="Mend backward or expected_backward: one of the two is wrong.",
                repro=expectation_lines(subject, case, leaf.name, size),
            )


def _as_tuple(outputs: object) -> tuple[object, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _by_leaf(subject: Subject, inputs: Inputs, expected: object) -> dict[str, torch.Tensor]:
    """Gradients, as backward may return them, by the names of the leaves; those that are None are left out."""
    arguments = dict(named_arguments(subject, inputs))
    if not isinstance(expected, dict) or not set(expected) <= set(arguments):
        single = not isinstance(expected, tuple) and (len(arguments) == 1 or not isinstance(expected, list))
        entries = (expected,) if single else tuple(expected)  # type: ignore[arg-type]  # a tuple or list
        expected = dict(zip(arguments, entries, strict=False))
    found: dict[str, torch.Tensor] = {}
    for name, entry in expected.items():
        if isinstance(arguments[name], torch.nn.Module) and isinstance(entry, dict):
            found.update({f"{name}.{key}": value for key, value in entry.items() if value is not None})
        else:
            found.update(tensors(entry, name))
    return found
