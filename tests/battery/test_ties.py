"""The probe `ties`: equal elements together get forward's derivative, however they share it."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import ties
from pullback.battery.samples import Sample
from pullback.finding import Status
from tests.battery.running import leaf, run_probe


def larger(to_x: Any, to_y: Any) -> type[Function]:
    """max(x, y), elementwise, with the given shares of the gradient."""

    class Larger(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return torch.maximum(x, y)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            return g * to_x(x, y), g * to_y(x, y)

    return Larger


class LargestTwice(Function):
    """The largest element; equal ones all get the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.max()
        ctx.save_for_backward(x == y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


SHARES = {
    "all to x": (lambda x, y: x >= y, lambda x, y: y > x),
    "half each": (lambda x, y: (x > y) + 0.5 * (x == y), lambda x, y: (y > x) + 0.5 * (x == y)),
    "unequal": (lambda x, y: (x > y) + 0.3 * (x == y), lambda x, y: (y > x) + 0.7 * (x == y)),
}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
def test_any_share_of_the_gradient_is_right(shares: Any) -> None:
    """The probe asks for the sum alone."""
    outcome, findings = run_probe(ties.PROBE, larger(*shares), (leaf(3), leaf(3)))
    assert findings == ()
    assert outcome.status is Status.PASSED


@pytest.mark.parametrize("function", [torch.max, torch.median, torch.sort, torch.cummax, torch.linalg.norm, torch.std])
def test_what_pytorch_does_at_ties_passes(function: Any) -> None:
    """Its kinks are many, and its gradients there are all right."""
    arguments = (leaf(5), 0) if function is torch.cummax else (leaf(5),)
    assert run_probe(ties.PROBE, function, arguments)[1] == ()


def test_a_gradient_given_to_both_is_found() -> None:
    """Between arguments."""
    cls = larger(lambda x, y: x >= y, lambda x, y: y >= x)
    _, (finding,) = run_probe(ties.PROBE, cls, (leaf(3), leaf(3)))
    assert finding.rule == "PB506"
    assert "x and y" in finding.message


def test_a_gradient_given_to_neither_is_found() -> None:
    """The other slip."""
    cls = larger(lambda x, y: x > y, lambda x, y: y > x)
    _, (finding,) = run_probe(ties.PROBE, cls, (leaf(3), leaf(3)))
    assert finding.rule == "PB506"


@pytest.mark.parametrize("values", [[2.0, 2.0, 1.0], [2.0, 3.0, 1.0]])
def test_equal_elements_of_one_argument_are_found_given_and_made(values: list[float]) -> None:
    """In a sample of the author's, and in one that has none."""
    _, (finding,) = run_probe(ties.PROBE, LargestTwice, (torch.tensor(values, dtype=torch.float64),))
    assert finding.rule == "PB506"
    assert ("at the sample" in finding.message) == (values[0] == values[1])


def test_values_that_are_not_to_be_varied_are_left() -> None:
    """Only the sample itself is looked at."""
    assert run_probe(ties.PROBE, LargestTwice, Sample((leaf(3),), vary=()))[1] == ()


def test_a_surrogate_is_no_derivative_of_forward() -> None:
    """Its values say nothing at a tie."""
    outcome, _ = run_probe(ties.PROBE, torch.round, (leaf(3),), surrogate=lambda x: x)
    assert outcome.status is Status.SKIPPED


def test_a_gradient_that_is_wrong_everywhere_is_the_reason_of_the_skip() -> None:
    """It is said once, and not that there is no argument to try."""
    outcome, findings = run_probe(ties.PROBE, larger(lambda x, y: 2.0, lambda x, y: 2.0), (leaf(3), leaf(3)))
    assert findings == ()
    assert (outcome.status, outcome.notes) == (Status.SKIPPED, ())
    assert outcome.reason == "the gradient isn't known to be right at ordinary points"
