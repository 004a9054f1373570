"""Running forward, or its reference, again: how what was cut off from the graph is connected to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.call.casting import settings_of
from pullback.call.dependence import Dependence, has_values
from pullback.call.layout import NOT_KEPT, OUTPUTS, tensors_on
from pullback.call.matching import UnlikeError
from pullback.call.outputs import reordered
from pullback.call.stand_in import ForwardStandIn
from pullback.call.surroundings import Autocast, restored, rng_state, same_rng_state
from pullback.errors import HigherOrderError
from pullback.transforms.graph import Reach, alias, dense_values, substitute
from pullback.transforms.modes import Attached, CannotReplayError, Untouched
from pullback.transforms.state import Hidden, State

# Two runs of the same operations differ by the order of their sums at most.
_ROUNDING = 64.0

# Gradients that were derived by hand agree with autograd's this closely, in roundings of two runs of the same.
_AGREEMENT = 1e4

# However few digits a dtype has, tensors that differ by more than this aren't the same.
_COARSEST = 1 / 64


_SAVE = (
    "Save {name} too, without which neither forward nor the reference can be run again; or recompute from saved inputs "
    "what is cut off, or write double_backward."
)


def arguments_of(state: State) -> tuple[Any, ...]:
    """The arguments of the call, those that need a gradient connected to the graph.

    Raises:
        CannotReplayError: An argument was neither saved nor can it be found in the graph.
    """
    layout = state.call.layout
    if layout.writes:
        raise CannotReplayError("forward writes to an argument, so its value is gone")
    kept = zip(layout.plain, state.call.plain, strict=False)
    plain = {index: value for index, value in kept if value is not NOT_KEPT}
    saved = {
        entry.index: tensor
        for entry, tensor in zip(layout.saved, state.saved, strict=False)
        if entry.origin == "argument"
    }
    found = {**saved, **plain, **state.inputs}
    for index in range(len(state.needs)):
        if index not in found:
            if index in layout.plain:
                raise CannotReplayError(f"{state.name(index)} was not kept")
            raise CannotReplayError(f"{state.name(index)} was not saved", remedy=_SAVE.format(name=state.name(index)))
    return tuple(found[index] for index in range(len(state.needs)))


def replay(state: State, wanted: Iterable[Hidden]) -> State:
    """The same call with `wanted` connected to the arguments, by running forward again.

    Raises:
        CannotReplayError: forward can't be run again, or runs where autograd can't follow.
        HigherOrderError: PB221, forward saved something else this time.
    """
    wanted = tuple(wanted)
    arguments = _arguments_for_replay(state)
    different: list[HigherOrderError] = []
    for autocast in settings_of(state.plan.definition, state.attributes):  # NOTE [autocast of a replay]
        ctx = ForwardStandIn(state.needs)
        rerun = _run(state, ctx, arguments, autocast)
        again = {hidden: _saved_again(ctx, hidden) for hidden in wanted}
        difference = _difference(state, again, rerun)
        if difference is None:
            shown = {hidden: _connected(state, hidden, again[hidden], rerun) for hidden in wanted}
            return state.with_hidden(shown)
        different.append(difference)
    raise different.pop(0)  # kept by no variable of this frame, or the two would keep each other alive


def _saved_again(ctx: ForwardStandIn, hidden: Hidden) -> Any:
    """What a replay left in the place of `hidden`."""
    if hidden.path:
        return dict(tensors_on(ctx.__dict__)).get(hidden.path)
    return dict(enumerate(ctx.to_save)).get(hidden.position)


@dataclass(frozen=True)
class _Rerun:
    """What another run of forward showed: what each tensor varies with, and whether it drew other random numbers."""

    watched: Dependence
    arguments: tuple[Any, ...]
    outputs: tuple[Any, ...]
    drew_others: bool


def _difference(state: State, again: Mapping[Hidden, Any], rerun: _Rerun) -> HigherOrderError | None:
    for hidden, new in again.items():
        old = state.value(hidden)
        # Without the random state that forward ran under, a mask is another one; a constant it is all the same.
        drawn = rerun.drew_others and isinstance(new, Tensor) and not _varies(rerun.watched.of(new), state)
        if not same(old, new) and not (drawn and old.shape == new.shape and old.dtype == new.dtype):
            return HigherOrderError(
                "PB221",
                f"{state.plan.definition.name}: {hidden} differs when forward is run again on the same arguments.",
                expected=f"what forward saved: {brief(old)}",
                got=brief(new),
            )
    return None


def _connected(state: State, hidden: Hidden, new: Tensor, rerun: _Rerun) -> Tensor:
    """What was saved, with the derivative of what the replay saved."""
    old = state.value(hidden)
    if Reach(new, (), state.edge).broken:
        raise CannotReplayError(f"forward computes {hidden} by an operator that has no derivative")
    if new.requires_grad and rerun.watched.numbered(new):
        raise CannotReplayError(f"forward computes {hidden} with a Python number that it read from a tensor")
    if new.requires_grad:
        return substitute(old, new)
    # What lies in the same memory both times, and isn't an argument's, was there before: a table, a parameter.
    before = _share_memory(old, new) and not any(_share_memory(given, new) for given in rerun.arguments)
    if not before and _varies(rerun.watched.of(new), state):
        raise CannotReplayError(f"forward computes {hidden} where autograd can't follow")
    return old


def traced_gradients(
    state: State, function: Callable[..., Any] | None, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of `function` (a reference; forward itself where None) as autograd has them, differentiable.

    Raises:
        CannotReplayError: The arguments can't be had, or forward runs where autograd can't follow.
        HigherOrderError: PB219, the reference has another number of outputs.
    """
    given = arguments_of(state) if function is not None else _arguments_for_replay(state)
    with torch.enable_grad():
        aliases = {index: alias(tensor) for index, tensor in state.inputs.items()}
    arguments = tuple(aliases.get(index, argument) for index, argument in enumerate(given))
    outputs = _outputs(state, function, arguments)
    if len(outputs) != len(grads):
        raise HigherOrderError(
            "PB219",
            f"the reference of {state.plan.definition.name} returned {len(outputs)} outputs.",
            expected=f"{len(grads)}, as forward has",
            got=str(len(outputs)),
        )
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if isinstance(output, Tensor) and output.requires_grad and grad is not None
    ]
    if not pairs or not aliases:
        return tuple(None for _ in state.needs)
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        list(aliases.values()),
        [grad.to(output.dtype) for output, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_index = dict(zip(aliases, found, strict=True))
    return tuple(by_index.get(index) for index in range(len(state.needs)))


def fitted(value: Tensor, like: Tensor) -> Tensor:
    """`value` in the shape of `like`: a gradient that backward left unsummed is summed, as the engine does it."""
    return value if value.shape == like.shape else value.sum_to_size(like.shape)


def agree(value: Tensor, gradient: Tensor) -> bool:
    """Whether a gradient of backward is that of autograd, within the rounding of another order of operations."""
    return _near(value, gradient, _AGREEMENT * _ROUNDING * torch.finfo(gradient.dtype).eps)


def alike(value: Tensor, gradient: Tensor) -> bool:
    """Whether a gradient of backward is that of a reference, which may be of another precision than the kernel."""
    return _near(value, gradient, _COARSEST)


def cancelled(value: Tensor, gradient: Tensor, cotangents: Iterable[Tensor | None]) -> bool:
    """Whether both gradients are what rounding leaves of cotangents that cancel, which is never twice the same."""
    given = [dense_values(cotangent.detach()) for cotangent in cotangents if cotangent is not None]
    difference = dense_values(fitted(value, gradient).detach()) - dense_values(gradient.detach())
    if not (difference.numel() and has_values(difference) and all(one.numel() and has_values(one) for one in given)):
        return False
    rounding = min(8 * _ROUNDING * torch.finfo(gradient.dtype).eps, _COARSEST)  # 8, as what cancels may be larger
    return float(difference.abs().max()) <= rounding * max((float(one.abs().max()) for one in given), default=0.0)


def _near(value: Tensor, gradient: Tensor, tolerance: float) -> bool:
    if value.layout is not gradient.layout:
        value, gradient = (tensor.to_dense() if tensor.is_sparse else tensor for tensor in (value, gradient))
    half = torch.finfo(gradient.dtype).bits == 16
    value = fitted(value, gradient).to(gradient.dtype)
    return _close(value, gradient, 8 * _COARSEST if half else min(tolerance, _COARSEST))


def same(one: Tensor, other: Any) -> bool:
    """Whether two tensors are the same within the rounding of their dtype."""
    if not isinstance(other, Tensor) or (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    one, other = dense_values(one), dense_values(other)
    if not has_values(one):
        return bool(one.shape == other.shape)
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return _close(one, other, min(_ROUNDING * torch.finfo(one.dtype).eps, _COARSEST))


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    one, other = dense_values(one.detach()), dense_values(other.detach())
    if one.shape != other.shape or not has_values(one):
        return bool(one.shape == other.shape)
    if not one.numel():
        return True
    # By operations alone that tensors which are spread over processes have, too; they have no indexing by masks.
    scale = float(one.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return bool(torch.isclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True).all())


def _arguments_for_replay(state: State) -> tuple[Any, ...]:
    if not state.plan.definition.replayable:
        raise CannotReplayError("replayable = False forbids running forward again")
    return arguments_of(state)


def _outputs(state: State, function: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs of the reference, or of forward, under the autocast setting that gives the dtypes forward gave."""
    found: tuple[Any, ...] | None = None
    for autocast in settings_of(state.plan.definition, state.attributes):
        if function is None:
            outputs = _run(state, ForwardStandIn(state.needs), arguments, autocast).outputs
        else:
            with torch.enable_grad(), restored(state.call.rng or rng_state(), autocast), Untouched(arguments):
                outputs = function(*arguments)
        outputs = _like_forward(state, outputs if isinstance(outputs, tuple) else (outputs,))
        found = outputs if found is None else found
        pairs = zip(outputs, state.grads, strict=False)
        if all(grad is None or not isinstance(output, Tensor) or output.dtype == grad.dtype for output, grad in pairs):
            return outputs
    assert found is not None
    return found


def _like_forward(state: State, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs of a reference in the order of forward's, where that returned a nest."""
    try:
        return reordered(state.attributes.get(OUTPUTS), outputs)
    except UnlikeError as error:
        raise HigherOrderError(
            "PB219",
            f"the reference of {state.plan.definition.name} returned {error.got} for {error.path}.",
            expected=f"{error.expected}, as forward has",
            got=error.got,
        ) from None


def _run(state: State, ctx: ForwardStandIn, arguments: tuple[Any, ...], autocast: Autocast) -> _Rerun:
    rng = state.call.rng or rng_state()
    with (
        torch.enable_grad(),
        restored(rng, autocast),
        Untouched(arguments),
        Attached(),
        Dependence(arguments, state.plan.literals) as watched,
    ):
        try:
            outputs = state.plan.run_forward(ctx, arguments)
        except CannotReplayError:
            raise
        except Exception as error:
            raise CannotReplayError(f"run again with autograd watching, forward raised {error!r}") from error
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return _Rerun(watched, arguments, outputs, state.call.rng is None and not same_rng_state(rng, rng_state()))


def _memory(value: Any) -> set[int]:
    if isinstance(value, Tensor) and not has_values(value):
        return set()
    try:
        # An empty tensor has no memory, and 0 for an address.
        return {value.untyped_storage().data_ptr()} - {0} if isinstance(value, Tensor) else set()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors that have no storage
        return set()


def _share_memory(one: Any, other: Any) -> bool:
    return bool(_memory(one) & _memory(other))


def _varies(sources: frozenset[int], state: State) -> bool:
    return any(index in sources for index, needed in enumerate(state.needs) if needed)


def brief(tensor: Any) -> str:
    """Shape, dtype and the first elements of a tensor, for an error."""
    if not isinstance(tensor, Tensor):
        return "nothing"
    try:
        numbers = tensor.detach().flatten()[:3].tolist()
    except (RuntimeError, NotImplementedError):  # a subclass or a layout that gives no numbers away
        return f"{tuple(tensor.shape)} {type(tensor).__name__}"
    values = ", ".join(f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers)
    more = ", …" if tensor.numel() > 3 else ""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} [{values}{more}]"
