"""What is recorded of a call under transforms: tangents, batches, checkpoints, hooks, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.mutation.inputs import Input
from benchmarks.mutation.nests import exchanged, is_float
from benchmarks.mutation.trying import Record, attempted, call, cotangents, differentiable, first_order, gradients


def tangents(function: Any, given: Input) -> Record:
    """Forward mode, for all arguments and for one at a time; and the gradient of a tangent."""
    record: Record = {}
    subsets = [given.wanted, *((index,) for index in given.wanted if len(given.wanted) > 1)]
    for subset in subsets:
        nest, flat = given.fresh()
        directions = cotangents(flat, 8) if all(is_float(t) for t in flat) else None

        def moved(
            nest: Any = nest, flat: Any = flat, subset: Any = subset, directions: Any = directions
        ) -> list[Tensor]:
            counter = iter(range(len(flat)))

            def dual(tensor: Tensor) -> Tensor:
                index = next(counter)
                if index not in subset:
                    return tensor.detach()
                along = cotangents([tensor], 8 + index)[0] if directions is None else directions[index]
                return forward_ad.make_dual(tensor, along)

            with forward_ad.dual_level():
                outputs = call(function, exchanged(nest, dual))
                found = [forward_ad.unpack_dual(output).tangent for output in outputs]
                found = [torch.zeros_like(o) if t is None else t for o, t in zip(outputs, found, strict=True)]
                ends = differentiable(found)
                by = [flat[index] for index in subset]
                second = gradients(ends, by, cotangents(ends, 9)) if ends else []
                return [tensor.detach() for tensor in (*found, *second)]

        attempted(record, "tangent by " + "+".join(map(str, subset)), moved)
    return record


def batches(function: Any, given: Input) -> Record:
    """vmap over all arguments, over one at a time, and over another axis than the first; values and gradients."""
    record: Record = {}
    if not given.nest[1] and all(
        isinstance(argument, (Tensor, int, float, str, type(None))) for argument in given.nest[0]
    ):
        for name, in_dims, axis in _batchings(given):
            nest, _ = given.fresh()
            record |= {f"{key}, {name}": value for key, value in _batched(function, nest[0], in_dims, axis).items()}
    return record


def _batchings(given: Input) -> Iterator[tuple[str, list[int | None], int]]:
    floats = [isinstance(argument, Tensor) and is_float(argument) for argument in given.nest[0]]
    places = [index for index, is_ in enumerate(floats) if is_]
    yield "all batched", [0 if is_ else None for is_ in floats], 0
    yield "batched last", [-1 if is_ else None for is_ in floats], -1
    for place in places if len(places) > 1 else ():
        yield f"{place} batched", [0 if index == place else None for index in range(len(floats))], 0


def _batched(function: Any, arguments: tuple[Any, ...], in_dims: list[int | None], axis: int) -> Record:
    record: Record = {}
    made = []
    for argument, dim in zip(arguments, in_dims, strict=True):
        stacked = argument
        if dim is not None:
            stacked = torch.stack([argument.detach(), argument.detach() * 1.1, argument.detach() * 0.9], axis)
            stacked.requires_grad_(argument.requires_grad)
        made.append(stacked)
    mapped = torch.func.vmap(function, in_dims=tuple(in_dims), randomness="same")
    outputs = attempted(record, "batch", lambda: call(mapped, (tuple(made), {})))
    by = [tensor for tensor in made if isinstance(tensor, Tensor) and tensor.requires_grad]
    ends = differentiable(outputs)
    if ends and by:
        attempted(record, "gradient of a batch", lambda: gradients(ends, by, cotangents(ends, 10)))
    return record


def batched_cotangents(function: Any, given: Input) -> Record:
    """Several cotangents at once, as for a Jacobian."""
    record: Record = {}
    nest, flat = given.fresh()
    outputs = attempted(record, "value", lambda: call(function, nest))
    by, ends = [flat[index] for index in given.wanted], differentiable(outputs)
    if ends and by:
        several = [torch.stack([g, -2 * g]) for g in cotangents(ends, 13)]

        def made() -> list[Tensor]:
            found = torch.autograd.grad(ends, by, several, allow_unused=True, is_grads_batched=True)
            return [torch.zeros(2, *b.shape, dtype=b.dtype) if f is None else f for b, f in zip(by, found, strict=True)]

        attempted(record, "batched gradient", made)
    return record


def surroundings(function: Any, given: Input) -> Record:
    """Without a graph, in a checkpoint, under hooks that copy what is saved, under autocast."""
    record: Record = {}
    nest, _ = given.fresh()
    with torch.no_grad():
        attempted(record, "value without a graph", lambda: call(function, nest))

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            return function(*args, **kwargs)

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(*args, **kwargs)

    for name, wrapped in (("checkpoint", checkpointed), ("hooks", hooked), ("autocast", cast)):
        found = first_order(wrapped, given)
        record |= {f"{key}, {name}": value for key, value in found.items() if key.startswith(("value", "gradient"))}
    return record
