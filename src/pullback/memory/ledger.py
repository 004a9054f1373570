"""The ledger of saved memory: what the graph that a block of code leaves behind keeps alive, and on whose account."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from pullback.memory import text
from pullback.memory.account import ACTIVATION, INPUT, PARAMETER, Read, account
from pullback.memory.advice import Advice
from pullback.memory.alive import Alive
from pullback.memory.entry import Entry
from pullback.memory.graph import walk
from pullback.memory.modules import Modules
from pullback.torch_private import usable_in_ledger

FORMAT = 1
"""The version of the JSON that `Ledger.to_json` writes."""


def saved_memory() -> Ledger:
    """List what the graph keeps alive that is made within a block.

    ::

        with pullback.saved_memory() as ledger:
            loss = model(batch)
        print(ledger)

    The ledger is written at the end of the block, and speaks of the graphs that are alive then: keep the loss, or the
    outputs, in a variable, and call backward afterwards. An exception, such as one for want of memory, goes on its way,
    and the ledger has what was kept up to there. Nothing is done for an operation as it runs; each call of a
    module costs two short hooks, and the end of the block costs a walk over the graph.

    Returns:
        The `Ledger`, to be entered. It holds numbers and text alone, and keeps no tensor alive.

    Raises:
        RuntimeError: The installed PyTorch doesn't show what a node keeps.
    """
    return Ledger()


class Ledger:
    """What a graph keeps alive, each storage once, charged to the operation that kept it first.

    Made by `saved_memory`. Parameters and what the step was given stand apart, since they are alive anyway: what was
    alive before the block, what the outermost modules were called with, and leaves that gradients flow to.
    """

    def __init__(self) -> None:
        if not usable_in_ledger():
            raise RuntimeError(
                "pullback.saved_memory: the nodes of the installed PyTorch don't show what they keep; "
                "pullback env says what is missing"
            )
        self._modules = Modules()
        self._alive: Alive | None = None
        self._entered = False
        self._read: list[Read] | None = None
        self._unseen: tuple[str, ...] = ()
        self._advice: tuple[Advice, ...] = ()
        self._stopped = ""
        self._failure = ""
        self._made: dict[str, tuple[Entry, ...]] = {}

    def __enter__(self) -> Ledger:
        if self._entered:
            raise RuntimeError("pullback.saved_memory: a ledger is of one block; make another for the next one")
        self._entered = True
        self._alive = Alive()
        self._modules.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._modules.stop()
            if error is None:
                self.write()
            else:
                self.write_stopped(error)
        finally:
            if self._alive is not None:
                self._alive.stop()
                self._alive = None  # its references, one for each tensor there was
            self._modules.forget()

    def take_inputs(self) -> None:
        """Take all tensors that are alive now, and that no operation of a graph made, for what the step was given."""
        if self._alive is not None:
            self._alive.take()

    def write(self) -> None:
        """Write the ledger now, before the block ends; there is nothing to write at its end then.

        Where that fails it warns and doesn't raise, since the step is not to end for it.
        """
        if self._read is not None or self._alive is None:
            return
        try:
            self._modules.name()
            graph = walk(self._alive.roots(), self._modules)
            self._read, advice, unseen = account(graph, self._modules, self._alive)
            self._advice, self._unseen = tuple(advice), tuple(unseen)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            with contextlib.suppress(UserWarning):  # raised where warnings are errors
                warnings.warn(f"pullback.saved_memory: no ledger could be written: {self._failure}", stacklevel=3)

    def write_stopped(self, error: BaseException) -> None:
        """Write the ledger of what was kept when an exception ended the step: what the frames it went through hold."""
        if self._read is None:
            self.write()
            place = self._modules.path_of_failure(error)
            self._stopped = type(error).__name__ + (f" in {place}" if place else "")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What the step made and the graph keeps, in the order in which forward kept it."""
        return self._of(ACTIVATION)

    @property
    def parameters(self) -> tuple[Entry, ...]:
        """Parameters and buffers that the graph keeps, and other leaves that gradients flow to."""
        return self._of(PARAMETER)

    @property
    def inputs(self) -> tuple[Entry, ...]:
        """What the graph keeps of what the step was given, or was alive before it."""
        return self._of(INPUT)

    @property
    def unseen(self) -> tuple[str, ...]:
        """What the ledger can't see, a sentence for each; empty where it sees everything."""
        self._written()
        return self._unseen

    @property
    def written(self) -> bool:
        """Whether there is anything to read: the block has ended."""
        return self._read is not None

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What would free some of the entries, most bytes first."""
        self._written()
        return self._advice

    @property
    def stopped(self) -> str:
        """The exception that ended the step, and in which module: ``OutOfMemoryError in Model.head``; else empty."""
        self._written()
        return self._stopped

    @property
    def total(self) -> int:
        """The bytes of all `entries`."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def recomputable(self) -> int:
        """The bytes of those entries that are cheap to compute again, from what is kept beside them."""
        return sum(entry.bytes for entry in self.entries if entry.recompute)

    @property
    def out_of_sight(self) -> tuple[Entry, ...]:
        """The entries that hooks and checkpoint never see, and that outlive backward: on ctx, or in a closure."""
        return tuple(entry for entry in self.entries if entry.out_of_sight)

    @property
    def pinned(self) -> tuple[Entry, ...]:
        """Large storages of which only a small part is needed, inputs among them."""
        return tuple(entry for entry in (*self.entries, *self.inputs) if entry.pins)

    def by_operation(self) -> dict[str, int]:
        """The bytes of each operation, most first."""
        return _summed(self.entries, lambda entry: entry.operation)

    def by_module(self, depth: int | None = None) -> dict[str, int]:
        """The bytes of each module, most first; those of operations outside of modules under an empty path.

        Args:
            depth: How many names of a path count, so that a module has the bytes of those within it: 1 for the
                outermost modules, 2 for their parts. All of them unless given.
        """
        return _summed(self.entries, lambda entry: ".".join(entry.module.split(".")[:depth]))

    def by_argument(self) -> dict[str, int]:
        """The bytes of each argument of each operation, ``MulBackward0.self``, most first."""
        return _summed(self.entries, lambda entry: f"{entry.operation}.{entry.argument}")

    def to_json(self) -> str:
        """The whole ledger as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """The whole ledger as plain data."""
        return {
            "format": FORMAT,
            "stopped": self.stopped,
            "total": self.total,
            "recomputable": self.recomputable,
            "by_module": self.by_module(),
            "by_operation": self.by_operation(),
            "entries": [entry.to_dict() for entry in self.entries],
            "parameters": [entry.to_dict() for entry in self.parameters],
            "inputs": [entry.to_dict() for entry in self.inputs],
            "advice": [one._asdict() for one in self.advice],
            "unseen": list(self.unseen),
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the bytes by module and by operation as bars, in the format that the file's name tells.

        Args:
            path: The file to write.

        Raises:
            ImportError: matplotlib isn't installed.
        """
        try:  # here, since whoever draws nothing needs no matplotlib
            from pullback.memory import plot
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            raise ImportError(
                "Ledger.plot needs matplotlib, which isn't installed: install it, or pullback with its extra: "
                "pullback[plot].",
                name="matplotlib",
            ) from error
        plot.draw(self, path)

    def __getstate__(self) -> dict[str, Any]:
        # What it listened with is of its process, and no copy needs it.
        plain = ("_unseen", "_advice", "_stopped")
        return {"_read": self._written(), **{name: getattr(self, name) for name in plain}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # a copy begins as any ledger does
        self.__dict__.update(state, _entered=True)

    def report(self, depth: int | None = None) -> str:
        """The ledger as text, for people; `str` gives the same.

        Args:
            depth: How many names of a module's path count in the table by module. All of them unless given.
        """
        return text.report(self, depth)

    def __str__(self) -> str:
        return self._missing() if self._read is None else self.report()

    def __repr__(self) -> str:
        return "<Ledger, not written yet>" if self._read is None else f"<Ledger of {text.size(self.total)}>"

    def _of(self, role: str) -> tuple[Entry, ...]:
        if role not in self._made:
            self._made[role] = tuple(read.entry() for read in self._written() if read.role == role)
        return self._made[role]

    def _written(self) -> list[Read]:
        if self._read is None:
            raise RuntimeError(f"pullback.saved_memory: {self._missing()}")
        return self._read

    def _missing(self) -> str:
        """Why there is nothing to read."""
        if self._failure:
            return f"No ledger could be written: {self._failure}."
        return "The ledger is written when its block ends, so read it after the block."


def _summed(entries: Iterable[Entry], key: Callable[[Entry], str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for entry in entries:
        sums[key(entry)] = sums.get(key(entry), 0) + entry.bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
