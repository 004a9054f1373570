"""y = k x w, written in each way to write a Function, with whatever its backward returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pullback

Returned = Callable[[Tensor, Tensor], Any]
"""What backward returns, made from the gradients of x and w."""

STYLES = ["ctx", "setup_context"]
METHODS = ["backward", "vjp"]


def product(
    returned: Returned = lambda gx, gw: (gx, gw, None),
    *,
    style: str = "ctx",
    method: str = "backward",
    base: type = pullback.Function,
    **attributes: Any,
) -> Any:
    """Define the Function Product(x, w, k=3), whose backward returns `returned` of the two gradients."""

    def save(ctx: Any, x: Tensor, w: Tensor, k: float) -> None:
        ctx.save_for_backward(x, w)
        ctx.k = k

    def forward(ctx: Any, x: Tensor, w: Tensor, k: float = 3) -> Tensor:
        save(ctx, x, w, k)
        return x * w * k

    def without_ctx(x: Tensor, w: Tensor, k: float = 3) -> Tensor:
        return x * w * k

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        save(ctx, *inputs)

    def differentiate(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return returned(g * w * ctx.k, g * x * ctx.k)

    body: dict[str, Any] = {"forward": staticmethod(forward)}
    if style == "setup_context":
        body = {"forward": staticmethod(without_ctx), "setup_context": staticmethod(setup_context)}
    return type("Product", (base,), {**body, method: staticmethod(differentiate), **attributes})


def gradients(output: Tensor, *inputs: Tensor, create_graph: bool = False) -> list[Tensor | None]:
    """Return the gradients of the sum of `output`, None for inputs that have none."""
    return list(torch.autograd.grad(output.sum(), inputs, create_graph=create_graph, allow_unused=True))
