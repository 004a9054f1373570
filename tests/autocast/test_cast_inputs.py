"""F14: `cast_inputs` gives, to the last bit, what torch.amp's custom_fwd(cast_inputs=...) and custom_bwd give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.autocast.functions import STYLES, Seen, autocast, in_torch, leaf, plain, same_bits

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

in_both_styles = pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)


def ran(function: Any, dtype: torch.dtype, around: torch.dtype, *, inside: bool) -> list[Tensor | None]:
    """Return the result and the gradients of a call under autocast; backward runs inside of it or outside."""
    x, w = leaf(4, 5, dtype=dtype), leaf(5, 3, dtype=dtype, seed=1)
    with autocast(around):
        y = function.apply(x, w, 2.0)
        if inside:
            y.float().square().sum().backward()
    if not inside:
        y.float().square().sum().backward()
    return [y, x.grad, w.grad]


@in_both_styles
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
@pytest.mark.parametrize("around", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cast", FLOATS, ids=str)
def test_values_and_gradients_of_torch(
    write: Any, cast: torch.dtype, dtype: torch.dtype, around: torch.dtype, inside: bool
) -> None:
    """F14: whatever the dtypes are, the first call and those after it are those of torch's decorators."""
    ours, theirs = write(cast_inputs=cast), in_torch(cast)
    for _ in range(3):
        same_bits(ran(ours, dtype, around, inside=inside), ran(theirs, dtype, around, inside=inside))


@in_both_styles
@pytest.mark.parametrize("inside", [True, False], ids=["backward under autocast", "backward outside"])
def test_outside_of_autocast_nothing_is_cast(write: Any, inside: bool) -> None:
    """F14: there the declaration is without effect on forward, and backward runs with autocast off, as in torch."""
    results = []
    for function in (write(cast_inputs=torch.float16), in_torch(torch.float16)):
        x, w = leaf(4, 5), leaf(5, 3, seed=1)
        y = function.apply(x, w, 2.0)
        assert y.dtype == torch.float32
        with autocast(enabled=inside):
            y.square().sum().backward()
        results.append([y, x.grad, w.grad])
    same_bits(*results)


@in_both_styles
def test_all_methods_run_with_autocast_off(write: Any) -> None:
    """F14: forward, setup_context and backward see cast tensors, and no autocast."""
    seen: Seen = []
    function = write(seen, cast_inputs=torch.float32)
    x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3)
    with autocast():
        for _ in range(2):
            function.apply(x, w, 2.0).sum().backward()
        assert torch.is_autocast_enabled("cpu")
    assert {name for name, _, _ in seen} >= {"forward", "backward"}
    assert {(on, dtype) for _, on, dtype in seen} == {(False, torch.float32)}


@in_both_styles
def test_autocast_in_autocast(write: Any) -> None:
    """F14: what counts is the innermost region; one that is turned off there casts nothing."""
    results = []
    for function in (write(cast_inputs=torch.bfloat16), in_torch(torch.bfloat16)):
        x, w = leaf(4, 5), leaf(5, 3, seed=1)
        with autocast():
            with autocast(enabled=False):
                off = function.apply(x, w, 2.0)
            on = function.apply(x, w, 2.0)
        with autocast(enabled=False), autocast(torch.float16):
            again = function.apply(x, w, 2.0)
        assert (off.dtype, on.dtype, again.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
        (off.sum() + on.float().sum() + again.float().sum()).backward()
        results.append([off, on, again, x.grad, w.grad])
    same_bits(*results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64], ids=str)
def test_what_is_not_cast(dtype: torch.dtype) -> None:
    """F14: as in torch, float64, integers, bools and complex numbers come as they are, beside a tensor that is cast."""
    given = []

    class Weighted(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
            given.append((x.dtype, other.dtype))
            ctx.other = abs(other.sum().item())
            return x * ctx.other

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.other, None

    x = leaf(3, dtype=torch.bfloat16)
    with autocast():
        Weighted.apply(x, torch.ones(2).to(dtype)).sum().backward()
    assert given == [(torch.float32, dtype)]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_a_gradient_comes_in_the_dtype_of_its_argument() -> None:
    """F14: each argument gets its gradient in its own dtype; .grad accumulates."""
    function = STYLES["ctx"](cast_inputs=torch.float32)
    x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3, dtype=torch.float16)
    with autocast():
        for _ in range(2):
            function.apply(x, w, 2.0).sum().backward()
    once = torch.autograd.grad(plain(x.float(), w.float(), 2.0).sum(), (x, w))
    for tensor, due in zip((x, w), once, strict=True):
        assert tensor.grad is not None
        assert tensor.grad.dtype == tensor.dtype
        torch.testing.assert_close(tensor.grad, due + due)


@in_both_styles
def test_one_tensor_twice(write: Any) -> None:
    """F14: a tensor that is passed twice is cast twice, and its gradients are added in its own dtype."""
    results = []
    for function in (write(cast_inputs=torch.float32), in_torch(torch.float32)):
        x = leaf(4, 4, dtype=torch.bfloat16)
        with autocast():
            y = function.apply(x, x, 2.0)
        y.sum().backward()
        results.append([y, x.grad])
    same_bits(*results)


def test_which_gradients_are_asked_for() -> None:
    """F14: needs_input_grad is that of the caller's tensors."""
    asked = []

    class Product(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            asked.append(ctx.needs_input_grad)
            ctx.save_for_backward(x, y, z)
            return x * y * z

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y, z = ctx.saved_tensors
            asked.append(ctx.needs_input_grad)
            return g * y * z, g * x * z, g * x * y

    x, y, z = leaf(3, dtype=torch.bfloat16), leaf(3).detach(), leaf(3)
    with autocast():
        for _ in range(2):
            Product.apply(x, y, z).sum().backward()
    assert asked == [(True, False, True)] * 4


@in_both_styles
def test_without_gradients(write: Any) -> None:
    """F14: in no-grad and inference mode the values are the same, and nothing requires grad."""
    x, w = leaf(4, 5), leaf(5, 3)
    results = []
    for mode in (torch.no_grad, torch.inference_mode):
        for function in (write(cast_inputs=torch.bfloat16), in_torch(torch.bfloat16)):
            with autocast(), mode():
                y = function.apply(x, w, 2.0)
            assert not y.requires_grad
            results.append(y)
    same_bits(results[:-1], results[1:])


def test_the_table_of_cast_weights_is_left_alone() -> None:
    """F14: an operation of torch's beside the call, in one region, gets its own gradient, whichever comes first."""
    function = STYLES["ctx"](cast_inputs=torch.bfloat16)
    x, w = leaf(4, 5).detach(), leaf(5, 3)
    with autocast():
        alone = torch.autograd.grad((x @ w).float().sum(), w)
    for first in (True, False):
        with autocast():
            before = function.apply(x, w, 1.0) if first else None
            beside = x @ w
            ours = function.apply(x, w, 1.0) if before is None else before
            same_bits(torch.autograd.grad(beside.float().sum(), w, retain_graph=True), alone)
            ours.float().sum().backward()
            same_bits(torch.autograd.grad((x @ w).float().sum(), w), alone)
