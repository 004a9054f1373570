"""F14, F16: `custom_vjp` takes the same two declarations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError
from tests.autocast.functions import autocast, leaf, same_bits


def matmul(**declared: Any) -> Any:
    """Make x w k, with its rule."""

    @pullback.custom_vjp(**declared)
    def scaled(x: Tensor, w: Tensor, k: float) -> Tensor:
        return (x @ w) * k

    def backward(residuals: Any, g: Tensor) -> Any:
        x, w, k = residuals
        return (g @ w.mT) * k, (x.mT @ g) * k, None

    scaled.defvjp(lambda x, w, k: ((x @ w) * k, (x, w, k)), backward)
    return scaled


def ran(call: Any, *, grad: bool = True) -> list[Tensor | None]:
    """Return the result and the gradients of a call under autocast, whose backward runs outside of it."""
    x, w = leaf(4, 5), leaf(5, 3, seed=1)
    with autocast(torch.bfloat16), torch.set_grad_enabled(grad):
        y = call(x, w, 2.0)
    if grad:
        y.float().square().sum().backward()
    return [y.detach(), x.grad, w.grad]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_cast_inputs(compiled: bool) -> None:
    """F14: values and gradients are those of the formula in the dtype that is cast to, in compiled code too."""
    made = matmul(cast_inputs=torch.float32)
    due = ran(torch.autocast("cpu", enabled=False)(lambda x, w, k: (x.float() @ w.float()) * k))
    torch._dynamo.reset()
    got = ran(torch.compile(made, backend="aot_eager") if compiled else made)
    assert got[0].dtype is torch.float32
    for one, other in zip(got, due, strict=True):
        torch.testing.assert_close(one, other)
    torch._dynamo.reset()


def test_cast_where_nothing_is_differentiated() -> None:
    """F14: in no-grad mode the function has the same value as in training."""
    made = matmul(cast_inputs=torch.float32)
    same_bits(ran(made, grad=False)[:1], ran(made)[:1])


def test_keep_autocast() -> None:
    """F14: bwd runs under the state that fwd ran under; without the declaration it meets two dtypes."""
    y, gx, gw = ran(matmul(keep_autocast=True))
    assert y is not None
    assert y.dtype is torch.bfloat16
    assert gx is not None
    assert gw is not None
    assert (gx.dtype, gw.dtype) == (torch.float32, torch.float32)
    with pytest.raises(RuntimeError, match=r"dtype"):
        ran(matmul())


def test_another_value_is_refused() -> None:
    """PB106: what isn't a dtype can't be cast to."""
    with pytest.raises(DefinitionError, match=r"PB106 scaled\.cast_inputs"):
        matmul(cast_inputs="float32")
