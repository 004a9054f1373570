"""A right gradient is confirmed by a few differences; one that is wrong, at a kink, or coarse in any way is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.certain import Gradients, confirmed_gradients
from pullback.battery.check import make_subject
from pullback.battery.oracle import oracle_of
from pullback.battery.truth import Truth, truth_of

_SEEDS = range(20)


def confirmed(function: Any, *args: Tensor, seed: int = 0) -> Gradients:
    """What is confirmed at a sample."""
    subject = make_subject(function, args, seed=seed)
    outputs = subject.call(subject.fresh(subject.cases[0]))
    cotangents = tuple(subject.cotangent(output.tensor) for output in outputs)
    return confirmed_gradients(subject, subject.cases[0], oracle_of(subject), tuple(range(len(outputs))), cotangents)


def spread(count: int) -> Tensor:
    """Numbers from 1e-3 to 1, so that some elements of a gradient are small beside the others."""
    return torch.logspace(-3, 0, count, dtype=torch.float64).requires_grad_()


def wrong_by(change: Callable[[Tensor], Tensor]) -> Any:
    """x³ with a gradient that something was done to."""

    class Cubed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return change(3 * x**2 * g)

    return Cubed


def in_element(place: int, factor: float) -> Callable[[Tensor], Tensor]:
    """Multiplies one element."""

    def change(gradient: Tensor) -> Tensor:
        factors = torch.ones_like(gradient)
        factors[place] = factor
        return gradient * factors

    return change


@pytest.mark.parametrize("count", [1, 2, 12, 64, 500])
def test_right_gradients_are_confirmed(count: int) -> None:
    """Of few elements and of many."""
    for seed in _SEEDS:
        assert confirmed(wrong_by(lambda gradient: gradient), spread(count), seed=seed)


def test_each_output_is_confirmed_on_its_own() -> None:
    """One that an argument doesn't reach has no gradient, and none is right there."""
    found = confirmed(lambda x, y: (x.sin(), x * y), spread(3), spread(3))
    assert set(found) == {("x", 0), ("x", 1), ("y", 0), ("y", 1)}
    assert not bool(found["y", 0].any())


@pytest.mark.parametrize("factor", [1 + 1e-4, 0.0, -1.0])
@pytest.mark.parametrize("place", [0, 6, 11])
def test_what_a_difference_by_the_element_finds_is_not_confirmed(place: int, factor: float) -> None:
    """Wrong in one element, large or small: whatever the element alone would show shows among all of them, too."""
    function, x = wrong_by(in_element(place, factor)), spread(12)
    subject = make_subject(function, (x,))
    (case,) = subject.cases
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pullback.battery.truth.confirmed_gradients", lambda *_: {})
        truth = truth_of(subject, case)
    assert isinstance(truth, Truth)
    inputs = subject.fresh(case)
    (gradient,) = subject.gradients(subject.call(inputs), truth.cotangents, inputs.varying)
    if truth.judge(inputs.varying[0], 0, gradient) is not None:
        assert not any(confirmed(function, x, seed=seed) for seed in _SEEDS)
    else:
        assert place == 0  # 1e-6 of the largest, and off by less than that share of a difference's tolerance


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (torch.relu, 0.0),
        (lambda x: x.amax(-1), 0.5),
        (lambda x: x.norm(), 0.0),
        (lambda x: x.round() + x, 0.5),
        (lambda x: x.float().sin().double(), 0.3),
    ],
)
def test_what_is_not_smooth_or_rounds_is_not_confirmed(function: Any, value: float) -> None:
    """At a kink, at a tie, where forward steps, and where it computes in float32."""
    x = torch.full((2, 5), value, dtype=torch.float64, requires_grad=True)
    assert not any(confirmed(function, x, seed=seed) for seed in _SEEDS)


def test_a_median_of_equal_elements_is_not_confirmed() -> None:
    """Each line through it is smooth, and the element that backward chose may be the median along one or two."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert not any(confirmed(lambda x: x.median(), x, seed=seed) for seed in range(100))


def test_a_backward_that_raises_confirms_nothing() -> None:
    """The probes say what it raised."""

    def refuse(gradient: Tensor) -> Tensor:
        raise RuntimeError("no")

    x = spread(3)
    subject = make_subject(wrong_by(refuse), (x,))
    case = subject.all_cases[0]
    assert not confirmed_gradients(subject, case, None, (0,), (torch.ones(3, dtype=torch.float64),))


def test_a_nan_is_not_confirmed() -> None:
    """Nothing is known of a gradient with NaN in it."""
    assert not confirmed(wrong_by(in_element(1, float("nan"))), spread(4))


def product_by(change: Callable[[Tensor], Tensor]) -> Any:
    """x² y, and something done to the gradient by y."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x**2 * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return 2 * x * y * g, change(x**2 * g)

    return Product


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_several_arguments_are_confirmed_together(scale: float) -> None:
    """Whatever their sizes: in as many calls as one argument takes, and two for the gradients and the start."""
    x, y = spread(6), (scale * spread(6).detach()).requires_grad_()
    calls: list[int] = []

    def counted(x: Tensor, y: Tensor) -> Any:
        calls.append(1)
        return product_by(lambda gradient: gradient).apply(x, y)

    subject = make_subject(counted, (x, y))
    case = subject.cases[0]
    cotangents = (torch.ones(6, dtype=torch.float64),)
    calls.clear()
    assert confirmed_gradients(subject, case, None, (0,), cotangents)
    assert len(calls) == 2 + 2 * 8 + 4 * 2


@pytest.mark.parametrize("factor", [1 + 1e-4, 0.0, -1.0])
def test_one_wrong_element_of_one_argument_is_not_confirmed(factor: float) -> None:
    """Beside an argument that is right, however large its gradient is."""
    for scale in (1e-6, 1.0, 1e6):
        y = (scale * spread(6).detach()).requires_grad_()
        function = product_by(in_element(5, factor))
        assert not any(confirmed(function, spread(6), y, seed=seed) for seed in range(5))
