"""F12: what an author is told by ``requires_grad`` under torch.func is what holds for the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.utils import _pytree as pytree

import pullback


class Guarded(pullback.Function):
    """A product that saves and computes only what somebody wants a gradient of, by ``requires_grad``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x if x.requires_grad or w.requires_grad else None, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        return g * w if x.requires_grad else None, g * x if w.requires_grad else None


class Layer(pullback.Function):
    """A linear layer that differentiates with respect to those parameters of its module that require grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: torch.nn.Linear) -> Tensor:
        ctx.save_for_backward(x, module.weight)
        ctx.module = module
        return module(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> dict[str, Any]:
        x, weight = ctx.saved_tensors
        gradients: dict[str, Tensor] = {}
        for name, parameter in ctx.module.named_parameters():
            if parameter.requires_grad:
                gradients[name] = g.mT @ x if name == "weight" else g.sum(0)
        return {"x": g @ weight if x.requires_grad else None, "module": gradients}


Taken = Callable[[Callable[..., Tensor], Tensor, Tensor], Any]

TRANSFORMS: dict[str, Taken] = {
    "grad by both": lambda f, x, w: grad(lambda *z: f(*z).sum(), (0, 1))(x, w),
    "grad by the first": lambda f, x, w: grad(lambda x: f(x, w).sum())(x),
    "vmap of grad": lambda f, x, w: vmap(grad(f, (0, 1)))(x, w),
    "grad of vmap": lambda f, x, w: grad(lambda w: vmap(f)(x, w).sum())(w),
    "jvp by the second": lambda f, x, w: jvp(lambda w: f(x, w), (w,), (x,)),
    "hessian": lambda f, x, w: hessian(lambda w: (f(x, w) ** 2).sum())(w),
    "jacfwd of jacfwd": lambda f, x, w: jacfwd(jacfwd(lambda x: f(x, w) ** 2))(x),
    "grad of grad": lambda f, x, w: grad(lambda x: grad(lambda x: (f(x, w) ** 3).sum())(x).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients_guarded_by_requires_grad(name: str) -> None:
    """Neither a level nor a batch makes an author leave out a gradient that is wanted."""
    torch.manual_seed(3)
    x, w = torch.randn(2, 4, dtype=torch.float64)
    found, expected = (TRANSFORMS[name](f, x, w) for f in (Guarded.apply, torch.mul))
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other)


def test_parameters_that_are_asked_say_so() -> None:
    """The parameters of a module under functional_call say that they require grad, those that are frozen don't."""
    torch.manual_seed(3)
    module, x = torch.nn.Linear(3, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], call: Callable[..., Tensor]) -> Tensor:
        return (torch.func.functional_call(Holder(module, call), parameters, (x,)) ** 2).sum()

    parameters = {f"module.{name}": parameter.detach() for name, parameter in module.named_parameters()}
    found = grad(loss)(parameters, Layer.apply)
    expected = grad(loss)(parameters, lambda x, module: module(x))
    torch.testing.assert_close(found, expected)


class Holder(torch.nn.Module):
    """A module whose forward calls a function with another module."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Tensor]) -> None:
        """Hold both."""
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.call(x, self.module)
