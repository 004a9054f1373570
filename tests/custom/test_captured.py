"""F16: a captured tensor that requires grad raises PB503, by the name by which it was reached; nothing else does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.errors import CallError
from tests.custom.rules import drawn, number

WEIGHT = torch.ones(3, dtype=torch.float64, requires_grad=True)
NETWORK = nn.Linear(3, 3, dtype=torch.float64)
HELD = {"scale": [torch.ones(3, dtype=torch.float64, requires_grad=True)]}


class Scaler:
    """Holds a parameter."""

    weight: Tensor

    def scaled(self, x: Tensor) -> Tensor:
        """x times the parameter."""
        return x * self.weight


def scaler() -> Scaler:
    """Make one, with a parameter of its own."""
    made = Scaler()
    made.weight = drawn(3)
    return made


def from_closure() -> Any:
    """Make a function that captures a local variable."""
    w = drawn(3, seed=5)
    return lambda x: x * w


def by_default() -> Any:
    """Make a function that captures a tensor as a default."""

    def f(x: Tensor, factor: Tensor = WEIGHT) -> Tensor:
        return x * factor

    return lambda x: f(x)


def through_another() -> Any:
    """Make a function that calls another one, which captures a global."""

    def inner(x: Tensor) -> Tensor:
        return x * WEIGHT

    return lambda x: inner(x)


def by_partial() -> Any:
    """Make a function that calls a partial with a tensor in it."""
    bound = functools.partial(torch.mul, drawn(3))
    return lambda x: bound(x)


class Config:
    """Holds a tensor on the class."""

    gain = torch.ones(3, dtype=torch.float64, requires_grad=True)


class Slotted:
    """Holds a tensor in a slot."""

    __slots__ = ("gain",)
    gain: Tensor


class Shares:
    """Holds a parameter on the class, and can be called."""

    shared = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        """x times the parameter."""
        return x * self.shared

    @classmethod
    def scaled(cls, x: Tensor) -> Tensor:
        """x times the parameter."""
        return x * cls.shared


SLOTTED = Slotted()
SLOTTED.gain = drawn(3)

CAPTURING = {
    "closure": (from_closure, "w"),
    "global": (lambda: lambda x: x * WEIGHT, "WEIGHT"),
    "container": (lambda: lambda x: x * HELD["scale"][0], "HELD['scale'][0]"),
    "default": (by_default, "factor"),
    "another function": (through_another, "WEIGHT"),
    "module": (lambda: lambda x: NETWORK(x), "NETWORK.weight"),
    "module functionally": (lambda: lambda x: nn.functional.linear(x, NETWORK.weight), "NETWORK.weight"),
    "class": (lambda: lambda x: x * Config.gain, "Config.gain"),
    "slot": (lambda: lambda x: x * SLOTTED.gain, "SLOTTED.gain"),
    "bound method": (lambda: scaler().scaled, "self.weight"),
    "partial": (by_partial, "bound[0]"),
    "attribute of the class": (lambda: Shares(), "f.shared"),
    "bound method of such": (lambda: Shares().__call__, "self.shared"),
    "class method": (lambda: Shares.scaled, "self.shared"),
}


def decorated(f: Any) -> Any:
    """Decorate `f` so that it captures in the function and in fwd alike."""

    def captures(x: Tensor) -> Tensor:
        result: Tensor = f(x)
        return result

    made = pullback.custom_vjp(captures)
    made.defvjp(lambda x: (f(x), x), lambda x, g: (g,))
    return made


@pytest.mark.parametrize(("make", "name"), CAPTURING.values(), ids=CAPTURING)
def test_captured_tensors_are_named(make: Any, name: str) -> None:
    """PB503 names the tensor by its path, for the function without a gradient to come, and for fwd with one."""
    made = decorated(make())
    with pytest.raises(CallError) as caught:
        made(drawn(3).detach())
    text = str(caught.value)
    assert f"PB503 captures uses {name}, which requires grad and isn't among its arguments." in text
    assert "expected: arguments for all that is differentiated" in text
    assert f"got: {name}, captured from outside" in text
    assert f"remedy: Pass {name} as an argument; or detach it, if no gradient is meant to flow." in text
    with pytest.raises(CallError, match="PB503 the fwd of captures uses"):
        made(drawn(3))


def test_bwd_may_not_capture_either() -> None:
    """What bwd takes from outside is named as well."""

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (g * WEIGHT,))
    with pytest.raises(CallError, match="PB503 the bwd of double uses WEIGHT"):
        double(drawn(3)).sum().backward()


def test_a_rule_for_tangents_may_not_capture() -> None:
    """custom_jvp: what the rule takes from outside is named."""

    @pullback.custom_jvp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.defjvp(lambda p, t: (double(*p), t[0] * WEIGHT))
    with pytest.raises(CallError, match="PB503 the rule of double uses WEIGHT"):
        double(drawn(3))


def test_a_function_argument_may_not_capture() -> None:
    """A function that is passed as an argument must not bring a tensor along."""

    @pullback.custom_vjp(nondiff_argnums=(0,))
    def apply(f: Any, x: Tensor) -> Tensor:
        result: Tensor = f(x)
        return result

    apply.defvjp(lambda f, x: (f(x), x), lambda f, x, g: (g,))
    w = drawn(3)
    with pytest.raises(CallError, match="PB503 the fwd of apply uses w, which"):
        apply(lambda x: x * w, drawn(3))
    with pytest.raises(CallError, match=r"PB503 the fwd of apply uses f.weight, which"):
        apply(NETWORK, drawn(3))


def test_a_tensor_that_nothing_leads_to() -> None:
    """A captured leaf is an error even where its name can't be found."""
    hidden = iter([drawn(3)])
    made = decorated(lambda x: x * next(hidden))
    with pytest.raises(CallError, match=r"PB503 captures uses a tensor of shape \(3,\)"):
        made(drawn(3).detach())


def test_under_a_transform() -> None:
    """A tensor that an enclosing torch.func transform differentiates is captured, too."""

    def outer(w: Tensor, x: Tensor) -> Tensor:
        @pullback.custom_vjp
        def scale(x: Tensor) -> Tensor:
            return x * w

        scale.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
        return scale(x).sum()

    with pytest.raises(CallError, match=r"PB503 .*scale uses w"):
        torch.func.grad(outer)(drawn(3).detach(), drawn(3).detach())


def test_what_is_no_capture() -> None:
    """Shapes, detached values, comparisons, tensors without grad and what is made inside are all fine."""
    table = drawn(3).detach()

    @pullback.custom_vjp
    def fine(x: Tensor) -> Tensor:
        return x

    def fwd(x: Tensor) -> Any:
        with torch.enable_grad():
            inside = x.detach().requires_grad_()
            made = torch.zeros(3, dtype=x.dtype)
            made.requires_grad = True
            parameter = nn.Parameter(table.clone())
            value = (inside * inside + made * 2 + parameter).sum()
            (slope,) = torch.autograd.grad(value, inside, create_graph=True)
            slope = slope * torch.func.grad(lambda t: (t * t * inside.detach()).sum())(x.detach())
        mask = x.detach() > WEIGHT
        like = torch.zeros_like(WEIGHT) + WEIGHT.detach() * WEIGHT.data + len(WEIGHT) + WEIGHT.shape[0]
        return x * mask + like + table + slope.detach(), (mask, x)

    fine.defvjp(fwd, lambda kept, g: (g * kept[0] * table,))
    x = drawn(3)
    for _ in range(3):
        fine(x).sum().backward()
    (gradient,) = torch.autograd.grad(fine(x).sum(), x, create_graph=True)
    assert gradient.shape == (3,)


def test_another_decorated_function_inside() -> None:
    """Functions that are called inside, decorated ones and Functions among them, capture nothing by that."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    @pullback.custom_jvp
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)

    sine.defjvps(lambda x_dot, result, x: torch.cos(x) * x_dot)

    @pullback.custom_vjp
    def both(x: Tensor) -> Tensor:
        return sine(Square.apply(x))

    def bwd(x: Tensor, g: Tensor) -> Any:
        with torch.enable_grad():
            _, pull = torch.func.vjp(lambda x: sine(x * x), x)
        return pull(g)

    both.defvjp(lambda x: (both(x), x), bwd)
    x = number(0.7)
    (gradient,) = torch.autograd.grad(both(x), x)
    assert gradient.item() == pytest.approx((torch.cos(x * x) * 2 * x).item(), rel=1e-12)


def test_what_transforms_make_inside_is_no_capture() -> None:
    """A leaf of torch.func.vjp's own is met in grad mode first, and then by its pull without; also by a first call."""

    @pullback.custom_vjp(nondiff_argnums=(0,))
    def apply(f: Any, x: Tensor) -> Tensor:
        return f(x)

    apply.defvjp(lambda f, x: (f(x), x), lambda f, x, g: (apply(lambda g: torch.func.vjp(f, x)[1](g)[0], g),))
    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(apply(torch.sin, x), x, create_graph=True)
    torch.testing.assert_close(first, x.cos())


def test_only_the_first_calls_are_watched() -> None:
    """Watching has an end: later calls run at full speed."""
    modes: list[int] = []

    @pullback.custom_vjp
    def probe(x: Tensor) -> Tensor:
        modes.append(torch._C._len_torch_function_stack())
        return x * 2

    probe.defvjp(lambda x: (probe(x), None), lambda _, g: (2 * g,))
    for _ in range(20):
        probe(torch.ones(1))
    assert modes == [1] * 16 + [0] * 4
