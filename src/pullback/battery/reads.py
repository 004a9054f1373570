"""Which of the tensors that a call saved its backward reads: as an operand, or by their effect on a derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.battery.leaves import is_float, tensors
from pullback.battery.nodes import node_of
from pullback.battery.observe import (
    SavedTensors,
    difference,
    named_arguments,
    passed,
    same_memory,
    saved_name,
    storage_of,
)
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Output, Subject
from pullback.custom.decorated import decorated
from pullback.torch_private import raw_saved_tensors


class NotApartError(Exception):
    """What the node saved can't be told from what else was saved in forward."""


def unread(subject: Subject) -> dict[int, tuple[Case, str]]:
    """Position -> case and name of each saved tensor that no case and no subset of arguments makes backward read.

    Raises:
        NotApartError: If forward saves by other ways too.
        ForwardRaised: If forward refuses a subset of arguments that require grad.
        BackwardRaised: If backward does.
    """
    left: dict[int, tuple[Case, str]] | None = None
    for case in subject.cases:
        for requires in _subsets(subject, case):
            names, read = _reads(subject, case, requires)
            idle = [p for p in names if p not in read and not _matters(subject, case, requires, p)]
            left = {p: (case, names[p]) for p in idle if left is None or p in left}
    return left or {}


class _Reads(TorchFunctionMode):
    """Records which of some storages are operands, between a node's two hooks: the engine leaves other modes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_out: dict[int, int] = {}
        self.read: set[int] = set()

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
        self.__enter__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so

    def stop(self, *_: object) -> None:
        """Stop watching; a hook for the node, after its backward."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # PyTorch leaves it so


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
    # Where backward raises, the engine itself leaves the mode behind, and the second hook isn't called.
    subject.gradients(outputs, [subject.cotangent(output.tensor) for output in outputs], inputs.varying)
    known = {**passed(subject, inputs), **{output.name: output.tensor for output in outputs}}
    along = _of_modules(subject, inputs)
    names = {
        i: saved_name(i, t, known) for i, t in enumerate(saved.tensors) if not any(same_memory(t, o) for o in along)
    }
    return names, reads.read


def _of_modules(subject: Subject, inputs: Inputs) -> list[torch.Tensor]:
    """The parameters of modules that a decorated function was given: a module among the residuals brings all of its."""
    if decorated(subject.function) is None:
        return []
    modules = [value for _, value in named_arguments(subject, inputs) if isinstance(value, torch.nn.Module)]
    return [parameter for module in modules for parameter in module.parameters()]


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
        raise NotApartError("forward saves by other ways too")
    return inputs, outputs, saved


def _matters(subject: Subject, case: Case, requires: frozenset[str], position: int) -> bool:
    """Whether a gradient, or a second derivative, is another one when the saved tensor is; also when it raises then."""

    def spoil(at: int, tensor: torch.Tensor) -> torch.Tensor:
        if at != position:
            return tensor
        return tensor.logical_not() if tensor.dtype == torch.bool else tensor * 3 + 1

    try:
        right = _derivatives(subject, case, requires, None)
    except (NotApartError, ForwardRaised, BackwardRaised):
        return True
    try:
        got = _derivatives(subject, case, requires, spoil)
    except (NotApartError, ForwardRaised, BackwardRaised):
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
