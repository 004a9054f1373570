"""What `custom_vjp` and `custom_jvp` have in common: a function that is called as it was, and runs as a Function."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from pullback.call.frames import without_own_frames
from pullback.custom.arguments import Arguments
from pullback.custom.captured import Watch
from pullback.define.definition import BACKWARD_LABEL
from pullback.errors import DefinitionError, GradientError, MissingMethodError, PullbackError
from pullback.function import Function
from pullback.torch_private import dual_level, transforms_active

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

_WATCHED = 16
"""The calls of each function that are watched for captured tensors."""


class Decorated(Generic[P, R]):
    """A function with a derivative rule of its own.

    It is called as before, and has its name, its signature and its documentation. Where something is differentiated it
    runs as a `pullback.Function` of the same name.

    Attributes:
        fn: The function as it was written.
        is_static: Whether it was a static method.
        function: The Function that it runs as.
    """

    __name__: str
    __qualname__: str
    _backward_role = "bwd"

    def __init__(
        self,
        fn: Callable[P, R],
        nondiff_argnums: Sequence[int] | int,
        nondiff_argnames: Sequence[str] | str,
        declarations: dict[str, Any],
    ) -> None:
        try:
            self.is_static = isinstance(fn, staticmethod)
            self.fn: Callable[P, R] = _callable(fn)
            fn = self.fn
            functools.update_wrapper(self, fn)
            self.arguments = Arguments(fn, nondiff_argnums, nondiff_argnames)
            if not isinstance(getattr(self, "__qualname__", None), str):  # a partial, or an object that can be called
                self.__name__ = self.__qualname__ = self.arguments.name
            self._declarations = {name: value for name, value in declarations.items() if value is not None}
            self._is_cast = "cast_inputs" in self._declarations  # where nothing is differentiated, too
            self._unwatched = dict.fromkeys(("f", "fwd", "bwd", "rule"), _WATCHED)
            self.function: type[Function] = self._made()
        except PullbackError as error:
            error.__traceback__ = None
            raise

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; where something is differentiated, by its rule."""
        self.demand_rule()
        bound, keywords = self.arguments.bound(args, kwargs)
        if not (torch.is_grad_enabled() or transforms_active() or dual_level() >= 0 or self._is_cast):
            return self.fn(*args, **kwargs)
        if is_dynamo_compiling() and not (transforms_active() or dual_level() >= 0):
            traced: R = self.traced(bound, keywords)
            return traced
        bound, keywords = self.arguments.without_gradient(bound, keywords)
        try:
            result: R = unwrapped(self.function.apply(*bound, **keywords))
        except PullbackError as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        return result

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Decorated[P, R]: ...
    @overload
    def __get__(self: Decorated[Concatenate[S, Q], R], instance: S, owner: Any = ...) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the function was decorated in the body of a class."""
        if instance is None or self.is_static:
            return self
        if is_dynamo_compiling():  # which doesn't know how to make a method
            return functools.partial(self, instance)
        return types.MethodType(self, instance)

    def __reduce__(self) -> str:
        # pickle's and copy's way to say: by its name, as any function.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.__qualname__}>"

    @property
    def has_rule(self) -> bool:
        """Whether the derivative was given."""
        raise NotImplementedError

    def demand_rule(self) -> None:
        """Raise where the derivative wasn't given.

        Raises:
            MissingMethodError: PB112.
        """
        if not self.has_rule:
            error = self._without_rule()
            error.__traceback__ = None
            raise error

    def forward(self, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """forward of the Function."""
        raise NotImplementedError

    def backward(self, ctx: Any, *grad_outputs: Any) -> Any:
        """backward of the Function."""
        raise NotImplementedError

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function in code that ``torch.compile`` traces."""
        args, kwargs = self.arguments.without_gradient(args, kwargs)
        return unwrapped(self.function.apply(*args, **kwargs))

    def watching(
        self, role: str, function: Callable[..., Any], given: Any, fixed: Any, extra: Mapping[str, Any]
    ) -> Any:
        """A context that sees to it that `function` uses no tensor that it captured, until enough calls were watched.

        Args:
            role: ``f``, ``fwd``, ``bwd`` or ``rule``.
            function: What is about to run.
            given: The tensors that it may use, in a nest.
            fixed: Arguments without a derivative.
            extra: Arguments by name, in which tensors may be captured too.
        """
        if not self.watches(role):
            return nullcontext()
        self._unwatched[role] -= 1
        return Watch(self.__name__, role, function, given, fixed, extra)

    def watches(self, role: str) -> bool:
        """Whether the next run of a function is watched: the first ones are, and all under transforms."""
        return not torch.compiler.is_compiling() and (self._unwatched[role] > 0 or transforms_active())

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        return dict(zip(self.arguments.names(len(args), kwargs), (*args, *kwargs.values()), strict=True))

    def named_fixed(self, fixed: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments without a derivative by name."""
        return dict(zip(self.arguments.nondiff, fixed, strict=False))

    def pair(self, role: str, returned: Any, expected: str) -> tuple[Any, Any]:
        """The two things that a rule returns.

        Raises:
            GradientError: PB202, it returned something else.
        """
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise GradientError(
            "PB202",
            f"the {role} of {self.__name__} returned something else than a pair.",
            expected=expected,
            got=got,
            remedy=f"Return {expected}, a tuple.",
        )

    def _made(self) -> type[Function]:
        """The Function, with the name and place of the function."""

        def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            return self.forward(ctx, *args, **kwargs)

        def backward(ctx: Any, *grad_outputs: Any) -> Any:
            return self.backward(ctx, *grad_outputs)

        forward.__signature__ = self.arguments.annotated  # type: ignore[attr-defined]  # what inspect.signature reads
        body: dict[str, Any] = {
            "forward": staticmethod(forward),
            "backward": staticmethod(backward),
            "nondiff_argnames": self.arguments.nondiff,
            "decorated": self,
            BACKWARD_LABEL: f"the {self._backward_role} of {self.__name__}",
            "__wrapped__": self.fn,  # where inspect finds the source
            "__doc__": self.fn.__doc__,
            "__module__": self.__module__,
            "__qualname__": self.__qualname__,
            **self._methods(),
            **{
                name: staticmethod(value) if callable(value) else value
                for name, value in self._declarations.items()
            },
        }  # fmt: skip
        make: Any = type(Function)
        made: type[Function] = make(self.__name__, (Function,), body)
        return made

    def _methods(self) -> dict[str, Any]:
        """More of what the Function has."""
        return {}

    def _without_rule(self) -> MissingMethodError:
        raise NotImplementedError


def _callable(fn: Any) -> Callable[..., Any]:
    """What was decorated, as something that can be called.

    Raises:
        DefinitionError: PB106, it can't be.
    """
    if isinstance(fn, staticmethod):
        fn = fn.__func__
    if callable(fn):
        found: Callable[..., Any] = fn
        return found
    what = "a class method" if isinstance(fn, classmethod) else f"an object of type {type(fn).__name__}"
    raise DefinitionError(
        "PB106",
        f"a derivative rule is declared for {what}, which can't be called.",
        expected="a function",
        got=type(fn).__name__,
        remedy="Put @classmethod above the decorator, and declare cls among nondiff_argnums."
        if isinstance(fn, classmethod)
        else "Decorate the function itself.",
    )


def wrapped(out: Any) -> Any:
    """What a Function's forward returns for what the function returned: a tensor, tensors, or one nest."""
    return out if isinstance(out, Tensor) or is_tensors(out) else (out,)


def is_tensors(out: Any) -> bool:
    """Whether the function returned a plain tuple of tensors, each an output of its own."""
    return type(out) is tuple and bool(out) and all([isinstance(entry, Tensor) for entry in out])


def unwrapped(result: Any) -> Any:
    """What the function returned, from what a Function's apply did."""
    if type(result) is tuple and len(result) == 1 and not isinstance(result[0], Tensor):
        return result[0]
    return result


def decorated(function: Any) -> Decorated[..., Any] | None:
    """The decorated function that the class `function` was made for; None for anything else."""
    found = vars(function).get("decorated") if isinstance(function, type) else None
    return found if isinstance(found, Decorated) else None


def call_of(function: Any) -> Callable[..., Any]:
    """How a Function's class is called: by its apply, or as the function that it was made for; others as they are."""
    made_for = decorated(function)
    call: Callable[..., Any] = made_for if made_for is not None else getattr(function, "apply", function)
    return call if isinstance(function, type) else cast("Callable[..., Any]", function)
