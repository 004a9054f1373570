"""What things in the graph are called: Functions, and their saved tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pullback.call.plan import Plan
from pullback.define.definition import describe
from pullback.torch_private import author_of, leaf_behind, saved_data


def function_name(node: Any) -> str:
    """The name of the Function whose node this is, as its author wrote it."""
    plan = _plan(node)
    if plan is not None:
        return plan.definition.name
    cls = author_of(node)
    name: str = cls.__name__ if cls is not None else node.name()
    return name


def saved_names(node: Any, raws: Sequence[Any]) -> list[str]:
    """What each saved tensor of a Function is: an argument's name, ``output 0``, ``intermediate``, ``saved 1``."""
    plan = _plan(node)
    origins = plan.origins(node) if plan is not None else []
    if len(origins) == len(raws):
        names = [_short(origin) for origin in origins]
    else:
        names = _by_edges(node, raws)
    # Two intermediates are told apart by their place in ctx.saved_tensors.
    return [name if names.count(name) == 1 else f"{name} (saved {index})" for index, name in enumerate(names)]


def argument_names(node: Any) -> list[str]:
    """What the arguments of a Function are called."""
    plan = _plan(node)
    definition = plan.definition if plan is not None else describe(author_of(node))
    return [definition.argument_name(index) for index in range(len(node.needs_input_grad))]


def _plan(node: Any) -> Plan | None:
    plan = getattr(type(node), "pullback_plan", None)
    return plan if isinstance(plan, Plan) else None


def _short(origin: str) -> str:
    for article in ("argument ", "an ", "a declared "):
        origin = origin.removeprefix(article)
    return origin


def _by_edges(node: Any, raws: Sequence[Any]) -> list[str]:
    """PyTorch's own Functions tell by their place in the graph which saved tensors are which arguments."""
    needs = [index for index, needed in enumerate(node.needs_input_grad) if needed]
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    cls = author_of(node)
    if cls is None or len(needs) != len(edges):
        return [f"saved {index}" for index in range(len(raws))]
    definition = describe(cls)
    names = []
    for index, raw in enumerate(raws):
        data = saved_data(raw)
        place = next((k for k, edge in enumerate(edges) if isinstance(data, Tensor) and _is_at(data, edge)), None)
        names.append(f"saved {index}" if place is None else definition.argument_name(needs[place]))
    return names


def _is_at(tensor: Tensor, edge: tuple[Any, int]) -> bool:
    if tensor.grad_fn is not None:
        return (tensor.grad_fn, tensor.output_nr) == edge
    return tensor.requires_grad and leaf_behind(edge[0]) is tensor
