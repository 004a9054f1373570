"""Watching a call from outside: what changed, what was saved, what hangs on its node, what it refers to.

Nothing here judges; the probes for writes, state and memory do.
"""

from __future__ import annotations

import cmath
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pullback.battery.compare import Mismatch, compare
from pullback.battery.leaves import is_float, tensors
from pullback.battery.nodes import attributes_of
from pullback.battery.samples import Sample
from pullback.battery.subject import Inputs, Subject
from pullback.battery.tolerances import SAME, Tolerance, for_gradients
from pullback.call.kept import Known

_DEPTH = 4


def passed(subject: Subject, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Every tensor that a call with `inputs` gets, by its name."""
    return {name: tensor for name, _, tensor in subject.named_tensors(Sample(inputs.args, inputs.kwargs))}


def named_arguments(subject: Subject, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    """Every argument of a call with `inputs`, containers as they are, by its name."""
    yield from zip(subject.argument_names, inputs.args, strict=False)
    yield from inputs.kwargs.items()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Tensors as they were: their values and their version counters."""

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor] = field(init=False)
    versions: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", {name: t.detach().clone() for name, t in self.tensors.items()})
        object.__setattr__(self, "versions", {name: t._version for name, t in self.tensors.items()})

    def changed(self) -> Iterator[str]:
        """The names of the tensors whose values are other ones now, NaN counting as a value."""
        for name, before in self.values.items():
            if not identical(before, self.tensors[name].detach()):
                yield name

    def bumped(self, name: str) -> bool:
        """Whether the tensor's version counter has moved."""
        return self.tensors[name]._version != self.versions[name]


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape and the same values, where NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.layout is not torch.strided or b.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is, in any layout."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    # NaN and infinities stay in a sum, and to make one is quick; finite numbers may overflow in it.
    return cmath.isfinite(dense.sum().item()) or bool(dense.isfinite().all())


def difference(
    expected: torch.Tensor | None, got: torch.Tensor | None, *, scale: float = 0.0, tolerance: Tolerance | None = None
) -> Mismatch | None:
    """How two results of the same program on the same values differ, beyond the order of its sums; None if they agree.

    Args:
        expected: One result.
        got: The other.
        scale: The size of the terms that a result is a sum of, where they may cancel.
        tolerance: How far they may lie apart; what their dtype allows unless given.
    """
    if tolerance is not None:
        return compare(expected, got, tolerance, scale=scale)
    known = expected if expected is not None else got
    in_full = known is None or not is_float(known) or known.dtype in (torch.float64, torch.complex128)
    usual = SAME if in_full or known is None else for_gradients(known.dtype)
    return compare(expected, got, usual, scale=scale)


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Records what is saved while it is active, and may hand out something else when it is read back.

    Args:
        unpack: (position, tensor) -> what a reader gets in its place; the tensor itself unless given.
    """

    def __init__(self, unpack: Callable[[int, torch.Tensor], torch.Tensor] | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        read = unpack or (lambda _, tensor: tensor)
        super().__init__(self._pack, lambda packed: read(*packed))

    def _pack(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        self.tensors.append(tensor)
        return len(self.tensors) - 1, tensor


def saved_name(position: int, tensor: torch.Tensor, known: Mapping[str, torch.Tensor]) -> str:
    """``saved tensor 0 (x)``: its position, and which argument or output it is if it is one."""
    for name, other in known.items():
        if same_memory(tensor, other):
            return f"saved tensor {position} ({name})"
    return f"saved tensor {position}"


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same storage."""
    if a.layout is not torch.strided or b.layout is not torch.strided or a.numel() == 0:
        return a is b
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that two living tensors share if they share a storage; None for tensors without one."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


def storage_refs(found: Iterable[torch.Tensor]) -> list[StorageWeakRef]:
    """Weak references to the storages of tensors, each of which tells when the last user is gone."""
    return [StorageWeakRef(tensor.untyped_storage()) for tensor in found if storage_of(tensor) is not None]


def held(value: object, path: str, depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a value keeps alive: in nests, closures, partial functions and plain objects."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth and not isinstance(value, (Known, torch.nn.Module, type, types.ModuleType)):
        if isinstance(value, (list, tuple, Mapping)):
            yield from tensors(value, path)
        elif isinstance(value, functools.partial):
            parts = (*value.args, *value.keywords.values())
            for part in parts:
                yield from held(part, path, depth - 1)
        elif inspect.isfunction(value):
            for name, inner in closure_of(value).items():
                yield from held(inner, f"{path} ({name})", depth - 1)
        elif not inspect.isroutine(value):
            for name, inner in getattr(value, "__dict__", {}).items():
                yield from held(inner, f"{path}.{name}", depth - 1)


def kept_on(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that hang on the attributes of a node: ``ctx.x``."""
    for name, value in attributes_of(node).items():
        if value is not node:
            yield from held(value, f"ctx.{name}")


def closure_of(function: Any) -> dict[str, object]:
    """The free variables of a function and what they hold."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return found


def references(function: Any, depth: int = 2) -> dict[str, object]:
    """What a Python function refers to outside itself: closures, globals and defaults; also those of its helpers."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function):
        return {}
    found = closure_of(function)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            found[name] = function.__globals__[name]
    defaults = dict(enumerate(function.__defaults__ or ()))
    found.update({f"default {position}": value for position, value in defaults.items()})
    found.update(function.__kwdefaults__ or {})
    if depth:
        for value in list(found.values()):
            same_file = getattr(value, "__module__", None) == function.__module__
            if inspect.isfunction(value) and same_file and value is not function:
                found = {**references(value, depth - 1), **found}
    return found


def _names(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*(_names(constant) for constant in inner))
