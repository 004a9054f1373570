"""A module that recomputes: another object of the same state, whose class is derived from the module's own.

It shares the module's ``__dict__``, so parameters, buffers, hooks and mode are the same for both, the keys of the state
dict have no prefix, and ``isinstance`` says what it said. The module itself keeps its activations as before.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin

from pullback.errors import OperationError
from pullback.memory.calls import recomputed

M = TypeVar("M", bound=Module)

_OF = "recomputed_class"
"""The attribute by which a class made here is known: the class of the module."""

_classes: WeakKeyDictionary[type[Module], dict[str, ref[type[Module]]]] = WeakKeyDictionary()
"""The classes made so far, by those of the modules and by the method that recomputes; none is kept alive."""


def twin_of(module: M) -> M:
    """A module that has the state of `module`, and recomputes its forward; `module` itself, if it does so already."""
    kind = type(module)
    if hasattr(kind, _OF):
        return module
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise OperationError(
            "PB130",
            f"recompute: {kind.__name__} has no parameters yet, and gets another class at its first call.",
            expected="a module with parameters",
            got=f"{kind.__name__}, a lazy module that was not called yet",
            remedy="Call it once before, or give the size of its input.",
        )
    # A forward on the object, such as that of a compiled module, is found before that of any class.
    twin: M = _blank(kind, "__call__" if "forward" in vars(module) else "forward")
    object.__setattr__(twin, "__dict__", vars(module))
    return twin


def _blank(kind: type[Module], method: str, *arguments: Any) -> Any:
    """A twin without state."""
    cls = _class(kind, method)
    return cls.__new__(cls, *arguments)


def _class(kind: type[Module], method: str) -> type[Module]:
    """The class of the twins of modules of this class, of which `method` recomputes."""
    made = _classes.setdefault(kind, {}).get(method)
    known = None if made is None else made()
    if known is not None:
        return known

    @functools.wraps(getattr(kind, method))
    def run(self: Module, *args: Any, **kwargs: Any) -> Any:
        return recomputed(functools.partial(getattr(kind, method), self), kind.__name__, self, args, kwargs)

    def reduced(self: Module, protocol: int) -> Any:
        return _reduced(kind, method, self, protocol)

    body = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduced,
        method: run,
        _OF: kind,
    }
    meta: Any = type(kind)
    cls: type[Module] = meta(f"Recomputed{kind.__name__}", (kind,), body)
    _classes[kind][method] = ref(cls)
    return cls


def _reduced(kind: type[Module], method: str, twin: Module, protocol: int) -> Any:
    """How to copy or pickle `twin`: its class has no name to be found by, but its base has one."""
    reduced: Any = kind.__reduce_ex__(twin, max(protocol, 2))
    how, arguments, *state = reduced
    if getattr(how, "__name__", "") != "__newobj__":  # its own way, which goes by a name that it has
        return how, arguments, *state
    return _blank, (kind, method, *arguments[1:]), *state
