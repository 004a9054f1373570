"""Decorated functions, typed: a user's type checker sees the function's own signature."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pullback


@pullback.custom_vjp
def scale(x: Tensor, factor: float = 2.0, *, shift: float = 0.0) -> Tensor:
    """x times a number, plus another one."""
    return x * factor + shift


def scale_fwd(x: Tensor, factor: float = 2.0, *, shift: float = 0.0) -> tuple[Tensor, float]:
    """The result, and the factor."""
    return scale(x, factor, shift=shift), factor


def scale_bwd(factor: float, g: Tensor) -> tuple[Tensor, None, None]:
    """One gradient for each argument."""
    return g * factor, None, None


scale.defvjp(scale_fwd, scale_bwd)


@pullback.custom_jvp
def product(x: Tensor, y: Tensor) -> Tensor:
    """x times y."""
    return x * y


@product.defjvp
def product_jvp(primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product rule."""
    (x, y), (x_dot, y_dot) = primals, tangents
    return product(x, y), x_dot * y + x * y_dot


@pullback.custom_vjp(nondiff_argnums=(0,))
def applied(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """A nest with f(x)."""
    return {"y": f(x)}


applied.defvjp(lambda f, x: ({"y": f(x)}, x), lambda f, x, g: (g["y"],))


@functools.partial(pullback.custom_jvp, nondiff_argnames=("n",))
def power(x: Tensor, n: int) -> Tensor:
    """x to the n."""
    return torch.pow(x, n)


class Layer:
    """A method with a derivative of its own."""

    @pullback.custom_vjp(nondiff_argnums=(0,))
    def doubled(self, x: Tensor) -> Tensor:
        """Twice x."""
        return 2 * x


def used(x: Tensor) -> tuple[Tensor, Tensor, Any]:
    """What comes out is typed as it was."""
    first: Tensor = scale(x, 3.0, shift=1.0)
    second: Tensor = applied(torch.sin, first)["y"]
    third: Tensor = Layer().doubled(product(first, y=second))
    rule: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] = product_jvp
    report: pullback.Report = pullback.check(scale, (x,))
    return third, rule((x, x), (x, x))[1], report
