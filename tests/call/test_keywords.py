"""F5: keyword-only arguments, ``**kwargs`` and defaults, in both forward styles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError
from tests.call.products import STYLES
from tests.function.kinds import leaf


def scaled(style: str, returned: Any, seen: list[Any]) -> Any:
    """Define y = x w k + b as Scaled(x, w=1., *, k=2., b=None)."""

    def compute(x: Tensor, w: Any = 1.0, *, k: Any = 2.0, b: Any = None) -> Tensor:
        return x * w * k + (0 if b is None else b)

    def save(ctx: Any, x: Tensor, w: Any = 1.0, k: Any = 2.0, b: Any = None) -> None:
        values = {"x": x, "w": w, "k": k, "b": b}
        seen.append(ctx.needs_input_grad)
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        ctx.names, ctx.rest = list(tensors), {n: v for n, v in values.items() if n not in tensors}
        ctx.save_for_backward(*tensors.values())

    def forward(ctx: Any, x: Tensor, w: Any = 1.0, *, k: Any = 2.0, b: Any = None) -> Tensor:
        save(ctx, x, w, k, b)
        return compute(x, w, k=k, b=b)

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        assert len(inputs) == 4
        save(ctx, *inputs)

    def backward(ctx: Any, g: Tensor) -> Any:
        values = {**ctx.rest, **dict(zip(ctx.names, ctx.saved_tensors, strict=True))}
        x, w, k = values["x"], values["w"], values["k"]
        seen.append(ctx.needs_input_grad)
        every = {"x": g * w * k, "w": g * x * k, "k": g * x * w, "b": g}
        needed = {name: value if isinstance(values[name], Tensor) else None for name, value in every.items()}
        return returned(needed, len(ctx.needs_input_grad))

    body: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if style == "setup_context":
        body |= {"forward": staticmethod(compute), "setup_context": staticmethod(setup_context)}
    return type("Scaled", (pullback.Function,), body)


RETURNS: dict[str, Any] = {
    "by name": lambda gradients, count: gradients,
    "by position": lambda gradients, count: tuple(gradients.values())[:count],
    "by position, more Nones": lambda gradients, count: (*tuple(gradients.values())[:count], None, None),
}

GIVEN: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "x": (("x",), (), 1),
    "x, k": (("x",), ("k",), 3),
    "x, b": (("x",), ("b",), 4),
    "x, w, b, k": (("x", "w"), ("b", "k"), 4),
    "all by keyword": ((), ("b", "w", "k", "x"), 4),
    "w and k by keyword": (("x",), ("k", "w"), 3),
}
"""What is given by position and by keyword, and how many arguments the call has in ctx style."""


@pytest.mark.parametrize("way", RETURNS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", GIVEN)
def test_keyword_only_arguments(name: str, style: str, way: str) -> None:
    """F5: they come last, in forward's order, up to the last that was given; beside setup_context all of them."""
    by_position, by_keyword, due = GIVEN[name]
    seen: list[Any] = []
    made = scaled(style, RETURNS[way], seen)
    for seed in range(3):
        seen.clear()
        tensors = {
            key: leaf(3, seed=seed * 7 + k) for k, key in enumerate("xwkb") if key in (*by_position, *by_keyword)
        }
        args, kwargs = [tensors[key] for key in by_position], {key: tensors[key] for key in by_keyword}
        y = made.apply(*args, **kwargs)
        values = {"w": 1.0, "k": 2.0, "b": 0.0, **tensors}
        expected = values["x"] * values["w"] * values["k"] + values["b"]
        torch.testing.assert_close(y, expected, rtol=1e-14, atol=0)
        assert y.grad_fn.name() == "ScaledBackward"
        first = torch.autograd.grad((y**2).sum(), [*tensors.values()], create_graph=True)
        wanted = torch.autograd.grad((expected**2).sum(), [*tensors.values()], create_graph=True)
        assert seen[0] == seen[-1] == tuple(key in tensors for key in "xwkb")[: 4 if style == "setup_context" else due]
        second, due_second = (
            torch.autograd.grad(sum((g**2).sum() for g in gradients), [*tensors.values()])
            for gradients in (first, wanted)
        )
        for got, right in zip((*first, *second), (*wanted, *due_second), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


class Rest(pullback.Function):
    """y = Σ of x and what comes by any name, each times its number of letters."""

    by_name = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, *more: Tensor, **rest: Any) -> Tensor:
        ctx.names, ctx.more = list(rest), len(more)
        return x + sum(more) + sum(len(name) * value["t"] for name, value in rest.items())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        named = {"x": g, **{f"more[{k}]": g for k in range(ctx.more)}}
        named |= {name: {"t": g * len(name)} for name in ctx.names}
        return named if Rest.by_name else tuple(named.values())


@pytest.mark.parametrize("named", [False, True], ids=["by position", "by name"])
@pytest.mark.parametrize("count", [0, 2])
def test_any_keyword(named: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: each of `**kwargs` is an argument by its own name, after all others, in the order of the call."""
    monkeypatch.setattr(Rest, "by_name", named)
    for names in (("a", "bb"), ("ccc",), ("bb", "a")):
        x, *more = (leaf(2, seed=k) for k in range(1 + count))
        rest = {name: {"t": leaf(2, seed=len(name))} for name in names}
        y = Rest.apply(x, *more, **rest)
        leaves = [x, *more, *(rest[name]["t"] for name in names)]
        gradients = torch.autograd.grad(y.sum(), leaves)
        assert [gradient.tolist() for gradient in gradients[1 + count :]] == [[len(name)] * 2 for name in names]
        assert all(gradient.tolist() == [1, 1] for gradient in gradients[: 1 + count])


def test_a_keyword_argument_without_a_gradient() -> None:
    """F6: errors call it by its name; nondiff_argnames may declare it."""
    body = {"forward": staticmethod(lambda ctx, x, *, k: x * k), "backward": staticmethod(lambda ctx, g: g)}
    made: Any = type("Scale", (pullback.Function,), body)
    x, k = leaf(3), leaf(3)
    with pytest.raises(GradientError) as caught:
        made.apply(x, k=k).sum().backward()
    assert str(caught.value).splitlines() == [
        "PB201 Scale.backward returned an incorrect number of gradients (expected 2, got 1).",
        "  expected: (x: gradient, k: gradient)",
        "  got: Tensor(3,) float64",
        "  remedy: Return 1 more, in the order (x, k).",
    ]
    body["backward"] = staticmethod(lambda ctx, g: {"x": g, "k": g})
    declared: Any = type("Scale", (pullback.Function,), {**body, "nondiff_argnames": ("k",)})
    with pytest.raises(GradientError, match=r"PB222 .* a gradient for k, which nondiff_argnames declares"):
        declared.apply(x, k=k).sum().backward()


def test_arguments_that_do_not_fit() -> None:
    """F1: wrong keywords are TypeErrors, as in PyTorch."""
    body = {"forward": staticmethod(lambda ctx, n, *, k: n[0] * k), "backward": staticmethod(lambda ctx, g: None)}
    made: Any = type("Scale", (pullback.Function,), body)
    x = leaf(3)
    for call in (lambda: made.apply([x], j=2), lambda: made.apply([x], x, k=2), lambda: made.apply([x])):
        for _ in range(2):
            with pytest.raises(TypeError):
                call()


def test_keyword_only_defaults_beside_setup_context() -> None:
    """F5: all defaults are among the inputs, whether arguments go by position, by keyword, or with containers."""
    seen: list[Any] = []

    class Scaled(pullback.Function):
        @staticmethod
        def forward(x: Any, *, k: float = 3.0) -> Tensor:
            y: Tensor = (x[0] if isinstance(x, list) else x) * k
            return y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            seen.append(inputs[1:])
            ctx.nested, ctx.k = isinstance(inputs[0], list), inputs[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return {"x": [g * ctx.k] if ctx.nested else g * ctx.k}

    made: Any = Scaled
    x = leaf(3)
    for call in (lambda: made.apply(x), lambda: made.apply(x=x), lambda: made.apply([x]), lambda: made.apply(x=[x])):
        for _ in range(2):
            assert torch.autograd.grad(call().sum(), x)[0].tolist() == [3, 3, 3]
    with torch.no_grad():
        made.apply(x)
    assert torch.func.grad(lambda x: made.apply([x]).sum())(x.detach()).tolist() == [3, 3, 3]
    assert set(seen) == {(3.0,)}
