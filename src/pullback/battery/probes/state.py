"""State outside the call: caches and tables that calls fill, tried full and empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.grown import grown, one_larger
from pullback.battery.observe import difference
from pullback.battery.oracle import elsewhere, moved
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_effects import store_lines
from pullback.battery.stores import Container, Store, Variables, stores_of
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding

_LOW = torch.float32

_SIZES = 8
"""In so many ways sizes are made larger."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare a call on empty stores with the same call on stores that a call of other values or dtype has filled."""
    stores = stores_of(subject)
    if not stores:
        raise NotApplicable("no container, memoising function or variable outside the call is within reach")
    told: set[str] = set()
    for store in stores:
        for case in subject.cases if store.name not in told else ():
            try:
                finding = _tried(subject, case, store)
            except (ForwardRaised, BackwardRaised) as refused:
                if isinstance(store, Container):  # a variable that is needed from the start is no cache
                    yield Note(f"refused: {store.name} emptied ({refused})")
                continue
            if finding is not None:
                told.add(store.name)
                yield finding
                break


def _tried(subject: Subject, case: Case, store: Store) -> Finding | None:
    """A call after one on other values; then, after one on another sample, in another dtype, and in other sizes."""
    if not _fills(subject, case, store):
        return None  # it is a table, not a memory
    finding = _try(subject, _Pair("other values", case, elsewhere(subject, case)), store)
    for pair in _others(subject, case) if finding is None else ():
        with suppress(ForwardRaised, BackwardRaised):  # by itself it isn't taken
            finding = _try(subject, pair, store)
        if finding is not None:
            break
    return finding


def _fills(subject: Subject, case: Case, store: Store) -> bool:
    with store.put_back():
        store.clear()
        _results(subject, case, None)
        return store.filled()


def _others(subject: Subject, case: Case) -> Iterator[_Pair]:
    """Pairs of calls that differ by more than their values. A sample that raises after another may be one of them."""
    other = next((other for other in subject.all_cases if other.index != case.index), None)
    if other is not None:
        yield _Pair(other.label, other, case)
    if case.exact and case.may_vary("dtype"):
        low = moved(subject, case, lambda _, tensor: tensor.to(_LOW) if tensor.dtype is torch.float64 else tensor)
        yield _Pair("float64 arguments", case, low)
        yield _Pair("float32 arguments", low, case)
    # By one size alone, too: what is remembered may go by another one, or by the shape of grad_output.
    sizes = chain(islice(grown(subject, case), 1), one_larger(subject, case)) if case.may_vary("shape") else ()
    for label, larger in islice(sizes, _SIZES):
        yield _Pair(label, larger, case)
        yield _Pair("smaller sizes", case, larger)


@dataclass(frozen=True)
class _Pair:
    """A call, and another one after it; `said` is what the first one is on, compared with the second."""

    said: str
    before: Case
    after: Case


def _try(subject: Subject, pair: _Pair, store: Store) -> Finding | None:
    with store.put_back():
        store.clear()
        cotangents, expected = _results(subject, pair.after, None)
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


def _finding(
    subject: Subject,
    pair: _Pair,
    store: Store,
    kind: str,
    found: Mismatch | ForwardRaised | BackwardRaised,
) -> Finding:
    remembers = f"{store.name} remembers the earlier call"
    message = f"the {kind} is another one: {remembers}"
    if not isinstance(found, Mismatch):
        message = f"{'forward' if kind == 'value' else 'backward'} raises, since {remembers}: {found}"
    variables = store if isinstance(store, Variables) else None
    repro = store_lines(subject, pair.before, pair.after, store.name, values=kind == "value", variables=variables)
    return subject.finding(
        "PB504",
        pair.after,
        f"after a call on {pair.said}, {message}",
        what=store.name,
        expected=f"{found.expected if isinstance(found, Mismatch) else 'no error'}, as with {store.name} empty",
        got=found.got if isinstance(found, Mismatch) else str(found),
        remedy="Key the cache by all that its entries depend on, sizes, dtype and device too, or keep them on ctx.",
        evidence=found.evidence if isinstance(found, Mismatch) else {},
        repro=repro,
    )


PROBE = Probe("state", "what earlier calls left in caches and tables does not change a result", run)
