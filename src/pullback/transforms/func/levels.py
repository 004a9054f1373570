"""`bind`: a primitive taken down through the levels of torch.func, each of which does its part (NOTE [transforms])."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd import Function as TorchFunction

from pullback.call.casting import under_declared
from pullback.call.dependence import is_smooth
from pullback.call.frames import without_own_frames
from pullback.errors import PullbackError
from pullback.torch_private import (
    SingleLevelFunction,
    allow_single_level,
    batch_at,
    dual_level,
    forward_grad,
    is_wrapped,
    top_interpreter,
    transforms_active,
    unbatch_at,
    unwrap_at,
    unwrap_if_dead,
    version_of,
    wrap_at,
)
from pullback.transforms.func import refusals
from pullback.transforms.func.batched import Batched
from pullback.transforms.func.primitive import Optionals, Primitive, Tensors, apart, is_whole
from pullback.transforms.graph import is_batched


def bind(primitive: Primitive, operands: Tensors) -> Tensors:
    """The outputs of `primitive`, connected at each level that is running, and to the graph outside them."""
    operands = tuple(map(unwrap_if_dead, operands))
    if not transforms_active():
        return _at_the_bottom(primitive, operands)
    interpreter = top_interpreter()
    kind = interpreter.key().name
    if kind != "Jvp" and dual_level() >= 0 and any(map(_is_dual, operands)):
        return _on_duals(primitive, operands)
    if kind == "Vmap":
        return _under_vmap(interpreter, primitive, operands)
    if kind not in ("Grad", "Jvp"):
        raise refusals.no_rule(primitive.name, kind)
    # An operand from another level is a constant to this one.
    operands = tuple(_lifted(operand, interpreter.level()) for operand in operands)
    return (_under_jvp if kind == "Jvp" else _under_grad)(interpreter, primitive, operands)


def _is_dual(operand: Tensor) -> bool:
    tangent = None if is_wrapped(operand) else _unpacked(operand)[1]
    return tangent is not None and is_wrapped(tangent)


def _unpacked(operand: Tensor) -> tuple[Tensor, Tensor | None]:
    """The primal and the tangent of a tensor."""
    try:
        primal, tangent = forward_ad.unpack_dual(operand)
    except (RuntimeError, NotImplementedError):  # sparse tensors and the batches of torch.autograd.functional have none
        return operand, None
    return primal, tangent


def _on_duals(primitive: Primitive, operands: Tensors) -> Tensors:
    """A plain tensor with a tangent that belongs to a level, as dual numbers under vmap are."""
    duals = [_unpacked(operand) if _is_dual(operand) else (operand, None) for operand in operands]
    primals, tangents = zip(*duals, strict=True)
    primitive.seen.ask([tangent is not None for tangent in tangents])
    outputs = primitive.connected(primals, bind(primitive, primals), primitive.seen.levels)
    pushed = _pushed(primitive, primals, outputs, tangents, 0)
    pairs = zip(outputs, pushed, strict=True)
    return tuple(out if tangent is None else _dual(out, tangent) for out, tangent in pairs)


def _lifted(operand: Tensor, level: int) -> Tensor:
    return operand if unwrap_at(operand, level) is not operand else wrap_at(operand, level)


def _at_the_bottom(primitive: Primitive, operands: Tensors) -> Tensors:
    dual, grad = dual_level() >= 0, torch.is_grad_enabled()
    active = [(dual and _unpacked(operand)[1] is not None) or (grad and operand.requires_grad) for operand in operands]
    if not any(active):
        return primitive.watched(operands)
    primitive.seen.ask(active)
    outputs: Tensors = _Bottom.apply(primitive, *operands)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    return _without_primals(outputs)


def _under_grad(interpreter: Any, primitive: Primitive, operands: Tensors) -> Tensors:
    primitive.seen.ask([operand.requires_grad and torch.is_grad_enabled() for operand in operands])
    with allow_single_level():
        outputs: Tensors = _Level.apply(primitive, interpreter, *operands)
    return _without_primals(outputs)


def _without_primals(outputs: Tensors) -> Tensors:
    """`outputs`, with a node that holds nothing for a jvp that wasn't called: what is written to would hold itself."""
    node = next((output.grad_fn for output in outputs if output.grad_fn is not None), None)
    if node is not None:
        vars(node).pop("primals", None)
    return outputs


def _under_jvp(interpreter: Any, primitive: Primitive, operands: Tensors) -> Tensors:
    level = interpreter.level()
    duals = [_unpacked(operand) for operand in operands]
    primals = tuple(unwrap_at(primal, level) for primal, _ in duals)
    tangents = tuple(None if tangent is None else unwrap_at(tangent, level) for _, tangent in duals)
    primitive.seen.ask([tangent is not None for tangent in tangents])
    depth = primitive.seen.levels
    with interpreter.lower():
        outputs = primitive.connected(primals, bind(primitive, primals), depth)
        pushed = _pushed(primitive, primals, outputs, tangents, 0)
    wrapped = [wrap_at(output, level) for output in outputs]
    return tuple(
        output if tangent is None else _dual(output, wrap_at(tangent, level))
        for output, tangent in zip(wrapped, pushed, strict=True)
    )


def _dual(primal: Tensor, tangent: Tensor) -> Tensor:
    try:
        dual: Tensor = forward_ad.make_dual(primal, tangent)
    except RuntimeError:  # PyTorch gives the tangent the strides of the primal, which may be expanded
        dual = forward_ad.make_dual(primal.clone(), tangent.clone())
    return dual


def _pushed(primitive: Primitive, operands: Tensors, outputs: Tensors, tangents: Optionals, used: int) -> Optionals:
    if all(tangent is None for tangent in tangents):
        return (None,) * len(outputs)
    with under_declared(primitive.autocast):
        pushed = primitive.push(operands, outputs, tangents, used)
    if not primitive.keeps:
        return pushed
    # Others may write to the operands, and with them to their tangents.
    there = {index: tangent for index, tangent in enumerate(pushed) if tangent is not None}
    taken = (*operands, *outputs, *(tangent for tangent in tangents if tangent is not None))
    separate = dict(zip(there, apart(taken, tuple(there.values())), strict=True))
    return tuple(separate.get(index) for index in range(len(pushed)))


def _under_vmap(interpreter: Any, primitive: Primitive, operands: Tensors) -> Tensors:
    level = interpreter.level()
    values, dims = zip(*(unbatch_at(operand, level) for operand in operands), strict=True) if operands else ((), ())
    with interpreter.lower():
        size, randomness = interpreter.batch_size(), interpreter.randomness()
        if all(dim is None for dim in dims):
            outputs = bind(primitive, values)
            if randomness == "same" or not primitive.drew(rewind=randomness == "different"):
                return outputs
            if randomness == "error":
                raise refusals.random_under_vmap(primitive.name)
        batch = primitive.batch(size, randomness, dims, values)
        if batch is None:
            outputs = bind(Batched(primitive, size, randomness, dims), values)
            batch = outputs, (0,) * len(outputs)
    return tuple(output if dim is None else batch_at(output, dim, level) for output, dim in zip(*batch, strict=True))


def _laid_out(outputs: Tensors) -> Tensors:
    """`outputs`, each laid out so that PyTorch can give it any tangent: it has one layout for a tensor and its tangent.

    It copies a tangent that has another one, which it can't where two elements lie in one place. And that of a view it
    doesn't copy but refuses (an assertion of its own), also where, as here, the view is of what forward made.
    """
    return tuple(output if is_whole(output) else output.clone() for output in outputs) if dual_level() >= 0 else outputs


class _Jvp:
    """The forward mode of a node's own level: dual numbers that aren't those of a transform."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        primitive, (operands, alive) = ctx.primitive, ctx.primals
        del ctx.primals
        outputs = tuple(reference() for reference in alive)
        primals = tuple(_unpacked(operand)[0] for operand in operands)
        reverse = any(operand.requires_grad for operand in operands)
        pushed = _pushed(primitive, primals, outputs, tangents[-len(operands) :], int(reverse))
        # PyTorch wants a tangent for each output that may have one.
        may = [is_smooth(output) and not primitive.constant(index) for index, output in enumerate(outputs)]
        return tuple(
            torch.zeros_like(output) if tangent is None and moves else tangent
            for output, tangent, moves in zip(outputs, pushed, may, strict=True)
        )


class _Level(_Jvp, SingleLevelFunction):  # type: ignore[misc]  # PyTorch leaves it untyped
    """The node of a primitive at one level of grad."""

    @staticmethod
    def forward(ctx: Any, primitive: Primitive, interpreter: Any, *operands: Tensor) -> Tensors:
        level, depth = interpreter.level(), primitive.seen.levels
        inner = tuple(unwrap_at(operand, level) for operand in operands)
        # PyTorch has switched both off for the length of this method, and the levels below are to differentiate it.
        with torch.enable_grad(), forward_grad(True), interpreter.lower():
            outputs = _laid_out(primitive.connected(inner, bind(primitive, inner), depth))
        wrapped = tuple(wrap_at(output, level) for output in outputs)
        _keep(ctx, primitive, operands, wrapped)
        return wrapped

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return (None, None, *_pulled(ctx, cotangents, ctx.needs_input_grad[2:]))


class _Bottom(_Jvp, TorchFunction):
    """The node of a primitive in the graph outside all transforms."""

    @staticmethod
    def forward(ctx: Any, primitive: Primitive, *operands: Tensor) -> Tensors:
        outputs = primitive.watched(operands)
        if dual_level() >= 0:
            # A detached tensor is no view any more; those of a batch that autograd makes can't be detached.
            laid_out = _laid_out(apart(operands, outputs))
            outputs = tuple(output if is_batched(output) else output.detach() for output in laid_out)
        _keep(ctx, primitive, operands, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return (None, *_pulled(ctx, cotangents, ctx.needs_input_grad[1:]))


def _keep(ctx: Any, primitive: Primitive, operands: Tensors, outputs: Tensors) -> None:
    """Leave on the node what `pull` needs; what it reads goes under PyTorch's guard against later writes."""
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(
        *(output for index, output in enumerate(outputs) if primitive.constant(index) or not is_smooth(output))
    )
    reads, rereads = primitive.kept()
    saved = [operand if reads is None or reads[index] else None for index, operand in enumerate(operands)]
    made = [output if rereads is None or rereads[index] else None for index, output in enumerate(outputs)]
    ctx.save_for_backward(*saved, *made)
    ctx.primitive = primitive
    if dual_level() >= 0:  # PyTorch may call jvp next; an output that the node holds would keep it alive
        ctx.primals = operands, [weakref.ref(output) for output in outputs]
    written = primitive.written()
    ctx.unread = {
        # An operand that is written to gets this node behind it, which would hold itself.
        index: (operand.detach() if index in written else operand, version_of(operand))
        for index, operand in enumerate(operands)
        if saved[index] is None
    }


def tangent_of(tensor: Tensor) -> Tensor | None:
    """The tangent of a tensor that no transform wraps."""
    return _unpacked(tensor)[1] if dual_level() >= 0 else None


def _saved(ctx: Any) -> Sequence[Tensor | None]:
    try:
        saved: Sequence[Tensor | None] = ctx.saved_tensors
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise refusals.changed(ctx.primitive.name, "a saved tensor", str(error)) from error
    return saved


def _pulled(ctx: Any, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
    if all(cotangent is None for cotangent in cotangents):
        return (None,) * len(needs)
    # A vjp may be taken when its level has ended.
    saved = [None if tensor is None else unwrap_if_dead(tensor) for tensor in _saved(ctx)]
    operands = [*saved[: len(needs)]]
    for index, (operand, version) in ctx.unread.items():
        operands[index] = unwrap_if_dead(operand)
        if version != version_of(operand):
            ctx.primitive.seen.stale.add(index)
    primitive: Primitive = ctx.primitive
    try:
        every: Any = tuple(operands)  # what isn't saved is among the unread
        with under_declared(primitive.autocast):
            return primitive.pull(every, tuple(saved[len(needs) :]), cotangents, needs)
    except PullbackError as error:
        error.__traceback__ = without_own_frames(error.__traceback__)
        raise
