"""F5: what forward returns: containers of tensors, and what else an author may return."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

import pullback
from tests.function.kinds import leaf


def test_a_flat_argument_and_a_nest_returned() -> None:
    """F5: the first call that returns a nest runs forward once, and keeps all that it has put on ctx."""
    runs: list[int] = []

    class Split(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            runs.append(1)
            largest = x.argmax()
            ctx.mark_non_differentiable(largest)
            ctx.save_for_backward(x, x.exp())
            ctx.set_materialize_grads(False)
            ctx.scale = 2
            return {"exp": x.exp() * 2, "largest": largest, "none": None}

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g)
            _, exp = ctx.saved_tensors
            return None if g["exp"] is None else g["exp"] * exp * ctx.scale

    for call in range(3):
        seen: list[Any] = []
        runs.clear()
        x = leaf(3, seed=call)
        out = Split.apply(x)
        assert runs == [1]
        assert out["exp"].grad_fn.name() == "SplitBackward"
        assert not out["largest"].requires_grad
        (first,) = torch.autograd.grad(out["exp"].sum(), x, create_graph=True)
        torch.testing.assert_close(first, 2 * x.exp(), rtol=1e-12, atol=0)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 2 * x.exp(), rtol=1e-12, atol=0)
        assert set(seen[0]) == {"exp", "largest", "none"}
        assert seen[0]["none"] is None


def test_a_result_that_becomes_a_nest_later() -> None:
    """F5: what a call returns decides for this call, whatever the calls before it returned."""

    class Chosen(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, how: str) -> Any:
            ctx.how = how
            y = x * 3
            return {"tensor": y, "list": [y], "tuple": (y, y + 1), "inner": (y, [y + 1])}[how]

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            g = gs[0][0] if ctx.how == "list" else gs[0]
            if ctx.how == "tuple":
                g = g + gs[1]
            if ctx.how == "inner":
                g = g + gs[1][0]
            return g * 3, None

    for order in (["tensor", "list", "tuple", "inner", "tensor"], ["tuple", "inner", "tuple"], ["inner", "tensor"]):
        made: Any = type("Chosen", (Chosen,), {})
        for how in order:
            x = leaf(3)
            leaves = torch.utils._pytree.tree_leaves(made.apply(x, how))
            (gx,) = torch.autograd.grad([y.sum() for y in leaves], x)
            assert gx.tolist() == [3.0 * len(leaves)] * 3, how


def test_containers_that_are_empty_at_first() -> None:
    """F5: what a call returns is looked at again where it may hold tensors this time."""
    body = {
        "forward": staticmethod(lambda ctx, x, n: (x * 2, [x * 3] * n)),
        "backward": staticmethod(lambda ctx, g, more: (g * 2 + sum(more) * 3, None)),
    }
    for call in (lambda made, x, n: made.apply(x, n), lambda made, x, n: made.apply(x, n=n)):
        made: Any = type("Some", (pullback.Function,), body)
        for n in (0, 0, 1, 2, 0):
            x = leaf(3)
            y, more = call(made, x, n)
            assert len(more) == n
            if n == 1:
                (gx,) = torch.autograd.grad(y.sum() + more[0].sum(), x)
                assert gx.tolist() == [5, 5, 5]


def test_the_result_is_what_forward_returned() -> None:
    """F5: containers of any class come back themselves, not as copies."""

    class Mine(list[Any]):
        pass

    kept: list[Any] = []

    class Returns(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            kept.append([x * 2, Mine([1])])
            return kept[-1]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g[0] * 2

    for _ in range(2):
        out = Returns.apply(leaf(3))
        assert out is kept[-1]
        assert out[0].requires_grad


def test_an_argument_in_the_result() -> None:
    """F5: a leaf may be returned as it is, or changed in place and marked dirty."""

    class Through(pullback.Function):
        @staticmethod
        def forward(ctx: Any, n: Any) -> Any:
            ctx.mark_dirty(n["dirty"])
            return {"same": n["same"], "dirty": n["dirty"].mul_(3)}

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ({"same": g["same"], "dirty": g["dirty"] * 3},)

    for _ in range(2):
        x, y = leaf(3), leaf(3)
        given = {"same": x * 1, "dirty": y * 1}
        out = Through.apply(given)
        assert out["dirty"] is given["dirty"]
        gx, gy = torch.autograd.grad(out["same"].sum() + out["dirty"].sum(), (x, y))
        assert gx.tolist() == [1, 1, 1]
        assert gy.tolist() == [3, 3, 3]


def test_undefined_gradients_of_leaves() -> None:
    """F5: an output leaf that nobody used comes as zeros, or as None unless gradients are materialised."""
    for materialize in (True, False):
        seen: list[Any] = []

        class Two(pullback.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                ctx.set_materialize_grads(materialize)  # noqa: B023  # called within the turn
                return {"a": x * 2, "b": x * 3}

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.append(g["b"])  # noqa: B023  # called within the turn
                return g["a"] * 2

        for _ in range(2):
            x = leaf(3)
            torch.autograd.grad(Two.apply(x)["a"].sum(), x)
        assert [None if g is None else g.tolist() for g in seen] == [[0, 0, 0] if materialize else None] * 2


def test_a_subclass_of_tuple_that_no_registry_knows() -> None:
    """F1: PyTorch takes it for a tuple of outputs, and so it stays."""

    class Odd(tuple[Any, ...]):
        __slots__ = ()

    for base in (torch.autograd.Function, pullback.Function):
        body = {"forward": staticmethod(lambda ctx, x: Odd((x * 2, x * 3)))}
        made: Any = type("Returns", (base,), {**body, "backward": staticmethod(lambda ctx, g, h: g * 2 + h * 3)})
        x = leaf(3)
        out = made.apply(x)
        assert type(out) is tuple
        assert torch.autograd.grad(out[0].sum() + out[1].sum(), x)[0].tolist() == [5, 5, 5]


def test_a_named_tuple_is_returned_as_one_with_and_without_gradients() -> None:
    """F5: attributes of a returned named tuple are there in no-grad mode too."""
    Out = namedtuple("Out", "y z")
    body = {"forward": staticmethod(lambda ctx, x: Out(x * 2, x * 3))}
    made: Any = type("Returns", (pullback.Function,), {**body, "backward": staticmethod(lambda ctx, g, h: g * 2 + h)})
    x = leaf(3)
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(made.apply(x).z, x * 3)
        assert torch.equal(made.apply(x.detach()).y, x * 2)
        assert torch.autograd.grad(made.apply(x).y.sum(), x)[0].tolist() == [2, 2, 2]
