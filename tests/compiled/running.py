"""A program run as it is and compiled: outputs and gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BACKENDS = ("eager", "aot_eager")
"""How far a program is taken by tests: traced by Dynamo alone, and with its backward traced too."""

Program = Callable[..., Any]


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def score(outputs: Sequence[Tensor]) -> Tensor:
    """Return a number in which each element of each output counts otherwise, and none is linear."""
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        real = (torch.view_as_real(output) if output.is_complex() else output).double()
        weights = torch.linspace(0.5, 1.5, real.numel(), dtype=torch.float64).reshape(real.shape)
        total = total + (weights * real + weights.flip(0) * real**2 if real.dim() else real + real**2).sum()
    return total


def results(program: Program, leaves: Sequence[Tensor], *arguments: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Run `program` on `arguments`; return its outputs, and the gradients of `leaves`."""
    torch.manual_seed(0)
    outputs = tensors_in(program(*arguments))
    followed = [output for output in outputs if output.requires_grad]
    gradients = torch.autograd.grad(score(followed), leaves, allow_unused=True) if followed else [None] * len(leaves)
    return [output.detach() for output in outputs], list(gradients)


def fully(program: Program, backend: str = "aot_eager", **options: Any) -> Program:
    """Compile `program`, in which nothing may be left to Python."""
    torch._dynamo.reset()
    compiled: Program = torch.compile(program, backend=backend, fullgraph=True, **options)
    return compiled


def assert_same(got: Any, expected: Any) -> None:
    """Compare what `results` gave, to the last few bits; fused code may round otherwise."""
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def assert_compiles(program: Program, leaves: Sequence[Tensor], *arguments: Any, backend: str = "aot_eager") -> None:
    """Compile `program` as a whole; outputs and gradients must be those of the program itself."""
    due = results(program, leaves, *arguments)
    assert any(gradient is not None for gradient in due[1]), "nothing is differentiated"
    assert_same(results(fully(program, backend), leaves, *arguments), due)
