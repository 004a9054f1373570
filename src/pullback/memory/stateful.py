"""What a call found in its modules and in what it captures, and how its rerun finds it again.

NOTE [state of the call]: between forward and backward an optimiser steps, ``eval()`` is called, a parameter is frozen
or unfrozen, `torch.func.functional_call` puts the module's own parameters back. The rerun gets mode, parameters and
their ``requires_grad`` as the call had them. Values that were written over are lost: where the rerun reads one of those
it is an error (`changes`), and where it doesn't, nobody needs to know.

NOTE [buffers in training]: a module that counts its batches is to count each once, so a rerun works on copies of the
buffers. Those that forward itself changes, and may have read before, are copied before the call, too: what changes is
learned from a module's first call, for which all are copied. Batch norm doesn't read what it counts.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from torch import Generator, Tensor, nn
from torch.nn import Module, Parameter

from pullback.memory.captured import Captured, of_library
from pullback.torch_private import MODULE_TABLES, version_of

_PARAMETERS, _BUFFERS, _MODULES = MODULE_TABLES
_PLAIN = (Tensor, Parameter)

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""Modules that only write to their buffers in training."""

_changing: dict[int, tuple[weakref.ref[Module], set[str]]] = {}
"""By the identity of each module that has run in training: the buffers that its forward changes."""


_Seen: TypeAlias = tuple[Module, bool, dict[str, "Tensor | None"]]
"""A module, whether it was in training, and its parameters."""


class _Buffer(NamedTuple):
    tensor: Tensor
    version: int
    copy: Tensor | None


class _Buffers(NamedTuple):
    """The buffers of one module, as the call found them."""

    module: Module
    training: bool
    found: dict[str, _Buffer]


class State:
    """What a call finds in modules, captured tensors and generators.

    Args:
        captured: What the call reaches.
    """

    __slots__ = ("_buffers", "_generators", "_modules", "_required", "_tensors", "_versions")

    def __init__(self, captured: Captured) -> None:
        self._tensors = [(tensor, version_of(tensor)) for tensor in captured.tensors]
        generators = captured.generators
        modules: list[_Seen] = []
        buffers: list[_Buffers] = []
        open_, seen = captured.modules, set[int]()
        for module in open_:  # which grows; as Module.modules() does, which takes three times as long
            number = id(module)
            if number in seen:
                continue
            seen.add(number)
            tables = module.__dict__
            own = tables[_PARAMETERS]
            if not isinstance(own, dict):  # TorchScript's, whose state Python doesn't hold
                continue
            if not of_library(module.__class__.__module__):
                generators += [value for value in tables.values() if value.__class__ is Generator]
            modules.append((module, tables["training"], own.copy()))
            if tables[_BUFFERS]:
                buffers.append(_Buffers(module, module.training, _found_buffers(module, tables[_BUFFERS])))
            if tables[_MODULES]:
                open_ += [part for part in tables[_MODULES].values() if part is not None]
        parameters = [tensor for _, _, own in modules for tensor in own.values() if tensor is not None]
        try:
            self._versions = [tensor._version for tensor in parameters]
        except RuntimeError:  # of an inference tensor, whose writes aren't counted
            self._versions = [*map(version_of, parameters)]
        self._required = [tensor.requires_grad for tensor in parameters]
        self._generators = [(generator, generator.get_state()) for generator in generators]
        self._modules, self._buffers = modules, buffers

    def close(self) -> None:
        """The call is over: let go of the copies of buffers that it didn't change."""
        self._buffers = [self._closed(seen) for seen in self._buffers]

    def _closed(self, seen: _Buffers) -> _Buffers:
        if not seen.training or isinstance(seen.module, _NORMS):
            return seen
        now = seen.module.__dict__[_BUFFERS]
        changed = {name for name, buffer in seen.found.items() if _differs(buffer, now.get(name))}
        _learn(seen.module, changed)
        kept = {name: buffer if name in changed else buffer._replace(copy=None) for name, buffer in seen.found.items()}
        return seen._replace(found=kept)

    def copies(self) -> list[Tensor]:
        """What it keeps alive that nothing else does."""
        buffers = [buffer for seen in self._buffers for buffer in seen.found.values()]
        return [
            *(buffer.copy for buffer in buffers if buffer.copy is not None),
            *(state for _, state in self._generators),
        ]

    def restore(self, stack: contextlib.ExitStack) -> list[tuple[str, Tensor]]:
        """Bring the state of the call back, and with `stack` that of now.

        Returns:
            The tensors that were written to since, and can't be brought back, each with what to call it.
        """
        for generator, state in self._generators:
            stack.callback(generator.set_state, generator.get_state())
            generator.set_state(state)
        lost = [("a captured tensor", tensor) for tensor, version in self._tensors if version_of(tensor) != version]
        noted = zip(self._versions, self._required, strict=True)
        for module, training, parameters in self._modules:
            if module.training != training:
                stack.callback(setattr, module, "training", module.training)
                module.training = training
            for name, tensor in parameters.items():
                if tensor is None:
                    continue
                version, required = next(noted)
                _restore_parameter(stack, module.__dict__[_PARAMETERS], name, tensor)
                if tensor.requires_grad != required and tensor.is_leaf:
                    stack.callback(tensor.requires_grad_, tensor.requires_grad)
                    tensor.requires_grad_(required)
                if version_of(tensor) != version:
                    lost.append((f"the parameter {name} of {_name(module)}", tensor))
        for seen in self._buffers:
            lost += _restore_buffers(stack, seen)
        return lost


def _name(module: Module) -> str:
    name: str = getattr(type(module), "recomputed_class", type(module)).__name__  # of a twin, the class it is of
    return name


def _found_buffers(module: Module, buffers: dict[str, Tensor | None]) -> dict[str, _Buffer]:
    copied: Iterable[str] = ()
    if module.training and not isinstance(module, _NORMS):
        reference, known = _changing.get(id(module), (None, set[str]()))
        copied = buffers if reference is None or reference() is not module else known
    return {
        name: _Buffer(tensor, version_of(tensor), tensor.detach().clone() if name in copied else None)
        for name, tensor in buffers.items()
        if tensor is not None
    }


def _learn(module: Module, changed: set[str]) -> None:
    reference, known = _changing.get(id(module), (None, set[str]()))
    if reference is None or reference() is not module:
        place = id(module)
        _changing[place] = weakref.ref(module, lambda _: _changing.pop(place, None)), changed
    else:
        known.update(changed)


def _differs(buffer: _Buffer, now: Tensor | None) -> bool:
    return now is not buffer.tensor or version_of(now) != buffer.version


def _restore_parameter(stack: contextlib.ExitStack, table: dict[str, Tensor | None], name: str, tensor: Tensor) -> None:
    now = table.get(name)
    # A tensor of another class, such as a shard, is swapped by its own machinery, which has to find its own.
    if now is not tensor and type(tensor) in _PLAIN and type(now) in _PLAIN:
        stack.callback(table.__setitem__, name, now)
        table[name] = tensor


def _restore_buffers(stack: contextlib.ExitStack, seen: _Buffers) -> Iterator[tuple[str, Tensor]]:
    table = seen.module.__dict__[_BUFFERS]
    aside = isinstance(seen.module, _NORMS)
    for name, buffer in seen.found.items():
        now = table.get(name)
        written = version_of(buffer.tensor) != buffer.version
        if not seen.training:
            value = buffer.tensor
        elif buffer.copy is not None:
            value = buffer.copy.clone()
        else:
            value = (now if aside and now is not None else buffer.tensor).clone()
        if value is not now:
            stack.callback(table.__setitem__, name, now)
            table[name] = value
        if written and buffer.copy is None and not (aside and seen.training):
            yield f"the buffer {name} of {_name(seen.module)}", value
