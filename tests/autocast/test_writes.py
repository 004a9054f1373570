"""F14: a forward that writes to an argument that was cast would lose the write, which PyTorch does in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

import pullback
from pullback.errors import AutocastError, PullbackError
from tests.autocast.functions import autocast, leaf
from tests.tracebacks import files


def doubling(*, marked: bool = True, in_list: bool = False) -> Any:
    """Define a Function that doubles its second argument in place and returns it."""

    class Double(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, scale: Tensor, x: Any) -> Any:
            written = x[0] if in_list else x
            written.mul_(2)
            if marked:
                ctx.mark_dirty(written)
            return written if marked else scale.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, [g * 2] if in_list else g * 2

    return Double


def test_what_torch_does() -> None:
    """PyTorch's decorators lose the write: the caller's tensor is as it was, and nothing is said."""

    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x.mul_(2))
            return x

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    x = torch.ones(3, dtype=torch.bfloat16)
    with autocast():
        assert Double.apply(x).tolist() == [2.0] * 3
    assert x.tolist() == [1.0] * 3


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "not marked"])
@pytest.mark.parametrize("mode", ["grad", "no grad"])
def test_a_write_to_a_copy(marked: bool, mode: str) -> None:
    """F14: it is PB521, at each call, whether forward says that it writes or not; the caller's tensor is as it was."""
    function = doubling(marked=marked)
    for _ in range(3):
        x = torch.ones(3, dtype=torch.bfloat16)
        with autocast(), torch.set_grad_enabled(mode == "grad"), pytest.raises(AutocastError) as caught:
            function.apply(leaf(3), x)
        assert str(caught.value).splitlines() == [
            "PB521 Double.forward writes to x, which cast_inputs had cast: the write went to a copy, and x is as it "
            "was.",
            "  expected: a forward that writes to none of the arguments that are cast, or x in torch.float32 already",
            "  got: a write to a copy of x in torch.float32",
            "  remedy: Return a new tensor in place of x, or call it under torch.autocast(..., enabled=False).",
        ]
        assert {*files(caught.value)} == {__file__}
        assert x.tolist() == [1.0] * 3
        assert not torch.is_autocast_enabled("cpu")


def test_in_inference_mode() -> None:
    """F14: there PyTorch counts no writes, so the one that forward marks is seen by what it returns."""
    with autocast(), torch.inference_mode(), pytest.raises(AutocastError, match=r"PB521 Double\.forward writes to x"):
        doubling().apply(torch.ones(3), torch.ones(3, dtype=torch.bfloat16))


def test_in_a_list() -> None:
    """F14: the tensor is named where it lies."""
    function = doubling(marked=False, in_list=True)
    for _ in range(2):
        with autocast(), pytest.raises(AutocastError, match=r"PB521 Double\.forward writes to x\[0\]"):
            function.apply(leaf(3), [torch.ones(3, dtype=torch.bfloat16)])


def test_under_torch_func() -> None:
    """F14: so it is inside of torch.func."""

    def loss(scale: Tensor) -> Tensor:
        return doubling().apply(scale, torch.ones(3, dtype=torch.bfloat16)).sum()

    with autocast(), pytest.raises(PullbackError, match=r"PB521 Double\.forward writes to x"):
        torch.func.grad(loss)(torch.ones(3))


def test_a_write_to_what_is_not_cast() -> None:
    """F14: a tensor of the dtype already, and one that is never cast, are written to as ever."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = torch.ones(3, dtype=dtype)
        for times in (1, 2):
            with autocast():
                y = doubling().apply(leaf(3, dtype=torch.bfloat16), x)
            assert x.tolist() == [2.0**times] * 3
            assert y is x


def test_outside_of_autocast() -> None:
    """F14: nothing is cast there, so a write is a write."""
    function = doubling()
    x = torch.ones(3, dtype=torch.bfloat16)
    with autocast(), pytest.raises(AutocastError):
        function.apply(leaf(3), x)
    function.apply(leaf(3), x)
    with autocast(enabled=False):
        function.apply(leaf(3), x)
    assert x.tolist() == [4.0] * 3
