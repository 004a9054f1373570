"""What a call keeps for backward: saved and never read, a sliver of a large storage, a tensor on ctx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pullback.battery.leaves import is_float
from pullback.battery.nodes import node_of
from pullback.battery.observe import SavedTensors, kept_on, passed, storage_of, storage_refs
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.reads import NotApartError, unread
from pullback.battery.repro_effects import attribute_lines, pinned_lines, spoiled_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding
from pullback.rules import Severity

_PINNED_TIMES = 4
_PINNED_BYTES = 64
"""A saved tensor pins too much if it keeps alive this many times its size, and at least so many bytes more."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Look at what each call saves, and which of it backward reads."""
    if subject.definition is None:
        raise Skip("only a Function decides by itself what is saved")
    yield from _never_read(subject)
    for case in subject.cases:
        yield from _pinned(subject, case)
        yield from _on_ctx(subject, case)


def _never_read(subject: Subject) -> Iterator[Finding | Note]:
    try:
        found = unread(subject)
    except (NotApartError, ForwardRaised, BackwardRaised) as reason:
        yield Note(f"which saved tensors are read was not tried: {reason}")
        return
    for position, (case, name) in found.items():
        yield subject.finding(
            "PB304",
            case,
            f"{name} is kept from forward to backward, and backward never reads it",
            what=name,
            expected="only what backward reads is saved",
            got=f"{name}, saved in vain",
            repro=spoiled_lines(subject, case, position),
            evidence={"tensor": name},
        )


def _pinned(subject: Subject, case: Case) -> Iterator[Finding]:
    """Saved slices, grouped by the storage that they keep alive."""
    inputs = subject.fresh(case)
    saved = SavedTensors()
    with saved:
        outputs = subject.call(inputs)
    whole = {storage_of(t): _bytes(t) for t in (*passed(subject, inputs).values(), *(o.tensor for o in outputs))}
    groups: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for position, tensor in enumerate(saved.tensors):
        storage = storage_of(tensor)
        if storage is not None:
            groups.setdefault(storage, []).append((position, tensor))
    for storage, group in groups.items():
        used = sum(_bytes(tensor) for _, tensor in group)
        alive = whole.get(storage, group[0][1].untyped_storage().nbytes())
        if alive < max(used * _PINNED_TIMES, used + _PINNED_BYTES):
            continue
        name = f"saved tensor {group[0][0]}"
        yield subject.finding(
            "PB305",
            case,
            f"{name} needs {used} bytes and keeps {alive} bytes alive: it is a view of a larger storage",
            what=name,
            expected=f"{used} bytes",
            got=f"{alive} bytes",
            repro=pinned_lines(subject, case, group[0][0]),
            evidence={"bytes_used": used, "bytes_pinned": alive, "tensor": name},
        )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _on_ctx(subject: Subject, case: Case) -> Iterator[Finding]:
    kept, references = _kept(subject, case)
    for (path, is_large_float, text, shared), reference in zip(kept, references, strict=True):
        if not shared and not reference.expired():
            continue  # it is held elsewhere too: a constant that outlives the call
        yield subject.finding(
            "PB303",
            case,
            f"{path} keeps {text}, where no saved-tensor hook sees it",
            what=path,
            severity=None if is_large_float else Severity.HINT,
            expected="tensors saved with ctx.save_for_backward",
            got=f"{path}, {text}",
            repro=attribute_lines(subject, case, path),
            evidence={"tensor": path},
        )


def _kept(subject: Subject, case: Case) -> tuple[list[tuple[str, bool, str, bool]], Sequence[Any]]:
    """What hangs on the node of a call that is over, and weak references to its storages."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    found = [entry for entry in (kept_on(node) if node is not None else ()) if storage_of(entry[1]) is not None]
    of_call = (*passed(subject, inputs).values(), *(output.tensor for output in outputs))
    own = {storage_of(tensor) for tensor in of_call}
    described = [
        (path, is_float(tensor) and tensor.numel() > 1, _text(tensor), storage_of(tensor) in own)
        for path, tensor in found
    ]
    return described, storage_refs(tensor for _, tensor in found)


def _text(tensor: torch.Tensor) -> str:
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"


PROBE = Probe("saved", "what is saved is read, pins no larger storage, and nothing is kept on ctx", run)
