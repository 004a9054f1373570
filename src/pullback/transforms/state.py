"""What is known, when a gradient is to be differentiated, of the call it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.call.casting import around_backward, decorated_wrongly
from pullback.call.dependence import is_smooth
from pullback.call.gradients import by_position
from pullback.call.kept import replaced
from pullback.call.layout import ATTRIBUTE, Call, Saved, numbers_on, tensors_on
from pullback.call.plan import Plan
from pullback.call.stand_in import BackwardStandIn
from pullback.torch_private import leaf_behind


@dataclass(frozen=True)
class Hidden:
    """A tensor that backward may read and that the graph doesn't lead to the arguments from.

    Attributes:
        position: Its place among the saved tensors; -1 for one that is kept on ctx.
        path: The attribute of ctx that holds it; empty for a saved one.
    """

    position: int
    path: str = ""

    def __str__(self) -> str:
        return f"ctx.{self.path}" if self.path else f"saved tensor {self.position}"


@dataclass(frozen=True, kw_only=True)
class State:
    """One call of a Function, as seen from its backward pass.

    Attributes:
        plan: The class that was called.
        call: What was remembered of the call.
        needs: One flag for each argument: whether it needs a gradient.
        saved: The saved tensors, connected to the graph where they are arguments or outputs.
        attributes: What forward left on ctx.
        inputs: The arguments that need a gradient and can be had, by index, connected to the graph.
        outputs: The saved outputs that are connected to the graph.
        hidden: What may be cut off from the graph.
        presumed: Those of `hidden` that didn't vary with the arguments in the call that was watched, so that they are
            constants unless a replay shows otherwise.
        numbers: The Python floats on ctx that vary with an argument, as ``ctx.path``; nothing can connect them.
        grads: The cotangents that backward received.
        edge: The nodes where the graph of the rest of the model begins.
        node: The real ctx, while backward runs; None where it must not be kept.
    """

    plan: Plan
    call: Call
    needs: tuple[bool, ...]
    saved: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any]
    inputs: Mapping[int, Tensor]
    outputs: tuple[Tensor, ...]
    hidden: tuple[Hidden, ...]
    presumed: frozenset[Hidden]
    numbers: tuple[str, ...]
    grads: tuple[Tensor | None, ...]
    edge: tuple[Any, ...]
    node: Any = None

    @property
    def missing(self) -> list[int]:
        """The arguments that need a gradient and can't be had: they were neither saved nor are they leaves."""
        return [index for index, needed in enumerate(self.needs) if needed and index not in self.inputs]

    @property
    def anchors(self) -> list[Tensor]:
        """Tensors through which every path to the arguments leads, if `covered`."""
        connected = [grad for grad in self.grads if grad is not None and grad.requires_grad]
        return [*self.inputs.values(), *self.outputs, *connected]

    @property
    def covered(self) -> bool:
        """Whether `anchors` lie on a path to each argument that needs a gradient."""
        return bool(self.outputs) or not self.missing

    def name(self, index: int) -> str:
        """The name of the argument at `index`."""
        return self.plan.definition.argument_name(index)

    def with_hidden(self, shown: Mapping[Hidden, Tensor]) -> State:
        """The same call with other tensors in the place of hidden ones."""
        saved = tuple(shown.get(Hidden(position), tensor) for position, tensor in enumerate(self.saved))
        by_path = {hidden.path: tensor for hidden, tensor in shown.items() if hidden.path}
        attributes = {name: replaced(name, value, by_path) for name, value in self.attributes.items()}
        return replace(self, saved=saved, attributes=attributes)

    def value(self, hidden: Hidden) -> Tensor:
        """The tensor that `hidden` stands for."""
        tensor = dict(tensors_on(self.attributes))[hidden.path] if hidden.path else self.saved[hidden.position]
        assert tensor is not None
        return tensor

    def stand_in(self, grad_outputs: Sequence[Tensor | None] | None = None) -> BackwardStandIn:
        """A ctx for one run of backward, or, with `grad_outputs`, of double_backward."""
        return BackwardStandIn(self.node, self.saved, self.needs, self.attributes, grad_outputs)

    def backward(self, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Run the author's backward in the present grad mode: one gradient or None for each argument."""
        definition = self.plan.definition
        author = getattr(self.plan.cls, self.plan.definition.method)
        ctx = self.stand_in()
        before = dict(ctx.__dict__)
        try:
            with around_backward(definition, self.attributes):
                returned = author(ctx, list(grads)) if self.boxed else author(ctx, *grads)
        except AttributeError as error:
            better = decorated_wrongly(definition, error)
            if better is None:
                raise
            raise better from error
        self._write_back(before, ctx)
        return by_position(definition, self.needs, returned)

    def values(self) -> tuple[Tensor | None, ...]:
        """backward's gradients for the cotangents that it received, and no graph."""
        with torch.no_grad():
            return self.backward(self.grads)

    @property
    def boxed(self) -> bool:
        """Whether backward takes its cotangents as one list."""
        return self.plan.definition.boxed

    def _write_back(self, before: Mapping[str, Any], ctx: BackwardStandIn) -> None:
        """What backward set on ctx, set on the real one."""
        if self.node is not None:
            for name, value in ctx.__dict__.items():
                if name not in before or before[name] is not value:
                    setattr(self.node, name, value)


def state_of(plan: Plan, ctx: Any, grads: tuple[Tensor | None, ...]) -> State:
    """Read off the node `ctx` all that there is to know of its call; unpacks the saved tensors once."""
    saved = tuple(ctx.saved_tensors)
    attributes = {name: value for name, value in ctx.__dict__.items() if name != ATTRIBUTE}
    call = plan.call_of(ctx)
    needs, edges = _asked(plan, ctx)
    if plan.definition.nondiff_argnames:
        saved = tuple(_without_nondiff(plan, call, saved))
    outputs = tuple(tensor for tensor in saved if tensor is not None and tensor.grad_fn is ctx)
    hidden = tuple(_hidden(call, needs, saved, attributes, (*edges, *((ctx, k) for k in range(len(grads))))))
    wanted = {index for index, needed in enumerate(needs) if needed}
    return State(
        plan=plan,
        call=call,
        needs=needs,
        saved=saved,
        attributes=attributes,
        inputs=_inputs(needs, edges, saved),
        outputs=outputs,
        hidden=tuple(entry for entry, _ in hidden),
        presumed=frozenset(entry for entry, varies in hidden if varies is not None and not varies & wanted),
        numbers=_numbers(plan, call, attributes, wanted),
        grads=grads,
        edge=(ctx, *(node for node, _ in edges)),
        node=ctx,
    )


def _asked(plan: Plan, ctx: Any) -> tuple[tuple[bool, ...], list[tuple[Any, int]]]:
    """For each argument whether its gradient is wanted, and for those that are, the nodes behind them."""
    definition, asked = plan.definition, tuple(ctx.needs_input_grad)
    edges = [(node, number) for node, number in ctx.next_functions if node is not None]
    if not definition.nondiff_argnames:
        return asked, edges
    needs = tuple(flag and not definition.is_nondiff(definition.argument_name(k)) for k, flag in enumerate(asked))
    behind = zip([index for index, flag in enumerate(asked) if flag], edges, strict=True)
    return needs, [edge for index, edge in behind if needs[index]]


def _without_nondiff(plan: Plan, call: Call, saved: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
    """The saved tensors; an argument that never gets a gradient gets none at any order."""
    definition, known = plan.definition, call.layout.saved
    for position, tensor in enumerate(saved):
        entry = known[position] if len(known) == len(saved) else None
        if tensor is not None and entry is not None and entry.origin == "argument":
            tensor = tensor.detach() if definition.is_nondiff(definition.argument_name(entry.index)) else tensor
        yield tensor


def _numbers(plan: Plan, call: Call, attributes: Mapping[str, Any], wanted: set[int]) -> tuple[str, ...]:
    """The numbers on ctx that may have been read from an argument: neither in the source nor among the arguments."""
    if not plan.read & wanted:
        return ()
    found = numbers_on(attributes)
    return tuple(
        f"ctx.{path}"
        for path, number in found
        if not any(number is given for given in call.plain)
        and not (isinstance(number, float) and number in plan.literals)
    )


def _inputs(needs: Sequence[bool], edges: Sequence[tuple[Any, int]], saved: Sequence[Any]) -> dict[int, Tensor]:
    wanted = [index for index, needed in enumerate(needs) if needed]
    found: dict[int, Tensor] = {}
    for index, (node, number) in zip(wanted, edges, strict=True):
        leaf = leaf_behind(node)
        candidates = [leaf] if leaf is not None else [t for t in saved if t is not None and _at(t, node, number)]
        if candidates:
            found[index] = candidates[0]
    return found


def _at(tensor: Tensor, node: Any, number: int) -> bool:
    return tensor.grad_fn is node and tensor.output_nr == number


def _on(tensor: Tensor, edges: Sequence[tuple[Any, int]]) -> bool:
    """Whether `tensor` is an argument that needs a gradient, or an output, by its place in the graph."""
    if not tensor.requires_grad:
        return False
    # A leaf that a saved-tensor hook brought back is another tensor, which accumulates into the same leaf.
    try:
        edge = torch.autograd.graph.get_gradient_edge(tensor)
    except (AssertionError, AttributeError, RuntimeError):  # a view of an output, made before that had a node
        return False
    return any(edge.node is node and edge.output_nr == number for node, number in edges)


def _hidden(
    call: Call,
    needs: Sequence[bool],
    saved: Sequence[Any],
    attributes: Mapping[str, Any],
    edges: Sequence[tuple[Any, int]],
) -> Iterator[tuple[Hidden, frozenset[int] | None]]:
    """What may be cut off, each with the arguments that it varied with when it was watched, None if it wasn't."""
    known: Sequence[Saved | None] = call.layout.saved
    if len(known) != len(saved):
        known = [None] * len(saved)
    for position, (tensor, entry) in enumerate(zip(saved, known, strict=True)):
        if tensor is None or not is_smooth(tensor) or _on(tensor, edges):
            continue
        origin = entry.origin if entry else ""
        if origin == "constant" or (origin == "argument" and not tensor.requires_grad):
            continue
        yield Hidden(position), entry.varies_with if entry and origin != "flat" else None
    for path, tensor in tensors_on(attributes):
        if is_smooth(tensor) and not _on(tensor, edges):
            yield Hidden(-1, path), call.layout.attributes.get(path)
