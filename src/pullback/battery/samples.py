"""The arguments to try a Function with: given, registered, declared on the class, or inferred from its signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from pullback.battery.inference import inferred
from pullback.battery.randomness import preserved, reseed
from pullback.define.definition import Definition
from pullback.errors import SampleError

VARY = ("layout", "shape", "values", "dtype", "repeat")
"""What the battery may vary of a sample: memory layouts, sizes, special values, dtypes, one tensor passed twice."""


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
        unknown = set(self.vary) - set(VARY)
        if unknown:
            raise SampleError(
                "PB121",
                f"Sample(vary=…) has unknown entries: {', '.join(sorted(map(str, unknown)))}",
                expected=f"some of {', '.join(VARY)}",
            )


@dataclass(frozen=True)
class Samples:
    """Samples and where they came from."""

    samples: tuple[Sample, ...]
    source: str

    def __str__(self) -> str:
        return f"{len(self.samples)} {self.source}"


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
    """

    def register(maker: _Maker) -> _Maker:
        _REGISTERED[function] = maker
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
    with preserved():
        reseed(seed)
        for source, maker in (("registered", _registered(function)), ("declared", _declared(function, definition))):
            if maker is not None:
                return _made(maker, source)
        return Samples(tuple(Sample(args) for args in inferred(function, definition)), "inferred from the signature")


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


def _not_a_sample(value: object) -> SampleError:
    kind = "a bare tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    return SampleError(
        "PB121",
        f"a sample is a tuple with the function's arguments, and {kind} came",
        expected="check(f, (x, y)) for one sample with the arguments x and y; check(f, (x,)) for a single argument",
        got=kind,
        remedy="Put the arguments of each call into a tuple, or use Sample(args, kwargs).",
    )


def _made(maker: SampleMaker, source: str) -> Samples:
    try:
        made = list(maker())
    except Exception as error:
        message = f"the {source} samples() raised {type(error).__name__}: {error}"
        raise SampleError("PB121", message, remedy="Mend samples(): it must yield tuples of arguments.") from error
    if not made:
        raise SampleError("PB121", f"the {source} samples() gave no sample at all")
    return Samples(tuple(as_sample(sample) for sample in made), source)


def _registered(function: object) -> SampleMaker | None:
    try:
        return _REGISTERED.get(function)
    except TypeError:  # not weakly referable, so never registered
        return None


def _declared(function: object, definition: Definition | None) -> SampleMaker | None:
    maker = definition.samples if definition is not None else getattr(function, "samples", None)
    return maker if callable(maker) else None
