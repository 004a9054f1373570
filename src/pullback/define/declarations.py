"""Can what a class declares be honoured? Declarations of the right kind and name, which don't contradict each other."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function as TorchFunction

from pullback.define.definition import Definition, argument_names
from pullback.errors import DefinitionError

_FLAGS = ("nonlinear_backward", "replayable", "contiguous_grads", "keep_autocast")
_METHODS = ("reference", "surrogate", "double_backward", "expected_backward", "samples")
_NAMES = ("nondiff_argnames",)
_DTYPES = ("cast_inputs",)
DECLARATIONS = (*_FLAGS, *_METHODS, *_NAMES, *_DTYPES)
"""The names of all declarations."""
_ELSEWHERE = {"nondiff_argnums": "nondiff_argnames", "custom_fwd": "cast_inputs"}
"""What other libraries call the same thing."""

# The closeness of two names: one letter more, less or other in a name of nine. `sample` is not `samples` by this.
_CLOSE = 0.93


def check_kinds(cls: type) -> None:
    """Raise where a declaration of `cls` isn't of the kind that it must be, or has almost the name of one.

    Raises:
        DefinitionError: PB106.
    """
    _flags(cls)
    _argument_names(cls)
    _methods(cls)
    _dtypes(cls)
    _misspelt(cls)


def check_together(cls: type, definition: Definition) -> None:
    """Raise where declarations of `cls` contradict each other, or name an argument that forward doesn't have.

    Raises:
        DefinitionError: PB106.
    """
    _known_arguments(cls, definition)
    what = ""
    if definition.expected_backward is not None and not definition.nonlinear_backward:
        what, got = "expected_backward is given, and backward isn't declared nonlinear", "expected_backward alone"
        expected = "nonlinear_backward = True beside it"
    elif definition.surrogate is not None and definition.nonlinear_backward:
        what, got = "surrogate says that backward is a derivative, nonlinear_backward that it isn't", "both"
        expected = "one of them"
    elif getattr(cls, "generate_vmap_rule", False) and getattr(cls, "vmap", None) not in (None, TorchFunction.vmap):
        what, got = "generate_vmap_rule asks PyTorch for a vmap, and vmap is written by hand", "both"
        expected = "one of them"
    if what:
        raise DefinitionError("PB106", f"{cls.__name__}: {what}.", expected=expected, got=got)


def _flags(cls: type) -> None:
    for name in _FLAGS:
        value = getattr(cls, name, False)
        if not isinstance(value, bool):
            raise DefinitionError(
                "PB106", f"{cls.__name__}.{name} is not a bool.", expected="True or False", got=_short(value),
                remedy=f"Write {name} = True or {name} = False.",
            )  # fmt: skip


def _argument_names(cls: type) -> None:
    declared: Any = getattr(cls, "nondiff_argnames", ())
    names = argument_names(declared) if isinstance(declared, (str, tuple, list, set, frozenset)) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise DefinitionError(
            "PB106", f"{cls.__name__}.nondiff_argnames is not a tuple of names.", expected='a tuple such as ("base",)',
            got=_short(declared), remedy="Name arguments of forward.",
        )  # fmt: skip


def _dtypes(cls: type) -> None:
    for name in _DTYPES:
        value = getattr(cls, name, None)
        if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
            raise DefinitionError(
                "PB106", f"{cls.__name__}.{name} is no floating-point dtype.", expected="torch.float32 or another one",
                got=_short(value), remedy=f"Write {name} = torch.float32, or None to leave the arguments as they are.",
            )  # fmt: skip


def _methods(cls: type) -> None:
    for name in _METHODS:
        value = getattr(cls, name, None)
        listed = name == "samples" and isinstance(value, (list, tuple))
        if value is None or callable(value) or listed:
            continue
        what = "function" if name != "samples" else "function that gives tuples of arguments"
        raise DefinitionError(
            "PB106", f"{cls.__name__}.{name} can't be called.", expected=f"a static method, or any {what}",
            got=_short(value), remedy=f"Write @staticmethod def {name}(…), or give the attribute another name.",
        )  # fmt: skip


def _misspelt(cls: type) -> None:
    """Refuse a name that is almost a declaration: it would be ignored, and nobody would know."""
    given = TorchFunction.__mro__
    written = [base for base in cls.__mro__ if base not in given and base.__module__ != "pullback.function"]
    bodies = {name: value for base in reversed(written) for name, value in vars(base).items()}
    own = {*DECLARATIONS}
    for name, value in bodies.items():
        if name in own or name.startswith("_") or name.endswith("_") or hasattr(TorchFunction, name):
            continue
        meant = _meant(name)
        # Beside the right name, a name like it is a helper of the author's.
        if meant is not None and meant not in bodies and _of_its_kind(meant, value):
            raise DefinitionError(
                "PB106", f"{cls.__name__}.{name} is no declaration, and nothing would heed it.", expected=meant,
                got=name, remedy=f"Did you mean {meant}? A name with an underscore in front is never taken for one.",
            )  # fmt: skip


def _meant(name: str) -> str | None:
    """The declaration that `name` is almost the name of."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    bare = {own.replace("_", ""): own for own in DECLARATIONS}
    same = bare.get(name.replace("_", "").lower())
    close = difflib.get_close_matches(name, bare.values(), n=1, cutoff=_CLOSE)
    return same or (close[0] if close else None)


def _of_its_kind(declaration: str, value: Any) -> bool:
    if declaration in _FLAGS:
        return isinstance(value, bool)
    if declaration in _NAMES:
        return isinstance(value, (str, tuple, list, set, frozenset, int))
    if declaration in _DTYPES:
        return isinstance(value, (torch.dtype, str))
    return callable(getattr(value, "__func__", value))


def _known_arguments(cls: type, definition: Definition) -> None:
    unknown = [name for name in definition.nondiff_argnames if name not in definition.signature.parameters]
    if not unknown or definition.variadic:
        return
    names = definition.parameters
    raise DefinitionError(
        "PB106",
        f"{cls.__name__}: nondiff_argnames names {unknown[0]!r}, which forward doesn't take.",
        expected=f"names among {', '.join(names)}" if names else "nothing, as forward takes no argument",
        got=", ".join(definition.nondiff_argnames),
        remedy=_nearest(unknown[0], names),
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    """Which of `names` was meant, as far as their letters tell."""
    close = difflib.get_close_matches(name, names, n=1)
    starting = [known for known in names if known.startswith(name) or name.startswith(known)]
    meant = close[0] if close else starting[0] if len(starting) == 1 else ""
    return f"Did you mean {meant!r}?" if meant else "Name arguments of forward, or remove it."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
