"""The arguments to try a Function with: given, registered, declared on the class, or inferred from its signature."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from pullback.battery.inference import inferred
from pullback.battery.raised import RAISED, first_lines
from pullback.battery.randomness import is_generator, preserved, putting_back, reseed
from pullback.custom.decorated import Decorated, decorated
from pullback.define.definition import Definition
from pullback.errors import SampleError

VARY = ("layout", "shape", "values", "dtype", "repeat")
"""What the battery may vary of a sample: memory layouts, sizes, values, dtypes, one tensor passed twice."""


@dataclass(frozen=True)
class Sample:
    """One set of arguments for a Function.

    Attributes:
        args: The positional arguments.
        kwargs: The arguments by keyword.
        vary: What the battery may change of it; ``()`` keeps to the arguments as they are.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict)
    vary: tuple[str, ...] = VARY

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple):
            raise _not_a_sample(self.args)
        if not isinstance(self.kwargs, Mapping):
            raise SampleError(
                "PB121",
                f"the second argument of Sample is a mapping of arguments by keyword, and {_kind(self.kwargs)} came",
                expected='Sample((x, y)) for the arguments x and y; Sample((x,), {"by": 2})',
                remedy="Put the positional arguments into one tuple.",
            )
        if isinstance(self.vary, str):
            object.__setattr__(self, "vary", (self.vary,))
        unknown = set(self.vary) - set(VARY)
        if unknown:
            raise SampleError(
                "PB121",
                f"Sample(vary=…) has unknown entries: {', '.join(sorted(map(str, unknown)))}",
                expected=f"some of {', '.join(VARY)}",
            )


@dataclass(frozen=True)
class Samples:
    """Samples and where they came from.

    Attributes:
        samples: The samples.
        source: ``given``, ``registered``, ``declared`` or ``inferred from the signature``.
        remark: What is odd about them, in a few words.
        wrapped: The numbers of those that the author wrote as a `Sample`, and not as a tuple.
    """

    samples: tuple[Sample, ...]
    source: str
    remark: str = ""
    wrapped: frozenset[int] = frozenset()

    @property
    def guessed(self) -> bool:
        """Whether nobody said what arguments the function is meant for."""
        return self.source == INFERRED

    @cached_property
    def generators(self) -> tuple[Callable[[], object], ...]:
        """What puts each generator among the arguments back to where it is now: no call of a sample has drawn yet."""
        values = [value for sample in self.samples for value in (*sample.args, *sample.kwargs.values())]
        return tuple(putting_back(value) for value in values if is_generator(value))

    def __str__(self) -> str:
        return f"{len(self.samples)} {self.source}" + (f" ({self.remark})" if self.remark else "")


INFERRED = "inferred from the signature"
GUESSED = "This sample was guessed from the signature: if other arguments are meant, declare them with samples()."


SampleMaker = Callable[[], Iterable[object]]
_Maker = TypeVar("_Maker", bound=SampleMaker)

_REGISTERED: WeakKeyDictionary[object, SampleMaker] = WeakKeyDictionary()


def samples_for(function: object) -> Callable[[_Maker], _Maker]:
    """Register samples for a class or callable that can't be edited.

    Example:
        ::

            @pullback.samples_for(TheirFunction)
            def samples():
                yield torch.rand(3, dtype=torch.float64, requires_grad=True), 2

    Raises:
        SampleError: If it isn't used like this (PB121).
    """
    function = behind_apply(function)
    if not callable(function) or _takes_nothing(function):
        raise _misused(f"samples_for takes the class or callable itself, and {_kind(function)} came")

    def register(maker: _Maker) -> _Maker:
        if not callable(maker):
            raise _misused(f"what samples_for decorates is a function that yields samples, and {_kind(maker)} came")
        _REGISTERED[decorated(function) or function] = maker
        return maker

    return register


def find_samples(function: object, given: Iterable[object], definition: Definition | None, *, seed: int) -> Samples:
    """The samples for `function`: those given, else registered, else declared by ``samples()``, else inferred.

    The global random state is neither used nor changed: samples made with torch's generator depend on `seed` alone.

    Raises:
        SampleError: If one can't be used, or none can be found (PB121).
    """
    given = tuple(given)
    if given:
        return Samples(tuple(as_sample(sample) for sample in given), "given")
    with preserved(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reseed(seed)
        for source, maker in (("registered", _registered(function)), ("declared", _declared(function, definition))):
            if maker is not None:
                return _made(maker, source)
        found = inferred(function, definition, seed=seed)
        made = [Sample(args, by_name) for args, by_name in zip(found.samples, found.keywords, strict=True)]
        return Samples(tuple(made), INFERRED, found.remark)


def as_sample(value: object) -> Sample:
    """`value` as a `Sample`: a tuple of arguments or a `Sample` already.

    Raises:
        SampleError: If it is anything else; a bare tensor is the usual slip (PB121).
    """
    if isinstance(value, Sample):
        return value
    if isinstance(value, tuple):
        return Sample(tuple(value))
    raise _not_a_sample(value)


def behind_apply(function: Any) -> Any:
    """The class whose ``apply`` this is, or that a decorated function runs as; anything else as it is."""
    if isinstance(function, Decorated):
        return function.function
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and function == owner.apply:
        return owner
    return function


def _not_a_sample(value: object) -> SampleError:
    kind = _kind(value)
    if isinstance(value, (list, Iterator)):
        message = f"each sample is an argument of its own, a tuple with the function's arguments, and {kind} came"
    else:
        message = f"a sample is a tuple with the function's arguments, and {kind} came"
    return SampleError(
        "PB121",
        message,
        expected="check(f, (x, y)) for one sample with the arguments x and y; check(f, (x,)) for a single argument; "
        "check(f, (x,), (y,)), or check(f, *samples), for several samples",
        got=kind,
        remedy="Put the arguments of each call into a tuple, or use Sample(args, kwargs).",
    )


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "a bare tensor"
    name = "the string " + repr(value) if isinstance(value, str) else type(value).__name__
    article = "" if isinstance(value, str) else "an " if name[0] in "aeiou" else "a "
    return article + name


def _misused(message: str) -> SampleError:
    return SampleError(
        "PB121",
        message,
        expected="@pullback.samples_for(TheirFunction), on a line above a function that yields tuples of arguments",
        remedy="Decorate a function without parameters: def samples(): yield x, y",
    )


def _takes_nothing(function: Any) -> bool:
    """Whether it can't be the function to check: a maker of samples, decorated without the brackets."""
    return inspect.isfunction(function) and not inspect.signature(function).parameters


def _made(maker: SampleMaker | Iterable[object], source: str) -> Samples:
    try:
        given = maker() if callable(maker) else maker
        made = list(given) if isinstance(given, Iterable) else None
    except RAISED as error:
        message = f"the {source} samples() raised {first_lines(error)}"
        raise SampleError("PB121", message, remedy=_remedy_for(maker)) from error
    if made is None:
        message = f"the {source} samples() gave {_kind(given)}, which is no list of samples"
        raise SampleError("PB121", message, remedy="Yield tuples of arguments in samples(), or return a list of them.")
    if not made:
        raise SampleError("PB121", f"the {source} samples() gave no sample at all")
    for index, sample in enumerate(made):
        if not isinstance(sample, (tuple, Sample)):
            raise SampleError(
                "PB121",
                f"the {source} samples() gave {_kind(sample)} as sample {index}, and a sample is a tuple",
                expected="yield x, y for a call with the arguments x and y; yield (x,) for a single argument",
                got=_kind(sample),
                remedy="Put the arguments of each call into a tuple, or use Sample(args, kwargs).",
            )
    wrapped = frozenset(index for index, sample in enumerate(made) if isinstance(sample, Sample))
    return Samples(tuple(as_sample(sample) for sample in made), source, wrapped=wrapped)


def _remedy_for(maker: object) -> str:
    try:
        due = [p.name for p in inspect.signature(maker).parameters.values() if p.default is p.empty]  # type: ignore[arg-type]  # callable
    except (TypeError, ValueError):
        due = []
    if due:
        return f"Make it a @staticmethod without parameters: samples() is called without {' and '.join(due)}."
    return "Make samples() run by itself: mend what raised, in it or in what it calls."


def _registered(function: object) -> SampleMaker | None:
    try:
        return _REGISTERED.get(decorated(function) or function)
    except TypeError:  # not weakly referable, so never registered
        return None


def _declared(function: object, definition: Definition | None) -> SampleMaker | Iterable[object] | None:
    """samples() of the class, or a list of samples in its place."""
    maker = definition.samples if definition is not None else None
    maker = maker or getattr(function, "samples", None)
    if callable(maker) or isinstance(maker, (list, tuple)):
        return maker
    return None
