"""F13: what an author may do within a method, or to a class, gives in compiled code what it gives in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

import pullback
from tests.compiled.running import BACKENDS, assert_compiles, assert_same, fully, results
from tests.function.kinds import leaf


def made_of(forward: Callable[..., Any], backward: Callable[..., Any], **attributes: Any) -> Any:
    """Make a Function of two methods."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), **attributes}
    return type("Made", (pullback.Function,), body)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctx_is_one(backend: str) -> None:
    """F13: ctx is an instance of PyTorch's FunctionCtx, so a helper that asks goes the same way."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.asked = isinstance(ctx, FunctionCtx)
        return x * 2

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2 if ctx.asked and isinstance(ctx, FunctionCtx) else g * 3

    made, x = made_of(forward, backward), leaf(3)
    compiled = results(fully(made.apply, backend), (x,), x)
    assert_same(compiled, results(made.apply, (x,), x))
    assert_same(compiled, results(lambda x: x * 2, (x,), x))


@pytest.mark.parametrize("way", ["ctx", "setup_context"])
def test_all_that_ctx_is_told(way: str) -> None:
    """F13: what is marked and set on ctx holds for a class in either style, whoever does it."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    def compute(x: Tensor) -> Any:
        values, order = x.sort()
        return values, order, values * 2

    def forward(ctx: Any, x: Tensor) -> Any:
        output = compute(x)
        save(ctx, (x,), output)
        return output

    def backward(ctx: Any, g: Any, _: Any, unused: Any) -> Tensor:
        # PyTorch's compiler makes zeros of the third, whatever ctx was told.
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(0, order, g)

    made = made_of(forward, backward)
    if way == "setup_context":
        made = made_of(compute, backward, setup_context=staticmethod(save))
    x = leaf(5)
    assert_compiles(lambda x: made.apply(x)[:2], (x,), x)


def append(nest: list[Any]) -> None:
    """Write to a list."""
    nest.append(nest[0].detach() * 2)


def swap(nest: list[Any]) -> None:
    """Write to a list, whose length and kind stay the same."""
    nest[0], nest[1] = nest[1], nest[0]


def count(nest: list[Any]) -> None:
    """Write a number to a list."""
    nest[2] += 5


@pytest.mark.parametrize("write", [append, swap, count], ids=lambda write: write.__name__)
def test_forward_writes_to_a_container(write: Callable[[list[Any]], None]) -> None:
    """PB515: the caller sees what forward wrote to its list, as Python runs the call; compiled whole it's refused."""

    def forward(ctx: Any, nest: list[Any]) -> Any:
        write(nest)
        return nest[0] * 3

    made = made_of(forward, lambda ctx, g: (None,))
    a, b = leaf(3), leaf(3, seed=1)

    def program(a: Tensor, b: Tensor) -> Any:
        nest: list[Any] = [a, b, 1]
        made.apply(nest)
        return [entry.detach() * 1 if isinstance(entry, Tensor) else torch.tensor(entry) for entry in nest]

    due = [entry.clone() for entry in program(a, b)]
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"PB515.*Made\.forward writes to nest"):
        fully(program)(a, b)
    torch._dynamo.reset()
    assert_same(list(torch.compile(program, backend="aot_eager")(a, b)), due)


def test_forward_writes_to_a_copy() -> None:
    """F13: a container of forward's own may be written to."""

    def forward(ctx: Any, nest: dict[str, Any]) -> Any:
        own = dict(nest)
        k = own.pop("k")
        ctx.k = k
        return own["x"] * k

    made, x = made_of(forward, lambda ctx, g: {"nest": {"x": g * ctx.k}}), leaf(3)
    assert_compiles(lambda x: made.apply({"x": x, "k": 3}), (x,), x)


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "a tuple": lambda y: (y, y),
    "a nest": lambda y: {"a": y, "b": [y]},
}


@pytest.mark.parametrize("name", RETURNS)
def test_a_tensor_twice_among_the_outputs(name: str) -> None:
    """PB515: PyTorch's compiler fails on these, or compiles other gradients; here Python runs them."""

    def backward(ctx: Any, *grads: Any) -> Any:
        return sum(k * g for k, g in enumerate(torch.utils._pytree.tree_leaves(grads), start=2))

    made, x = made_of(lambda ctx, x: RETURNS[name](x * 2), backward), leaf(3)
    due = results(made.apply, (x,), x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"PB515.*Made\.forward returns a tensor twice"):
        fully(lambda x: made.apply(x))(x)
    torch._dynamo.reset()
    assert_same(results(torch.compile(lambda x: made.apply(x), backend="aot_eager"), (x,), x), due)


def test_tuples_in_dicts() -> None:
    """F13: dicts of tuples, which Dynamo can't compare by identity, in and out."""

    def forward(ctx: Any, nest: dict[str, Any]) -> Any:
        a, b = nest["pair"]
        ctx.save_for_backward(a, b)
        return {"y": (a * b, a), "z": [(b * 2, (3, "s"))]}

    def backward(ctx: Any, g: dict[str, Any]) -> Any:
        a, b = ctx.saved_tensors
        return {"nest": {"pair": (g["y"][0] * b + g["y"][1], g["y"][0] * a + g["z"][0][0] * 2)}}

    made, a, b = made_of(forward, backward), leaf(3), leaf(3, seed=1)
    assert_compiles(lambda a, b: made.apply({"pair": (a.sin(), b), "others": ((), (1, None))}), (a, b), a, b)


def test_an_init_subclass_of_the_author_s() -> None:
    """F13: classes beneath one whose __init_subclass__ never calls pullback's are compiled by their own methods."""

    class Base(pullback.Function):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            pass

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x * 2 + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return {"x": g * 2, "w": g}

    class Beneath(Base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *, k: float = 3.0) -> Tensor:
            ctx.k = k
            return Base.apply(x, x * 2) * k

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return {"x": g * ctx.k * 4, "k": None}

    x = leaf(3)
    assert_compiles(lambda x: Base.apply(x, x * 3) + Beneath.apply(x) + Beneath.apply(x, k=4.0), (x,), x)


@pytest.mark.parametrize("owner", ["itself", "its base"])
def test_a_declaration_that_is_changed(owner: str) -> None:
    """F13, F14: a declaration that is changed after a call was compiled is compiled anew, as a method is."""

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    made = made_of(forward, lambda ctx, g: (None, None), **({"cast_inputs": None} if owner == "itself" else {}))

    def program(x: Tensor, w: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return made.apply(x, w)

    x, w = leaf(3, 4).detach().float().requires_grad_(), leaf(4, 2).detach().float().requires_grad_()
    compiled = fully(program)
    assert compiled(x, w).dtype is torch.bfloat16
    made.cast_inputs = torch.float32
    assert compiled(x, w).dtype is torch.float32
    made.cast_inputs = None
    assert compiled(x, w).dtype is torch.bfloat16
