"""F16: arguments of decorated functions: keywords, defaults, places, arguments without a derivative, methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError
from tests.custom.rules import drawn, number


def line() -> Any:
    """Make a x + b, with defaults, whose gradients are marked so that each is known."""

    @pullback.custom_vjp
    def f(x: Tensor, a: Any = 2.0, *, b: Any = 1.0) -> Tensor:
        return a * x + b

    def bwd(residuals: Any, g: Tensor) -> Any:
        x, a = residuals
        return 10 * a * g, 10 * x * g if isinstance(a, Tensor) else None, 10 * g

    f.defvjp(lambda x, a, *, b: (a * x + b, (x, a)), bwd)
    return f


def test_keywords_and_defaults() -> None:
    """Arguments go to the rules as the signature has them, however they were given."""
    f, x, a, b = line(), number(3.0), number(5.0), number(7.0)
    assert f(x).item() == 7.0
    assert f(x=x).item() == 7.0
    assert f(x, b=b).item() == 13.0
    result = f(b=b, a=a, x=x)
    assert result.item() == 22.0
    gradients = torch.autograd.grad(result, (x, a, b))
    assert [gradient.item() for gradient in gradients] == [50.0, 30.0, 10.0]


def test_a_call_that_doesnt_fit_is_pythons_error() -> None:
    """Missing and unknown arguments raise what Python raises, naming the function."""
    f = line()
    with pytest.raises(TypeError, match=r"f\(\) missing a required"):
        f()
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'c'"):
        f(number(1.0), c=2)


def test_any_number_of_arguments() -> None:
    """A function of *args gets one gradient for each."""

    @pullback.custom_vjp
    def total(*xs: Tensor) -> Tensor:
        return torch.stack(xs).sum()

    total.defvjp(
        lambda *xs: (torch.stack(xs).sum(), len(xs)), lambda count, g: tuple(g * k for k in range(1, count + 1))
    )
    xs = [number(float(k)) for k in range(4)]
    for count in (4, 2, 3):
        gradients = torch.autograd.grad(total(*xs[:count]), xs[:count])
        assert [gradient.item() for gradient in gradients] == [1.0, 2.0, 3.0, 4.0][:count]


def forms() -> list[tuple[str, Callable[[Any], Any]]]:
    """The ways to say which arguments have no derivative."""
    return [
        ("argnums", pullback.custom_vjp(nondiff_argnums=(0, 2))),
        ("partial", functools.partial(pullback.custom_vjp, nondiff_argnums=(0, 2))),
        ("argnames", pullback.custom_vjp(nondiff_argnames=("h", "f"))),
        ("both", pullback.custom_vjp(nondiff_argnums=0, nondiff_argnames="h")),
        ("from the end", pullback.custom_vjp(nondiff_argnums=(-1, 0))),
    ]


@pytest.mark.parametrize(("name", "decorate"), forms(), ids=[name for name, _ in forms()])
def test_arguments_without_a_derivative(name: str, decorate: Callable[[Any], Any]) -> None:
    """They keep their place in fwd, and come first in bwd, in their own order."""

    @decorate
    def compose(f: Any, x: Tensor, h: Any) -> Tensor:
        result: Tensor = f(h(x))
        return result

    def bwd(f: Any, h: Any, x: Tensor, g: Tensor) -> Any:
        assert (f(torch.tensor(1.0)).item(), h(torch.tensor(1.0)).item()) == (1.0, 5.0)
        return (3 * g,)

    compose.defvjp(lambda f, x, h: (f(h(x)), x), bwd)
    x = number(2.0)
    result = compose(lambda x: x**3, x, lambda y: 5 * y)
    assert result.item() == 1000.0
    (gradient,) = torch.autograd.grad(result, x)
    assert gradient.item() == 3.0


def test_a_rule_for_tangents_gets_them_first() -> None:
    """custom_jvp: arguments without a derivative come before primals and tangents, which are of the others alone."""

    @functools.partial(pullback.custom_jvp, nondiff_argnums=(0, 2))
    def compose(f: Any, x: Tensor, h: Any) -> Tensor:
        result: Tensor = f(h(x))
        return result

    @compose.defjvp
    def rule(f: Any, h: Any, primals: Any, tangents: Any) -> Any:
        (x,), (x_dot,) = primals, tangents
        return f(h(x)), 3 * x_dot

    x = number(2.0)
    result = compose(lambda x: x**3, x, h=lambda y: 5 * y)
    (gradient,) = torch.autograd.grad(result, x)
    assert (result.item(), gradient.item()) == (1000.0, 3.0)


def test_tensors_without_a_derivative() -> None:
    """A tensor may be declared to have no derivative: none flows, in second order either."""

    @pullback.custom_vjp(nondiff_argnames=("weight",))
    def weighted(x: Tensor, weight: Tensor) -> Tensor:
        return x * x * weight

    weighted.defvjp(lambda x, weight: (x * x * weight, x), lambda weight, x, g: (2 * x * weight * g,))
    x, weight = number(3.0), number(5.0)
    (gradient,) = torch.autograd.grad(weighted(x, weight), x, create_graph=True)
    assert gradient.item() == 30.0
    second = torch.autograd.grad(gradient, (x, weight), allow_unused=True)
    assert second[0].item() == 10.0
    assert second[1] is None
    assert not weighted(x.detach(), weight).requires_grad


def test_a_gradient_for_an_argument_without_is_an_error() -> None:
    """A dict that names an argument without a derivative is refused."""

    @pullback.custom_vjp(nondiff_argnums=(1,))
    def scale(x: Tensor, k: float) -> Tensor:
        return x * k

    scale.defvjp(lambda x, k: (x * k, None), lambda k, _, g: {"x": g * k, "k": g})
    with pytest.raises(pullback.errors.GradientError, match="PB222"):
        scale(number(1.0), 2.0).backward()


@pytest.mark.parametrize("decorator", [pullback.custom_vjp, pullback.custom_jvp])
def test_declared_arguments_must_be_there(decorator: Any) -> None:
    """PB106: a place or a name that the function doesn't have is refused where it is decorated."""

    def f(x: Tensor, k: float) -> Tensor:
        return x * k

    with pytest.raises(DefinitionError) as caught:
        decorator(f, nondiff_argnums=(2,))
    assert "PB106 nondiff_argnums has 2, which is no argument of f." in str(caught.value)
    assert "expected: places from 0 to 1" in str(caught.value)
    with pytest.raises(DefinitionError) as caught:
        decorator(f, nondiff_argnames=("kk",))
    assert "PB106 nondiff_argnames has 'kk', which is no argument of f." in str(caught.value)
    assert "expected: names among x, k" in str(caught.value)


def test_positional_only_arguments_and_a_parameter_called_ctx() -> None:
    """Any signature will do, whatever its parameters are called."""

    @pullback.custom_vjp
    def f(ctx: Tensor, x: Tensor, /) -> Tensor:
        return ctx * x

    f.defvjp(lambda ctx, x: (ctx * x, (ctx, x)), lambda kept, g: (kept[1] * g, kept[0] * g))
    a, b = number(2.0), number(3.0)
    gradients = torch.autograd.grad(f(a, b), (a, b))
    assert [gradient.item() for gradient in gradients] == [3.0, 2.0]


class Layer:
    """Has methods with derivatives of their own."""

    factor = 3.0

    @pullback.custom_vjp(nondiff_argnums=(0,))
    def scaled(self, x: Tensor) -> Tensor:
        """x times the layer's factor."""
        return x * self.factor

    scaled.defvjp(lambda self, x: (x * self.factor, None), lambda self, _, g: (g * self.factor,))

    @functools.partial(pullback.custom_jvp, nondiff_argnums=(0,))
    def moved(self, x: Tensor) -> Tensor:
        """x plus the layer's factor."""
        return x + self.factor

    @moved.defjvp
    def moved_jvp(self, primals: Any, tangents: Any) -> Any:
        """The rule of `moved`, with a derivative that says that it ran."""
        return self.moved(*primals), 7 * tangents[0]


def test_methods() -> None:
    """A method may be decorated; self is its first argument."""
    layer, x = Layer(), drawn(2)
    (gradient,) = torch.autograd.grad(layer.scaled(x).sum(), x)
    assert gradient.tolist() == [3.0, 3.0]
    (gradient,) = torch.autograd.grad(layer.moved(x).sum(), x)
    assert gradient.tolist() == [7.0, 7.0]
    assert Layer.scaled(layer, x.detach()).tolist() == (3 * x).tolist()
