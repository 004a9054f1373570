"""Containers of two tensors, of every kind, and a Function of one kind that returns another."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback


class Pair(NamedTuple):
    """A named tuple."""

    a: Any
    b: Any


@dataclass
class Record:
    """A dataclass that PyTorch's registry knows."""

    a: Any
    b: Any


class Box:
    """A class of one's own in PyTorch's registry, whose keys nobody told of."""

    def __init__(self, a: Any, b: Any) -> None:
        """Put two things into it."""
        self.items = [a, b]


pytree.register_dataclass(Record)
pytree.register_pytree_node(Box, lambda box: (box.items, None), lambda items, _: Box(*items))


@dataclass(frozen=True)
class Kind:
    """A kind of container.

    Attributes:
        make: Puts two things into one.
        take: Takes them out again.
        paths: How the two are called in a container `n`.
    """

    make: Callable[[Any, Any], Any]
    take: Callable[[Any], tuple[Any, Any]]
    paths: tuple[str, str]


def by_index(nest: Any) -> tuple[Any, Any]:
    """Take two things out of a sequence."""
    return nest[0], nest[1]


def by_key(nest: Any) -> tuple[Any, Any]:
    """Take two things out of a dict."""
    return nest["a"], nest["b"]


_INDEX, _KEY = ("n[0]", "n[1]"), ("n['a']", "n['b']")

KINDS: dict[str, Kind] = {
    "list": Kind(lambda a, b: [a, b], by_index, _INDEX),
    "tuple": Kind(lambda a, b: (a, b), by_index, _INDEX),
    "named tuple": Kind(Pair, by_index, _INDEX),
    "deque": Kind(lambda a, b: deque((a, b)), by_index, _INDEX),
    "dict": Kind(lambda a, b: {"a": a, "b": b}, by_key, _KEY),
    "dict the other way round": Kind(lambda a, b: {"b": b, "a": a}, by_key, ("n['b']", "n['a']")),
    "OrderedDict": Kind(lambda a, b: OrderedDict(a=a, b=b), by_key, _KEY),
    "defaultdict": Kind(lambda a, b: defaultdict(list, a=a, b=b), by_key, _KEY),
    "dataclass": Kind(Record, lambda nest: (nest.a, nest.b), ("n.a", "n.b")),
    "registered class": Kind(Box, lambda nest: (nest.items[0], nest.items[1]), _INDEX),
    "nest of nests": Kind(
        lambda a, b: [{"a": a}, (2, [b])], lambda nest: (nest[0]["a"], nest[1][1][0]), ("n[0]['a']", "n[1][1][0]")
    ),
}

SAVING = ("arguments", "an intermediate", "on ctx")

WAYS = ("by position", "by name")


def formula(kind: Kind, returned: Kind, nest: Any, k: float) -> Any:
    """Compute (a b k, a³ b), two tensors of two, in plain PyTorch."""
    a, b = kind.take(nest)
    return returned.make(a * b * k, a**3 * b)


def function(
    kind: Kind,
    returned: Kind,
    *,
    style: str = "ctx",
    saving: str = "arguments",
    way: str = "by position",
    **attributes: Any,
) -> Any:
    """Define `formula` as the Function Pairwise(n, k).

    Args:
        kind: What n is.
        returned: What forward returns; a tuple is two outputs.
        style: ``ctx`` or ``setup_context``.
        saving: What forward leaves for backward.
        way: How backward returns its gradients.
        **attributes: More for the class.
    """

    def save(ctx: Any, n: Any, k: float) -> None:
        a, b = kind.take(n)
        ctx.k = k
        if saving == "on ctx":
            ctx.n = n
        else:
            # On a real call a is no leaf of any graph here, so a² is cut off from it.
            ctx.save_for_backward(a, b, *([a**2] if saving == "an intermediate" else []))

    def forward(ctx: Any, n: Any, k: float) -> Any:
        save(ctx, n, k)
        return formula(kind, returned, n, k)

    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        saved = ctx.saved_tensors
        a, b = kind.take(ctx.n) if saving == "on ctx" else saved[:2]
        square = saved[2] if saving == "an intermediate" else a**2
        g, h = returned.take(grad_outputs if len(grad_outputs) == 2 else grad_outputs[0])
        gradient = kind.make(g * b * ctx.k + h * 3 * square * b, g * a * ctx.k + h * square * a)
        if isinstance(gradient, list) and isinstance(gradient[-1], tuple):
            gradient[-1] = (None, gradient[-1][1])  # the number 2 has no gradient
        assert ctx.needs_input_grad == (True, False)
        return (gradient, None) if way == "by position" else {"n": gradient, "k": None}

    body: dict[str, Any] = {"forward": staticmethod(forward)}
    if style == "setup_context":
        body = {
            "forward": staticmethod(lambda n, k: formula(kind, returned, n, k)),
            "setup_context": staticmethod(lambda ctx, inputs, output: save(ctx, *inputs)),
        }
    return type("Pairwise", (pullback.Function,), {**body, "backward": staticmethod(backward), **attributes})


def numbers(outputs: tuple[Any, Any]) -> Tensor:
    """Make one number of both tensors, in which neither is linear."""
    return (outputs[0] ** 2).sum() + (outputs[1] ** 3).sum()


def second_order(outputs: Callable[[], tuple[Any, Any]], *leaves: Tensor) -> list[Tensor]:
    """Return first and second derivatives of `numbers`."""
    first = torch.autograd.grad(numbers(outputs()), leaves, create_graph=True)
    second = torch.autograd.grad(sum(((gradient**2).sum() for gradient in first), torch.zeros(())), leaves)
    return [*(gradient.detach() for gradient in first), *second]
