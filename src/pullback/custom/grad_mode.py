"""Which grad mode the author of a function asks for, where all of it runs without gradients anyway."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from pullback.call.frames import is_own


def _code(function: Any) -> types.CodeType | None:
    return getattr(function, "__code__", None)


_ENTER = {_code(torch.no_grad.__enter__): False, _code(torch.enable_grad.__enter__): True}
_EXIT = {_code(torch.no_grad.__exit__), _code(torch.enable_grad.__exit__)}
_THEIRS = torch.no_grad.__enter__.__code__.co_filename
_DECORATED = _code(torch.no_grad()(lambda: None))
"""What a function that is decorated with a grad mode consists of."""


class GradMode:
    """The grad mode that a function has switched to with ``torch.no_grad`` and its like.

    In forward of a Function it is off whatever the function says, so PyTorch's own flag tells nothing. A mode for all
    of a rule, as a decorator, is no statement about the tensors in it.

    Args:
        function: The function.
    """

    def __init__(self, function: Any) -> None:
        self._modes = [True]
        self._whole = _code(function) is _DECORATED

    @property
    def is_on(self) -> bool:
        """Whether a derivative is meant."""
        return self._modes[-1]

    def follow(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note an operation that switches; to be called where it is intercepted."""
        if getattr(func, "__name__", "") != "_set_grad_enabled":
            return
        asking = sys._getframe(2)
        codes = []
        while asking.f_back is not None and asking.f_code.co_filename == _THEIRS:  # PyTorch's context managers
            codes.append(asking.f_code)
            asking = asking.f_back
        if is_own(asking.f_code):  # another Function's machinery
            return
        entered = next((code for code in codes if code in _ENTER), None)
        if entered is not None:
            self._modes.append(_ENTER[entered] or (self._whole and len(self._modes) == 1))
        elif not _EXIT.isdisjoint(codes):
            del self._modes[max(1, len(self._modes) - 1) :]
        else:  # set_grad_enabled, which also leaves by this way
            self._modes[-1] = bool(args[0]) or _code(torch.set_grad_enabled.__exit__) in codes
