"""Other values for a call, which forward takes: what calls that are mixed, threads, caches and compiled code get."""

from collections.abc import Callable

import torch
from torch import Tensor

from pullback.battery.check import make_subject
from pullback.battery.oracle import elsewhere
from tests.battery.running import leaf


def moved(function: Callable[..., Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
    """The other values for a call."""
    subject = make_subject(function, arguments)
    case = elsewhere(subject, subject.cases[0])
    return tuple(tensor.detach() for _, _, tensor in subject.named_tensors(case.sample))


def test_elements_come_in_another_order_and_on_another_scale() -> None:
    """Larger and smaller by turns, so that a maximum, a mask and a threshold lie elsewhere."""
    x = torch.tensor([0.6, 0.8, 1.0, 1.2], dtype=torch.float64, requires_grad=True)
    (other,) = moved(torch.exp, x)
    torch.testing.assert_close(other, torch.tensor([1.5, 0.18, 1.0, 0.3], dtype=torch.float64))
    assert other.argmax() != x.argmax()
    assert ((other > 0.5) != (x > 0.5)).any()


def test_what_is_refused_stays_in_order() -> None:
    """A matrix that must be symmetric is only larger."""

    def of_symmetric(x: Tensor) -> Tensor:
        if not torch.equal(x, x.mT):
            raise ValueError("x must be symmetric")
        return x.sin()

    x = leaf(3, 3).detach()
    x = (x + x.mT).requires_grad_()
    assert torch.equal(moved(of_symmetric, x)[0], 1.25 * x.detach())


def test_what_isnt_finite_isnt_taken() -> None:
    """Where small numbers have no logarithm all are larger."""
    x = torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(moved(lambda x: (x - 0.4).log(), x)[0], 1.25 * x.detach().roll(1))


def test_integers_are_left_alone_and_layouts_kept() -> None:
    """They may be places in memory; strides are the argument's."""
    x, index = leaf(3, 2).detach().t().requires_grad_(), torch.tensor([1, 0])
    other, places = moved(lambda x, index: x[index], x, index)
    assert torch.equal(places, index)
    assert other.stride() == x.stride()


def test_the_argument_itself_is_not_changed() -> None:
    """Other values are in other tensors."""
    x = leaf(3)
    before = x.detach().clone()
    moved(torch.sin, x)
    assert torch.equal(x.detach(), before)
