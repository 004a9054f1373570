"""How forward or its reference is run again: nothing that outlives the run may be written to, nothing is cut off."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.call.dependence import storage_of, tensors_in, written
from pullback.torch_private import TorchDispatchMode, set_grad_enabled
from pullback.transforms.graph import alias

# What makes a tensor of a Python number or list: its memory is new, though no operation says so.
_FROM_PYTHON = ("aten::lift_fresh", "aten::lift")

_DETACHING = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]  # a getset

_LEAVING = tuple(getattr(torch.Tensor, name) for name in ("numpy", "__array__", "__dlpack__"))


class CannotReplayError(Exception):
    """forward can't be run again; the text says why, and ends up in the error that the user sees.

    Args:
        text: Why.
        remedy: What to do about that, where it is another thing than to write the derivative otherwise.
    """

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy

    def released(self) -> CannotReplayError:
        """The same without the frames that it went through, which hold the tensors of the call."""
        for error in (self, self.__cause__):
            if error is not None:
                error.__traceback__ = error.__context__ = None
        return self


class Untouched(TorchDispatchMode):
    """While active, operations may write only to what others of them made: the rest was written to once already.

    Args:
        arguments: The arguments of the call, to be named as such.
    """

    supports_higher_order_operators = True

    def __init__(self, arguments: Iterable[Any]) -> None:
        super().__init__()
        self._arguments = {id(storage_of(tensor)) for tensor in tensors_in(list(arguments))}
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse the operation if it writes to what was there before; else run it."""
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        for tensor in written(schema, args, kwargs):
            if tensor.numel() and not self._is_made(tensor):
                whose = "an argument" if id(storage_of(tensor)) in self._arguments else "a tensor from outside the call"
                raise CannotReplayError(f"forward writes to {whose}, so it can't be run again")
        result = func(*args, **kwargs)
        from_python = getattr(schema, "name", "") in _FROM_PYTHON
        given = () if from_python else {id(storage_of(tensor)) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(result):
            storage = storage_of(tensor)
            if storage is not None and id(storage) not in given:
                self._made[id(storage)] = weakref.ref(storage)
        return result

    def _is_made(self, tensor: Tensor) -> bool:
        storage = storage_of(tensor)
        alive = self._made.get(id(storage))
        return storage is None or (alive is not None and alive() is storage)


class Attached(TorchFunctionMode):
    """While active, ``detach``, ``.data`` and ``no_grad`` cut nothing off.

    On a real call forward runs in no-grad mode, where they mean nothing: what it saves varies with the arguments all
    the same. Run again in grad mode, they would hide a part of the derivative.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, or what it stands for where nothing is to be cut off."""
        if func in _DETACHING:  # whether anything leads to a tensor doesn't show where levels of torch.func wrap it
            return alias(args[0])
        if func in _LEAVING and args[0].requires_grad:  # which PyTorch allows a detached tensor alone
            args = (args[0].detach(), *args[1:])
        if func is set_grad_enabled and not args[0]:
            return None
        return func(*args, **(kwargs or {}))
