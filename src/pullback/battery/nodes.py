"""The graph's node of one call: what it saved, and what backward returns before the engine looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from pullback.battery.leaves import address, copy_of, is_float, tensors
from pullback.battery.raised import RAISED
from pullback.battery.subject import BackwardRaised, Case, Inputs, Output, Subject
from pullback.battery.tolerances import LOWER, precision_of, real_dtype
from pullback.call.layout import ATTRIBUTE, CONSTANTS, OUTPUTS
from pullback.define.definition import DESCRIBED
from pullback.torch_private import TorchDispatchMode


@dataclass(frozen=True)
class Returned:
    """What backward returned, one entry for each argument where it returned a tuple.

    Attributes:
        entries: The entries.
        names: Whose they are: arguments or, where the call was taken apart, their leaves (``xs[0]``).
    """

    entries: tuple[object, ...]
    names: tuple[str, ...]

    def by_name(self) -> dict[str, object]:
        """The entries by name."""
        return dict(zip(self.names, self.entries, strict=False))


@dataclass(frozen=True)
class Kept:
    """A tensor that a node keeps: ``saved tensor 0`` or ``ctx.name``; `declared` if as one of its ``constants=``."""

    name: str
    tensor: torch.Tensor
    declared: bool = False


def node_of(subject: Subject, outputs: Sequence[Output]) -> Any | None:
    """The node that the call of a Function left in the graph; None for plain callables and untracked outputs."""
    if not isinstance(subject.function, type):
        return None
    for output in outputs:
        if isinstance(output.tensor.grad_fn, BackwardCFunction):
            return output.tensor.grad_fn
    return None


def entry_names(subject: Subject, node: Any, inputs: Inputs) -> tuple[str, ...]:
    """Whose gradients the node's backward returns, in order.

    A call with containers of tensors runs as a Function of their leaves, which is described by a class of its own.
    """
    arguments = (*subject.argument_names[: len(inputs.args)], *inputs.kwargs)
    described = vars(type(node)._forward_cls).get(DESCRIBED)
    if described is None or type(node)._forward_cls is subject.function:
        return arguments
    return tuple(name for name in described.parameters if any(belongs(name, argument) for argument in arguments))


def belongs(name: str, argument: str) -> bool:
    """Whether `name` is that of the argument or of one of its leaves."""
    return name == argument or name.startswith((f"{argument}[", f"{argument}."))


def call_backward(
    subject: Subject,
    node: Any,
    inputs: Inputs,
    outputs: Sequence[Output],
    cotangents: Sequence[torch.Tensor] | None = None,
) -> Returned:
    """Run the node's backward by itself and return what it returned.

    Raises:
        BackwardRaised: If it raises.
    """
    if cotangents is None:
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
    copies: list[torch.Tensor | None] = [copy_of(cotangent) for cotangent in cotangents]
    if getattr(node, OUTPUTS, None) is not None:
        copies.append(None)  # for the last of its outputs, which says how the others belong together
    subject.reseed(backward=True)
    try:
        with torch.no_grad():
            returned = node.apply(*copies)
    except RAISED as error:
        raise BackwardRaised(error) from error
    entries = tuple(returned) if isinstance(returned, tuple) else (returned,)
    return Returned(entries, entry_names(subject, node, inputs))


def kept_tensors(node: Any) -> Iterator[Kept]:
    """The tensors that the node saved or has as attributes."""
    saved = node.saved_tensors
    constants_begin = len(saved) - len(getattr(node, CONSTANTS, ()))
    for index, tensor in enumerate(saved):
        if isinstance(tensor, torch.Tensor):
            yield Kept(f"saved tensor {index}", tensor, declared=index >= constants_begin)
    for name, value in attributes_of(node).items():
        if isinstance(value, torch.Tensor):
            yield Kept(f"ctx.{name}", value)


def attributes_of(node: Any) -> dict[str, Any]:
    """What the author left on ctx; pullback's own attributes are no affair of theirs."""
    return {name: value for name, value in vars(node).items() if not name.startswith(ATTRIBUTE)}


def cut_off(node: Any, inputs: Inputs, outputs: Sequence[Output]) -> Iterator[Kept]:
    """The kept float tensors that are neither argument nor output, so that autograd takes them for constants."""
    known = {_memory(leaf.tensor) for leaf in inputs.leaves} | {_memory(output.tensor) for output in outputs}
    for kept in kept_tensors(node):
        if is_float(kept.tensor) and not kept.tensor.requires_grad and _memory(kept.tensor) not in known:
            yield kept
    for name, value in attributes_of(node).items():
        if isinstance(value, float):  # of a tensor, by item() or the like
            yield Kept(f"ctx.{name}", torch.tensor(value, dtype=torch.float64))


def _memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """What two tensors that are the same memory have in common."""
    if tensor.layout is not torch.strided:
        return (address(tensor),)
    return address(tensor), tensor.storage_offset(), *tensor.shape, *tensor.stride()


class _Dtypes(TorchDispatchMode):
    """Records the lowest floating dtype that an operator gave."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.update(tensor.dtype for _, tensor in tensors(result, "") if is_float(tensor))
        return result


@contextmanager
def lowest_dtype() -> Iterator[Callable[[], torch.dtype | None]]:
    """What tells, once the block is left, the lowest dtype below float64 that an operator gave in it; None for none."""
    with _Dtypes() as record:
        yield lambda: _lowest(record.seen)


def low_precision_in_forward(subject: Subject, case: Case) -> torch.dtype | None:
    """The lowest dtype below float64 in which forward computes, as far as its operators show; None for none."""
    with _Dtypes() as record:
        subject.call(subject.fresh(case, requires=()))
    return _lowest(record.seen)


def low_precision_in(
    subject: Subject, case: Case, cotangents: Sequence[torch.Tensor], positions: Sequence[int]
) -> torch.dtype | None:
    """The lowest dtype below the case's own in which backward computes, or None."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    with _Dtypes() as record:
        subject.gradients([outputs[position] for position in positions], cotangents, inputs.varying)
    floats = [leaf.tensor.dtype for leaf in inputs.leaves if is_float(leaf.tensor)]
    own, _ = precision_of([*floats, *(cotangent.dtype for cotangent in cotangents)])
    return _lowest({dtype for dtype in record.seen if torch.finfo(dtype).eps > torch.finfo(own).eps})


def _lowest(seen: set[torch.dtype]) -> torch.dtype | None:
    low = [dtype for dtype in seen if real_dtype(dtype) in LOWER]
    return max(low, key=lambda dtype: torch.finfo(dtype).eps) if low else None
