"""After a call is over and its outputs are gone, its memory is free: at once, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pullback.battery.leaves import tensors
from pullback.battery.observe import passed, storage_of, storage_refs
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro_effects import leak_lines
from pullback.battery.subject import Case, Subject
from pullback.finding import Finding
from pullback.torch_private import TorchDispatchMode

_PENDING = 2
"""So many calls are watched, all pending at a time: what is kept by the identity of ctx, another ctx may push out."""

_LATER = 3
"""Calls after those that are watched, which push out a last result."""


class _Produced(TorchDispatchMode):
    """Weak references to the storage of every tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.references: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add([tensor for _, tensor in tensors(result, "") if not _outlives(tensor, (args, kwargs))])
        return result

    def add(self, found: Iterable[torch.Tensor]) -> None:
        """Watch the storages of some tensors."""
        for reference in storage_refs(found):
            self.references.setdefault(hash(reference), reference)


def _outlives(result: torch.Tensor, operands: object) -> bool:
    """Whether the result is an operand, or a view of one, or what it was to be written to: that memory is older."""
    storages = {storage_of(tensor) for _, tensor in tensors(operands, "")} - {None}
    return storage_of(result) in storages


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Watch every storage of a call, with its backward and without, while the collector is off."""
    if not hasattr(TorchDispatchMode, "__enter__"):
        raise Skip("this PyTorch has no mode that shows each operation")
    yield from passed_over(subject)
    for case in telling(subject):
        for differentiate in (True, False):
            finding = _watch(subject, case, differentiate=differentiate)
            if finding is not None:
                yield finding
                return


def _watch(subject: Subject, case: Case, *, differentiate: bool) -> Finding | None:
    with _collector_off():
        _call(subject, case, _PENDING, differentiate=differentiate)  # which fills caches of constants, and pools
        references = _call(subject, case, _PENDING, differentiate=differentiate)
        for _ in range(_LATER):
            _call(subject, case, 1, differentiate=differentiate)
        survivors = [reference for reference in references if not reference.expired()]
        if not survivors:
            return None
        gc.collect()
        held = [reference for reference in survivors if not reference.expired()]
    many = f"{len(survivors)} of {len(references)} storages"
    after = "after backward" if differentiate else "without a backward"
    how = f"and {len(held)} of them outlive the garbage collector" if held else "until the garbage collector runs"
    return subject.finding(
        "PB306",
        case,
        f"{many} of two calls are still alive {after}, when their arguments, outputs and gradients are gone, {how}",
        expected="every storage is freed with the last reference to the outputs",
        got=f"{many} still alive",
        remedy=""
        if held
        else "Break the cycle: nothing on ctx may lead back to ctx or to an output; save outputs with "
        "ctx.save_for_backward.",
        repro=leak_lines(subject, case, differentiate=differentiate),
        evidence={"alive": len(survivors), "outlive_collector": len(held), "backward": differentiate},
    )


def _call(subject: Subject, case: Case, count: int, *, differentiate: bool) -> list[StorageWeakRef]:
    """So many calls at a time, from their arguments to their gradients, none of which is returned."""
    produced = _Produced()
    calls = []
    for _ in range(count):
        inputs = subject.fresh(case)
        given = passed(subject, inputs).values()
        produced.add(tensor for tensor in given if not isinstance(tensor, torch.nn.Parameter))
        with produced:
            calls.append((inputs, subject.call(inputs)))
    for inputs, outputs in calls if differentiate else ():
        with produced:
            cotangents = [subject.cotangent(output.tensor) for output in outputs]
            produced.add(cotangents)
            subject.gradients(outputs, cotangents, inputs.varying, share=True)
    return list(produced.references.values())


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


PROBE = Probe("leaks", "a call's memory is freed with its outputs, by counting references alone", run)
