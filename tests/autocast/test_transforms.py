"""F12, F14: `cast_inputs` inside of torch.func and in forward mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import pullback
from tests.autocast.functions import STYLES, Seen, autocast, leaf, plain

in_both_styles = pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)


def cast(x: Tensor, w: Tensor, k: float) -> Tensor:
    """Compute the operation in float32."""
    return plain(x.float(), w.float(), k)


TRANSFORMS: dict[str, Any] = {
    "grad": lambda f: grad(lambda x, w: f(x, w).sum(), argnums=(0, 1)),
    "vjp": lambda f: lambda x, w: vjp(f, x, w)[1](torch.ones(4, 3)),
    "jvp": lambda f: lambda x, w: jvp(f, (x, w), (torch.ones_like(x), torch.ones_like(w))),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(lambda x, w: f(x, w).sum()),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(lambda x, w: f(x, w).sum())),
    "grad of grad": lambda f: grad(lambda x, w: grad(lambda x: f(x, w).sum())(x).float().sum()),
    "vmap": lambda f: lambda x, w: vmap(f, in_dims=(0, None))(torch.stack([x, 2 * x]), w),
    "vmap of grad": lambda f: lambda x, w: vmap(grad(lambda x, w: f(x, w).sum()), (0, None))(torch.stack([x, -x]), w),
    "grad of vmap": lambda f: grad(lambda x, w: vmap(f, (0, None))(torch.stack([x, -x]), w).square().sum()),
}


@in_both_styles
@pytest.mark.parametrize("outside", [True, False], ids=["autocast around", "autocast within"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(write: Any, transform: str, outside: bool) -> None:
    """F14: each transform gives what it gives of the plain operation with the casts in it, in the same dtypes."""
    seen: Seen = []
    function = write(seen, cast_inputs=torch.float32)

    def ours(x: Tensor, w: Tensor) -> Any:
        with autocast(enabled=True) if not outside else autocast(enabled=torch.is_autocast_enabled("cpu")):
            return function.apply(x, w, 2.0)

    def theirs(x: Tensor, w: Tensor) -> Any:
        return cast(x, w, 2.0)

    x, w = leaf(4, 5, dtype=torch.bfloat16).detach(), leaf(5, 3).detach()
    with autocast(enabled=outside):
        found = TRANSFORMS[transform](ours)(x, w)
    due = TRANSFORMS[transform](theirs)(x, w)  # its own backward would run under autocast there
    found, due = ((value,) if isinstance(value, Tensor) else value for value in (found, due))
    for one, other in zip(found, due, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)
    assert not any(on for _, on, _ in seen)
    assert {dtype for name, _, dtype in seen if name == "forward"} == {torch.float32}


@in_both_styles
def test_dual_numbers(write: Any) -> None:
    """F14: a dual number is cast with its tangent, whose own dtype the result's tangent doesn't take."""
    function = write(cast_inputs=torch.float32)
    x, w = leaf(4, 5, dtype=torch.bfloat16).detach(), leaf(5, 3).detach()
    tangents = []
    with forward_ad.dual_level():
        for enabled, call in ((True, function.apply), (False, cast)):
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            with autocast(enabled=enabled):
                tangent = forward_ad.unpack_dual(call(dual, w, 2.0)).tangent
            assert tangent is not None
            tangents.append(tangent)
    assert tangents[0].dtype == torch.float32
    torch.testing.assert_close(*tangents)


def test_an_authors_jvp() -> None:
    """F14: jvp gets tangents in the dtype of the cast arguments, and runs with autocast off."""
    seen: Seen = []

    class Square(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            seen.append(("jvp", torch.is_autocast_enabled("cpu"), t.dtype))
            return 2 * ctx.saved_tensors[0] * t

    x = leaf(3, dtype=torch.bfloat16).detach()
    with autocast():
        value, tangent = jvp(Square.apply, (x,), (torch.ones_like(x),))
    assert value.dtype == tangent.dtype == torch.float32
    torch.testing.assert_close(tangent, 2 * x.float())
    assert {entry[1:] for entry in seen} == {(False, torch.float32)}


def test_an_authors_vmap() -> None:
    """F14: vmap gets batches that are cast, with autocast off, when it is run again for a derivative, too."""
    seen: Seen = []

    class Square(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

        @staticmethod
        def vmap(info: Any, dims: Any, x: Tensor) -> Any:
            seen.append(("vmap", torch.is_autocast_enabled("cpu"), x.dtype))
            return Square.apply(x), dims[0]

    x = leaf(2, 3, dtype=torch.bfloat16).detach()
    with autocast():
        gradient = grad(lambda x: vmap(Square.apply)(x).sum())(x)
    torch.testing.assert_close(gradient, 2 * x)
    assert {entry[1:] for entry in seen} == {(False, torch.float32)}


def test_containers() -> None:
    """F14: the tensors of a container are cast inside of torch.func."""

    class Product(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, pair: list[Tensor], *, k: float) -> dict[str, Tensor]:
            assert {tensor.dtype for tensor in pair} == {torch.float32}
            ctx.save_for_backward(*pair)
            ctx.k = k
            return {"product": pair[0] * pair[1] * k}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            x, y = ctx.saved_tensors
            g = grads["product"] * ctx.k
            return [g * y, g * x], None

    x, y = leaf(3, dtype=torch.bfloat16).detach(), leaf(3, seed=1).detach()
    for _ in range(2):
        with autocast():
            found = grad(lambda x: Product.apply([x, y], k=2.0)["product"].sum())(x)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, (2 * y).bfloat16())
