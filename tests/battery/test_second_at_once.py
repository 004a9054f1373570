"""Right second derivatives are confirmed by a few lines through everything at once; wrong or kinked ones are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.check import make_subject
from pullback.battery.second import compare_second, differentiable_call, second_gradients, weights_for
from pullback.battery.second_at_once import all_confirmed
from pullback.battery.truth import Truth, truth_of
from tests.battery.running import leaf


def judged(function: Any, *args: Tensor, seed: int = 0) -> tuple[bool, int | None]:
    """Whether second derivatives are confirmed at once, and how many are wrong one by one."""
    subject = make_subject(function, args, seed=seed)
    truth = truth_of(subject, subject.cases[0])
    assert isinstance(truth, Truth)
    call = differentiable_call(subject, truth)
    weighted = weights_for(subject, call)
    obtained = [second_gradients(subject, call, weighted, k) for k in range(len(call.gradients))]
    confirmed = all_confirmed(subject, truth, call, weighted, obtained)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pullback.battery.second.all_confirmed", lambda *_: False)
        wrong = compare_second(subject, truth, call, weighted, obtained)
    return confirmed, None if wrong is None else len(wrong)


def product_with(change: Callable[[Tensor], Tensor]) -> Any:
    """x² y, whose gradient by x is 2 x y g with something done to what is made of y."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return 2 * x * change(y) * g, x * x * g

    return Product


def test_right_second_derivatives_are_confirmed() -> None:
    """Of several arguments, whose own blocks may be 0, and whatever the seed."""
    for seed in range(10):
        assert judged(product_with(lambda y: y), leaf(6), leaf(6), seed=seed) == (True, 0)
        assert judged(lambda a, b: a @ b, leaf(2, 3), leaf(3, 4), seed=seed) == (True, 0)


@pytest.mark.parametrize("place", [0, 3, 5])
def test_one_lost_element_is_not_confirmed(place: int) -> None:
    """A path that is cut in one element alone: what one by one shows shows along all of them, too."""
    kept = torch.ones(6, dtype=torch.float64)
    kept[place] = 0.0
    function = product_with(lambda y: y * kept + y.detach() * (1 - kept))
    for seed in range(10):
        confirmed, wrong = judged(function, leaf(6), leaf(6), seed=seed)
        assert not confirmed
        assert wrong


def test_a_block_that_is_lost_is_not_confirmed() -> None:
    """Autograd gives None for it: that counts as zeros, which are wrong."""
    assert judged(product_with(lambda y: y.detach()), leaf(6), leaf(6)) == (False, 1)


def test_a_gradient_with_a_kink_is_not_confirmed() -> None:
    """At the edge of relu² the gradient bends: that is for the slower comparison to say."""
    x = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    subject = make_subject(lambda x: x.relu() ** 2 + x, (x,))
    truth = truth_of(subject, subject.cases[0])
    assert isinstance(truth, Truth)
    assert not truth.case.moved
    call = differentiable_call(subject, truth)
    weighted = weights_for(subject, call)
    obtained = [second_gradients(subject, call, weighted, 0)]
    assert not all_confirmed(subject, truth, call, weighted, obtained)


def test_a_few_elements_are_left_to_the_comparison_one_by_one() -> None:
    """It takes no more calls for them."""
    assert judged(lambda x: x.sin(), leaf(2)) == (False, 0)
