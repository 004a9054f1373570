"""Calls of one case with the same arguments and cotangents each time, so that their results can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.observe import difference
from pullback.battery.subject import Case, Inputs, Leaf, Output, Subject
from pullback.battery.tolerances import Tolerance

Surrounding = Callable[[], AbstractContextManager[object]]
"""Makes what a call runs under: hooks, a mode, a lock."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call that waits for its backward."""

    inputs: Inputs
    outputs: tuple[Output, ...]


class Difference(NamedTuple):
    """Where two results part: ``value`` or ``gradient``, how far, and of which output or argument."""

    kind: str
    mismatch: Mismatch
    name: str


@dataclass(frozen=True, eq=False)
class Result:
    """What a call gave: values by output and gradients by argument."""

    values: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor | None]

    def differs_from(self, other: Result, tolerance: Tolerance | None = None) -> Difference | None:
        """The first difference to another result, which is what came where this one was expected; or None."""
        kinds: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
            ("value", self.values, other.values),
            ("gradient", self.gradients, other.gradients),
        )
        for kind, ours, theirs in kinds:
            for name, expected in ours.items():
                mismatch = difference(expected, theirs.get(name), tolerance=tolerance)
                if mismatch is not None:
                    return Difference(kind, mismatch, name)
        return None

    def copied(self) -> Result:
        """The same in memory of its own: a later call may write where the gradients are."""
        return Result(self.values, {n: None if g is None else g.clone() for n, g in self.gradients.items()})


def first_results(subject: Subject) -> dict[Case, Result]:
    """What the first calls of cases gave, as far as somebody has noted it."""
    known: dict[Case, Result] = subject.cache.setdefault("first results", {})
    return known


class Trial:
    """Calls of one case, always with the same arguments and cotangents.

    Args:
        subject: Whose.
        case: The arguments.
        function: What is called in place of the function; its outputs go by the function's own names.
    """

    def __init__(self, subject: Subject, case: Case, function: Callable[..., Any] | None = None) -> None:
        self._subject, self._case, self._function = subject, case, function
        named = _cotangents(subject, case)
        self.cotangents = [cotangent for _, cotangent in named]
        self._names = [name for name, _ in named]

    def forward(self, *, track: bool = True, under: Surrounding = nullcontext, inputs: Inputs | None = None) -> Call:
        """Call on fresh arguments, or on others with the same values, in the given surrounding."""
        inputs = inputs or self._subject.fresh(self._case)
        with torch.set_grad_enabled(track), under():
            outputs = self._subject.call(inputs, self._function)
        named = zip(self._names, outputs, strict=False)
        return Call(inputs, tuple(Output(name, output.tensor) for name, output in named))

    def backward(self, call: Call, *, retain_graph: bool = False, under: Surrounding = nullcontext) -> Result:
        """Differentiate a call by all that requires grad."""
        with under():
            gradients = self._subject.gradients(
                call.outputs, self.cotangents, call.inputs.varying, retain_graph=retain_graph
            )
        return self.result(call, gradients)

    def alone(self) -> Result:
        """The result where nothing else happens."""
        return self.backward(self.forward())

    def again(self, call: Call) -> Result:
        """The second derivatives: the gradients of a weighted sum of the call's gradients."""
        leaves = call.inputs.varying
        cotangents = [cotangent.clone() for cotangent in self.cotangents]
        first = self._subject.gradients(call.outputs, cotangents, leaves, create_graph=True)
        tracked = [(leaf, gradient) for leaf, gradient in zip(leaves, first, strict=True) if gradient is not None]
        gradients = [Output(f"gradient of {leaf.name}", gradient) for leaf, gradient in tracked]
        with self._subject.drawing_for(f"weights of sample {self._case.index}"):
            weights = [self._subject.cotangent(leaf.tensor.detach()) for leaf, _ in tracked]
        second = self._subject.gradients(gradients, weights, leaves)
        return Result({}, by_name(leaves, second))

    def result(self, call: Call, gradients: Sequence[torch.Tensor | None]) -> Result:
        """The values of a call with the gradients that came for it."""
        values = {
            output.name: output.tensor.detach().clone() for output in call.outputs
        }  # the next call may write there
        return Result(values, by_name(call.inputs.varying, gradients))


def _cotangents(subject: Subject, case: Case) -> list[tuple[str, torch.Tensor]]:
    """The name of each output, and its cotangent; for the first case of each number, the sample, they are kept."""
    key = ("cotangents", case.index, subject.seed)
    known, found = subject.cache.get(key, (None, []))
    if known is case:
        return list(found)
    outputs = subject.call(subject.fresh(case))
    with subject.drawing_for(f"cotangents of sample {case.index}"):
        found = [(output.name, subject.cotangent(output.tensor)) for output in outputs]
    subject.cache.setdefault(key, (case, found))
    return found


def by_name(leaves: Sequence[Leaf], gradients: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Gradients by the names of the leaves that they are for."""
    return {leaf.name: gradient for leaf, gradient in zip(leaves, gradients, strict=True)}
