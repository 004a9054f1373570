"""F2 and F3: a backward or double_backward that can't take what it is given is named as soon as that is certain."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.define.parameters import shown
from pullback.errors import DefinitionError
from tests.tracebacks import files, is_pullbacks

Method = Callable[..., Any]


def product(double_backward: Method, forward: Method, **more: Method) -> Any:
    """Define a Function named Product with these methods and a backward that takes anything."""
    body = {"forward": forward, "backward": lambda ctx, *g: None, "double_backward": double_backward, **more}
    made = {name: staticmethod(method) for name, method in body.items()}
    return type("Product", (pullback.Function,), {"__module__": __name__, **made})


def identity(ctx: Any, x: Tensor) -> Tensor:
    """Return x, which can't be a nest."""
    return x


TOO_FEW_OR_MANY: dict[str, tuple[Method, Method, str, str]] = {
    "too few": (lambda ctx, ggx: ggx, lambda ctx, x, k: x * k, "x, k", "double_backward(ctx, ggx)"),
    "too many": (lambda ctx, ggx, ggy: ggx, identity, "x", "double_backward(ctx, ggx, ggy)"),
    "no ctx": (lambda gg: gg, lambda ctx, x: x, "x", "double_backward(gg)"),
    "too few, defaults counted": (
        lambda ctx: None,
        lambda ctx, x, k=2: x * k,
        "x, k",
        "double_backward(ctx)",
    ),
    "a keyword that nobody gives": (
        lambda ctx, gg, *, scale: gg,
        lambda ctx, x: x,
        "x",
        "double_backward(ctx, gg, *, scale)",
    ),
}


@pytest.mark.parametrize("case", TOO_FEW_OR_MANY.values(), ids=TOO_FEW_OR_MANY)
def test_double_backward_with_other_parameters(case: tuple[Method, Method, str, str]) -> None:
    """F2: with a fixed number of arguments, a double_backward that can't take one entry for each is PB111."""
    double_backward, forward, arguments, got = case
    with pytest.raises(DefinitionError) as caught:
        product(double_backward, forward)
    given = "".join(f", gg_{name}" for name in arguments.split(", "))
    assert str(caught.value).splitlines() == [
        "PB111 Product.double_backward can't take what it is called with.",
        f"  expected: ctx and one grad_grad_input for each of {arguments}",
        f"  got: {got}",
        f"  remedy: Write double_backward(ctx{given}), or double_backward(ctx, *grad_grad_inputs).",
    ]
    assert isinstance(caught.value, TypeError)
    assert not any(map(is_pullbacks, files(caught.value)))


def test_defaults_that_pytorch_fills_in() -> None:
    """F2: beside setup_context a call has all of forward's arguments, whichever were given."""
    plain = {"setup_context": lambda ctx, inputs, output: None}
    with pytest.raises(DefinitionError, match="PB111"):
        product(lambda ctx, gg: gg, lambda x, k=2: x * k, **plain)
    product(lambda ctx, gg, _: gg, lambda x, k=2: x * k, **plain)


@pytest.mark.parametrize(
    ("double_backward", "forward"),
    [
        (lambda ctx, *gg: gg, lambda ctx, x, k: x * k),
        (lambda ctx, gg: gg, lambda ctx, x, k=2: x * k),
        (lambda ctx, gg, more=None: gg, lambda ctx, x: x),
        (lambda ctx, gg, *rest: gg, lambda ctx, x, k: x * k),
        (lambda *everything: None, lambda ctx, x, k: x * k),
        (lambda ctx, gg: gg, lambda ctx, *xs: xs[0]),
        (lambda ctx, gg, more: gg, lambda ctx, x: x),
        (torch.add, lambda ctx, x: x),
    ],
    ids=[
        "star",
        "default",
        "default of its own",
        "star after",
        "all star",
        "variadic forward",
        "a nest of two",
        "no signature",
    ],
)
def test_a_double_backward_that_may_fit(double_backward: Method, forward: Method) -> None:
    """F2: only what no call can honour is refused where it is defined."""
    assert product(double_backward, forward).double_backward is double_backward


def test_double_backward_that_doesnt_fit_the_call() -> None:
    """F3: where only the call decides, the error comes from the call, and is a TypeError as before."""

    class Sum(pullback.Function):
        @staticmethod
        def forward(ctx: Any, *xs: Tensor) -> Any:
            return xs[0] + xs[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            return gg

    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad((Sum.apply(x, x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(TypeError) as caught:
        torch.autograd.grad(gradient.sum(), x)
    assert str(caught.value).splitlines() == [
        "PB111 Sum.double_backward can't take what it is called with.",
        "  expected: ctx and one grad_grad_input for each of xs[0], xs[1]",
        "  got: double_backward(ctx, gg)",
        "  remedy: Write double_backward(ctx, *grad_grad_inputs).",
    ]
    assert not any(map(is_pullbacks, files(caught.value)))


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("method", ["backward", "vjp"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_backward_with_other_parameters(outputs: int, method: str, create_graph: bool) -> None:
    """F3: how many outputs there are is known when backward is called; then PB111 takes the TypeError's place."""

    def forward(ctx: Any, x: Tensor) -> Any:
        return x * 2 if outputs == 1 else (x * 2, x * 3)

    def backward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a

    body = {"forward": staticmethod(forward), method: staticmethod(backward)}
    function: Any = type("Double", (pullback.Function,), body)
    x = torch.ones(2, requires_grad=True)
    output = function.apply(x)
    first = output if outputs == 1 else output[0]
    with pytest.raises(TypeError) as caught:
        torch.autograd.grad(first.sum(), x, create_graph=create_graph)
    due = "one grad_output" if outputs == 1 else "2 grad_outputs, one for each output"
    written = "grad_output" if outputs == 1 else "grad_output_0, grad_output_1"
    assert str(caught.value).splitlines() == [
        f"PB111 Double.{method} can't take what it is called with.",
        f"  expected: ctx and {due}",
        f"  got: {method}(ctx, a, b, c)",
        f"  remedy: Write {method}(ctx, {written}), or {method}(ctx, *grad_outputs).",
    ]
    assert isinstance(caught.value.__cause__, TypeError)
    assert not any(map(is_pullbacks, files(caught.value)))


def test_a_type_error_inside_backward_is_the_authors_own() -> None:
    """F3: a backward that takes what it is given and then raises a TypeError is left alone."""

    class Broken(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return len(3)

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        Broken.apply(x).sum().backward()


def test_a_signature_is_shown_without_annotations() -> None:
    """What came is short enough to be read in an error."""

    def method(ctx: Any, g: Tensor, scale: float = 2.0, *rest: Tensor, flag: bool = True, **more: int) -> None: ...

    def starless(ctx: Any, *, flag: bool) -> None: ...

    assert shown("f", inspect.signature(method)) == "f(ctx, g, scale=…, *rest, flag=…, **more)"
    assert shown("f", inspect.signature(starless)) == "f(ctx, *, flag)"
