"""The derivative of a jvp's tangent is that of backward's gradient: the second half of the probe `forward_mode`."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pullback.battery.check import check
from pullback.battery.probes import forward_mode
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x · w², with a jvp."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        return x * w**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * (w**2).conj(), g * (2 * x * w).conj()

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return tx * w**2 + 2 * x * w * tw


def product(made: Any) -> type[Function]:
    """Product, whose tangent is what `made` makes of the right one."""

    class Other(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return made(ctx, tx, tw)

    return Other


SAMPLE = (leaf(3), leaf(3))


def complex_leaf() -> Tensor:
    """Three numbers off both axes."""
    return torch.complex(leaf(3), leaf(3)).detach().requires_grad_()


@pytest.mark.parametrize("sample", [SAMPLE, (complex_leaf(), complex_leaf()), (leaf(1, 2), leaf(2))])
def test_a_differentiable_tangent_passes(sample: Any) -> None:
    """Real, complex or a number."""
    outcome, findings = run_probe(forward_mode.PROBE, Product, sample)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_a_detached_tangent_is_found() -> None:
    """PB507: forward mode is right, and a gradient of it is lost."""
    function = product(lambda ctx, tx, tw: Product.jvp(ctx, tx, tw).detach())
    _, (finding,) = run_probe(forward_mode.PROBE, function, SAMPLE)
    assert (finding.rule, finding.where) == ("PB507", "argument x, sample 0")
    assert finding.message == "the tangent that jvp returns has no graph: its derivative by x is lost"
    assert finding.got == "0 (no path)"
    assert finding.evidence["order"] == 2
    assert shows_the_fault(finding, Other=function)


def test_a_part_of_a_tangent_that_is_detached_is_found() -> None:
    """The term with w's tangent has lost its graph, and the other one hasn't."""

    def made(ctx: Any, tx: Tensor, tw: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        return tx * w**2 + (2 * x * w).detach() * tw

    function = product(made)
    _, (finding,) = run_probe(forward_mode.PROBE, function, SAMPLE)
    assert finding.rule == "PB507"
    assert "x" in finding.message
    assert shows_the_fault(finding, Other=function)


def test_a_linear_function_that_detaches_is_found_too() -> None:
    """There is no second derivative of its own to lose, but that of whatever made its argument: PB507."""

    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Any:
            return (2 * t).detach()

    _, (finding,) = run_probe(forward_mode.PROBE, Twice, (leaf(3),))
    assert finding.rule == "PB507"
    assert shows_the_fault(finding, Twice=Twice)


def test_a_backward_that_is_differentiated_once_is_nothing_to_go_by() -> None:
    """Then nothing is asked of the tangent's derivative either."""

    class Once(Product):
        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w**2, g * 2 * x * w

        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return Product.jvp(ctx, tx, tw).detach()

    assert run_probe(forward_mode.PROBE, Once, SAMPLE)[1] == ()


def test_a_wrong_second_derivative_is_told_once() -> None:
    """Where backward's own is wrong, the tangent's isn't compared with it."""

    class Cut(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * (w**2).detach(), g * 2 * x * w

    report = check(Cut, SAMPLE, only=("second_order", "forward_mode"))
    assert {finding.rule for finding in report.findings} <= {"PB205", "PB206", "PB207"}
    assert report.outcomes["forward_mode"].status is Status.PASSED


def test_first_order_alone_is_asked_for() -> None:
    """With ``orders=1`` tangents needn't have a graph."""
    function = product(lambda ctx, tx, tw: Product.jvp(ctx, tx, tw).detach())
    assert check(function, SAMPLE, orders=1, only="forward_mode").ok


def test_the_derivative_of_a_tangent_of_one_argument_alone_is_tried() -> None:
    """PB507: where w doesn't move, jvp takes a way of its own, which has no graph."""

    class Apart(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.set_materialize_grads(False)
            return Product.forward(ctx, x, w)

        @staticmethod
        def jvp(ctx: Any, tx: Any, tw: Any) -> Any:
            x, w = ctx.saved_tensors
            if tw is None:
                return tx * w.detach() ** 2
            return Product.jvp(ctx, x.new_zeros(x.shape) if tx is None else tx, tw)

    _, (finding,) = run_probe(forward_mode.PROBE, Apart, (leaf(3), leaf(3)))
    assert (finding.rule, finding.evidence["order"]) == ("PB507", 2)
    assert shows_the_fault(finding, Apart=Apart)


def test_a_tangent_that_is_rounded_on_the_way_is_found() -> None:
    """PB507 where jvp alone computes in float32 and no more than its last digits show that."""
    function = product(lambda ctx, tx, tw: Product.jvp(ctx, tx.float().double(), tw))
    sample = (torch.linspace(0.1, 1, 50).double() / 3).requires_grad_(), leaf(50)  # errors go up and down
    _, (finding,) = run_probe(forward_mode.PROBE, function, sample)
    assert (finding.rule, finding.evidence["dtype"]) == ("PB507", "float32")
    assert finding.message.startswith("the tangent that jvp returns is float64 and has the precision of float32")
    assert shows_the_fault(finding, Other=function)


def test_a_mask_in_float32_changes_no_digit_of_a_tangent() -> None:
    """What operators give in float32 is no fault by itself."""
    function = product(lambda ctx, tx, tw: Product.jvp(ctx, tx, tw) * (tw.float() > -9).float())
    assert run_probe(forward_mode.PROBE, function, SAMPLE)[1] == ()


def test_a_function_of_float32_may_have_such_tangents() -> None:
    """Where forward computes in float32 itself, so may jvp."""

    class Single(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return Product.forward(ctx, x, w).float().double()

        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return Product.jvp(ctx, tx, tw).float().double()

    assert run_probe(forward_mode.PROBE, Single, SAMPLE)[1] == ()


def test_a_tangent_that_jvp_writes_to_is_found() -> None:
    """Whoever passed it holds it still: PB507."""

    def writes(ctx: Any, tx: Tensor, tw: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        return tx.mul_(w**2) + 2 * x * w * tw

    Writes = product(writes)
    _, (finding,) = run_probe(forward_mode.PROBE, Writes, SAMPLE)
    assert (finding.rule, finding.message) == ("PB507", "jvp changes the tangent of x in place")
    assert shows_the_fault(finding, Other=Writes)


def test_a_tangent_that_jvp_detaches_from_the_one_that_came_is_found() -> None:
    """It is linear in that, and its derivative by that is backward's gradient: PB507."""

    def detaches(ctx: Any, tx: Tensor, tw: Tensor) -> Tensor:
        return Product.jvp(ctx, tx.detach(), tw)

    Detaches = product(detaches)
    _, (finding,) = run_probe(forward_mode.PROBE, Detaches, SAMPLE)
    assert finding.rule == "PB507"
    assert finding.message == "the tangent that jvp returns has no path back to the tangent of x"
    assert shows_the_fault(finding, Other=Detaches)
