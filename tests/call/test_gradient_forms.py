"""F6: gradients by position or by name, in every form that backward may return them in."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError
from tests.call.products import METHODS, STYLES, Returned, gradients, product
from tests.function.kinds import leaf


class ByField(NamedTuple):
    """A named tuple whose fields are in another order than forward's arguments."""

    w: Any
    x: Any
    k: Any


class Subclass(tuple[Any, ...]):
    """A tuple by another name."""

    __slots__ = ()


Three = namedtuple("Three", "x w k")

RIGHT: dict[str, Returned] = {
    "a tuple": lambda gx, gw: (gx, gw, None),
    "a tuple with Nones at its end": lambda gx, gw: (gx, gw, None, None, None),
    "a named tuple": lambda gx, gw: Three(gx, gw, None),
    "a named tuple, by position": lambda gx, gw: ByField(gx, gw, None),
    "a subclass of tuple": lambda gx, gw: Subclass((gx, gw, None)),
    "a parameter among them": lambda gx, gw: (torch.nn.Parameter(gx, requires_grad=False), gw, None),
    "a dict": lambda gx, gw: {"x": gx, "w": gw},
    "a dict in another order": lambda gx, gw: {"k": None, "w": gw, "x": gx},
    "an ordered dict": lambda gx, gw: OrderedDict(w=gw, x=gx),
    "a dict with a default": lambda gx, gw: defaultdict(lambda: None, x=gx, w=gw),
    "a dict by comprehension": lambda gx, gw: dict(zip("xw", (gx, gw), strict=True)),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("form", RIGHT)
def test_forms_of_gradients(form: str, style: str, method: str, create_graph: bool) -> None:
    """F6: every form gives each argument its own gradient."""
    function = product(RIGHT[form], style=style, method=method)
    for seed in range(2):
        x, w = leaf(3, seed=seed), leaf(3, seed=seed + 5)
        gx, gw = gradients(function.apply(x, w, 2), x, w, create_graph=create_graph)
        assert gx is not None
        assert gw is not None
        assert gx.tolist() == pytest.approx((2 * w).tolist(), rel=1e-15)
        assert gw.tolist() == pytest.approx((2 * x).tolist(), rel=1e-15)


@pytest.mark.parametrize("returned", [lambda g: g, lambda g: (g,), lambda g: {"x": g}, lambda g: (g, None)])
def test_a_single_argument(returned: Any) -> None:
    """F6: with one argument, a bare tensor will do."""

    class Triple(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return returned(g * 3)

    x = leaf(3)
    (gx,) = gradients(Triple.apply(x), x)
    assert gx is not None
    assert gx.tolist() == [3, 3, 3]


@pytest.mark.parametrize("returned", [lambda gx, gw: (gx, None, None), lambda gx, gw: {"x": gx, "w": None}])
def test_none_on_purpose(returned: Returned) -> None:
    """F6: None stands for no gradient, in a tuple and in a dict."""
    x, w = leaf(3), leaf(3)
    gx, gw = gradients(product(returned).apply(x, w, 2), x, w)
    assert gx is not None
    assert gw is None


def test_an_argument_that_needs_no_gradient_may_be_left_out() -> None:
    """F6: in a dict only arguments that need a gradient must be there."""
    x, w = leaf(3), leaf(3).detach()
    (gx,) = gradients(product(lambda gx, gw: {"x": gx}).apply(x, w), x)
    assert gx is not None
    assert torch.equal(gx, w * 3)


def test_the_gradient_of_an_argument_that_was_not_passed_is_ignored() -> None:
    """F6: a dict may name a parameter that this call left to its default."""

    class Shift(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: Any = 1.0) -> Tensor:
            return x + by

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return {"x": g, "by": g}

    x, by = leaf(3), leaf(3)
    (alone,) = gradients(Shift.apply(x), x)
    assert alone is not None
    assert all(gradient is not None for gradient in gradients(Shift.apply(x, by), x, by))


def test_names_of_variadic_arguments() -> None:
    """F6: arguments of *xs go by xs[0], xs[1] and so on."""

    class Dot(pullback.Function):
        @staticmethod
        def forward(ctx: Any, *xs: Tensor) -> Tensor:
            ctx.save_for_backward(*xs)
            return xs[0] * xs[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            first, second = ctx.saved_tensors
            return {"xs[1]": g * first, "xs[0]": g * second}

    x, w = leaf(3, seed=1), leaf(3, seed=2)
    gx, gw = gradients(Dot.apply(x, w), x, w)
    assert gx is not None
    assert gw is not None
    assert torch.equal(gx, w)
    assert torch.equal(gw, x)


MISFITS: dict[str, tuple[Returned, str, list[str]]] = {
    "an unknown name": (
        lambda gx, gw: {"x": gx, "w": gw, "weight": None},
        "PB218",
        [
            "PB218 Product.backward returned a gradient for 'weight', which is no argument of forward.",
            "  expected: names among x, w, k",
            "  got: 'x', 'w', 'weight'",
            "  remedy: Use the names of forward's parameters, and write None on purpose where there is no gradient.",
        ],
    ),
    "numbers for names": (
        lambda gx, gw: {0: gx, 1: gw},
        "PB218",
        ["PB218 Product.backward returned a gradient for 0, which is no argument of forward.", "  got: 0, 1"],
    ),
    "a missing name": (
        lambda gx, gw: {"x": gx},
        "PB218",
        [
            "PB218 Product.backward returned no entry for w, which needs a gradient.",
            "  expected: an entry for each of x, w",
            "  got: 'x'",
            '  remedy: Add "w": its gradient, or None on purpose.',
        ],
    ),
    "an empty dict": (
        lambda gx, gw: {},
        "PB218",
        ["PB218 Product.backward returned no entry for x, which needs a gradient.", "  got: an empty dict"],
    ),
    "a number in a dict": (
        lambda gx, gw: {"x": gx, "w": 3.0},
        "PB202",
        [
            "PB202 Product.backward returned a value of type float as the gradient of w.",
            "  expected: a tensor or None",
            "  got: float",
            "  remedy: Return a tensor, or None where there is no gradient.",
        ],
    ),
    "a list": (
        lambda gx, gw: [gx, gw, None],
        "PB202",
        [
            "PB202 Product.backward returned a value of type list as its gradients.",
            "  expected: a tuple with one entry for each of (x, w, k), or a dict by argument name",
            "  got: list",
            "  remedy: Return a tuple: (x, w, k), each a tensor or None.",
        ],
    ),
    "a generator": (
        lambda gx, gw: (gradient for gradient in (gx, gw, None)),
        "PB202",
        ["PB202 Product.backward returned a value of type generator as its gradients."],
    ),
    "a mapping that is no dict": (
        lambda gx, gw: types.MappingProxyType({"x": gx, "w": gw}),
        "PB202",
        ["PB202 Product.backward returned a value of type mappingproxy as its gradients."],
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("misfit", MISFITS)
def test_misfits(misfit: str, style: str, create_graph: bool) -> None:
    """F6: what can't be told apart by position or name is a GradientError that names the argument."""
    returned, code, lines = MISFITS[misfit]
    x, w = leaf(3), leaf(3)
    y = product(returned, style=style).apply(x, w, 2)
    with pytest.raises(GradientError, match=code) as caught:
        gradients(y, x, w, create_graph=create_graph)
    assert caught.value.rule == code
    assert isinstance(caught.value, RuntimeError)
    assert [line for line in lines if line not in str(caught.value).splitlines()] == []


@pytest.mark.parametrize("declared", ["w", ("w",), ["w", "k"]])
@pytest.mark.parametrize(
    "returned",
    [lambda gx, gw: (gx, None, None), lambda gx, gw: {"x": gx}, lambda gx, gw: {"x": gx, "w": None}],
    ids=["a tuple", "left out", "None by name"],
)
def test_arguments_declared_without_gradient(returned: Returned, declared: Any) -> None:
    """F6: an argument in nondiff_argnames gets no gradient, though it is a tensor that requires grad."""
    x, w = leaf(3), leaf(3)
    gx, gw = gradients(product(returned, nondiff_argnames=declared).apply(x, w), x, w)
    assert gx is not None
    assert gw is None


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize(
    "returned", [lambda gx, gw: (gx, gw, None), lambda gx, gw: {"x": gx, "w": gw}], ids=["a tuple", "a dict"]
)
def test_a_gradient_against_the_declaration(returned: Returned, create_graph: bool) -> None:
    """F6: PB222 where backward returns a gradient for an argument that was declared to have none."""
    x, w = leaf(3), leaf(3)
    y = product(returned, nondiff_argnames=("w",)).apply(x, w)
    with pytest.raises(GradientError, match="PB222") as caught:
        gradients(y, x, w, create_graph=create_graph)
    assert str(caught.value).splitlines() == [
        "PB222 Product.backward returned a gradient for w, which nondiff_argnames declares to have none.",
        "  expected: None",
        "  got: Tensor(3,) float64",
        "  remedy: Remove the argument from nondiff_argnames, or return None for it.",
    ]


def test_variadic_arguments_declared_without_gradient() -> None:
    """F6: the name of a variadic parameter declares all that it takes."""

    class First(pullback.Function):
        nondiff_argnames = ("rest",)

        @staticmethod
        def forward(ctx: Any, x: Tensor, *rest: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g * 2, None, g) if wrong else {"x": g * 2}

    x, y, z = leaf(3), leaf(3), leaf(3)
    wrong = False
    assert [gradient is None for gradient in gradients(First.apply(x, y, z), x, y, z)] == [False, True, True]
    wrong = True
    with pytest.raises(GradientError, match=r"PB222 First\.backward returned a gradient for rest\[1\]"):
        gradients(First.apply(x, y, z), x, y, z)
