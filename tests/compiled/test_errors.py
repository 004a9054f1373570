"""F13, F3: what raises in eager mode is refused by its name when it is compiled whole, and raises when it isn't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError, PullbackError
from tests.compiled.running import fully, results
from tests.function.kinds import leaf


def product(backward: Callable[..., Any], **attributes: Any) -> Any:
    """Make a product of two tensors, the first of them in a dict, with this backward."""

    def forward(ctx: Any, d: dict[str, Tensor], w: Tensor) -> Tensor:
        return d["x"] * w

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), **attributes}
    return type("Product", (pullback.Function,), body)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "too few": (lambda ctx, g: ({"x": g},), r"PB201.*Product\.backward returned an incorrect number of gradients"),
    "a list": (lambda ctx, g: [g, g], r"PB202.*Product\.backward returned a value of type list"),
    "a number": (lambda ctx, g: ({"x": g}, 2.0), r"PB202.*Product\.backward returned a value of type float.*of w"),
    "one not there": (lambda ctx, g: {"d": {"x": g}}, r"PB218.*Product\.backward returned no entry for w"),
    "an unknown one": (lambda ctx, g: {"d": None, "w": g, "z": g}, r"PB218.*gradient for 'z'"),
    "another leaf": (lambda ctx, g: ({"y": g}, g), r"PB218.*gradient for d\['y'\]"),
    "another kind": (
        lambda ctx, g: ([g], g),
        r"PB202.*Product\.backward returned a value of type a list.*gradient of d",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_gradients_that_are_wrong(name: str) -> None:
    """F3: of fullgraph=True the error has the rule, the class and the argument; without it is eager's."""
    backward, said = WRONG[name]
    made, x, w = product(backward), leaf(3), leaf(3, seed=1)

    def program(x: Tensor, w: Tensor) -> Any:
        return made.apply({"x": x}, w)

    with pytest.raises(torch._dynamo.exc.Unsupported, match=said):
        fully(program)(x, w)
    torch._dynamo.reset()
    with pytest.raises(GradientError) as eager:
        results(program, (x, w), x, w)
    with pytest.raises(GradientError) as broken:
        results(torch.compile(program, backend="aot_eager"), (x, w), x, w)
    assert str(broken.value) == str(eager.value)


def test_a_gradient_that_is_declared_away() -> None:
    """F6: PB222 is raised of compiled code, too."""
    made, x, w = product(lambda ctx, g: ({"x": g}, g), nondiff_argnames=("w",)), leaf(3), leaf(3, seed=1)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"PB222.*gradient for w"):
        fully(lambda x, w: made.apply({"x": x}, w))(x, w)


def without_rule() -> Any:
    """Make a function whose rule was never given."""
    return pullback.custom_vjp(lambda x: x * 2)


def short() -> Any:
    """Make a function whose bwd returns too much."""
    made = pullback.custom_vjp(lambda x: x * 2)
    made.defvjp(lambda x: (x * 2, None), lambda _, g: (g, g))
    return made


def no_pair() -> Any:
    """Make a function whose fwd returns no residuals."""
    made = pullback.custom_vjp(lambda x: x * 2)
    made.defvjp(lambda x: x * 2, lambda _, g: (g,))
    return made


def unlike() -> Any:
    """Make a function whose tangent is another nest than its result."""
    made = pullback.custom_jvp(lambda x: {"y": x * 2})
    made.defjvp(lambda primals, tangents: ({"y": primals[0] * 2}, [tangents[0]]))
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (without_rule, "PB112.*has no derivative yet"),
        (short, "PB201.*the bwd of.*incorrect number of gradients"),
        (no_pair, "PB202.*the fwd of.*something else than a pair"),
        (unlike, "PB202.*the rule of.*isn't like the result"),
    ],
)
def test_rules_that_are_wrong(make: Callable[[], Any], said: str) -> None:
    """F16: what is wrong with a rule is said by fullgraph=True, and raised in Python without."""
    made, x = make(), leaf(3)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=said):
        fully(lambda x: made(x))(x)
    torch._dynamo.reset()
    with pytest.raises(PullbackError, match=said):
        results(torch.compile(lambda x: made(x), backend="aot_eager"), (x,), x)
