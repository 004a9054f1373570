"""Other people's Functions with pullback's guards: `pullback.adopt`."""

from __future__ import annotations

import copyreg
import types
from typing import Any

from torch.autograd import Function as TorchFunction

from pullback.define.function_type import FunctionType
from pullback.function import Function

_ADOPTED: dict[type, type[Function]] = {}
_ORIGINAL = "_pullback_original"


def adopt(cls: type[TorchFunction]) -> type[Function]:
    """Make a `pullback.Function` of any ``torch.autograd.Function`` class, whose source stays as it is.

    The class that comes back is a subclass of `cls` with the same methods, name and place, so what it computes is what
    `cls` computes; higher derivatives through it are exact or raise. Adopting a class again gives the same class, and
    pickling the adopted one stores the name of the original.

    The library that `cls` comes from goes on calling the original: only calls of the adopted class are guarded. Put it
    in the library's place (``library.module.Name = pullback.adopt(library.module.Name)``) where its own calls should be
    too.

    Args:
        cls: The class; a `pullback.Function` comes back as it is.

    Returns:
        The adopted class.

    Raises:
        TypeError: `cls` is no ``torch.autograd.Function`` class.
        DefinitionError: PB101 to PB106 or PB111, the class could never work.
    """
    if not (isinstance(cls, type) and issubclass(cls, TorchFunction)):
        raise TypeError(f"adopt takes a torch.autograd.Function class; this is {cls!r}.")
    if issubclass(cls, Function):
        return cls
    adopted = _ADOPTED.get(cls)
    if adopted is None:
        place = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        made = types.new_class(
            cls.__name__, (cls, Function), exec_body=lambda body: body.update({**place, _ORIGINAL: cls})
        )
        adopted = _ADOPTED.setdefault(cls, made)  # another thread's, where one has been faster
    return adopted


def _reduced(cls: type) -> Any:
    original = cls.__dict__.get(_ORIGINAL)
    # A string is pickle's way to say: by its name, as any class.
    return cls.__qualname__ if original is None else (adopt, (original,))


copyreg.pickle(FunctionType, _reduced)
