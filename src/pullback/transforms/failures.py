"""The errors that a guarded gradient raises when it is differentiated.

A guard lives in the graph for as long as the gradient does: what it is to raise is made when it is raised, and keeps
nothing of the call alive but words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from pullback.errors import HigherOrderError, PullbackError
from pullback.transforms.modes import CannotReplayError
from pullback.transforms.probes import Run
from pullback.transforms.replay import brief
from pullback.transforms.state import State

Failure = Callable[[], PullbackError]


def cut_off(state: State, run: Run, index: int, hidden: Iterable[object], reason: CannotReplayError | str) -> Failure:
    """The gradient depends on `hidden`, and `reason` says why it can't be connected."""
    what = ", ".join(sorted(map(str, hidden)))
    return _failure(
        "PB206",
        f"{_result(state, run, index)} is being differentiated, and it depends on {what}, which forward computed and "
        f"the graph doesn't know; {reason}.",
        expected="saved tensors that are arguments or outputs, or a forward that can be run again to connect them",
        got=f"{what}, cut off from the graph",
        remedy=reason.remedy if isinstance(reason, CannotReplayError) else "",
        cause=_cause(reason),
    )


def differs(error: HigherOrderError) -> Failure:
    """A replay of forward gave something else, as `error` says."""
    return _failure(error.rule, error.message, error.expected, error.got, error.remedy)


def opaque(state: State, run: Run, index: int, reason: CannotReplayError | str, *, linked: bool) -> Failure:
    """Autograd can't follow how the gradient was computed; `reason` says why nothing else can supply the derivative."""
    why = f"; {reason}" if str(reason) else ""
    return _failure(
        "PB207",
        f"{_result(state, run, index)} is being differentiated, and autograd can't follow how it was computed{why}.",
        expected="a result that is made from grad_output and the saved tensors by PyTorch operations",
        got="a tensor that is computed from a detached copy of some of them"
        if linked
        else "a tensor without a path to any grad_output",
        remedy="Write double_backward, or give a reference in plain PyTorch.",
        cause=_cause(reason),
    )


def once(state: State, why: str) -> Failure:
    """backward is declared to be differentiable once, and nothing else gives the second derivative."""
    return _failure(
        "PB207",
        f"{state.plan.definition.backward_label} is marked once_differentiable, and its gradient is being "
        f"differentiated{'; ' + why if why else ''}.",
        expected="double_backward or a reference, which give the second derivative",
        got="neither",
        remedy="Write double_backward, give a reference, or don't ask for the second derivative.",
    )


def contradicted(state: State, index: int, role: str) -> Failure:
    """The reference doesn't depend on an argument for which backward returns a gradient."""
    name = state.name(index)
    return _failure(
        "PB207",
        f"the gradient of {name} that {state.plan.definition.backward_label} returns is being differentiated, and the "
        f"{role} doesn't depend on {name}, as far as autograd can follow it.",
        expected=f"a {role} in plain PyTorch whose gradient is what backward returns",
        got=f"no gradient for {name}",
        remedy=f"Write the {role} in PyTorch operations on {name}, without detach, or return no gradient for it.",
    )


def disagrees(state: State, index: int, role: str, value: Tensor, traced: Tensor) -> Failure:
    """backward returned another gradient than autograd has of the reference, so the derivatives differ too."""
    name, saved = state.name(index), {id(tensor) for tensor in state.saved}
    unsaved = [state.name(k) for k, tensor in state.inputs.items() if id(tensor) not in saved]
    unless = f", or {' or '.join(unsaved)}, not being saved, has changed since forward" if unsaved else ""
    return _failure(
        "PB203",
        f"the gradient of {name} that {state.plan.definition.backward_label} returns is being differentiated through "
        f"the {role}, whose gradient is another one{unless}.",
        expected=f"the {role}'s gradient: {brief(traced)}",
        got=brief(value),
        remedy=f"Correct backward or the {role}{'; save ' + ' and '.join(unsaved) if unsaved else ''}.",
    )


def _failure(
    rule: str,
    message: str,
    expected: str,
    got: str,
    remedy: str = "",
    *,
    cause: Exception | None = None,
) -> Failure:
    def failure() -> PullbackError:
        error = HigherOrderError(rule, message, expected=expected, got=got, remedy=remedy)
        error.__cause__ = cause
        return error

    return failure


def _cause(reason: CannotReplayError | str) -> Exception | None:
    """What forward raised when it was run again."""
    cause = reason.released().__cause__ if isinstance(reason, CannotReplayError) else None
    return cause if isinstance(cause, Exception) else None


def _result(state: State, run: Run, index: int) -> str:
    name = f"{state.plan.definition.name}.{run.name}"
    outputs = len(state.grads) if run.name == "double_backward" else 0
    if index < outputs:
        return f"the gradient for grad_output {index} that {name} returns"
    return f"the gradient of {state.name(index - outputs)} that {name} returns"
