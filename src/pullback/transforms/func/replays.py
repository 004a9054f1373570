"""forward and its reference as functions of the operands, for autograd to follow; and what forward saved, connected.

What forward saves and is neither argument nor output has forward's own derivative: that of another run of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pullback.call.stand_in import ForwardStandIn
from pullback.call.surroundings import restored
from pullback.torch_private import is_wrapped
from pullback.transforms.func import refusals
from pullback.transforms.func.agreement import agreeing
from pullback.transforms.func.asked import Asked
from pullback.transforms.func.follow import CutOff, NotFollowedError, pulled_through
from pullback.transforms.func.levels import bind, tangent_of
from pullback.transforms.func.primitive import Optionals, Tensors, outputs_of
from pullback.transforms.func.record import left_again
from pullback.transforms.graph import Reach
from pullback.transforms.modes import Attached, CannotReplayError, Untouched
from pullback.transforms.replay import same

if TYPE_CHECKING:
    from pullback.transforms.func.forward import Forward

Function = Callable[[Tensors], Optionals]

FORWARD_FOLLOWED = "_pullback_forward_followed"
"""The attribute of a class whose forward is differentiated itself at the levels below the one that applies backward."""


def of_operands(forward: Forward, function: Callable[..., Any] | None) -> Function:
    """A reference, or forward itself where it is None, as a function of the operands of a call.

    It returns the outputs, then what forward saves beside them: None for each of these, of a reference.

    Raises:
        NotFollowedError: It can't be run on these operands again.
    """
    if forward.seen.stale:
        names = ", ".join(sorted(forward.argument_name(index) for index in forward.seen.stale))
        raise NotFollowedError(f"{names}, not being saved, was changed in place since")
    if forward.record.around.writes:
        raise NotFollowedError("forward writes to an argument, so its value is gone")
    if function is not None:
        return lambda operands: _referred(forward, function, operands)
    if not forward.plan.definition.replayable:
        raise NotFollowedError("replayable = False forbids running forward again")
    return lambda operands: _replayed(forward, operands, Attached())


def _referred(forward: Forward, function: Callable[..., Any], operands: Tensors) -> Optionals:
    record = forward.record
    with restored(record.around.rng, record.around.autocast):
        returned = function(*forward.operands.arguments(operands))
    outputs = tuple(entry for entry in outputs_of(returned) if isinstance(entry, Tensor))
    if len(outputs) != record.count:
        raise refusals.other_outputs(forward.plan.definition, len(outputs), record.count)
    return (*outputs, *(None,) * (record.total - record.count))


def _replayed(forward: Forward, operands: Tensors, mode: contextlib.AbstractContextManager[Any]) -> Optionals:
    record = forward.record
    ctx = ForwardStandIn(forward.asked())
    try:
        asked = Asked(operand for index, operand in enumerate(operands) if index in forward.seen.asked)
        with restored(record.around.rng, record.around.autocast), Untouched(operands), mode, asked:
            output = forward.plan.run_forward(ctx, forward.operands.arguments(operands))
    except CannotReplayError as reason:
        raise NotFollowedError(str(reason)) from reason
    except Exception as error:
        raise NotFollowedError(f"run again with autograd watching, forward raised {error!r}") from error
    again = left_again(record, ctx, output)
    if again is None:
        raise refusals.replay_differs(forward.plan.definition)
    return again


def pulled_beside(
    forward: Forward, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]
) -> Optionals:
    """The gradients of what forward saved beside its outputs, by running it again.

    Raises:
        HigherOrderError: PB206 or PB221, autograd can't follow how it is computed, or it comes out otherwise.
    """
    count = forward.record.count
    due = [count + index for index, cotangent in enumerate(cotangents) if cotangent is not None]

    def saved(every: Tensors) -> Optionals:
        again = _saved_again(forward, every, outputs, due)
        if any(tensor is None or not tensor.requires_grad for tensor in (again[index] for index in due)):
            raise NotFollowedError("forward computes it where autograd can't follow")
        return again[count:]

    try:
        return pulled_through(saved, operands, cotangents, needs)
    except NotFollowedError as reason:
        raise cut_off(forward, due, reason) from reason.__cause__


def connected(forward: Forward, operands: Tensors, outputs: Tensors, depth: int) -> Tensors:
    """The outputs; what was saved beside them is connected by another run of forward, at all levels below at once.

    The node of each level differentiates backward at the levels below it, and backward reads what was saved.
    """
    definition, count = forward.plan.definition, forward.record.count
    below = forward.seen.levels - depth
    given = forward.followed_instead is not None
    if below and not given and getattr(forward.plan.cls, FORWARD_FOLLOWED, False):
        with contextlib.suppress(NotFollowedError):
            return _followed_below(forward, operands, outputs)
    beside = [index for index in range(count, forward.record.total) if not forward.constant(index)]
    if given or not beside or below <= (definition.double_backward is not None):
        return outputs
    try:
        again = _saved_again(forward, operands, outputs, beside)
    except NotFollowedError as reason:
        failure = cut_off(forward, beside, reason)
        cut = CutOff(forward.name, failure, forward.record.total - count, len(operands))
        again = (*outputs[:count], *bind(cut, (*outputs[count:], *operands)))
    pairs = zip(outputs, again, strict=True)
    return tuple(new if index in beside and new is not None else old for index, (old, new) in enumerate(pairs))


def _followed_below(forward: Forward, operands: Tensors, outputs: Tensors) -> Tensors:
    """The outputs of another run of forward, differentiated at the levels below as the operations that it is made of.

    That is JAX's meaning of custom_vjp: a level applies the rule, and the levels below see what the rule computes.
    """
    if forward.record.around.writes or forward.seen.stale:
        raise NotFollowedError("it can't be run again")
    again = _on_own_memory(forward, _replayed(forward, operands, contextlib.nullcontext()))
    for index, (old, new) in enumerate(zip(outputs, again, strict=True)):
        if new is not None and not forward.constant(index):
            if Reach(new, (), ()).broken or _left_pytorch(forward, new):
                raise NotFollowedError("autograd can't follow it")
            agreeing(refusals.replay_differs(forward.plan.definition), same, old, new)
    return tuple(old if new is None else new for old, new in zip(outputs, again, strict=True))


def _saved_again(forward: Forward, operands: Tensors, outputs: Optionals, due: Iterable[int]) -> Optionals:
    """What another run of forward returns and saves; what it saves in the places of `due` is verified.

    Raises:
        NotFollowedError: Autograd can't follow how one of them is computed.
    """
    again = _on_own_memory(forward, of_operands(forward, None)(operands))
    for index in due:
        tensor, value = again[index], outputs[index]
        assert tensor is not None
        assert value is not None
        if forward.seen.numbered[index]:
            raise NotFollowedError("forward computes it with a Python number that it read from a tensor")
        if Reach(tensor, (), ()).broken or _left_pytorch(forward, tensor):
            raise NotFollowedError("forward computes it where autograd can't follow")
        agreeing(refusals.replay_differs(forward.plan.definition), same, value, tensor)
    return again


def _on_own_memory(forward: Forward, again: Optionals) -> Optionals:
    """What another run left, none of it on the memory of an operand, to which others may write."""
    pairs = zip(again, forward.seen.shared, strict=True)
    return tuple(tensor.clone() if shared and tensor is not None else tensor for tensor, shared in pairs)


def _left_pytorch(forward: Forward, tensor: Tensor) -> bool:
    """Whether a tensor that varies with the operands came from outside PyTorch, as NumPy's do."""
    if is_wrapped(tensor):  # which has no memory to be read, but by way of Python numbers
        return bool(forward.seen.read) and not tensor.requires_grad
    return not tensor.requires_grad and tangent_of(tensor) is None


def cut_off(forward: Forward, places: Iterable[int], reason: NotFollowedError) -> Exception:
    """What to raise where outputs that nothing connects to the operands are differentiated."""
    failure = refusals.cut_off(forward.plan.definition, map(forward.record.called, places), str(reason))
    failure.__cause__ = reason.__cause__
    return failure
