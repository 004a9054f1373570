"""F1: what fails on torch.autograd.Function fails on pullback.Function, at the same moment, for the same handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from tests.function.kinds import leaf
from tests.torch_features import BOXES

Scenario = Callable[[type], Any]
SCENARIOS: list[Scenario] = []


class Moment:
    """Notes how far a scenario has come, so that it is known when it failed."""

    def __init__(self) -> None:
        """Keep what the test looks at."""
        self.name = "definition"


MOMENT = Moment()


def scenario(function: Scenario) -> Scenario:
    """Register a scenario: it takes a base class and does what fails."""
    SCENARIOS.append(function)
    return function


def apply(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Apply a Function, noting the moment."""
    MOMENT.name = "forward"
    return function.apply(*arguments, **keywords)


def backward(output: Tensor) -> None:
    """Differentiate, noting the moment."""
    MOMENT.name = "backward"
    output.sum().backward()


def make(base: type, *, forward: Any = None, backward: Any = None, **attributes: Any) -> Any:
    """Define a class with the methods given, and those of y = 3 x for the rest."""

    def triple(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    def triple_backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3

    body = {"forward": forward or triple, "backward": backward or triple_backward}
    methods = {name: staticmethod(method) for name, method in body.items()}
    return type("Triple", (base,), {"__module__": __name__, **methods, **attributes})


@scenario
def no_forward(base: type) -> None:
    """An abstract class is applied."""
    apply(type("Abstract", (base,), {}), leaf(3))


@scenario
def no_backward(base: type) -> None:
    """A class without backward is differentiated."""
    backward(apply(type("Undifferentiated", (base,), {"forward": staticmethod(lambda ctx, x: x * 3)}), leaf(3)))


@scenario
def no_backward_and_no_gradient(base: type) -> Any:
    """A class without backward is only applied, which works."""
    return apply(type("Undifferentiated", (base,), {"forward": staticmethod(lambda ctx, x: x * 3)}), leaf(3)).detach()


@scenario
def too_few_gradients(base: type) -> None:
    """One gradient for two arguments."""
    backward(apply(make(base, forward=lambda ctx, x, y: x * y, backward=lambda ctx, g: g), leaf(3), leaf(3)))


@scenario
def too_many_gradients(base: type) -> None:
    """Two gradients for one argument."""
    backward(apply(make(base, backward=lambda ctx, g: (g, g)), leaf(3)))


@scenario
def number_for_a_gradient(base: type) -> None:
    """A number where a tensor is due."""
    backward(apply(make(base, backward=lambda ctx, g: 3.0), leaf(3)))


@scenario
def wrong_shape(base: type) -> None:
    """A gradient of another shape."""
    backward(apply(make(base, backward=lambda ctx, g: g.new_ones(5)), leaf(3)))


@scenario
def saved_argument_changed(base: type) -> None:
    """A saved argument is changed between forward and backward."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    x = leaf(3) * 1
    y = apply(make(base, forward=forward, backward=lambda ctx, g: 2 * ctx.saved_tensors[0] * g), x)
    x.add_(1)
    backward(y)


@scenario
def saved_output_changed(base: type) -> None:
    """A saved output is changed between forward and backward."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    y = apply(make(base, forward=forward, backward=lambda ctx, g: ctx.saved_tensors[0] * g), leaf(3))
    y.mul_(2)
    backward(y)


@scenario
def backward_twice(base: type) -> None:
    """A second backward after what was saved was freed."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    y = apply(make(base, forward=forward, backward=lambda ctx, g: 2 * ctx.saved_tensors[0] * g), leaf(3))
    y.sum().backward()
    backward(y)


@scenario
def cleared_tensors_read_twice(base: type) -> None:
    """Saved tensors that clear themselves are read a second time."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    def twice(ctx: Any, g: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * g + ctx.saved_tensors[0] * g

    backward(apply(make(base, forward=forward, backward=twice, clear_saved_tensors_on_access=True), leaf(3)))


@scenario
def leaf_marked_dirty(base: type) -> None:
    """A leaf that requires grad is changed in place."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    backward(apply(make(base, forward=forward), leaf(3)))


@scenario
def dirty_but_not_returned(base: type) -> None:
    """A tensor is marked dirty and something else returned."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2) * 1

    backward(apply(make(base, forward=forward), leaf(3) * 1))


@scenario
def saved_number(base: type) -> None:
    """save_for_backward is given a number."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, 3)
        return x * 3

    backward(apply(make(base, forward=forward), leaf(3)))


@scenario
def forward_raises(base: type) -> None:
    """forward's own exception."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        raise LookupError("the author's own")

    apply(make(base, forward=forward), leaf(3))


@scenario
def backward_raises(base: type) -> None:
    """backward's own exception."""

    def own(ctx: Any, g: Tensor) -> Tensor:
        raise LookupError("the author's own")

    backward(apply(make(base, backward=own), leaf(3)))


@scenario
def too_few_arguments(base: type) -> None:
    """An argument is missing."""
    apply(make(base))


@scenario
def too_many_arguments(base: type) -> None:
    """One argument too many."""
    apply(make(base), leaf(3), leaf(3))


@scenario
def unknown_keyword(base: type) -> None:
    """A keyword that forward doesn't have."""
    apply(make(base), leaf(3), scale=2)


def _setup_context_style(base: type, returned: Any = None) -> Any:
    return make(base, forward=lambda x: x * 3, setup_context=staticmethod(lambda ctx, inputs, output: returned))


@scenario
def too_few_arguments_with_setup_context(base: type) -> None:
    """An argument is missing, in the other style."""
    apply(_setup_context_style(base))


@scenario
def unknown_keyword_with_setup_context(base: type) -> None:
    """A keyword that forward doesn't have, in the other style."""
    apply(_setup_context_style(base), leaf(3), scale=2)


@scenario
def setup_context_returns_something(base: type) -> None:
    """setup_context returns something, which torch doesn't mind."""
    apply(_setup_context_style(base, returned=3), leaf(3))


@scenario
def unused_output_without_materialization(base: type) -> None:
    """None arrives for an unused output, and backward multiplies it."""

    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    backward(apply(make(base, forward=forward, backward=lambda ctx, a, b: a * 2 + b * 3), leaf(3))[0])


@scenario
def once_differentiable_twice(base: type) -> None:
    """A second derivative of what is declared once differentiable, where torch notices."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    function = make(base, forward=forward, backward=once_differentiable(lambda ctx, g: 2 * ctx.saved_tensors[0] * g))
    x = leaf(3)
    g = torch.ones(3, dtype=x.dtype, requires_grad=True)
    (first,) = torch.autograd.grad(apply(function, x), x, g, create_graph=True)
    backward(first)


@scenario
def output_view_changed_in_place(base: type) -> None:
    """One of several views that forward returned is changed in place."""

    def forward(ctx: Any, x: Tensor) -> Any:
        return x[:1], x[1:]

    first, _ = apply(make(base, forward=forward, backward=lambda ctx, a, b: torch.cat([a, b])), leaf(3) * 1)
    first.mul_(2)


@scenario
def integer_output_differentiated(base: type) -> None:
    """An output of integers has no gradient to ask for."""
    backward(apply(make(base, forward=lambda ctx, x: x.long()), leaf(3)))


@scenario
def gradients_not_unboxed(base: type) -> None:
    """backward takes its boxed gradients for a tensor."""
    backward(apply(make(base, backward=lambda ctx, g: g.mul(3), boxed_grads_call=True), leaf(3)))


@scenario
def the_node_called_without_its_graph(base: type) -> None:
    """The saved tensors of a graph that was freed are read through the node."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    y = apply(make(base, forward=forward, backward=lambda ctx, g: 2 * ctx.saved_tensors[0] * g), leaf(3))
    y.sum().backward()
    assert y.grad_fn.saved_tensors


def run(do: Scenario, base: type) -> tuple[str, Any]:
    """Return the moment at which a scenario failed and its exception, or what it returned."""
    MOMENT.name = "definition"
    try:
        result = do(base)
    except Exception as error:
        return MOMENT.name, error
    return "no failure", result


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("do", SCENARIOS, ids=lambda do: do.__name__)
def test_it_fails_where_torch_fails(do: Scenario) -> None:
    """F1: the same moment, and an exception that a handler for torch's exception catches."""
    moment, expected = run(do, torch.autograd.Function)
    got_moment, got = run(do, pullback.Function)
    assert got_moment == moment, f"torch: {expected!r}; pullback: {got!r}"
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), f"{got!r} isn't a {type(expected).__name__}"
    else:
        assert type(got) is type(expected)


def test_nearly_every_scenario_fails_on_torch() -> None:
    """The scenarios are failures: only the two that say so work, and the one that a torch without boxes makes right."""
    working = [do.__name__ for do in SCENARIOS if run(do, torch.autograd.Function)[0] == "no failure"]
    right = [] if BOXES else ["gradients_not_unboxed"]
    assert sorted(working) == sorted(["no_backward_and_no_gradient", "setup_context_returns_something", *right])


def test_what_can_never_work_fails_earlier() -> None:
    """F1 and F2: two names for backward fail when the class is defined; in torch, when it is differentiated."""

    def do(base: type) -> None:
        backward(apply(make(base, vjp=staticmethod(lambda ctx, g: g)), leaf(3)))

    moment, expected = run(do, torch.autograd.Function)
    got_moment, got = run(do, pullback.Function)
    assert (moment, got_moment) == ("backward", "definition")
    assert isinstance(expected, RuntimeError)
    assert isinstance(got, TypeError)
