"""The arguments of a decorated function: which call gives which, and which of them are differentiated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.custom.nests import mapped
from pullback.errors import DefinitionError

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Bound = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of one call: those by position, with their defaults, and those that can only be given by keyword."""


class Arguments:
    """What a decorated function takes.

    Args:
        fn: The function.
        nondiff_argnums: The places of arguments that have no derivative.
        nondiff_argnames: The names of more of them.

    Attributes:
        signature: The function's signature.
        nondiff: The names of the arguments without a derivative, in the order of the signature.

    Raises:
        DefinitionError: PB106, one of them isn't an argument of `fn`.
    """

    def __init__(
        self, fn: Callable[..., Any], nondiff_argnums: Sequence[int] | int, nondiff_argnames: Sequence[str] | str
    ) -> None:
        self.name = name_of(fn)
        self.signature = _signature(fn)
        parameters = self.signature.parameters
        self._by_place = [name for name, parameter in parameters.items() if parameter.kind in _BY_PLACE]
        self._rest = next((name for name, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._simple = len(self._by_place) == len(parameters)
        places = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
        declared = {self._name_at(place) for place in places} | {self._known(name) for name in names}
        order = [*self._by_place, *sorted(declared - set(parameters)), *parameters]
        self.nondiff = tuple(dict.fromkeys(name for name in order if name in declared))

    @property
    def annotated(self) -> inspect.Signature:
        """The signature of a forward with these arguments."""
        ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY)
        parameters = list(self.signature.parameters.values())
        if parameters and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            ctx = ctx.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if ctx.name in self.signature.parameters:
            ctx = ctx.replace(name="_pb_ctx")
        return self.signature.replace(parameters=[ctx, *parameters])

    @property
    def call_shape(self) -> tuple[tuple[None, ...], list[str]]:
        """A stand-in for each argument that a call gives by position, and the names of those by keyword."""
        by_keyword = [name for name, p in self.signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return (None,) * (len(self._by_place) + (self._rest is not None)), by_keyword

    @property
    def may_vary(self) -> bool:
        """Whether the number of arguments without a derivative varies from call to call."""
        return any(name not in self._by_place and name.partition("[")[0] == self._rest for name in self.nondiff)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """The arguments of a call in one form, however they were given.

        Raises:
            TypeError: The function can't be called like this, as Python says it.
        """
        if not kwargs and self._simple and len(args) == len(self._by_place):
            return args, kwargs
        try:
            binding = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        binding.apply_defaults()
        return binding.args, binding.kwargs

    def without_gradient(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """The same arguments, those without a derivative cut off from whatever made them."""
        if not self.nondiff:
            return args, kwargs
        names = self.names(len(args), kwargs)
        values = [
            mapped(_constant, value) if self.is_nondiff(name) else value
            for name, value in zip(names, (*args, *kwargs.values()), strict=True)
        ]
        return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))

    def names(self, count: int, kwargs: Mapping[str, Any] | Sequence[str] = ()) -> list[str]:
        """A name for each argument of a call with `count` positional ones."""
        rest = [f"{self._rest}[{index}]" for index in range(count - len(self._by_place))]
        return [*self._by_place[:count], *rest, *kwargs]

    def is_nondiff(self, name: str) -> bool:
        """Whether the argument, or the parameter that it is one of several of, is declared to have no derivative."""
        return name in self.nondiff or name.partition("[")[0] in self.nondiff

    def split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments without a derivative, and the others."""
        pairs = list(zip(self.names(len(args), kwargs), (*args, *kwargs.values()), strict=True))
        without = tuple(value for name, value in pairs if self.is_nondiff(name))
        return without, tuple(value for name, value in pairs if not self.is_nondiff(name))

    @property
    def has_rest(self) -> bool:
        """Whether any number of arguments may be given."""
        return self._rest is not None or any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in self.signature.parameters.values()
        )

    def placed(self, count: int, keywords: Sequence[str], gradients: Sequence[Any]) -> tuple[Any, ...]:
        """One entry for each of `count` arguments, from those for the arguments that have a derivative."""
        rest = iter(gradients)
        names = self.names(count - len(keywords), keywords)
        return tuple([None if self.is_nondiff(name) else next(rest) for name in names])

    def by_place(self, values: Sequence[Any], keywords: Sequence[str] = ()) -> Bound:
        """The arguments of a call from one value for each; `keywords` names the last of them, if there are any."""
        names = list(keywords) or self.call_shape[1]
        count = len(values) - len(names)
        return tuple(values[:count]), dict(zip(names, values[count:], strict=True))

    def _name_at(self, place: int) -> str:
        count = len(self._by_place)
        if -count <= place < count:
            return self._by_place[place]
        if place >= 0 and self._rest is not None:
            return f"{self._rest}[{place - count}]"
        raise self._unknown("nondiff_argnums", place, f"places from 0 to {count - 1}" if count else "no place at all")

    def _known(self, name: str) -> str:
        if name in self.signature.parameters:
            return name
        raise self._unknown("nondiff_argnames", name, f"names among {', '.join(self.signature.parameters)}")

    def _unknown(self, declaration: str, given: object, expected: str) -> DefinitionError:
        return DefinitionError(
            "PB106",
            f"{declaration} has {given!r}, which is no argument of {self.name}.",
            expected=expected,
            got=repr(given),
            remedy=f"Name arguments of {self.name}{self.signature}.",
        )


def name_of(fn: Callable[..., Any]) -> str:
    """What to call a function; a partial goes by the function in it, another object by its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except ValueError:  # PyTorch's own functions don't tell
        kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
        return inspect.Signature([inspect.Parameter(name, kind) for name, kind in kinds.items()])


def _constant(tensor: Tensor) -> Tensor:
    return tensor.detach() if is_smooth(tensor) else tensor
