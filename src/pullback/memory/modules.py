"""Which module was running when a node was made?

NOTE [numbers of nodes]: PyTorch numbers the nodes of a thread in the order in which they are made, and tells which
number comes next. So it is enough to take that number down where a module's forward begins and ends: nothing is paid
for a node, and every node, whoever made it, belongs to the module that was innermost when its number was due.
"""

from __future__ import annotations

import bisect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.rnn import PackedSequence

from pullback.memory.storages import bare
from pullback.torch_private import MODULE_TABLES, next_sequence_number, transforms_active, tree_leaves

_CALL = getattr(nn.Module.__call__, "__code__", None)
"""By this code a call of a module is known in a traceback."""


class Modules:
    """Listens to every module that runs in this thread, from `start` to `stop`.

    Attributes:
        begin: The number of the first node after `start`.
        elsewhere: How many modules ran in other threads, whose nodes have numbers of their own.
        transformed: How many of the outermost calls were inside a transform of torch.func.
        unnoted: How many of them had arguments that could not be looked through.
    """

    def __init__(self) -> None:
        self.begin = 0
        self.elsewhere = 0
        self.transformed = 0
        self.unnoted = 0
        # For each beginning or end of a forward: the number due, and what is innermost from then on, outermost first.
        self._numbers: list[int] = []
        self._innermost: list[tuple[nn.Module, ...]] = []
        self._inputs: list[weakref.ref[torch.UntypedStorage]] = []
        self._names: dict[nn.Module, str] = {}
        self._handles: list[Any] = []
        self._filter: Any = None

    def start(self) -> None:
        """Begin to listen."""
        before, after = self._listeners()
        self.begin = next_sequence_number()
        # It would warn that the hooks run once more for a compiled module, which is what is wanted.
        before_it = warnings.filters[:]
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
        self._filter = next((one for one in warnings.filters if one not in before_it), None)
        self._handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]

    def stop(self) -> None:
        """End to listen."""
        for handle in self._handles:
            handle.remove()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # a list, though typed as less

    def name(self) -> None:
        """Name the modules that ran so far; to be called once, before `at` and `own`."""
        alike: dict[str, int] = {}
        for running in self._innermost:
            if running and running[-1] not in self._names:
                self._name_within(running, alike)

    def forget(self) -> None:
        """Let the modules go."""
        self._innermost.clear()
        self._names.clear()
        self._inputs.clear()

    def at(self, number: int) -> tuple[str, str]:
        """The path of the module that was running when the node of this number was made, and its class.

        Both are empty outside of modules.
        """
        place = bisect.bisect_right(self._numbers, number) - 1
        if place < 0 or not self._innermost[place]:
            return "", ""
        module = self._innermost[place][-1]
        return self._names[module], _class_name(module)

    def path(self, module: nn.Module) -> str:
        """The path of a module that ran, or is within one that did; empty for any other."""
        return self._names.get(module, "")

    def path_of_failure(self, error: BaseException) -> str:
        """The path of the innermost module whose call an exception went through; empty outside of modules."""
        path, trace = "", error.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code is _CALL:
                path = self.path(frame.f_locals["self"]) or path
            trace = trace.tb_next
        return path

    def own(self) -> Iterator[Tensor]:
        """The parameters and buffers of the modules that ran, and of those within them."""
        for module in self._names:
            for table in MODULE_TABLES[:2]:
                yield from (tensor for tensor in module.__dict__[table].values() if tensor is not None)

    def inputs(self) -> list[torch.UntypedStorage]:
        """The storages of what the outermost modules were called with, where no operation had made it."""
        return [storage for reference in self._inputs if (storage := reference()) is not None]

    def _listeners(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """What is called before and after each forward: functions of local variables, for the sake of speed."""
        numbers, innermost, here = self._numbers, self._innermost, threading.get_ident()
        due, compiling, thread = next_sequence_number, torch.compiler.is_compiling, threading.get_ident
        running: tuple[nn.Module, ...] = ()

        def before(module: nn.Module, arguments: Any) -> None:
            nonlocal running
            if compiling():
                return
            if thread() != here:
                self.elsewhere += 1
                return
            if not running:
                self._note_inputs(arguments)
            running = (*running, module)
            numbers.append(due())
            innermost.append(running)

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            nonlocal running
            if compiling() or thread() != here:
                return
            running = running[:-1]
            numbers.append(due())
            innermost.append(running)

        return before, after

    def _note_inputs(self, arguments: Any) -> None:
        """Remember what an outermost module is called with. Whatever happens here is not to reach the model."""
        try:
            self.transformed += transforms_active()
            for leaf in _leaves(arguments):
                tensor = bare(leaf) if isinstance(leaf, Tensor) else None
                if tensor is not None and tensor.grad_fn is None and tensor.layout is torch.strided:
                    self._inputs.append(weakref.ref(tensor.untyped_storage()))
        except Exception:  # of arguments that can't be flattened, of tensors without a storage
            self.unnoted += 1

    def _name_within(self, running: tuple[nn.Module, ...], alike: dict[str, int]) -> None:
        """Name a module that no other has within it, and those within it."""
        module = running[-1]
        name = _printable(_class_name(module))
        if len(running) > 1:  # such as one that its parent keeps in a plain list
            head = f"{self._names[running[-2]]}.({name})"
        else:
            alike[name] = alike.get(name, 0) + 1
            head = name if alike[name] == 1 else f"{name}#{alike[name]}"
        for path, within in module.named_modules():
            self._names.setdefault(within, f"{head}.{_printable(path)}" if path else head)


def common(first: str, second: str) -> str:
    """The path of the innermost module that two paths lie in."""
    if first == second:
        return first
    parts = []
    for one, other in zip(first.split("."), second.split("."), strict=False):
        if one != other:
            break
        parts.append(one)
    return ".".join(parts)


def _leaves(arguments: Any) -> Iterator[Any]:
    for leaf in tree_leaves(arguments):
        yield leaf.data if isinstance(leaf, PackedSequence) else leaf


def _class_name(module: nn.Module) -> str:
    """What its author called a module's class: that of one that recomputes is derived from it."""
    name: str = getattr(type(module), "recomputed_class", type(module)).__name__
    return name


def _printable(name: str) -> str:
    """A name on one line: `add_module` takes any string without a dot."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")
