"""Time, bytes and peak of one operation, each measured in a process of its own.

Time is that of forward and backward, as a ratio to eager's in the same round; the ways come in an order drawn anew for
each round. Peak is the highest resident memory beyond what the arguments take, under the default allocator.
"""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.operations.cases import EAGER, FLOOR, WAYS, Operation
from tests.saved_bytes import bytes_kept

STEADY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""The environment in which glibc hands freed memory out again, as a caching allocator would."""

WARM_UPS = 2


def step(call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Forward and backward once; returns the output and the gradients."""
    leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
    output = call(*arguments)
    cotangent = torch.ones((), dtype=output.dtype).expand_as(output).contiguous()
    return output, torch.autograd.grad(output, leaves, cotangent)


def floor(arguments: Sequence[Any]) -> None:
    """Read each tensor and write as much, for forward and for backward."""
    for _ in range(2):
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                argument.detach().clone()


def check(operation: Operation, dtype: torch.dtype, scale: float) -> None:
    """Raise unless pullback's gradients are as near to float64 as eager's, but for two roundings of the largest."""
    torch.manual_seed(0)
    arguments = operation.make(dtype, scale)
    exact = [
        a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in arguments
    ]
    results = []
    for call, given in ((operation.eager, exact), (operation.ours, arguments), (operation.eager, arguments)):
        torch.manual_seed(1)
        output, gradients = step(call, given)
        results.append([output.detach(), *gradients])
    for position, (due, got, plain) in enumerate(zip(*results, strict=True)):
        room = 2 * torch.finfo(dtype).eps * float(due.abs().max())
        ours, theirs = float((got.double() - due).abs().max()), float((plain.double() - due).abs().max())
        if not ours <= theirs + room and "dropout" not in operation.name:  # whose numbers are drawn in another way
            raise AssertionError(f"{operation.name}, {dtype}: result {position} is off by {ours}, eager's by {theirs}")


def times(
    operation: Operation, dtype: torch.dtype, scale: float, rounds: int, ways: Sequence[str] = WAYS
) -> dict[str, Any]:
    """Milliseconds of the first call, medians of the rest, and the median ratio to eager, by way."""
    torch.manual_seed(0)
    arguments = operation.make(dtype, scale)
    calls = {way: operation.way(way) for way in ways if way != FLOOR}
    runs: dict[str, Callable[[], object]] = {
        way: lambda call=call: step(call, arguments) for way, call in calls.items()
    }
    runs[FLOOR] = lambda: floor(arguments)
    taken: dict[str, list[float]] = {way: [] for way in runs}
    first: dict[str, float] = {}
    order, shuffle = list(runs), random.Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for number in range(-WARM_UPS, rounds):
            shuffle(order)
            for way in order:
                start = time.perf_counter()
                runs[way]()
                elapsed = 1000 * (time.perf_counter() - start)
                if number == -WARM_UPS:
                    first[way] = elapsed
                elif number >= 0:
                    taken[way].append(elapsed)
    finally:
        gc.enable()
    ratio = {
        way: statistics.median(own / base for own, base in zip(values, taken[EAGER], strict=True))
        for way, values in taken.items()
    }
    return {
        "first": first,
        "milliseconds": {way: statistics.median(values) for way, values in taken.items()},
        "ratio": ratio,
    }


def bytes_saved(operation: Operation, dtype: torch.dtype, scale: float, ways: Sequence[str] = WAYS) -> dict[str, int]:
    """Bytes that the graph keeps from forward to backward, by way; each storage once, weights left out."""
    found = {}
    for way in ways:
        if way != FLOOR:
            torch.manual_seed(0)
            arguments = operation.make(dtype, scale)
            weights = [arguments[position] for position in operation.parameters]
            call = operation.way(way)
            found[way] = bytes_kept(lambda call=call, given=arguments: call(*given), weights)
    return found


def peak(operation: Operation, way: str, dtype: torch.dtype, scale: float) -> int:
    """The highest resident memory of a second step beyond what was there before it, in bytes; 0 where unknown."""
    torch.manual_seed(0)
    arguments = operation.make(dtype, scale)
    call = operation.way(way)
    step(call, arguments)
    gc.collect()
    if not (give_back() and forget_peak()):
        return 0
    before = resident("VmRSS")
    step(call, arguments)
    return max(0, resident("VmHWM") - before)


def give_back() -> bool:
    """Have the allocator give freed memory back, which would count as there before; False where it can't."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


def forget_peak() -> bool:
    """Let the kernel count the highest resident memory anew; False where it can't."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident(field: str) -> int:
    """A field of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
