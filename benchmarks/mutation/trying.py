"""What is recorded of one call: values, gradients of both orders, writes, repeats.

Every trial takes a callable and an `Input` and returns what came out, by name: tensors, or `RAISED`. Nothing here
knows what is right; `observe` compares the records of a mutant with those of its original.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.mutation.inputs import Input
from benchmarks.mutation.nests import is_float, tensors

RAISED = "raised"
"""Stands for any exception: which one, and its text, is no concern of the comparison."""

Record = dict[str, "Tensor | str"]
Trial = Callable[[Any, Input], Record]


def call(function: Any, nest: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Tensor]:
    """The tensors that come out, with the random state set beforehand."""
    torch.manual_seed(11)
    return list(tensors(function(*nest[0], **nest[1])))


def differentiable(outputs: list[Tensor]) -> list[Tensor]:
    """Those that have a graph."""
    return [output for output in outputs if output.requires_grad and output.grad_fn is not None]


def cotangents(outputs: list[Tensor], seed: int) -> list[Tensor]:
    """Random tensors like `outputs`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(output.shape, dtype=output.dtype, generator=generator) for output in outputs]


def gradients(outputs: list[Tensor], by: list[Tensor], along: list[Tensor], **options: Any) -> list[Tensor]:
    """First gradients; zeros where there is none."""
    torch.manual_seed(12)
    found = torch.autograd.grad(outputs, by, along, allow_unused=True, **options)
    return [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(by, found, strict=True)]


def kept(record: Record, name: str, found: list[Tensor]) -> None:
    """Put copies of tensors on record."""
    for index, tensor in enumerate(found):
        dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        record[f"{name} {index}"] = dense.detach().clone().resolve_conj().resolve_neg()


def attempted(record: Record, name: str, made: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Put on record what comes, or that something raised."""
    try:
        found = made()
    except Exception:
        record[name] = RAISED
        return []
    kept(record, name, found)
    return found


class Begun:
    """A call that a trial begins with; while it lives, so do the arguments and results.

    Attributes:
        record: What is on record: the values, or that forward raised.
        flat: The arguments' tensors.
        by: Those that derivatives are asked for.
        ends: The results that have a graph.
    """

    def __init__(self, function: Any, given: Input) -> None:
        self.record: Record = {}
        self.nest, self.flat = given.fresh()
        self.outputs = attempted(self.record, "value", lambda: call(function, self.nest))
        self.by = [self.flat[index] for index in given.wanted]
        self.ends = differentiable(self.outputs)


def first_order(function: Any, given: Input, along: Callable[[Tensor], Tensor] | None = None) -> Record:
    """Values and gradients, both twice, and what is left of inputs, cotangents, outputs and the random state."""
    record: Record = {}
    nest, flat = given.fresh()
    outputs = attempted(record, "value", lambda: call(function, nest))
    by = [flat[index] for index in given.wanted]
    ends = differentiable(outputs)
    record["connected"] = str([bool(output.requires_grad) for output in outputs])
    record["random state after forward"] = torch.get_rng_state()
    kept(record, "input after forward", flat)
    if not ends or not by:
        return record
    g = [tensor if along is None else along(tensor) for tensor in cotangents(ends, 3)]
    attempted(record, "gradient", lambda: gradients(ends, by, g, retain_graph=True))
    record["random state after backward"] = torch.get_rng_state()
    kept(record, "input after backward", flat)
    kept(record, "cotangent after backward", g)
    kept(record, "output after backward", outputs)
    attempted(record, "gradient again", lambda: gradients(ends, by, g, retain_graph=True))
    if len(ends) > 1:
        for index, end in enumerate(ends):
            attempted(
                record, f"gradient of {index}", lambda e=end, i=index: gradients([e], by, [g[i]], retain_graph=True)
            )
    return record


def second_order(function: Any, given: Input) -> Record:
    """Derivatives of the gradients, by arguments and cotangents."""
    start = Begun(function, given)
    record, by, ends = start.record, start.by, start.ends
    if not ends or not by:
        return record
    g = [tensor.requires_grad_() for tensor in cotangents(ends, 4)]
    arriving = [tensor.clone() for tensor in g]  # what a graph hands on is no leaf, and may come back as it is
    first = attempted(record, "gradient", lambda: gradients(ends, by, arriving, create_graph=True))
    connected = differentiable(first)
    if first:
        record["gradient connected"] = str([gradient.requires_grad for gradient in first])
    if connected:
        v = cotangents(connected, 5)
        attempted(record, "second gradient", lambda: gradients(connected, [*by, *g], v, retain_graph=True))
        for index, one in enumerate(connected) if len(connected) > 1 else ():
            name = f"second gradient of {index}"
            attempted(record, name, lambda o=one, i=index: gradients([o], [*by, *g], [v[i]], retain_graph=True))
    record.pop("gradient connected", None)
    return record


def cotangent_layouts(function: Any, given: Input) -> Record:
    """Gradients for cotangents that are expanded, transposed, cut from larger ones, zero, or large."""
    record: Record = {}
    for name, along in COTANGENTS.items():
        found = first_order(function, given, along)
        record |= {f"{key}, {name} cotangent": found[key] for key in found if "gradient" in key or "cotangent" in key}
    return record


def _spread(tensor: Tensor) -> Tensor:
    return torch.full((), 0.7, dtype=tensor.dtype).expand_as(tensor)


def _row(tensor: Tensor) -> Tensor:
    return tensor[:1].clone().expand_as(tensor) if tensor.dim() else tensor


def _turned(tensor: Tensor) -> Tensor:
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def _every_other(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor + 1], -1)[..., 0]


def _rows_apart(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[..., :1] + 1], -1)[..., :-1] if tensor.dim() else tensor


COTANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": _spread,
    "one row": _row,
    "transposed": _turned,
    "sliced": _every_other,
    "rows apart": _rows_apart,
    "zero": torch.zeros_like,
    "huge": lambda tensor: tensor * 1e6,
}
"""Other cotangents than random contiguous ones."""


def repeats(function: Any, given: Input) -> Record:
    """Calls that follow each other, overlap, or see an argument that was updated in place in between."""
    record: Record = {}
    (nest, flat), (other_nest, other) = given.fresh(), given.fresh()
    with torch.no_grad():
        for tensor in (other[index] for index in given.wanted):
            if _writable(tensor):
                tensor.mul_(0.7)
    one = attempted(record, "value", lambda: call(function, nest))
    two = attempted(record, "other value", lambda: call(function, other_nest))
    for name, outputs, leaves in (("gradient", one, flat), ("other gradient", two, other)):
        by, ends = [leaves[index] for index in given.wanted], differentiable(outputs)
        if ends and by:
            attempted(record, name, lambda e=ends, b=by: gradients(e, b, cotangents(e, 6)))
    by = [flat[index] for index in given.wanted]
    with torch.no_grad():
        for tensor in by:
            if _writable(tensor):
                tensor.mul_(1.3)
    outputs = attempted(record, "value after a step", lambda: call(function, nest))
    ends = differentiable(outputs)
    if ends and by:
        attempted(record, "gradient after a step", lambda: gradients(ends, by, cotangents(ends, 6)))
    return record


def _writable(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and 0 not in tensor.stride()


def changed_meanwhile(function: Any, given: Input) -> Record:
    """Backward after an argument was changed in place: an error, or the gradient at the old values."""
    start = Begun(function, given)
    record, by, ends = start.record, start.by, start.ends
    if not ends or not by:
        return record
    with torch.no_grad():
        for tensor in start.flat:
            if _writable(tensor) and is_float(tensor):
                tensor.add_(1)
    attempted(record, "gradient after a change", lambda: gradients(ends, by, cotangents(ends, 7)))
    return record


def freed(function: Any, given: Input) -> Record:
    """Whether arguments and results are gone once nobody holds them, without waiting for the garbage collector."""
    gc.disable()  # a cycle stays until it is collected: that is what is asked
    try:
        return {"freed": str([reference() is None for reference in _watched(function, given)])}
    finally:
        gc.enable()


def _watched(function: Any, given: Input) -> list[weakref.ref[Tensor]]:
    """Weak references to what went into a call and came out; nothing else is left of it."""
    nest, flat = given.fresh()
    outputs = attempted({}, "value", lambda: call(function, nest))
    return [weakref.ref(tensor) for tensor in (*flat, *outputs)]


def one_tensor_twice(function: Any, given: Input) -> Record:
    """The same tensor for the first two arguments of one shape."""
    args, kwargs = given.nest
    places = [index for index in range(len(args)) if isinstance(args[index], Tensor) and is_float(args[index])]
    for one, other in itertools.pairwise(places):
        if args[one].shape == args[other].shape:
            record: Record = {}
            leaf = args[one].detach().clone().requires_grad_()
            twice = tuple(leaf if index in (one, other) else argument for index, argument in enumerate(args))
            outputs = attempted(record, "value", lambda t=twice: call(function, (t, kwargs)))
            ends = differentiable(outputs)
            if ends:
                attempted(record, "gradient", lambda e=ends, x=leaf: gradients(e, [x], cotangents(e, 14)))
            return record
    return {}
