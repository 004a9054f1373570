"""What a call keeps for backward: saved and never read, a sliver of a large storage, a tensor on ctx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.battery.leaves import is_float, tensors
from pullback.battery.nodes import node_of
from pullback.battery.observe import SavedTensors, difference, kept_on, passed, saved_name, storage_of, storage_refs
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro import call_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Output, Subject
from pullback.finding import Finding
from pullback.rules import Severity
from pullback.torch_private import raw_saved_tensors

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


# -- saved and never read ---------------------------------------------------------------------------------------------


class _Reads(TorchFunctionMode):
    """Records which of some storages are operands, between a node's two hooks: the engine leaves other modes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_out: dict[int, int] = {}
        self.read: set[int] = set()
        self._active = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for _, tensor in tensors((args, kwargs or {}), ""):
            position = self.handed_out.get(storage_of(tensor) or 0)
            if position is not None:
                self.read.add(position)
        return func(*args, **(kwargs or {}))

    def start(self, _: object) -> None:
        """Begin to watch; a hook for the node, before its backward."""
        self._active = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, *_: object) -> None:
        """Stop watching; a hook for the node, after its backward, and for the case that it raised."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _never_read(subject: Subject) -> Iterator[Finding | Note]:
    unread: dict[int, tuple[Case, str]] | None = None
    for case in subject.cases:
        for requires in _subsets(subject, case):
            try:
                names, read = _reads(subject, case, requires)
            except (_NotApart, ForwardRaised, BackwardRaised) as reason:
                yield Note(f"{case.label}: which saved tensors are read was not tried: {reason}")
                return
            candidates = {position: (case, name) for position, name in names.items() if position not in read}
            matters = {p for p in candidates if _matters(subject, case, requires, p)}
            left = {position: entry for position, entry in candidates.items() if position not in matters}
            unread = left if unread is None else {p: entry for p, entry in unread.items() if p in left}
    for case, name in (unread or {}).values():
        yield subject.finding(
            "PB304",
            case,
            f"{name} is kept from forward to backward, and backward never reads it",
            what=name,
            expected="only what backward reads is saved",
            got=f"{name}, saved in vain",
            repro="\n".join(call_lines(subject, case)),
            evidence={"tensor": name},
        )


class _NotApart(Exception):
    """What the node saved can't be told from what else was saved in forward."""


def _subsets(subject: Subject, case: Case) -> list[frozenset[str]]:
    """The sample's own arguments requiring grad, all that can, and each by itself."""
    declared = subject.definition.nondiff_argnames if subject.definition is not None else ()
    leaves = [leaf for leaf in subject.fresh(case).leaves if leaf.argument not in declared]
    floats = frozenset(leaf.name for leaf in leaves if is_float(leaf.tensor))
    singles = [frozenset({name}) for name in sorted(floats)]
    return list(dict.fromkeys([frozenset(case.varying), floats, *singles]))


def _reads(subject: Subject, case: Case, requires: frozenset[str]) -> tuple[dict[int, str], set[int]]:
    """Each saved tensor's position and name; the positions that were operands in backward."""
    reads = _Reads()

    def hand_out(position: int, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        storage = storage_of(copy)
        if storage is None:
            reads.read.add(position)  # it has no memory to know it by
        else:
            reads.handed_out[storage] = position
        return _keep(copy, alive)

    alive: list[torch.Tensor] = []
    inputs, outputs, saved = _saving_call(subject, case, requires, hand_out)
    node = node_of(subject, outputs)
    if node is None:
        return {}, set()
    node.register_prehook(reads.start)
    node.register_hook(reads.stop)
    try:
        subject.gradients(outputs, [subject.cotangent(output.tensor) for output in outputs], inputs.varying)
    finally:
        reads.stop()
    known = {**passed(subject, inputs), **{output.name: output.tensor for output in outputs}}
    return {i: saved_name(i, tensor, known) for i, tensor in enumerate(saved.tensors)}, reads.read


def _keep(tensor: torch.Tensor, alive: list[torch.Tensor]) -> torch.Tensor:
    """The tensor, kept alive so that its memory is not given to another one."""
    alive.append(tensor)
    return tensor


def _saving_call(
    subject: Subject, case: Case, requires: frozenset[str], unpack: Any = None
) -> tuple[Inputs, tuple[Output, ...], SavedTensors]:
    inputs = subject.fresh(case, requires=requires)
    saved = SavedTensors(unpack)
    with saved:
        outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is not None and len(saved.tensors) != len(raw_saved_tensors(node)):
        raise _NotApart("forward saves by other ways too")
    return inputs, outputs, saved


def _matters(subject: Subject, case: Case, requires: frozenset[str], position: int) -> bool:
    """Whether a gradient, or a second derivative, is another one when the saved tensor is; also when it raises then."""

    def spoil(at: int, tensor: torch.Tensor) -> torch.Tensor:
        if at != position:
            return tensor
        return tensor.logical_not() if tensor.dtype == torch.bool else tensor * 3 + 1

    try:
        right = _derivatives(subject, case, requires, None)
    except (_NotApart, ForwardRaised, BackwardRaised):
        return True
    try:
        got = _derivatives(subject, case, requires, spoil)
    except (_NotApart, ForwardRaised, BackwardRaised):
        return True
    return len(right) != len(got) or any(difference(a, b) for a, b in zip(right, got, strict=True))


def _derivatives(subject: Subject, case: Case, requires: frozenset[str], unpack: Any) -> list[torch.Tensor | None]:
    """First derivatives, and second ones where a double_backward might read what backward doesn't."""
    inputs, outputs, _ = _saving_call(subject, case, requires, unpack)
    cotangents = [torch.ones_like(output.tensor) for output in outputs]
    if subject.definition is None or subject.definition.double_backward is None:
        return list(subject.gradients(outputs, cotangents, inputs.varying))
    first = subject.gradients(outputs, cotangents, inputs.varying, create_graph=True)
    tracked = [Output("gradient", gradient) for gradient in first if gradient is not None]
    second = subject.gradients(tracked, [torch.ones_like(output.tensor) for output in tracked], inputs.varying)
    return [gradient.detach() if gradient is not None else None for gradient in (*first, *second)]


# -- pinned storage and tensors on ctx --------------------------------------------------------------------------------


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
            repro="\n".join(call_lines(subject, case)),
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
            repro="\n".join(call_lines(subject, case)),
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
