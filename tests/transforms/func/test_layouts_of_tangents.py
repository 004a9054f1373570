"""F12: dual numbers through a Function whose outputs, arguments or tangents lie in memory in whatever way.

PyTorch keeps a tangent in the layout of its primal. What it can't bring into that layout ends in an assertion of its
own, so each layout is tried where a Function gives or takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain

Map = Callable[[Tensor], Tensor]

LAYOUTS: dict[str, Map] = {
    "permuted": lambda y: y.t().contiguous().t(),
    "permuted, no view": lambda y: torch.empty_like(y.t()).t().copy_(y),
    "viewed": lambda y: y.clone().view(-1),
    "transposed": lambda y: y.clone()[:, None].transpose(0, 2),
    "flipped": lambda y: y.flip(0).t(),
    "a slice": lambda y: torch.stack([y, y], -1)[..., 0],
    "a later slice": lambda y: torch.cat([y, y])[y.shape[0] :],
    "expanded": lambda y: y.sum(0).expand_as(y),
    "expanded to as many": lambda y: y.sum(0)[:1].expand(y.shape[1]),
    "overlapping": lambda y: y.clone().unfold(1, 2, 1),
    "overlapping, as many": lambda y: y.reshape(-1)[:6].clone().as_strided((2, 3), (1, 2)),
    "one number": lambda y: y.clone()[0, 0],
    "one row": lambda y: y[:1].t().contiguous().t(),
    "no elements": lambda y: y[:, :0].t().contiguous().t(),
    "no elements of many": lambda y: y.clone()[:0],
}

GIVEN: dict[str, Map] = {
    "contiguous": lambda x: x,
    "permuted": LAYOUTS["permuted"],
    "a slice": lambda x: torch.stack([x, x], 1)[:, 0],
    "expanded": lambda x: x[:1].expand_as(x),
}

UNDER = ("dual", "jvp", "dual of vmap", "dual of grad", "backward of dual", "grad of dual")


def derived(layout: Map) -> Any:
    """The sine in a layout, forward mode derived from backward."""

    class Derived(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return layout(x.sin())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.func.vjp(lambda y: layout(1 * y), x)[1](g)[0] * x.cos()

    return Derived


def by_jvp(layout: Map) -> Any:
    """The same with a jvp that returns contiguous tangents."""

    class ByJvp(derived(layout)):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return layout(x.sin())

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return layout(ctx.saved_tensors[0].cos() * t).contiguous()

    return ByJvp


def by_reference(layout: Map) -> Any:
    """The same with a backward that no forward mode can be derived from, and a reference."""

    class ByReference(derived(layout)):
        nonlinear_backward = True

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return layout(x.sin())

    return ByReference


def beside_another(layout: Map) -> Any:
    """Two outputs on one memory, in a container; what is saved is a view of it too."""

    class Beside(pullback.Function):
        @staticmethod
        def forward(ctx: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
            y = given["x"].sin()
            ctx.save_for_backward(given["x"], y.t())
            return {"laid out": layout(y), "itself": y}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
            x, _ = ctx.saved_tensors
            one = torch.func.vjp(lambda y: layout(1 * y), x)[1](grads["laid out"])[0]
            return {"given": {"x": (one + grads["itself"]) * x.cos()}}

    class First:
        @staticmethod
        def apply(x: Tensor) -> Tensor:
            found = Beside.apply({"x": x})
            return found["laid out"] * (1 + found["itself"].sum())

    return First


def of_sine(layout: Map) -> Map:
    """What the Functions compute, in plain PyTorch."""
    return lambda x: layout(x.sin())


def of_both(layout: Map) -> Map:
    """What `beside_another` computes."""
    return lambda x: layout(x.sin()) * (1 + x.sin().sum())


MADE: dict[str, tuple[Callable[[Map], Any], Callable[[Map], Map]]] = {
    "derived": (derived, of_sine),
    "jvp": (by_jvp, of_sine),
    "reference": (by_reference, of_sine),
    "container": (beside_another, of_both),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", MADE)
def test_outputs_of_every_layout(made: str, layout: str, draw: Draw) -> None:
    """Tangents are the formula's however forward lays out what it returns, and whatever layout the tangent comes in."""
    make, plain = MADE[made]
    # PyTorch's own vmap can't write a batch into a tensor that has none; a nonlinear backward has no second derivative.
    compositions = list(UNDER[:3] if made == "reference" else UNDER)
    if layout == "permuted, no view":
        compositions.remove("dual of vmap")
    assert_as_plain(make(LAYOUTS[layout]).apply, plain(LAYOUTS[layout]), draw.constant(4, 6), compositions)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("tangent", GIVEN)
@pytest.mark.parametrize("primal", ["contiguous", "permuted", "a slice"])
@pytest.mark.parametrize("made", MADE)
def test_arguments_of_every_layout(made: str, primal: str, tangent: str, requires_grad: bool, draw: Draw) -> None:
    """Arguments that are slices or permuted, with tangents that lie otherwise, give the formula's tangent."""
    x = GIVEN[primal](draw.constant(4, 6)).detach()
    direction = GIVEN[tangent](draw.constant(4, 6))
    make, plain = MADE[made]
    expected = torch.func.jvp(plain(LAYOUTS["flipped"]), (x,), (direction,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.requires_grad_(requires_grad), direction)
        got = forward_ad.unpack_dual(make(LAYOUTS["flipped"]).apply(dual))
        torch.testing.assert_close(tuple(got), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", GIVEN)
def test_a_forward_that_writes(given: str, draw: Draw) -> None:
    """What forward writes in place goes to the tangent of a slice, and of what it is a slice of."""

    class Triple(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * g

    x, t = draw.constant(4, 6), draw.constant(4, 6)
    with forward_ad.dual_level():
        whole = forward_ad.make_dual(torch.stack([x, x], 1), torch.stack([GIVEN[given](t)] * 2, 1))
        Triple.apply(whole[:, 0])
        primal, tangent = forward_ad.unpack_dual(whole)
        torch.testing.assert_close(primal, torch.stack([3 * x, x], 1))
        torch.testing.assert_close(tangent, torch.stack([3 * GIVEN[given](t), GIVEN[given](t)], 1))


COMPLEX: dict[str, Map] = {
    "conjugate": lambda z: (2 * z).conj(),
    "negative": lambda z: (2 * z).conj().imag,
    "real part": lambda z: (2 * z).real,
    "as real": lambda z: torch.view_as_real(2 * z),
    "permuted": lambda z: (2 * z).t().contiguous().t(),
}


@pytest.mark.parametrize("has_jvp", [False, True])
@pytest.mark.parametrize("layout", COMPLEX)
def test_complex_outputs(layout: str, has_jvp: bool, draw: Draw) -> None:
    """Outputs that PyTorch conjugates or negates lazily, and views as real numbers, have the formula's tangent."""
    linear = COMPLEX[layout]

    class Linear(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            return linear(z)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            if layout == "conjugate":
                return 2 * g.conj()
            zero = torch.zeros(3, 2, dtype=torch.complex128)
            return torch.func.vjp(linear, zero)[1](g)[0]

    class ByJvp(Linear):
        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return linear(t).resolve_conj().resolve_neg().contiguous()

    function = ByJvp if has_jvp else Linear
    z, t = draw.constant(3, 2, dtype=torch.complex128), draw.constant(3, 2, dtype=torch.complex128)
    expected = linear(z), linear(t)
    torch.testing.assert_close(torch.func.jvp(function.apply, (z,), (t,)), expected)
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(function.apply(forward_ad.make_dual(z, t.t().contiguous().t())))
        torch.testing.assert_close(tuple(got), expected)
