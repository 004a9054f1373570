"""F14: `cast_inputs` with calls of every form: by keyword, with containers and modules, adopted classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pullback
from tests.autocast.functions import STYLES, Seen, autocast, forward_of, in_torch, leaf, same_bits

in_both_styles = pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)


@in_both_styles
def test_by_keyword(write: Any) -> None:
    """F14: arguments by keyword are cast like any other; the first call is by keyword, too."""
    results = []
    for by_keyword, function in ((True, write(cast_inputs=torch.float32)), (False, in_torch(torch.float32))):
        for _ in range(2):
            x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3)
            with autocast():
                y = function.apply(k=2.0, w=w, x=x) if by_keyword else function.apply(x, w, 2.0)
            y.sum().backward()
        results.append([y, x.grad, w.grad])
    same_bits(*results)


def test_defaults_beside_setup_context() -> None:
    """F14: an omitted default is filled in under autocast as outside of it."""

    class Scale(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(x: Tensor, k: float = 3.0) -> Tensor:
            return x * k

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.k = inputs[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            assert g.dtype == torch.float32
            return g * ctx.k, None

    x = leaf(3, dtype=torch.bfloat16)
    with autocast():
        y = Scale.apply(x)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 3
    assert Scale.apply(x).dtype == torch.bfloat16


class Pair(NamedTuple):
    """Two tensors."""

    left: Tensor
    right: Tensor


def nested_function(given: list[Any]) -> Any:
    """Define the sum of all tensors in two containers; it writes down what forward is given."""

    class Total(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, state: dict[str, Any], pair: Pair, *, scale: float, bias: Tensor) -> dict[str, Tensor]:
            given.append((state, pair, bias))
            ctx.scale = scale
            total = (state["w"] + state["more"][0] + pair.left + pair.right) * scale + bias
            return {"total": total, "left": pair.left * scale}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            assert not torch.is_autocast_enabled("cpu")
            assert {g.dtype for g in grads.values()} == {torch.float32}
            g = grads["total"] * ctx.scale
            state = {"w": g, "more": [g], "index": None}
            return state, Pair(g + grads["left"] * ctx.scale, g), None, grads["total"]

    return Total


@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "no grad"])
def test_containers(tracked: bool) -> None:
    """F14: each tensor in a container is cast, those too that require no grad; kinds of containers stay."""
    given: list[Any] = []
    total = nested_function(given)
    for _ in range(2):
        w, more, left, right = (leaf(3, dtype=torch.bfloat16, seed=seed) for seed in range(4))
        if not tracked:
            w, more, left, right = (tensor.detach() for tensor in (w, more, left, right))
        index = torch.arange(3)
        bias = leaf(3, dtype=torch.float16, seed=5).detach()
        with autocast():
            out = total.apply({"w": w, "more": [more], "index": index}, Pair(left, right), scale=2.0, bias=bias)
        state, pair, cast_bias = given[-1]
        assert isinstance(pair, Pair)
        assert {t.dtype for t in (state["w"], *state["more"], *pair, cast_bias)} == {torch.float32}
        assert state["index"] is index
        assert {t.dtype for t in out.values()} == {torch.float32}
        expected = (w.float() + more.float() + left.float() + right.float()) * 2.0 + bias.float()
        assert torch.equal(out["total"], expected)
        if tracked:
            (out["total"].sum() + out["left"].sum()).backward()
            assert [t.grad.tolist() for t in (w, more, left, right)] == [[2.0] * 3, [2.0] * 3, [4.0] * 3, [2.0] * 3]
            assert {t.grad.dtype for t in (w, more, left, right)} == {torch.bfloat16}


def test_containers_with_nothing_to_cast() -> None:
    """F14: where each tensor has the dtype already, forward gets the caller's own containers."""
    given: list[Any] = []
    total = nested_function(given)
    state = {"w": leaf(3), "more": [leaf(3)], "index": torch.arange(3)}
    pair = Pair(leaf(3), leaf(3))
    with autocast():
        total.apply(state, pair, scale=2.0, bias=leaf(3))
    assert given[0][0] is state
    assert given[0][1] is pair


def test_a_nest_out_of_a_flat_call() -> None:
    """F14: a forward that returns a list is cast for, at the first call and after it."""
    runs = []

    class Split(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> list[Tensor]:
            runs.append(x.dtype)
            return [x * 2, x * 3]

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor]) -> Tensor:
            assert not torch.is_autocast_enabled("cpu")
            return grads[0] * 2 + grads[1] * 3

    for _ in range(3):
        x = leaf(3, dtype=torch.bfloat16)
        with autocast():
            two, three = Split.apply(x)
            (two.sum() + three.sum()).backward()
        assert two.dtype == torch.float32
        assert x.grad is not None
        assert x.grad.tolist() == [5.0] * 3
    assert runs == [torch.float32] * 3


def test_a_module() -> None:
    """F14: the parameters of a module are cast, its buffers aren't; the module itself stays as it was."""
    given = []

    class Affine(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, layer: nn.Module, x: Tensor) -> Tensor:
            given.append((layer.weight.dtype, layer.scale.dtype, x.dtype))
            ctx.save_for_backward(layer.weight, x)
            return x @ layer.weight

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            weight, x = ctx.saved_tensors
            return {"layer": {"weight": x.mT @ g}, "x": g @ weight.mT}

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(leaf(5, 3, dtype=torch.bfloat16))
            self.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))

    layer, x = Layer(), leaf(4, 5, dtype=torch.bfloat16)
    own = layer.weight
    with autocast():
        y = Affine.apply(layer, x)
    y.sum().backward()
    assert given == [(torch.float32, torch.bfloat16, torch.float32)]
    assert layer.weight is own
    assert own.grad is not None
    assert own.grad.dtype == torch.bfloat16
    torch.testing.assert_close(own.grad, (x.float().mT @ torch.ones(4, 3)).bfloat16())


def test_an_adopted_class() -> None:
    """F14: a class of PyTorch's gets the declaration from a subclass of its adopted one."""
    seen: Seen = []

    class Theirs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, k: float) -> Tensor:
            seen.append(("forward", torch.is_autocast_enabled("cpu"), x.dtype))
            return forward_of(ctx, x, w, k)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            seen.append(("backward", torch.is_autocast_enabled("cpu"), g.dtype))
            return g @ ctx.saved_tensors[1].mT, None, None

    ours = type("Ours", (pullback.adopt(Theirs),), {"cast_inputs": torch.float32})
    with autocast():
        ours.apply(leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3).detach(), 2.0).sum().backward()
    assert seen == [("forward", False, torch.float32), ("backward", False, torch.float32)]


def test_a_subclass_takes_it_back() -> None:
    """F14: a subclass inherits the declaration, and may take it back with None."""
    base = STYLES["ctx"](cast_inputs=torch.float32)
    inherits, without = type("Inherits", (base,), {}), type("Without", (base,), {"cast_inputs": None})
    x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3, dtype=torch.bfloat16)
    with autocast():
        assert inherits.apply(x, w, 2.0).dtype == torch.float32
        assert without.apply(x, w, 2.0).dtype == torch.bfloat16


def test_arguments_that_forward_cannot_take() -> None:
    """F14: under autocast too many arguments fail with the error that they fail with outside."""
    function = STYLES["ctx"](cast_inputs=torch.float32)
    messages = []
    for enabled in (True, False):
        with autocast(enabled=enabled), pytest.raises(TypeError) as caught:
            function.apply(leaf(4, 5), leaf(5, 3), 2.0, 3.0)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
