"""F5: containers of tensors, as arguments and as results, have their own gradients, to second order."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.call.nests import KINDS, SAVING, WAYS, Box, Pair, formula, function, second_order
from tests.call.products import STYLES
from tests.function.kinds import leaf
from tests.torch_features import needs_boxes

LIST, DICT, NAMED, TUPLE = (KINDS[name] for name in ("list", "dict", "named tuple", "tuple"))


def agrees(made: Any, kind: Any, returned: Any, calls: int = 3, shape: tuple[int, ...] = (3,)) -> None:
    """Compare values and derivatives with the formula's, at other numbers in each call."""
    for seed in range(calls):
        a, b = leaf(*shape, seed=seed), leaf(*shape, seed=seed + 9)
        k = 2.0 + seed
        result = made.apply(kind.make(a, b), k)
        expected = formula(kind, returned, kind.make(a, b), k)
        assert type(result) is type(expected)
        pairs = [*zip(returned.take(result), returned.take(expected), strict=True)]
        got = second_order(lambda: returned.take(made.apply(kind.make(a, b), k)), a, b)  # noqa: B023  # called at once
        due = second_order(lambda: returned.take(formula(kind, returned, kind.make(a, b), k)), a, b)  # noqa: B023  # called at once
        for one, other in (*pairs, *zip(got, due, strict=True)):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("saving", SAVING)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_argument(name: str, saving: str, style: str) -> None:
    """F5: whatever forward keeps of them, the leaves of a container get their gradients and second derivatives."""
    agrees(function(KINDS[name], TUPLE, style=style, saving=saving), KINDS[name], TUPLE)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_result(name: str, way: str, style: str) -> None:
    """F5: what forward returns comes back as the same kind of container, and backward gets cotangents in it."""
    saving = "an intermediate" if way == "by name" else "arguments"
    agrees(function(DICT, KINDS[name], style=style, way=way, saving=saving), DICT, KINDS[name])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    """F5: 0-d and empty tensors in containers are leaves like others."""
    agrees(function(LIST, NAMED), LIST, NAMED, calls=2, shape=shape)


def test_a_container_without_a_gradient_is_the_same_object() -> None:
    """F5: it goes through as it is, in no-grad mode too, and so does what is returned where no gradient is due."""
    seen: list[Any] = []

    class Looks(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, n: Any) -> Any:
            seen.append(n)
            return [x * 2, n]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g[0] * 2, None

    x, plain = leaf(3), [torch.ones(3), {"sizes": [2, 3]}]
    for value in (plain, [1, 2], {"a": (3,)}, Pair(1, None), torch.Size([2]), Box(1, 2), []):
        out = Looks.apply(x, value)
        assert seen[-1] is value
        assert out[1] is value or value is plain
        assert not plain[0].requires_grad
        assert torch.equal(torch.autograd.grad(out[0].sum(), x)[0], torch.full((3,), 2.0, dtype=x.dtype))
    tracked = [x, x]
    with torch.no_grad():
        out = Looks.apply(x, tracked)
    assert seen[-1] is tracked
    assert out[1] is tracked
    assert Looks.apply(x.detach(), plain)[1] is plain


def test_forward_gets_the_callers_own_container() -> None:
    """F1: what forward writes to a container is seen outside, and its leaves are the caller's tensors."""

    class Appends(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, cache: list[Any]) -> Tensor:
            cache.append(x + 1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2, None

    x, y = leaf(3), leaf(3)
    cache = [y]
    Appends.apply(x, cache).sum().backward()
    assert cache[0] is y
    assert torch.equal(cache[1], x + 1)
    assert y.grad is None


def test_a_list_that_contains_itself() -> None:
    """F1: no nest, and no endless loop: it is passed on as it is."""
    x, odd = leaf(3), [1]
    odd.append(odd)
    made = function(LIST, TUPLE, nondiff_argnames=("k",))
    a, b = made.apply([x, x], 2.0)
    assert a.requires_grad
    assert b.requires_grad

    class Passes(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, n: Any) -> Tensor:
            assert n is odd
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2, None

    assert torch.autograd.grad(Passes.apply(x, odd).sum(), x)[0].tolist() == [2, 2, 2]


class Mixed(pullback.Function):
    """y = x Σ w_i, some of the weights fixed, with a frozen list in the list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ws: Any) -> Tensor:
        ctx.save_for_backward(x, *ws[0], *ws[1])
        ctx.flags = ctx.needs_input_grad
        return x * sum([*ws[0], *ws[1]])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        assert ctx.flags == ctx.needs_input_grad
        x, *ws = ctx.saved_tensors
        return g * sum(ws), ([g * x, g * x], [g * x])


@pytest.mark.parametrize("frozen", [(), (0,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_leaves_that_need_no_gradient(frozen: tuple[int, ...]) -> None:
    """F5: gradients of what needs none may be returned in the same nest, and go nowhere."""
    for seed in range(2):
        x, *ws = (leaf(3, seed=seed + k) for k in range(4))
        for index in frozen:
            ws[index].requires_grad_(False)
        wanted = [w for w in ws if w.requires_grad]
        y = Mixed.apply(x, (ws[:2], ws[2:]))
        gradients = torch.autograd.grad(y.sum(), [x, *wanted], create_graph=True)
        assert torch.allclose(gradients[0], sum(ws))
        assert all(torch.equal(gradient, x) for gradient in gradients[1:])
        if wanted:
            (second,) = torch.autograd.grad(gradients[0].sum(), wanted[:1])
            assert second.tolist() == [1, 1, 1]


def test_flags_in_forward_and_backward() -> None:
    """F5: needs_input_grad has one flag for each argument, set if a leaf of it needs a gradient."""
    seen: list[Any] = []

    class Flags(pullback.Function):
        @staticmethod
        def forward(ctx: Any, n: Any, m: Any, k: float) -> Tensor:
            seen.append(ctx.needs_input_grad)
            return n[0] * m[0]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            seen.append(ctx.needs_input_grad)
            return None, None, None

    x, fixed = leaf(3), torch.ones(3, dtype=torch.float64)
    for create_graph in (False, True):
        seen.clear()
        torch.autograd.grad(
            Flags.apply((fixed, x), [fixed], 2.0).sum(), x, allow_unused=True, create_graph=create_graph
        )
        assert set(seen) == {(True, False, False)}


def test_the_same_tensor_in_two_places() -> None:
    """F5: what is passed twice gets the sum of its gradients."""
    a = leaf(3)
    made = function(LIST, TUPLE)
    one, two = made.apply([a, a], 2.0)
    (gradient,) = torch.autograd.grad((one + two).sum(), a)
    torch.testing.assert_close(gradient, 4 * a + 4 * a**3, rtol=1e-12, atol=0)


def test_lists_of_every_length() -> None:
    """F5: a class may be called with lists of any length; what is kept for each length is bounded."""

    class Sum(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor]) -> Tensor:
            ctx.n = len(xs)
            return torch.stack(xs).sum(0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return [g] * ctx.n

    made: Any = Sum
    for count in (*range(1, 150), 3):
        xs = [leaf(2, seed=k) for k in range(count)]
        gradients = torch.autograd.grad(made.apply(xs).sum(), xs)
        assert all(gradient.tolist() == [1, 1] for gradient in gradients)
    assert len(made._backward_cls.pullback_plan.leafwise) <= 128


def test_nothing_outlives_the_graph() -> None:
    """F15: arguments, results and containers die with the graph, without the garbage collector."""
    made = function(DICT, LIST, saving="an intermediate")
    made.apply({"a": leaf(3), "b": leaf(3)}, 2.0)
    gc.collect()
    gc.disable()
    try:
        a, b = leaf(3), leaf(3)
        out = made.apply({"a": a * 1, "b": b * 1}, 2.0)
        alive = weakref.ref(out[0])
        node = weakref.ref(out[0].grad_fn)
        out[0].sum().backward()
        del out
        assert alive() is None
        assert node() is None
    finally:
        gc.enable()


def test_methods_may_be_replaced() -> None:
    """F1: a forward with other parameters, and another backward, are the ones that run from then on."""
    made = function(LIST, TUPLE)
    x = leaf(3)
    made.apply([x, x], 2.0)
    made.forward = staticmethod(lambda ctx, n: n[0] * 4 + n[1])
    made.backward = staticmethod(lambda ctx, g: [g * 4, g])
    y = made.apply([x, x])
    torch.testing.assert_close(y, x * 5, rtol=1e-15, atol=0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [5, 5, 5]


def test_the_class_stays_what_it_is() -> None:
    """F15: it is pickled by its name, and its subclasses are told of those alone that somebody wrote."""
    told: list[str] = []

    class Tells(pullback.Function):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            told.append(cls.__name__)
            super().__init_subclass__(**kwargs)

    class Told(Tells):
        @staticmethod
        def forward(ctx: Any, n: Any) -> Tensor:
            return n[0] * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return [g * 2]

    assert Told.apply([leaf(3)]).requires_grad
    assert told == ["Told"]
    assert pickle.loads(pickle.dumps(Mixed)) is Mixed


def test_classmethods_and_vjp() -> None:
    """F1: a class method as forward and a vjp as backward work with nests as they do without."""

    class Odd(pullback.Function):
        scale = 3

        @classmethod
        def forward(cls, ctx: Any, n: Any) -> Any:
            return [n["x"] * cls.scale]

        @classmethod
        def vjp(cls, ctx: Any, g: Any) -> Any:
            return ({"x": g[0] * cls.scale},)

    for _ in range(2):
        x = leaf(3)
        assert torch.autograd.grad(Odd.apply({"x": x})[0].sum(), x)[0].tolist() == [3, 3, 3]


@needs_boxes
def test_boxed_gradients() -> None:
    """F1: a boxed backward gets one list with one entry for each output, nests among them."""

    class Boxed(pullback.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, n: Any) -> Any:
            return n[0] * 2, {"b": n[1] * 3}

        @staticmethod
        def backward(ctx: Any, grads: list[Any]) -> Any:
            h = grads.pop()
            g = grads.pop()
            return [g * 2, h["b"] * 3]

    for create_graph in (False, True):
        a, b = leaf(3), leaf(3)
        y, z = Boxed.apply([a, b])
        ga, gb = torch.autograd.grad(y.sum() + z["b"].sum(), (a, b), create_graph=create_graph)
        assert ga.tolist() == [2, 2, 2]
        assert gb.tolist() == [3, 3, 3]
