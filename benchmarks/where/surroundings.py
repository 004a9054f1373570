"""What a training program puts around an operation: checkpoints, hooks, threads, copies, modes and other tensors."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from benchmarks.where.operations import CUBE, SWISH
from benchmarks.where.want import Call, Section, Want, direction, leaf, point


def first(run: Call) -> Tensor:
    """The first gradient of a function of one tensor, at a point that is no leaf of it."""
    x = leaf()
    (run(x.sin()) * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


def second(run: Call) -> Tensor:
    """The gradient of the gradient's square."""
    x = leaf()
    (gradient,) = torch.autograd.grad((run(x.sin()) * direction()).sum(), x, create_graph=True)
    return torch.autograd.grad((gradient**2).sum(), x)[0]


def recomputed(f: Call, *, reentrant: bool = False) -> Call:
    """The operation in a region that is run again for backward."""
    return lambda x: checkpoint(lambda x: f(x * 2).cos(), x, use_reentrant=reentrant)


def nested(f: Call) -> Call:
    """Such a region in another one."""
    return recomputed(recomputed(f))


def offloaded(f: Call) -> Call:
    """The operation with its saved tensors moved elsewhere."""

    def run(x: Tensor) -> Tensor:
        with save_on_cpu():
            return f(x)

    return run


def halved(f: Call) -> Call:
    """The operation with its saved tensors packed as NumPy arrays."""

    def run(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy):
            return f(x)

    return run


def threads(f: Call) -> list[Tensor]:
    """The gradients that eight threads take of one operation at once, each of its own tensors."""

    def hammer(number: int) -> Tensor:
        total = torch.zeros(3, dtype=torch.float64)
        for step in range(1, 25):
            x = (point() * number / step).requires_grad_()
            total += torch.autograd.grad((f(x) * direction()).sum(), x)[0]
        return total

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(hammer, range(1, 9)))


class Holder(nn.Module):
    """A module that keeps an operation as an attribute."""

    def __init__(self, operation: Call) -> None:
        super().__init__()
        self.operation = operation
        self.weight = nn.Parameter(point())

    def forward(self) -> Tensor:
        """Apply it to the parameter."""
        return (self.operation(self.weight) * direction()).sum()


def copied(f: Call) -> Any:
    """The gradients of a module and of its copy, which has a parameter of its own."""
    module = Holder(f)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight *= 2
    for each in (module, twin):
        each().backward()
    return module.weight.grad, twin.weight.grad


def inferred(f: Call) -> Any:
    """Values in inference mode, and gradients of the same operation after it."""
    with torch.inference_mode():
        y = f(point())
    return y.is_inference(), y.clone(), first(f)


class Tagged(Tensor):
    """A subclass that torch's functions hand on."""


def tagged(f: Call) -> Any:
    """The class of what comes out for a subclass, and the gradient."""
    x = point().as_subclass(Tagged).requires_grad_()
    y = f(x)
    (gradient,) = torch.autograd.grad((y * direction()).sum(), x)
    return type(y).__name__, gradient.as_subclass(Tensor)


def faked(f: Call) -> Any:
    """Shapes and dtypes of output and gradient for tensors without numbers."""
    with FakeTensorMode():
        x = torch.empty(2, 3, dtype=torch.float64, requires_grad=True)
        y = f(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    return [(type(tensor).__name__, *tensor.shape, tensor.dtype) for tensor in (y, gradient)]


def on_meta(f: Call) -> Any:
    """The same on the meta device."""
    x = torch.empty(2, 3, dtype=torch.float64, device="meta", requires_grad=True)
    y = f(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return [(tensor.device.type, *tensor.shape, tensor.dtype) for tensor in (y, gradient)]


SECTION = Section(
    "Surroundings",
    "What a training program puts around an operation, to first order and, where the row says so, to second. Two "
    "processes under DistributedDataParallel and pickled classes are tried by the project's tests, for pullback alone.",
    [
        Want("non-reentrant checkpoint", SWISH, lambda f: first(recomputed(f))),
        Want("non-reentrant checkpoint, second derivative", SWISH, lambda f: second(recomputed(f))),
        Want("a checkpoint in a checkpoint", SWISH, lambda f: first(nested(f))),
        Want("a checkpoint in a checkpoint, second derivative", SWISH, lambda f: second(nested(f))),
        Want("reentrant checkpoint", SWISH, lambda f: first(recomputed(f, reentrant=True))),
        Want("saved tensors moved elsewhere, save_on_cpu", SWISH, lambda f: first(offloaded(f))),
        Want("saved tensors moved elsewhere, second derivative", SWISH, lambda f: second(offloaded(f))),
        Want("saved tensors packed by hooks into something else", SWISH, lambda f: first(halved(f))),
        Want("eight threads, forward and backward", SWISH, threads),
        Want("copy.deepcopy of a module that holds the operation", CUBE, copied),
        Want("inference mode, and gradients after it", CUBE, inferred),
        Want("a tensor subclass passes through", CUBE, tagged),
        Want("fake tensors", CUBE, faked),
        Want("meta tensors", CUBE, on_meta),
    ],
)
