"""F16: what can be decorated: functions, methods, and whatever else can be called; errors call the rule by its name."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import CallError, DefinitionError, GradientError
from tests.custom.rules import drawn


class Doubles:
    """An object that can be called."""

    def __call__(self, x: Tensor) -> Tensor:
        """Double x."""
        return 2 * x


def times(factor: float, x: Tensor) -> Tensor:
    """Multiply x."""
    return factor * x


NAMELESS = {
    "an object": (Doubles, "Doubles"),
    "a bound method": (lambda: Doubles().__call__, "__call__"),
    "a partial": (lambda: functools.partial(times, 2), "times"),
    "a partial of a partial": (lambda: functools.partial(functools.partial(times), 2), "times"),
    "PyTorch's own": (lambda: functools.partial(torch.mul, 2), "mul"),
}


@pytest.mark.parametrize(("make", "name"), NAMELESS.values(), ids=NAMELESS)
def test_whatever_can_be_called(make: Any, name: str) -> None:
    """It runs by its rule, and is called by the name of what is in it, for want of its own."""
    made: Any = pullback.custom_vjp(make())
    made.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
    x = drawn(3)
    y = made(x)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [3, 3, 3]
    assert y.grad_fn.name() == f"{name}Backward"
    assert name in repr(made)


def test_a_function_that_does_not_tell_its_signature() -> None:
    """PyTorch's builtins take their arguments by place."""
    sine: Any = pullback.custom_vjp(torch.sin)
    sine.defvjp(lambda x: (torch.sin(x), x), lambda x, g: (torch.cos(x) * g,))
    x = drawn(3)
    (first,) = torch.autograd.grad(sine(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.cos(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -torch.sin(x), rtol=1e-12, atol=0)
    product: Any = pullback.custom_vjp(torch.mul, nondiff_argnums=1)
    product.defvjp(lambda x, k: (x * k, None), lambda k, _, g: (k * g,))
    assert torch.autograd.grad(product(x, 4.0).sum(), x)[0].tolist() == [4, 4, 4]


def test_static_methods_in_either_order() -> None:
    """A static method stays one, whether the decorator stands above or below."""

    class Holder:
        @pullback.custom_vjp
        @staticmethod
        def above(x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        @pullback.custom_vjp
        def below(x: Tensor) -> Tensor:
            return 2 * x

        above.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))

    Holder.below.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
    x = drawn(3)
    for call in (Holder.above, Holder().above, Holder.below, Holder().below):
        assert torch.autograd.grad(call(x).sum(), x)[0].tolist() == [3, 3, 3]


def test_class_methods() -> None:
    """PB106 says how to write one; written so it works."""

    def of_class(cls: Any, x: Tensor) -> Tensor:
        y: Tensor = x * cls.factor
        return y

    decorate: Any = pullback.custom_vjp
    with pytest.raises(DefinitionError, match=r"PB106 (.|\n)*Put @classmethod above the decorator"):
        decorate(classmethod(of_class))
    with pytest.raises(DefinitionError, match=r"PB106 a derivative rule is declared for an object of type int"):
        decorate(3)
    made = pullback.custom_vjp(of_class, nondiff_argnums=0)
    made.defvjp(lambda cls, x: (x * cls.factor, None), lambda cls, _, g: (g * cls.factor,))
    holder: Any = type("Holder", (), {"factor": 5.0, "of_class": classmethod(made)})
    x = drawn(3)
    assert torch.autograd.grad(holder.of_class(x).sum(), x)[0].tolist() == [5, 5, 5]


def returning(returned: Any) -> Any:
    """Decorate x₀ x₁ of a list, with a bwd that returns `returned`."""

    @pullback.custom_vjp
    def product(pair: list[Tensor]) -> Tensor:
        return pair[0] * pair[1]

    product.defvjp(lambda pair: (pair[0] * pair[1], pair), lambda pair, g: returned)
    return product


WRONG: dict[str, tuple[Any, list[str]]] = {
    "a string": (
        ("g",),
        ["PB202 the bwd of product returned a value of type str as the gradient of pair.", "  expected: a list of 2"],
    ),
    "too few": (
        ([None],),
        [
            "PB201 the bwd of product returned an incorrect number of gradients for pair (expected 2, got 1).",
            "  expected: 2 entries for pair, one for each thing in it",
        ],
    ),
    "a number in it": (
        ([2.0, None],),
        ["PB202 the bwd of product returned a value of type float as the gradient of pair[0].", "  expected: a tensor"],
    ),
    "an unknown name": (
        {"couple": None},
        ["PB218 the bwd of product returned a gradient for 'couple', which is no argument of forward."],
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_name_the_bwd(name: str, create_graph: bool) -> None:
    """F3: errors speak of what the author wrote, which is a bwd and no method backward."""
    returned, text = WRONG[name]
    x = drawn(3)
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(returning(returned)([x, x]).sum(), x, create_graph=create_graph)
    for line, due in zip(str(caught.value).splitlines(), text, strict=False):
        assert line.startswith(due)


def test_wrong_tangents_name_the_rule() -> None:
    """F3: PB202 and PB503 of a custom_jvp call what the author wrote a rule."""

    @pullback.custom_jvp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.defjvp(lambda p, t: (2 * p[0], "t"))
    x = drawn(3)
    with pytest.raises(GradientError, match="PB202 the rule of double returned a tangent that isn't like the result"):
        torch.autograd.grad(double(x).sum(), x)
    weight = drawn(3)
    double.defjvp(lambda p, t: (2 * p[0], t[0] * weight))
    with pytest.raises(CallError, match="PB503 the rule of double uses weight"):
        double(x)
