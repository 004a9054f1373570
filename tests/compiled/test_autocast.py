"""F13, F14: what declares something of autocast, compiled with fullgraph=True."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import AutocastError
from tests.autocast.functions import STYLES, autocast, leaf

DECLARED: dict[str, dict[str, Any]] = {
    "cast_inputs": {"cast_inputs": torch.float32},
    "keep_autocast": {"keep_autocast": True},
    "nothing": {},
}


def gradients(function: Any, *, enabled: bool, inside: bool) -> list[Any]:
    """Return the result and the gradients of a call under autocast; backward runs inside of it or outside."""
    x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3, dtype=torch.bfloat16)
    with autocast(enabled=enabled):
        y = function(x, w)
        if inside:
            y.float().square().sum().backward()
    if not inside:
        y.float().square().sum().backward()
    return [y, x.grad, w.grad]


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
@pytest.mark.parametrize("enabled", [True, False], ids=["autocast", "none"])
@pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("declared", DECLARED)
def test_compiled_and_eager(declared: str, write: Any, enabled: bool, inside: bool) -> None:
    """F14: compiled code casts what eager code casts, and its backward runs under the same state."""
    function = write(**DECLARED[declared])

    def call(x: Tensor, w: Tensor) -> Any:
        return function.apply(k=2.0, x=x, w=w)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, due = (gradients(f, enabled=enabled, inside=inside) for f in (compiled, call))
    for one, other in zip(found, due, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


def test_containers() -> None:
    """F14: the tensors of a container are cast in compiled code, those too that require no grad."""

    class Total(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, state: dict[str, Any], *, scale: float) -> dict[str, Tensor]:
            ctx.scale = scale
            return {"total": (state["w"] + state["more"][0]) * scale}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            g = grads["total"] * ctx.scale
            return {"w": g, "more": [g]}, None

    def call(w: Tensor, more: Tensor) -> Tensor:
        total: Tensor = Total.apply({"w": w, "more": [more]}, scale=2.0)["total"]
        return total

    w, more = leaf(3, dtype=torch.bfloat16), leaf(3, dtype=torch.float16, seed=1).detach()
    torch._dynamo.reset()
    with autocast():
        total = torch.compile(call, fullgraph=True, backend="aot_eager")(w, more)
    total.sum().backward()
    assert torch.equal(total, (w.float() + more.float()) * 2.0)
    assert w.grad is not None
    assert w.grad.tolist() == [2.0] * 3


def test_a_marked_write_to_a_copy_is_refused() -> None:
    """PB521, F14: in compiled code, too, a write that would go to a copy of the argument raises."""

    class Tripled(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            x.mul_(3)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * g

    def program(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Tripled.apply(x * 1)

    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(Exception, match=r"PB521"):
        torch.compile(program, backend="aot_eager", fullgraph=True)(x)
    with pytest.raises(AutocastError, match=r"PB521 Tripled.forward writes to x"):
        torch.compile(program, backend="aot_eager")(x)
    y = x.detach().float().requires_grad_()
    torch._dynamo.reset()
    assert torch.compile(program, backend="aot_eager", fullgraph=True)(y).tolist() == [3, 3, 3]
