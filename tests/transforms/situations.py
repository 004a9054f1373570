"""The situations in which a second derivative is asked for, and the demand that it is exact, or raises by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback.errors import PullbackError
from tests.transforms.derivatives import Draw, Formula, penalty

Situation = Callable[[Formula, Tensor], Tensor]


def by_grad(function: Formula, leaf: Tensor) -> Tensor:
    """Take the gradient of a penalty with torch.autograd.grad."""
    return torch.autograd.grad(penalty(function(leaf), leaf), leaf)[0]


def by_backward(function: Formula, leaf: Tensor) -> Tensor:
    """Take it with backward()."""
    penalty(function(leaf), leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


def inside_by_grad(function: Formula, leaf: Tensor) -> Tensor:
    """Apply the function to a tensor that is no leaf, and penalise the gradient of the leaf."""
    return by_grad(lambda x: function(x * 1.5), leaf)


def inside_by_backward(function: Formula, leaf: Tensor) -> Tensor:
    """Do the same with backward()."""
    return by_backward(lambda x: function(x * 1.5), leaf)


def penalty_on_the_inner(function: Formula, leaf: Tensor) -> Tensor:
    """Penalise the gradient of the inner tensor, and differentiate by it."""
    inner = leaf * 1.5
    return torch.autograd.grad(penalty(function(inner), inner), inner)[0]


def other_paths(function: Formula, leaf: Tensor) -> Tensor:
    """Let x reach the loss on other paths as well, so that a part that is lost shows in no error of the engine's."""
    return by_grad(lambda x: function(x) * x.sin() + x**3, leaf)


def other_paths_inside(function: Formula, leaf: Tensor) -> Tensor:
    """Do the same with an argument that is no leaf, and backward()."""
    return by_backward(lambda x: function(x.exp()) * x.sin() + x**3, leaf)


def weighted_cotangent(function: Formula, leaf: Tensor) -> Tensor:
    """Use a cotangent that depends on x."""
    (gradient,) = torch.autograd.grad(function(leaf), leaf, leaf.cos(), create_graph=True)
    return torch.autograd.grad((gradient * leaf).sum(), leaf)[0]


def applied_twice(function: Formula, leaf: Tensor) -> Tensor:
    """Chain two calls."""
    return by_grad(lambda x: function(function(x) / 4), leaf)


def checkpointed(function: Formula, leaf: Tensor) -> Tensor:
    """Run it in a checkpoint."""
    return by_grad(lambda x: checkpoint(lambda t: function(t * 1.5), x, use_reentrant=False), leaf)


def offloaded(function: Formula, leaf: Tensor) -> Tensor:
    """Have a hook take saved tensors away and bring copies back."""
    with torch.autograd.graph.save_on_cpu():
        output = function(leaf)
    return torch.autograd.grad(penalty(output, leaf), leaf)[0]


def first_call_without_grad(function: Formula, leaf: Tensor) -> Tensor:
    """Call the class under no_grad and on constants first."""
    with torch.no_grad():
        function(leaf)
    function(leaf.detach())
    return by_grad(function, leaf)


def at_zero(function: Formula, leaf: Tensor) -> Tensor:
    """Stand where gradients may vanish, beside another path."""
    return other_paths(function, (leaf.detach() * 0).requires_grad_())


SITUATIONS: dict[str, Situation] = {
    function.__name__: function
    for function in (
        by_grad, by_backward, inside_by_grad, inside_by_backward, penalty_on_the_inner, other_paths, other_paths_inside,
        weighted_cotangent, applied_twice, checkpointed, offloaded, first_call_without_grad, at_zero,
    )
}  # fmt: skip

each_situation = pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)


def outcome(situation: Situation, function: Any, formula: Formula, draw: Draw) -> str:
    """Return ``exact``, or the code of the error; fail where the number is wrong."""
    leaf = draw.leaf(3)
    expected = situation(formula, leaf.detach().requires_grad_())
    refusal: PullbackError | None = None
    try:
        got = situation(function.apply, leaf.detach().requires_grad_())
    except PullbackError as error:
        refusal = error
    if refusal is not None:
        assert function.__name__ in str(refusal)
        assert "remedy: " in str(refusal)
        return refusal.rule
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    return "exact"
