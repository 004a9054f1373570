"""F3: a saved tensor that was changed in place: which one, of which class, and which argument or output it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import SavedTensorError
from tests.call.products import gradients
from tests.function.kinds import leaf
from tests.tracebacks import files, is_pullbacks, last_function

HOW = "has been modified by an inplace operation between forward and backward."


class Keeps(pullback.Function):
    """y = sin(x w), which saves an argument, an intermediate, a constant, the output and another argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, seen: dict[str, Tensor]) -> Tensor:
        inner, mask = x * w, (x > 0).to(x.dtype)
        y = inner.sin()
        seen.update(inner=inner, mask=mask)
        ctx.save_for_backward(x, inner, None, y, w, constants=(mask,))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, inner, _, _, w, _ = ctx.saved_tensors
        return g * inner.cos() * w, g * inner.cos() * x, None


class KeepsBySetup(pullback.Function):
    """The same in the other style, saving arguments and output."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, seen: dict[str, Tensor]) -> Tensor:
        return (x * w).sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, w, _ = inputs
        ctx.save_for_backward(x, w, output)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Any:
        x, w, _ = ctx.saved_tensors
        return g * (x * w).cos() * w, g * (x * w).cos() * x, None


Case = tuple[Any, str, str]

CASES: dict[str, Case] = {
    "an argument": (Keeps, "x", "PB301 saved tensor 0 of Keeps (argument x) " + HOW),
    "another argument": (Keeps, "w", "PB301 saved tensor 4 of Keeps (argument w) " + HOW),
    "an intermediate": (Keeps, "inner", "PB301 saved tensor 1 of Keeps (an intermediate) " + HOW),
    "the output": (Keeps, "y", "PB301 saved tensor 3 of Keeps (output 0) " + HOW),
    "a constant": (Keeps, "mask", "PB301 saved tensor 5 of Keeps (a declared constant) " + HOW),
    "an argument, by setup_context": (KeepsBySetup, "w", "PB301 saved tensor 1 of KeepsBySetup (argument w) " + HOW),
    "the output, by setup_context": (KeepsBySetup, "y", "PB301 saved tensor 2 of KeepsBySetup (output 0) " + HOW),
}


def changed(function: Any, what: str, *, calls: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Apply `function` some times, change one tensor of the last call, and return its leaves and output."""
    for _ in range(calls):
        leaves = leaf(3, seed=1), leaf(3, seed=2)
        seen = {"x": leaves[0] * 1, "w": leaves[1] * 1}
        seen["y"] = function.apply(seen["x"], seen["w"], seen)
    y = seen["y"] * 1  # what the caller goes on with, so that a change of the output is no part of the graph
    with torch.no_grad():
        seen[what].add_(1)
    return *leaves, y


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("what", CASES)
def test_the_error_says_which_tensor_was_changed(what: str, calls: int, create_graph: bool) -> None:
    """F3: PB301 names the saved tensor, its class and its origin, on a first call and on later ones."""
    function, name, text = CASES[what]
    x, w, y = changed(function, name, calls=calls)
    with pytest.raises(SavedTensorError, match="PB301") as caught:
        gradients(y, x, w, create_graph=create_graph)
    lines = str(caught.value).splitlines()
    assert lines[0] == text
    assert lines[1] == "  expected: Tensor(3,) float64, unchanged since forward"
    assert lines[2].startswith("  got: [torch.DoubleTensor [3]]")
    assert lines[2].endswith("is at version 1; expected version 0 instead.")
    assert lines[3] == "  remedy: Don't change the tensor between forward and backward, or save a clone of it."


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("what", CASES)
def test_the_authors_frame_is_the_last(what: str, create_graph: bool) -> None:
    """F3: the traceback ends where backward reads the tensor and has no frame of pullback; nor has its cause's."""
    function, name, _ = CASES[what]
    x, w, y = changed(function, name)
    with pytest.raises(SavedTensorError) as caught:
        gradients(y, x, w, create_graph=create_graph)
    assert files(caught.value)[0] == __file__
    assert not any(map(is_pullbacks, files(caught.value)))
    if not create_graph:  # else the saved tensors are unpacked before backward is called
        assert files(caught.value)[-1] == __file__
        assert last_function(caught.value) in ("backward", "vjp")
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError)
    assert not any(map(is_pullbacks, files(cause)))


@pytest.mark.parametrize("what", ["x", "y"])
def test_torch_raises_the_same_kind_of_error(what: str) -> None:
    """F3: torch's RuntimeError has the same words, so a handler that looks for them keeps working."""
    texts = "has been modified by an inplace operation"
    plain = type("Keeps", (torch.autograd.Function,), dict(vars(KeepsBySetup)))
    for function in (plain, KeepsBySetup):
        x, w, y = changed(function, what)
        with pytest.raises(RuntimeError, match=texts):
            gradients(y, x, w)


def test_one_of_several_outputs() -> None:
    """F3: of two saved outputs the changed one is named, though their shapes and versions agree."""

    class Both(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            first, second = x.exp(), x.exp()
            ctx.save_for_backward(first, second)
            return first, None, second

        @staticmethod
        def backward(ctx: Any, g: Tensor, nothing: None, h: Tensor) -> Tensor:
            first, second = ctx.saved_tensors
            return g * first + h * second

    for index, origin in ((0, "output 0"), (2, "output 2")):
        x = leaf(3)
        outputs = Both.apply(x)
        loss = outputs[0].sum() + outputs[2].sum()
        with torch.no_grad():
            outputs[index].add_(1)
        with pytest.raises(SavedTensorError, match=rf"saved tensor {index // 2} of Both \({origin}\)"):
            gradients(loss, x)


def test_variadic_arguments() -> None:
    """F3: an argument of *xs goes by its number."""

    class Dot(pullback.Function):
        @staticmethod
        def forward(ctx: Any, *xs: Tensor) -> Tensor:
            ctx.save_for_backward(*xs)
            return xs[0] * xs[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            first, second = ctx.saved_tensors
            return g * second, g * first

    x, w = leaf(3), leaf(3)
    inner = w * 1
    y = Dot.apply(x, inner)
    inner.add_(1)
    with pytest.raises(SavedTensorError, match=r"saved tensor 1 of Dot \(argument xs\[1\]\)"):
        gradients(y, x, w)


def test_a_call_that_saves_otherwise_than_the_first() -> None:
    """F3: the origin is that of this call, not of the one that was seen first."""

    class Swaps(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, swap: bool) -> Tensor:
            ctx.save_for_backward(*((w, x) if swap else (x, w)))
            ctx.swap = swap
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors[:: -1 if ctx.swap else 1]
            return g * w, g * x, None

    for swap, place in ((False, 1), (True, 0), (False, 1)):
        x, w = leaf(3), leaf(3)
        inner = w * 1
        y = Swaps.apply(x, inner, swap)
        inner.add_(1)
        with pytest.raises(SavedTensorError, match=rf"saved tensor {place} of Swaps \(argument w\)"):
            gradients(y, x, w)


def test_a_class_first_applied_without_gradient() -> None:
    """F3: a first call under no_grad teaches nothing wrong."""
    function: Any = type("Keeps", (KeepsBySetup,), {})
    with torch.no_grad():
        function.apply(leaf(3), leaf(3), {})
    x, w, y = changed(function, "w")
    with pytest.raises(SavedTensorError, match=r"saved tensor 1 of Keeps \(argument w\)"):
        gradients(y, x, w)


def raises_inside(ctx: Any, g: Tensor) -> Tensor:
    """Differentiate a graph of backward's own, one of whose tensors is changed."""
    with torch.enable_grad():
        own = torch.ones_like(g).requires_grad_()
        inner = own * 1
        outer = inner * inner
        inner.add_(1)
        outer.sum().backward()
    return g


def test_an_error_of_another_graph_is_not_claimed() -> None:
    """F3: the same error about a graph that backward built itself arrives unchanged."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 3
        ctx.save_for_backward(x, y)
        return y

    body = {"forward": staticmethod(forward), "backward": staticmethod(raises_inside)}
    function: Any = type("Owns", (pullback.Function,), body)
    x = leaf(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        gradients(function.apply(x), x)
    assert type(caught.value) is RuntimeError


def twice(y: Tensor) -> None:
    """Differentiate a graph that was freed."""
    y.backward()
    y.backward()


@pytest.mark.parametrize("read", [twice])
def test_a_freed_graph_is_torchs_to_refuse(read: Callable[[Tensor], None]) -> None:
    """F3: a second backward through a freed graph raises torch's own error."""
    with pytest.raises(RuntimeError, match="backward through the graph a second time") as caught:
        read(KeepsBySetup.apply(leaf(3), leaf(3), {}).sum())
    assert type(caught.value) is RuntimeError


def test_a_checkpoints_own_object_is_not_named() -> None:
    """Under a checkpoint the node holds PyTorch's placeholder: the text speaks of the tensor that forward saved."""

    class Writes(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp_(min=0) * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * g * (x > 0)

    x = leaf(3)
    y = checkpoint(lambda t: Writes.apply(t), x, use_reentrant=False)
    with pytest.raises(SavedTensorError) as caught:
        y.sum().backward()
    assert "expected: the tensor that forward saved, unchanged since forward" in str(caught.value)
