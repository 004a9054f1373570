"""What is recorded of one call after another, of threads, parameters, and settings that everybody shares."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import torch
from torch import Tensor

from benchmarks.mutation.inputs import Input
from benchmarks.mutation.nests import exchanged
from benchmarks.mutation.trying import (
    Begun,
    Record,
    attempted,
    call,
    cotangents,
    differentiable,
    first_order,
    gradients,
    kept,
)


def one_graph(function: Any, given: Input) -> Record:
    """Two backward passes through one graph, along different cotangents; and what is left of the first gradients."""
    start = Begun(function, given)
    record, by, ends = start.record, start.by, start.ends
    if not ends or not by:
        return record
    along, other = cotangents(ends, 15), cotangents(ends, 16)
    first = attempted(record, "gradient", lambda: gradients(ends, by, along, retain_graph=True))
    attempted(record, "gradient along another", lambda: gradients(ends, by, other))
    kept(record, "gradient held", first)
    return record


def three_calls(function: Any, given: Input) -> Record:
    """Three calls with other numbers, all pending: results held, gradients in turn, and what piles up on .grad."""
    record: Record = {}
    calls = []
    for number in range(3):
        nest, flat = given.fresh()
        with torch.no_grad():
            for tensor in (flat[index] for index in given.wanted):
                if tensor.layout is torch.strided and 0 not in tensor.stride():
                    tensor.mul_(1 - number / 4)
        calls.append((flat, attempted(record, f"value of {number}", lambda n=nest: call(function, n))))
    for number, (flat, outputs) in enumerate(calls):
        kept(record, f"value held of {number}", outputs)
        by, ends = [flat[index] for index in given.wanted], differentiable(outputs)
        if ends and by:
            g = cotangents(ends, 19)
            attempted(record, f"gradient of {number}", lambda e=ends, b=by, c=g: gradients(e, b, c, retain_graph=True))
            attempted(record, f"piled up of {number}", lambda e=ends, b=by, c=g: _piled_up(e, b, c))
    return record


def _piled_up(ends: list[Tensor], by: list[Tensor], along: list[Tensor]) -> list[Tensor]:
    """What two backward passes leave on the leaves' .grad."""
    for _ in range(2):
        torch.manual_seed(13)
        torch.autograd.backward(ends, along, inputs=by, retain_graph=True)
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in by]


def graph_of_nothing(function: Any, given: Input) -> Record:
    """Derivatives of the gradients by a cotangent of zeros."""
    start = Begun(function, given)
    record, by, ends = start.record, start.by, start.ends
    if not ends or not by:
        return record
    g = [torch.zeros_like(tensor).requires_grad_() for tensor in cotangents(ends, 20)]
    arriving = [tensor.clone() for tensor in g]
    connected = differentiable(attempted(record, "gradient", lambda: gradients(ends, by, arriving, create_graph=True)))
    if connected:
        attempted(record, "second gradient", lambda: gradients(connected, g, cotangents(connected, 21)))
    return record


def after_half_precision(function: Any, given: Input) -> Record:
    """Values and gradients after the same call in bfloat16."""

    def lower(tensor: Tensor) -> Tensor:
        return tensor.bfloat16() if tensor.is_floating_point() and tensor.layout is torch.strided else tensor.clone()

    with torch.no_grad():
        nest = exchanged(given.nest, lower)
    first_order(function, dataclasses.replace(given, nest=nest))
    found = first_order(function, given)
    return {f"{key}, afterwards": value for key, value in found.items() if key.startswith(("value", "gradient"))}


def another_thread(function: Any, given: Input) -> Record:
    """Gradients where backward runs in another thread than forward."""
    start = Begun(function, given)
    record, by, ends = start.record, start.by, start.ends
    if not ends or not by:
        return record
    found: list[list[Tensor] | Exception] = []

    def work() -> None:
        try:
            found.append(gradients(ends, by, cotangents(ends, 17)))
        except Exception as error:
            found.append(error)

    def made() -> list[Tensor]:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    attempted(record, "gradient", made)
    return record


def parameters(function: Any, given: Input) -> Record:
    """Gradients of parameters: tensors of another class."""
    record: Record = {}
    made: list[Tensor] = []

    def parameter(tensor: Tensor) -> Tensor:
        twin = torch.nn.Parameter(tensor.detach().clone()) if tensor.requires_grad else tensor
        made.extend([twin] if tensor.requires_grad else [])
        return twin

    nest = exchanged(given.fresh()[0], parameter)
    outputs = attempted(record, "value", lambda: call(function, nest))
    ends = differentiable(outputs)
    if ends and made:
        attempted(record, "gradient", lambda: gradients(ends, made, cotangents(ends, 18)))
    return record


def settings(function: Any, given: Input) -> Record:
    """What a call and its backward leave of the settings of the process, which are put back."""
    _put_back()
    try:
        first_order(function, given)
        found = (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())
        return {"settings": str((*found, torch.get_default_dtype(), torch.is_grad_enabled()))}
    finally:
        _put_back()


def _put_back() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
