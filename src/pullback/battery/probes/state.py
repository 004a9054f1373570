"""State outside the call: caches and tables that calls fill, tried full and empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.observe import difference, references
from pullback.battery.oracle import elsewhere, moved
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_effects import store_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding

_LOW = torch.float32

_METHODS = ("forward", "setup_context", "backward", "vjp")


@dataclass(frozen=True)
class _Store:
    """A container that outlives a call, or a memoising function, by the name under which the Function knows it."""

    name: str
    value: Any
    is_attribute: ClassVar[bool] = False

    @property
    def is_memo(self) -> bool:
        return hasattr(self.value, "cache_clear")

    def filled(self) -> int:
        """How many entries it holds."""
        return int(self.value.cache_info().currsize) if self.is_memo else len(self.value)

    def clear(self) -> None:
        if self.is_memo:
            self.value.cache_clear()
        else:
            self.value.clear()

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restore the contents at the end; a memoising function only loses its memory."""
        contents: Any = None if self.is_memo else self.value.copy()
        try:
            yield
        finally:
            self.clear()
            if isinstance(self.value, MutableSequence):
                self.value.extend(contents)
            elif contents is not None:
                self.value.update(contents)


@dataclass(frozen=True)
class _Attribute:
    """An attribute of the class that holds a tensor; if calls make it where it is None, it is a cache of one entry."""

    name: str
    owner: type
    is_attribute: ClassVar[bool] = True

    @property
    def _key(self) -> str:
        return self.name.rpartition(".")[2]

    def filled(self) -> int:
        """Whether there is an entry."""
        return int(vars(self.owner)[self._key] is not None)

    def clear(self) -> None:
        setattr(self.owner, self._key, None)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restore the tensor at the end."""
        value = vars(self.owner)[self._key]
        try:
            yield
        finally:
            setattr(self.owner, self._key, value)


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare a call on empty stores with the same call on stores that a call of other values or dtype has filled."""
    stores = _stores(subject)
    if not stores:
        raise NotApplicable(
            "no container or memoising function outside the call is within reach "
            "(attributes of the class are tried by repeats)"
        )
    for store in stores:
        for case in subject.cases:
            try:
                finding = _tried(subject, case, store)
            except (ForwardRaised, BackwardRaised) as refused:
                if not store.is_attribute:  # one that is needed from the start is no cache
                    yield Note(f"refused: {store.name} emptied ({refused})")
                continue
            if finding is not None:
                yield finding
                break


def _tried(subject: Subject, case: Case, store: _Store | _Attribute) -> Finding | None:
    """A call after one on other values; then, in float32 and in float64, one after the same call in the other."""
    finding = _try(subject, _Pair("other values", case, elsewhere(subject, case)), store)
    if finding is not None or not (case.exact and case.may_vary("dtype")):
        return finding
    low = moved(subject, case, lambda _, tensor: tensor.to(_LOW) if tensor.dtype is torch.float64 else tensor)
    for pair in (_Pair("float64 arguments", case, low), _Pair("float32 arguments", low, case)):
        with suppress(ForwardRaised, BackwardRaised):  # it takes float64 alone
            finding = finding or _try(subject, pair, store)
    return finding


@dataclass(frozen=True)
class _Pair:
    """A call, and another one after it; `said` is what the first one is on, compared with the second."""

    said: str
    before: Case
    after: Case


def _try(subject: Subject, pair: _Pair, store: _Store | _Attribute) -> Finding | None:
    with store.put_back():
        store.clear()
        cotangents, expected = _results(subject, pair.after, None)
        if not store.filled():
            return None  # calls don't fill it: it is a table, not a memory
        store.clear()
        _results(subject, pair.before, None)
        try:
            _, got = _results(subject, pair.after, cotangents)
        except (ForwardRaised, BackwardRaised) as raised:
            return _finding(subject, pair, store, "value" if isinstance(raised, ForwardRaised) else "gradient", raised)
    for (kind, right), (_, wrong) in zip(expected, got, strict=True):
        mismatch = difference(right, wrong)
        if mismatch is not None:
            return _finding(subject, pair, store, kind, mismatch)
    return None


_Named = list[tuple[str, "torch.Tensor | None"]]


def _results(subject: Subject, case: Case, cotangents: list[torch.Tensor] | None) -> tuple[list[torch.Tensor], _Named]:
    """Values and gradients of one call, each with its kind."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    cotangents = cotangents or [subject.cotangent(output.tensor) for output in outputs]
    gradients = subject.gradients(outputs, [cotangent.clone() for cotangent in cotangents], inputs.varying)
    values: _Named = [("value", output.tensor.detach().clone()) for output in outputs]
    return cotangents, [*values, *(("gradient", gradient) for gradient in gradients)]


def _stores(subject: Subject) -> list[_Store | _Attribute]:
    """What the Function's methods can reach and write to: class attributes, globals, closures, defaults."""
    functions: list[Callable[..., Any]] = []
    found: dict[str, object] = {}
    attributes: list[_Attribute] = []
    if subject.definition is None:
        functions.append(subject.function)
    else:
        for base in subject.function.__mro__:
            if base.__module__.partition(".")[0] in ("torch", "pullback", "builtins"):
                continue
            own = {f"{base.__name__}.{name}": value for name, value in vars(base).items() if name[:2] != "__"}
            found.update(own)
            attributes += [_Attribute(name, base) for name, value in own.items() if isinstance(value, torch.Tensor)]
        functions += [getattr(subject.function, name) for name in _METHODS]
    for function in functions:
        found.update(references(function))
    kinds = (MutableMapping, MutableSequence, MutableSet)
    unique: dict[int, _Store] = {}
    for name, value in found.items():
        is_memo = callable(getattr(value, "cache_clear", None)) and not isinstance(value, type)
        if is_memo or (isinstance(value, kinds) and hasattr(value, "copy")):
            unique.setdefault(id(value), _Store(name, value))
    return [*unique.values(), *attributes]


def _finding(
    subject: Subject,
    pair: _Pair,
    store: _Store | _Attribute,
    kind: str,
    found: Mismatch | ForwardRaised | BackwardRaised,
) -> Finding:
    remembers = f"{store.name} remembers the earlier call"
    message = f"the {kind} is another one: {remembers}"
    if not isinstance(found, Mismatch):
        message = f"{'forward' if kind == 'value' else 'backward'} raises, since {remembers}: {found}"
    repro = store_lines(
        subject, pair.before, pair.after, store.name, values=kind == "value", attribute=store.is_attribute
    )
    return subject.finding(
        "PB504",
        pair.after,
        f"after a call on {pair.said}, {message}",
        what=store.name,
        expected=f"{found.expected if isinstance(found, Mismatch) else 'no error'}, as with {store.name} empty",
        got=found.got if isinstance(found, Mismatch) else str(found),
        remedy="Key the cache by everything that its entries depend on, dtype and device too, or keep them on ctx.",
        evidence=found.evidence if isinstance(found, Mismatch) else {},
        repro=repro,
    )


PROBE = Probe("state", "what earlier calls left in caches and tables does not change a result", run)
