"""What is crossed with transforms: a kind of Function, the plain PyTorch that computes the same, its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.transforms.derivatives import Draw

Program = Callable[..., Any]
"""From tensors to a tree of tensors: what transforms take and give back."""

Use = Callable[..., Any]
"""How a kind calls its Function: from the Function (or the plain one) and the arguments to a tree of tensors."""


def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the Function with the arguments as they are."""
    return function(*arguments)


@dataclass(frozen=True)
class Kind:
    """A Function written by hand, with its truth.

    Attributes:
        name: What it goes by in the name of a test.
        make: Makes the class anew, so that no test finds what another one's calls have taught it.
        plain: The same computation in plain PyTorch, with the same derivative.
        draw: Draws the positional arguments; those that are tensors are what the transforms see.
        use: How the Function is called, if not just by applying it.
        frozen: Positions, among the tensors, of float tensors that no derivative is asked for.
        randomness: What vmap is told about random numbers.
        in_place: Whether forward writes to its argument.
        shape_by_data: Whether the output's shape depends on values.
        opaque_forward: Whether forward leaves PyTorch, with neither vmap nor reference to batch it.
        opaque_backward: Whether backward does.
        no_forward_mode: Whether nothing is there to derive forward mode from.
        order: The highest order of derivative that anything supplies.
        order_code: The rule by which a higher one is refused.
        unsaved: The rule by which plain autograd refuses a second derivative, where the argument is no leaf and wasn't
            saved, so that nothing leads back to it; transforms have it at hand.
        numpy_backward: Whether backward leaves PyTorch, whatever else is given.
    """

    name: str
    make: Callable[[], Any]
    plain: Callable[..., Any]
    draw: Callable[[Draw], tuple[Any, ...]]
    use: Use = directly
    frozen: tuple[int, ...] = ()
    randomness: str = "error"
    in_place: bool = False
    shape_by_data: bool = False
    opaque_forward: bool = False
    opaque_backward: bool = False
    no_forward_mode: bool = False
    order: int = 99
    order_code: str = "PB207"
    unsaved: str = ""
    numpy_backward: bool = False

    def point(self, seed: int) -> Point:
        """Draw arguments from `seed`."""
        return Point(self, self.draw(Draw(seed)))


@dataclass(frozen=True)
class Point:
    """Arguments of a kind, and what the transforms see of them.

    Attributes:
        kind: The kind.
        arguments: What was drawn: tensors and others.
    """

    kind: Kind
    arguments: tuple[Any, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments, complex ones as pairs of reals, since jacrev and jacfwd take no others."""
        return tuple(as_real(argument) for argument in self.arguments if isinstance(argument, Tensor))

    @property
    def wrt(self) -> tuple[int, ...]:
        """The positions of the tensors that derivatives are taken by."""
        floats = (k for k, tensor in enumerate(self.tensors) if tensor.is_floating_point())
        return tuple(k for k in floats if k not in self.kind.frozen)

    def program(self, function: Callable[..., Any]) -> Program:
        """The function as transforms take it: of tensors alone, with real outputs."""

        def call(*tensors: Tensor) -> Any:
            rest = iter(tensors)
            arguments = [
                argument if not isinstance(argument, Tensor) else as_given(next(rest), argument)
                for argument in self.arguments
            ]
            return as_real(self.kind.use(function, *arguments))

        return call


def as_real(value: Any) -> Any:
    """A complex tensor as pairs of reals; all else, and tuples of it, as it is."""
    if isinstance(value, tuple):
        return tuple(as_real(entry) for entry in value)
    if isinstance(value, Tensor) and value.is_complex():
        # Neither view_as_real nor imag can be had of every tensor under every transform; these can.
        return torch.stack([value.real, (-1j * value).real], -1)
    return value


def as_given(tensor: Tensor, given: Tensor) -> Tensor:
    """Undo `as_real` for an argument that was given as complex."""
    return tensor[..., 0] + 1j * tensor[..., 1] if given.is_complex() else tensor


def floats(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Callable[[Draw], tuple[Any, ...]]:
    """Draw float (or complex) tensors of these shapes."""
    return lambda draw: tuple(draw.constant(*shape, dtype=dtype) for shape in shapes)


class Kinds(dict[str, Kind]):
    """A table of kinds, filled by a decorator above each class."""

    def kind(
        self, plain: Callable[..., Any], draw: Callable[[Draw], tuple[Any, ...]], **declared: Any
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Enter the kind whose class the decorated function makes, under the function's name."""

        def enter(make: Callable[[], Any]) -> Callable[[], Any]:
            self[make.__name__] = Kind(make.__name__, make, plain, draw, **declared)
            return make

        return enter
