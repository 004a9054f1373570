"""What the author of a Function wrote: `describe(cls)` reads it off the class, for PyTorch's Functions and pullback's.

Nothing is run and nothing is judged here; `pullback.define.validate` judges.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Function as TorchFunction

from pullback.define.cached import cached_property
from pullback.torch_private import boxes_gradients

Method = Callable[..., Any]

BACKWARD_LABEL = "_pullback_backward_label"
"""The attribute of a class that says what its backward was written as."""

_ONCE_CODE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A Function as its author wrote it.

    Attributes:
        cls: The author's class.
        name: Its name.
        parameters: The names of forward's positional parameters, without ``ctx``; of its leaves, for a call with nests.
        variadic: Whether forward takes ``*args``.
        signature: forward's signature, without ``ctx``.
        style: ``ctx`` (forward takes ctx) or ``setup_context``.
        forward: The author's forward, or None for an abstract class.
        backward: The author's backward or vjp, or None.
        method: The name under which it was written: ``backward`` or ``vjp``.
        double_backward: The vjp of backward, or None.
        reference: forward's definition in plain PyTorch, or None.
        surrogate: The function whose derivative backward implements, where that isn't forward, or None.
        expected_backward: What a backward that isn't linear should return, or None.
        nonlinear_backward: Whether backward is declared not to be linear in grad_output.
        nondiff_argnames: The arguments that are declared never to get a gradient.
        once_differentiable: Whether backward is marked with PyTorch's ``once_differentiable``.
        replayable: Whether forward may be run again to reconnect what it saved.
        contiguous_grads: Whether backward is handed contiguous gradients.
        boxed: Whether backward takes its gradients in one list, which it may empty (PyTorch's ``boxed_grads_call``).
        cast_inputs: The dtype that autocast casts tensor arguments to, None where it leaves them as they are.
        keep_autocast: Whether backward runs under the state of autocast that forward ran under.
        samples: The author's samples, or None.
    """

    cls: type = field(repr=False, compare=False)
    name: str
    parameters: tuple[str, ...]
    variadic: bool
    signature: inspect.Signature
    style: str
    forward: Method | None
    backward: Method | None
    method: str
    double_backward: Method | None
    reference: Method | None
    surrogate: Method | None
    expected_backward: Method | None
    nonlinear_backward: bool
    nondiff_argnames: tuple[str, ...]
    once_differentiable: bool
    replayable: bool
    contiguous_grads: bool
    boxed: bool
    cast_inputs: torch.dtype | None
    keep_autocast: bool
    samples: Method | None

    @property
    def location(self) -> str:
        """``file.py:12``, where the class is defined; empty where no source is found. Reads that file when asked."""
        return _location(self.cls)

    @property
    def backward_label(self) -> str:
        """What to call backward in an error: what the author wrote, where the class was made of that."""
        label: str = vars(self.cls).get(BACKWARD_LABEL, f"{self.name}.backward")
        return label

    @cached_property
    def by_keyword(self) -> tuple[str, ...]:
        """`parameters`, where each of them may be given by keyword; else empty."""
        kinds = [self.signature.parameters[name].kind for name in self.parameters]
        return self.parameters if all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds) else ()

    @cached_property
    def keyword_only(self) -> tuple[str, ...]:
        """The names of forward's keyword-only parameters; their arguments come after the others."""
        parameters = self.signature.parameters.items()
        return tuple(name for name, parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)

    def argument_name(self, index: int) -> str:
        """The name of the argument at `index`, such as ``x`` or, for variadic ones, ``args[2]``."""
        if index < len(self.parameters):
            return self.parameters[index]
        if not self.variadic and index < len(self.parameters) + len(self.keyword_only):
            return self.keyword_only[index - len(self.parameters)]
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return f"{parameter.name}[{index - len(self.parameters)}]"
        return f"argument {index}"

    def is_nondiff(self, name: str) -> bool:
        """Whether nondiff_argnames declares the argument of this name, itself or as one of a variadic parameter."""
        return name in self.nondiff_argnames or name.partition("[")[0] in self.nondiff_argnames


DESCRIBED = "_pullback_definition"
"""The attribute of a class that was generated, and knows itself what its author wrote."""


def describe(cls: type[TorchFunction]) -> Definition:
    """Describe the Function `cls` as its author wrote it."""
    described: Definition | None = cls.__dict__.get(DESCRIBED)
    if described is not None:
        return described
    style = "setup_context" if _own(cls, "setup_context") else "ctx"
    forward = _own(cls, "forward")
    signature = forward_signature(forward, style)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds = signature.parameters.values()
    backward = _own(cls, "backward") or _own(cls, "vjp")
    return Definition(
        cls=cls,
        name=cls.__name__,
        parameters=tuple(parameter.name for parameter in kinds if parameter.kind in positional),
        variadic=any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in kinds),
        signature=signature,
        style=style,
        forward=forward,
        backward=backward,
        method="vjp" if _own(cls, "vjp") else "backward",
        double_backward=_optional(cls, "double_backward"),
        reference=_optional(cls, "reference"),
        surrogate=_optional(cls, "surrogate"),
        expected_backward=_optional(cls, "expected_backward"),
        nonlinear_backward=bool(getattr(cls, "nonlinear_backward", False)),
        nondiff_argnames=argument_names(getattr(cls, "nondiff_argnames", ())),
        once_differentiable=is_once_differentiable(backward),
        replayable=bool(getattr(cls, "replayable", True)),
        contiguous_grads=bool(getattr(cls, "contiguous_grads", False)),
        boxed=boxes_gradients(cls),
        cast_inputs=_dtype(cls),
        keep_autocast=bool(getattr(cls, "keep_autocast", False)),
        samples=_samples(cls),
    )


def is_once_differentiable(backward: Method | None) -> bool:
    """Whether PyTorch's ``once_differentiable`` is among the decorators of `backward`."""
    return any(getattr(layer, "__code__", None) is _ONCE_CODE for layer in _layers(backward))


def argument_names(declared: Any) -> tuple[str, ...]:
    """The names in a declaration, where one bare name stands for a tuple of one."""
    return (declared,) if isinstance(declared, str) else tuple(declared)


def forward_signature(forward: Method | None, style: str) -> inspect.Signature:
    """The signature of `forward` without ``ctx``; empty for an abstract class, ``*args`` where none can be read."""
    if forward is None:
        return inspect.Signature()
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    parameters = list(signature.parameters.values())
    takes_ctx = style == "ctx" and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return signature.replace(parameters=parameters[1:] if takes_ctx else parameters)


def _own(cls: type, name: str) -> Method | None:
    """The method `name` where some class below PyTorch's bases defines it, else None."""
    method = getattr(cls, name, None)
    return None if method is None or method == getattr(TorchFunction, name) else method


def _optional(cls: type, name: str) -> Method | None:
    method = getattr(cls, name, None)
    return method if callable(method) else None


def _dtype(cls: type) -> torch.dtype | None:
    declared = getattr(cls, "cast_inputs", None)
    return declared if isinstance(declared, torch.dtype) else None


def _samples(cls: type) -> Method | None:
    """The author's samples as a function; a list of them may stand in its place."""
    samples = getattr(cls, "samples", None)
    return (lambda: samples) if isinstance(samples, (list, tuple)) else _optional(cls, "samples")


def _layers(method: Method | None) -> Iterator[Any]:
    """`method` and, behind decorators, what each of them wraps."""
    seen = 0
    layer: Any = method
    while layer is not None and seen < 32:
        layer = getattr(layer, "__func__", layer)
        yield layer
        layer = getattr(layer, "__wrapped__", None)
        seen += 1


@functools.lru_cache(maxsize=1024)
def _location(cls: type) -> str:
    try:
        file = inspect.getsourcefile(cls)
        _, line = inspect.getsourcelines(cls)
    except (TypeError, OSError):
        return ""
    return f"{file}:{line}" if file else ""
