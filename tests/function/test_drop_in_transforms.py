"""F1: rules for forward mode and vmap that an author wrote for torch.autograd.Function work on pullback.Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import pullback.errors
from tests.function.kinds import assert_same, leaf

Transform = Callable[[Callable[[Tensor], Tensor]], Any]


def with_generated_vmap_rule(base: type) -> Any:
    """setup_context and generate_vmap_rule: everything in reverse mode follows."""

    class Cube(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return Cube


def with_vmap_by_hand(base: type) -> Any:
    """A vmap static method, which the elementwise forward needs no change for."""

    class Cube(with_setup_context_alone(base)):
        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> Any:
            assert info.batch_size == x.shape[in_dims[0]]
            return Cube.apply(x), in_dims[0]

    return Cube


def with_setup_context_alone(base: type) -> Any:
    """setup_context without any rule for vmap."""

    class Cube(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return Cube


def with_jvp(base: type) -> Any:
    """A jvp by hand beside backward, in setup_context style, batched by the generated rule."""

    class Cube(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * tangent

    return Cube


def with_jvp_and_ctx(base: type) -> Any:
    """A jvp by hand, in the style whose forward takes ctx."""

    class Cube(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            ctx.scale = 3
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return ctx.scale * x**2 * g

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return ctx.scale * x**2 * tangent

    return Cube


def in_dual_numbers(f: Callable[[Tensor], Tensor]) -> Any:
    """Differentiate forward, in dual numbers."""
    with fwd.dual_level():
        dual = fwd.make_dual(leaf(3).detach(), torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64))
        return tuple(fwd.unpack_dual(f(dual)))


def in_dual_numbers_with_grad(f: Callable[[Tensor], Tensor]) -> Any:
    """Differentiate forward an argument that also requires grad, and backward after."""
    x = leaf(3)
    with fwd.dual_level():
        primal, tangent = fwd.unpack_dual(f(fwd.make_dual(x, torch.ones_like(x))))
        (gx,) = torch.autograd.grad(primal.sum(), x)
    return primal.detach(), tangent.detach(), gx


X = leaf(3).detach()
TRANSFORMS: dict[str, Transform] = {
    "grad": lambda f: grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: vjp(f, X)[1](torch.linspace(-1, 1, 3, dtype=torch.float64)),
    "grad of grad": lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).sum())(X),
    "jacrev": lambda f: jacrev(f)(X),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f))(X),
    "vmap": lambda f: vmap(f)(X.expand(2, 3)),
    "vmap over the last dimension": lambda f: vmap(f, in_dims=1)(X.expand(2, 3)),
    "vmap of grad": lambda f: vmap(grad(lambda x: f(x).sum()))(X.expand(2, 3)),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x).sum())(X.expand(2, 3)),
    "jvp": lambda f: jvp(f, (X,), (torch.linspace(-1, 1, 3, dtype=torch.float64),)),
    "jacfwd": lambda f: jacfwd(f)(X),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f))(X),
    "jacfwd of jacrev": lambda f: jacfwd(jacrev(f))(X),
    "dual numbers": in_dual_numbers,
    "dual numbers with grad": in_dual_numbers_with_grad,
}
REVERSE = ["grad", "vjp", "grad of grad"]
BATCHED = ["jacrev", "jacrev of jacrev", "vmap", "vmap over the last dimension", "vmap of grad", "grad of vmap"]
FORWARD = ["jvp", "jacfwd", "jacrev of jacfwd"]
DUAL = ["dual numbers", "dual numbers with grad"]

# The compositions that work in torch and are right there.
SUPPORTED = {
    with_setup_context_alone: REVERSE,
    with_generated_vmap_rule: [*REVERSE, *BATCHED],
    with_vmap_by_hand: [*REVERSE, "vmap", "vmap over the last dimension"],
    with_jvp: [*REVERSE, *BATCHED, *FORWARD, *DUAL],
    with_jvp_and_ctx: DUAL,
}


@pytest.mark.parametrize(
    ("make", "transform"),
    [(make, name) for make, names in SUPPORTED.items() for name in names],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_rules_by_hand_work_as_in_torch(make: Callable[[type], Any], transform: str) -> None:
    """F1: under torch.func and in dual numbers, values and derivatives are torch's, and those of the formula."""
    got = TRANSFORMS[transform](make(pullback.Function).apply)
    assert_same(got, TRANSFORMS[transform](make(torch.autograd.Function).apply))
    torch.testing.assert_close(got, TRANSFORMS[transform](lambda x: x**3))


def test_a_vmap_rule_by_hand_and_a_generated_one_exclude_each_other() -> None:
    """F2: both at once contradict each other, which torch says under vmap, and pullback where the class is defined."""

    def define(base: type) -> Any:
        return type("Both", (with_vmap_by_hand(base),), {"generate_vmap_rule": True})

    function = define(torch.autograd.Function)
    with pytest.raises(RuntimeError, match="generate_vmap_rule=True"):
        vmap(function.apply)(X.expand(2, 3))
    with pytest.raises(pullback.errors.DefinitionError, match="PB106 Both: generate_vmap_rule"):
        define(pullback.Function)
