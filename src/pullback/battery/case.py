"""The data of experiments: cases, fresh inputs, leaves and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.battery.leaves import replace, tensors
from pullback.battery.samples import Sample


class CotangentName(str):
    """What a cotangent is called among variables: no argument's name, though an argument may be called alike."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CotangentName) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def cotangent_names(count: int) -> list[CotangentName]:
    """``grad_output``; ``grad_output[0]`` and so on where there are several."""
    return [CotangentName(f"grad_output[{place}]" if count > 1 else "grad_output") for place in range(count)]


@dataclass(frozen=True, eq=False)
class Leaf:
    """One distinct tensor among the arguments of a call.

    Attributes:
        name: The first place where it is passed: ``x``, ``xs[0]``.
        tensor: The leaf to differentiate by.
        also: The other places where the same tensor is passed.
        argument: The parameter that holds it: ``xs`` for ``xs[0]``.
    """

    name: str
    tensor: torch.Tensor
    argument: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Inputs:
    """A fresh set of arguments: nothing else holds its tensors.

    Attributes:
        args: What to pass by position.
        kwargs: What to pass by keyword.
        leaves: Every distinct tensor in them.
        varying: Those that require grad before the call: a buffer that forward writes to and marks dirty is an output
            afterwards, and requires grad then too.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: tuple[Leaf, ...]
    varying: tuple[Leaf, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Note which leaves require grad."""
        # The class is frozen.
        object.__setattr__(self, "varying", tuple([leaf for leaf in self.leaves if leaf.tensor.requires_grad]))

    def leaf(self, name: str) -> Leaf:
        """The leaf called `name`."""
        return next(leaf for leaf in self.leaves if leaf.name == name)


@dataclass(frozen=True)
class Output:
    """One tensor in what a call returned: ``output``, or ``output[1]`` where there are several."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """One sample made ready: its tensors in float64 where forward takes that.

    Attributes:
        index: The sample's number.
        sample: The arguments, never handed out themselves.
        varying: The names of the leaves to differentiate by.
        exact: Whether the arguments are in float64 (or complex128); else they exist in lower dtypes only.
        moved: Whether the point was moved off a kink.
    """

    index: int
    sample: Sample
    varying: frozenset[str]
    exact: bool = True
    moved: bool = False

    @property
    def label(self) -> str:
        """``sample 0``."""
        return f"sample {self.index}" + (" (moved off a kink)" if self.moved else "")

    def may_vary(self, what: str) -> bool:
        """Whether the author lets the battery vary `what`, one of `samples.VARY`."""
        return what in self.sample.vary


def outputs_in(returned: object) -> tuple[Output, ...]:
    """The tensors in what a call returned, named."""
    return tuple(Output(name, tensor) for name, tensor in tensors(returned, "output"))


def with_tensors(sample: Sample, swap: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    """The sample with each tensor exchanged by `swap`, once for each distinct one."""
    made: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = swap(tensor)
        return made[id(tensor)]

    return Sample(replace(sample.args, once), replace(dict(sample.kwargs), once), sample.vary)


def positional_names(function: Any, count: int) -> tuple[str, ...]:
    """Names for the first `count` positional parameters of a plain callable."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return tuple(names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(count))
