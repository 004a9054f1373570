"""Which operators backward ran, and which of them only a gradient needed that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.battery.leaves import address, tensors
from pullback.battery.nodes import belongs, call_backward
from pullback.battery.subject import BackwardRaised, Inputs, Subject
from pullback.torch_private import TorchDispatchMode


@dataclass(frozen=True)
class Operator:
    """One operator that ran.

    Attributes:
        name: Such as ``aten.mm``.
        inputs: The identities of the tensors that it read.
        outputs: The identities of those that it gave or wrote to.
        elements: How many elements it gave; 0 for views.
    """

    name: str
    inputs: frozenset[int]
    outputs: frozenset[int]
    elements: int


@dataclass(frozen=True)
class Waste:
    """Operators that only served a gradient that was thrown away."""

    operators: tuple[str, ...]
    elements: int


class Recorder(TorchDispatchMode):
    """Records every operator that runs; it keeps their tensors alive, so that identities stay apart."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [tensor for _, tensor in tensors([args, kwargs or {}], "")]
        gave = [tensor for _, tensor in tensors(result, "")]
        self._alive += [*read, *gave]
        memory = {address(tensor) for tensor in read}
        elements = sum(t.numel() for t in gave if address(t) not in memory)
        name = str(func).rpartition(".")[0] or str(func)
        self.operators.append(Operator(name, frozenset(map(id, read)), frozenset(map(id, gave)), elements))
        return result


def wasted_work(
    subject: Subject, node: Any, inputs: Inputs, needed: str, cotangents: Sequence[torch.Tensor]
) -> Iterator[tuple[str, Waste]]:
    """For each argument but `needed`, the work that backward did for its gradient alone."""
    with Recorder() as record:
        try:
            by_name = call_backward(subject, node, inputs, (), cotangents).by_name()
        except BackwardRaised:
            return
    argument = inputs.leaf(needed).argument
    useful = _slice(record.operators, by_name.get(needed, by_name.get(argument)))
    for name, entry in by_name.items():
        # The author has one flag for an argument with all its leaves.
        if name == needed or belongs(name, argument) or not isinstance(entry, torch.Tensor):
            continue
        wasted = [record.operators[i] for i in sorted(_slice(record.operators, entry) - useful)]
        costly = [operator for operator in wasted if operator.elements]
        if costly:
            yield name, Waste(tuple(operator.name for operator in costly), sum(o.elements for o in costly))


def _slice(operators: Sequence[Operator], result: object) -> set[int]:
    """The operators on which `result` depends, by their number."""
    wanted = {id(tensor) for _, tensor in tensors(result, "")}
    found: set[int] = set()
    for number in range(len(operators) - 1, -1, -1):
        if operators[number].outputs & wanted:
            found.add(number)
            wanted |= operators[number].inputs
    return found
