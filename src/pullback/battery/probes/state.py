"""State outside the call: caches and tables that calls fill, tried full and empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.observe import difference, references
from pullback.battery.oracle import elsewhere
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_effects import store_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding

_METHODS = ("forward", "setup_context", "backward", "vjp")


@dataclass(frozen=True)
class _Store:
    """A container that outlives a call, or a memoising function, by the name under which the Function knows it."""

    name: str
    value: Any

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


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare a call on empty stores with the same call on stores that a call on other values has filled."""
    stores = _stores(subject)
    if not stores:
        raise NotApplicable(
            "no container or memoising function outside the call is within reach "
            "(attributes of the class are tried by repeats)"
        )
    for store in stores:
        for case in subject.cases:
            try:
                finding = _try(subject, case, store)
            except (ForwardRaised, BackwardRaised) as refused:
                yield Note(f"refused: {store.name} emptied ({refused})")
                continue
            if finding is not None:
                yield finding
                break


def _try(subject: Subject, case: Case, store: _Store) -> Finding | None:
    with store.put_back():
        other = elsewhere(subject, case)
        store.clear()
        cotangents, expected = _results(subject, other, None)
        if not store.filled():
            return None  # calls don't fill it: it is a table, not a memory
        store.clear()
        _results(subject, case, None)
        _, got = _results(subject, other, cotangents)
    for (kind, right), (_, wrong) in zip(expected, got, strict=True):
        mismatch = difference(right, wrong)
        if mismatch is not None:
            return _finding(subject, case, other, store, kind, mismatch)
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


def _stores(subject: Subject) -> list[_Store]:
    """What the Function's methods can reach and write to: class attributes, globals, closures, defaults."""
    functions: list[Callable[..., Any]] = []
    found: dict[str, object] = {}
    if subject.definition is None:
        functions.append(subject.function)
    else:
        for base in subject.function.__mro__:
            if base.__module__.partition(".")[0] in ("torch", "pullback", "builtins"):
                continue
            found.update({f"{base.__name__}.{name}": value for name, value in vars(base).items() if name[:2] != "__"})
        functions += [getattr(subject.function, name) for name in _METHODS]
    for function in functions:
        found.update(references(function))
    kinds = (MutableMapping, MutableSequence, MutableSet)
    unique: dict[int, _Store] = {}
    for name, value in found.items():
        is_memo = callable(getattr(value, "cache_clear", None)) and not isinstance(value, type)
        if is_memo or (isinstance(value, kinds) and hasattr(value, "copy")):
            unique.setdefault(id(value), _Store(name, value))
    return list(unique.values())


def _finding(subject: Subject, case: Case, other: Case, store: _Store, kind: str, mismatch: Mismatch) -> Finding:
    return subject.finding(
        "PB504",
        case,
        f"after a call on other values, the {kind} is another one: {store.name} remembers the earlier call",
        what=store.name,
        expected=f"{mismatch.expected}, as with {store.name} empty",
        got=mismatch.got,
        remedy="Key the cache by everything that its entries depend on, or keep them on ctx.",
        evidence=mismatch.evidence,
        repro=store_lines(subject, case, other, store.name, values=kind == "value"),
    )


PROBE = Probe("state", "what earlier calls left in caches and tables does not change a result", run)
