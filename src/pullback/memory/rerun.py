"""One recomputed call: what it saves in place of tensors, and how backward gets these by running the function again.

NOTE [what is saved]: the graph of the call is built as ever, with hooks that put a stand-in into it for each tensor
that it would save. That of a parameter, of a view of one, or of an argument refers to the tensor, which is alive in any
case. All others are empty slots. The first gradient that asks an empty slot runs the function again, with other hooks
that fill the slots in the order they were made, as far as the graph still holds them. A slot gives its tensor away, so
that it lives no longer than the gradient that needed it; one that is asked again has the function run again.

The slots belong to the graph, which the call itself refers to weakly: what the graph lets go of is not filled.

NOTE [stopping early]: the rerun ends as soon as the last slot that the graph holds is filled, by an exception that goes
through the function. It derives from BaseException, as a function that catches Exception isn't to catch it.

NOTE [changes]: PyTorch doesn't count writes to a tensor that a hook has packed, so it is done here: a tensor that was
written to after it was saved, by the function itself or, as an optimiser does to parameters, from outside, raises as it
does without recompute.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module

from pullback.errors import SavedTensorError
from pullback.memory.captured import captured_by
from pullback.memory.changes import Reads
from pullback.memory.conditions import Conditions
from pullback.memory.inputs import Input, Inputs
from pullback.memory.stateful import State
from pullback.torch_private import FORWARD_AD, top_interpreter, transforms_active


class Slot(list[Any]):
    """What the graph holds for a tensor that isn't saved: empty; from the rerun on the tensor, and its version then."""

    __slots__ = ("__weakref__",)


Reference: TypeAlias = tuple[Tensor, int]
"""What the graph holds for a tensor that is alive in any case: that, and its version when it would have been saved."""

Look: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]
"""What a saved tensor looks like."""

Place: TypeAlias = Any  # "weakref.ref[Slot] | int | None", of which the class is asked, not isinstance
"""What the call knows of a tensor that it would save: its slot; the version of a parameter; nothing of an argument."""

_thread = threading.local()


def reruns_in_forward_mode() -> bool:
    """Whether this thread is in a rerun that began while forward mode was on, as it wasn't for the call."""
    return getattr(_thread, "in_forward_mode", False)


class _Stop(BaseException):
    """The rerun has filled all slots, or can't."""

    def __init__(self, rerun: _Rerun) -> None:
        self.rerun = rerun


class Call:
    """A call of a recomputed function.

    Args:
        function: The function.
        name: What to call it in an error.
        module: The module whose method it is, where that doesn't show.
        args: Its arguments.
        kwargs: Those by keyword.
    """

    __slots__ = ("_conditions", "_function", "_inputs", "_lock", "_looks", "_name", "_places", "_state")

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        module: Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._function = function
        self._name = name
        self._inputs = Inputs(args, kwargs)
        self._conditions = Conditions()
        others = [leaf for leaf in self._inputs.leaves if leaf.__class__ is not Input]
        captured = captured_by(function, module, others)
        self._state = None if captured is None else State(captured)
        self._looks: list[Look] = []
        self._places: list[Place] = []
        self._lock = threading.RLock()

    def hooks(self) -> saved_tensors_hooks:
        """What the call runs under."""
        return saved_tensors_hooks(self._packing(), self._unpack)

    def close(self) -> None:
        """The function has returned."""
        self._inputs.close()
        if self._state is not None:
            self._state.close()

    def _packing(self) -> Callable[[Tensor], Slot | Reference]:
        """The hook that has something stand in for each tensor that the call would save."""
        # A closure of what it needs: it runs for every saved tensor, and looking things up on self costs a fifth of it.
        inputs, looks, places = self._inputs, self._looks.append, self._places.append
        arguments = inputs.places

        def pack(tensor: Tensor) -> Slot | Reference:
            if inputs.pending is not None:
                inputs.keep()
            looks((tensor.shape, tensor.dtype, tensor.device))
            argument = arguments.get(id(tensor))
            if argument is not None and argument.unpack is None:
                places(None)
                return argument.data, tensor._version
            base = tensor._base
            owner = tensor if base is None else base
            if owner.requires_grad and owner.is_leaf:
                version = tensor._version
                places(version)
                return tensor, version  # no cycle: nothing leads from it to what comes after it
            slot = Slot()
            places(weakref.ref(slot))
            return slot

        return pack

    def _unpack(self, kept: Slot | Reference) -> Tensor:
        """The tensor for which something was kept in the graph.

        Raises:
            SavedTensorError: PB301, it was written to since it was saved; PB307, the rerun saves something else.
        """
        value: Tensor
        if kept.__class__ is tuple:
            value, version = kept
        else:
            assert isinstance(kept, Slot)
            with self._lock:
                if not kept:
                    self._run_again()
                value, version = kept
                kept.clear()
        if value._version != version:
            look = _shown((value.shape, value.dtype, value.device))
            raise self._fault("PB301", f"{look} at version {version}", f"version {value._version}")
        return value

    def _run_again(self) -> None:
        """Fill the slots that the graph still holds."""
        rerun = _Rerun(self._places, self._looks)
        with contextlib.ExitStack() as stack:
            _leave_transforms(stack)
            args, kwargs = self._inputs.again(self._name)
            self._conditions.restore(stack)
            lost = [] if self._state is None else self._state.restore(stack)
            if lost:
                stack.enter_context(Reads(lost, rerun.read_lost))
            try:
                with torch.enable_grad(), saved_tensors_hooks(rerun.pack, _as_it_is):
                    self._function(*args, **kwargs)
            except _Stop as stop:
                if stop.rerun is not rerun:
                    raise
            except RuntimeError:  # TorchScript makes one of whatever goes through it
                if not rerun.stopped:
                    raise
        if rerun.fault is not None:
            raise self._fault(*rerun.fault)
        if rerun.count <= rerun.last:
            raise self._fault("PB307", f"{len(self._places)} saved tensors, as in forward", f"{rerun.count}")

    def _fault(self, rule: str, expected: str, got: str) -> SavedTensorError:
        what = {
            "PB301": "a tensor that it needs was changed in place between forward and backward.",
            "PB307": "run again in backward, it did not save what it saved in forward.",
        }
        return SavedTensorError(rule, f"recompute({self._name}): {what[rule]}", expected=expected, got=got)


class _Rerun:
    """The hooks of one rerun, which fill the slots.

    Attributes:
        stopped: Whether it has raised what ends the rerun.
        count: How many tensors it has saved.
        last: The place of the last slot to be filled.
        fault: Rule, expected and got, if it has saved something else than the call.
    """

    __slots__ = ("_looks", "_places", "count", "fault", "last", "stopped")

    def __init__(self, places: list[Place], looks: list[Look]) -> None:
        self._places = places
        self._looks = looks
        self.count = 0
        self.stopped = False
        self.fault: tuple[str, str, str] | None = None
        self.last = len(places) - 1
        while _slot(places[self.last]) is None:  # one there is: that which was asked
            self.last -= 1

    def pack(self, tensor: Tensor) -> Tensor:
        """Put the tensor into its slot; the rerun's own graph has it too, for a backward within the function."""
        number = self.count
        if number > self.last:  # the function has caught what stops it
            self._stop()
        place = self._places[number]
        look = (tensor.shape, tensor.dtype, tensor.device)
        if look != self._looks[number]:
            expected = f"{_shown(self._looks[number])} as saved tensor {number} of {len(self._places)}"
            self._give_up("PB307", expected, _shown(look))
        self.count = number + 1
        if place.__class__ is int:
            if tensor._version != place:
                self._give_up("PB301", f"a {_shown(look)} parameter at version {place}", f"version {tensor._version}")
            return tensor
        value = tensor.detach()
        slot = place and place()
        if slot is not None:
            slot[:] = (value, value._version)
        if number == self.last:
            self._stop()
        return value

    def read_lost(self, name: str) -> None:
        """The function reads what was written to since the call."""
        self._give_up("PB301", f"{name} as the call read it", "it was written to since")

    def _give_up(self, rule: str, expected: str, got: str) -> NoReturn:
        self.fault = (rule, expected, got)  # kept, as the function might catch an error
        self._stop()

    def _stop(self) -> NoReturn:
        self.stopped = True
        raise _Stop(self)


def _slot(place: Place) -> Slot | None:
    """The slot, if the graph still holds it."""
    return place() if isinstance(place, weakref.ref) else None


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _shown(look: Look) -> str:
    shape, dtype, device = look
    where = "" if device.type == "cpu" else f" on {device}"
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}{where}"


def _leave_transforms(stack: contextlib.ExitStack) -> None:
    """Leave the transforms that backward runs in, as the call ran outside of them."""
    while transforms_active():
        stack.enter_context(top_interpreter().lower())
    if FORWARD_AD._current_level >= 0:  # which can't be left, but a call within the function is to know
        stack.callback(setattr, _thread, "in_forward_mode", reruns_in_forward_mode())
        _thread.in_forward_mode = True
