"""The metaclass of Functions: it is told when a class is changed after its first call."""

from __future__ import annotations

from typing import Any

from pullback.define.validate import HEEDED
from pullback.torch_private import FunctionMeta


class FunctionType(FunctionMeta):
    """PyTorch's metaclass under another name, so that Dynamo runs `Function.apply`: NOTE [compiled calls].

    What is put on a class after its first call, a declaration or a method, holds from the next call on.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in HEEDED:
            _forget(cls)

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        if name in HEEDED:
            _forget(cls)


def stays(cls: type, name: str) -> bool:
    """Whether the method `name` of `cls` is the same until a `FunctionType` is told otherwise.

    It isn't where it comes from a class of another kind, such as a mixin, or where one that comes earlier might get it.
    """
    for base in cls.__mro__:
        if not isinstance(base, FunctionType):
            return False
        if name in vars(base):
            return True
    return False


def _forget(cls: Any) -> None:
    """Have the calls of `cls` prepared anew, and those of its subclasses; nodes that were made keep what they know."""
    node: Any = cls._backward_cls
    # PyTorch's own class of nodes lies beneath those that plans have made.
    cls._backward_cls = next(base for base in node.__mro__ if "pullback_plan" not in vars(base))
    if "pullback_call" in vars(cls._backward_cls):
        del cls._backward_cls.pullback_call
    for derived in type.__subclasses__(cls):
        _forget(derived)
