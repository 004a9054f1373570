"""Second derivatives where one argument requires grad, or all are slices: the third part of `second_order`."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import second_order
from pullback.battery.samples import Sample
from pullback.finding import Finding, Status
from tests.battery.repros import shown, shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x² · w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x**2 * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return 2 * g * x * w, g * x**2


SAMPLE = (leaf(3), leaf(3))


def the_finding(function: type[Function], *samples: Any) -> Finding:
    """The one finding of the probe."""
    _, (finding,) = run_probe(second_order.PROBE, function, *(samples or (SAMPLE,)))
    return finding


def test_a_connected_backward_passes() -> None:
    """Whoever requires grad, and wherever it lies."""
    outcome, findings = run_probe(second_order.PROBE, Product, SAMPLE)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_a_graph_that_is_lost_where_one_argument_requires_grad_is_found() -> None:
    """PB205, with the derivative that came when all require grad."""

    class Alone(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            if not all(ctx.needs_input_grad):
                x = x.detach()
            return 2 * g * x * w, g * x**2

    finding = the_finding(Alone)
    assert (finding.rule, finding.where) == ("PB205", "argument x, x alone, sample 0")
    assert finding.message == "the derivative of x's gradient by x is another when only x requires grad"
    assert finding.expected.endswith(", as when all require grad")
    assert shows_the_fault(finding, Alone=Alone)


def test_a_graph_that_is_lost_where_one_argument_requires_none_is_found() -> None:
    """PB205: neither where all require grad, nor where one does alone."""

    class AllBut(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x**2 * w + b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            gx, gw = 2 * g * x * w, g * x**2
            if ctx.needs_input_grad == (True, True, False):
                gx = gx + (2 * g * (w * x).detach() - 2 * g * x * w)
            return gx, gw, g

    finding = the_finding(AllBut, (leaf(3), leaf(3), leaf(3)))
    assert (finding.rule, finding.where) == ("PB205", "argument x, all but b, sample 0")
    assert finding.message == "the derivative of x's gradient by x is another when b requires no grad"
    assert shows_the_fault(finding, AllBut=AllBut)


def test_pullbacks_own_refusal_keeps_its_code() -> None:
    """PB207 where the reference can't be run, since an argument that doesn't require grad wasn't kept for it."""

    class Opaque(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w + b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return (g * w).detach(), (g * x).detach(), g

        @staticmethod
        def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return x * w + b

    finding = the_finding(Opaque, (leaf(3), leaf(3), leaf(3)))
    assert (finding.rule, finding.where) == ("PB207", "argument w, w alone, sample 0")
    assert finding.message.startswith("when only w requires grad, differentiating the gradient raises: the gradient of")
    assert "PB207" in shown(finding, Opaque=Opaque)


def test_a_copy_that_is_saved_of_slices_is_found() -> None:
    """contiguous is the tensor itself where it is contiguous, and cut off where it isn't."""

    class Copies(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x.contiguous(), w)
            return x**2 * w

    finding = the_finding(Copies)
    assert finding.rule == "PB205"
    assert finding.where == "argument w, sliced arguments, sample 0"
    assert finding.message == (
        "the derivative of w's gradient by x is another when the arguments are slices of larger tensors"
    )
    assert finding.remedy.startswith("Save the argument itself and call .contiguous() in backward")
    assert shows_the_fault(finding, Copies=Copies)


def test_contiguous_in_backward_passes() -> None:
    """There it is part of the graph."""

    class InBackward(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = (t.contiguous() for t in ctx.saved_tensors)
            return 2 * g * x * w, g * x**2

    assert run_probe(second_order.PROBE, InBackward, SAMPLE)[1] == ()


def test_a_forward_that_refuses_slices_is_noted() -> None:
    """It says what it takes."""

    class Dense(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            if not x.is_contiguous():
                raise ValueError("x must be contiguous")
            return Product.forward(ctx, x, w)

    outcome, findings = run_probe(second_order.PROBE, Dense, SAMPLE)
    assert findings == ()
    assert outcome.notes == ("refused: sliced arguments, sample 0 (ValueError: x must be contiguous)",)


def test_layouts_that_the_author_fixes_are_left_alone() -> None:
    """A sample that may vary in nothing is tried as it is."""

    class Copies(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x.contiguous(), w)
            return x**2 * w

    assert run_probe(second_order.PROBE, Copies, Sample(SAMPLE, vary=()))[1] == ()


def test_samples_that_run_what_others_run_are_passed_over() -> None:
    """The calls with one argument alone are made for a few samples that run together what all of them run."""
    alone = []

    class Counts(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            if not all(ctx.needs_input_grad):
                alone.append(g.shape)
            return Product.backward(ctx, g)

    assert run_probe(second_order.PROBE, Counts, SAMPLE, (leaf(4), leaf(4)), (leaf(5), leaf(5)))[1] == ()
    assert set(alone) == {torch.Size([3])}


def test_a_gradient_that_is_missing_alone_is_the_first_orders_matter() -> None:
    """Which flag guards it, another probe finds."""

    class WrongFlag(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return 2 * g * x * w, g * x**2 if ctx.needs_input_grad[0] else None

    assert run_probe(second_order.PROBE, WrongFlag, SAMPLE)[1] == ()


class Scale(Function):
    """The identity, with a wrong derivative: right in first order where it stands in backward, and wrong in second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 1.5


def test_a_constant_grad_output_is_tried() -> None:
    """As in a gradient penalty: PB205 where only then the second derivative is another."""

    class Penalised(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            gx, gw = Product.backward(ctx, g)
            return (Scale.apply(gx) if torch.is_grad_enabled() and not g.requires_grad else gx), gw

    finding = the_finding(Penalised)
    assert finding.rule == "PB205"
    assert finding.message == (
        "the derivative of x's gradient by w is another when grad_output doesn't require grad, as in a gradient penalty"
    ) or finding.message.startswith("the derivative of x's gradient by x is another when grad_output doesn't require")
    assert shows_the_fault(finding, Penalised=Penalised)


def test_another_gradient_under_create_graph_for_one_argument_alone_is_found() -> None:
    """PB205: without create_graph it is right, so no probe of the first order sees it."""

    class Branches(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            gx, gw = Product.backward(ctx, g)
            return gx, gw * 2 if torch.is_grad_enabled() and not ctx.needs_input_grad[0] else gw

    finding = the_finding(Branches)
    assert finding.message == (
        "when only w requires grad, the gradient of w is another under create_graph=True than without"
    )
    assert shows_the_fault(finding, Branches=Branches)


def test_a_shortcut_for_a_grad_output_of_zeros_is_found() -> None:
    """PB205: the gradient is right, 0, and its derivative by grad_output is lost."""

    class Shortcut(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Product.backward(ctx, g) if g.any() else Product.backward(ctx, torch.zeros_like(g))

    finding = the_finding(Shortcut)
    assert finding.message == (
        "the derivative of x's gradient by grad_output is another where grad_output is all zeros"
    )
    assert shows_the_fault(finding, Shortcut=Shortcut)


def test_a_shortcut_for_a_grad_output_of_ones_is_found() -> None:
    """PB205: the product with ones is left out, and with it the derivative by grad_output."""

    class Shortcut(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Product.backward(ctx, torch.ones_like(g) if (g == 1).all() else g)

    finding = the_finding(Shortcut)
    assert finding.message == ("the derivative of x's gradient by grad_output is another where grad_output is all ones")
    assert shows_the_fault(finding, Shortcut=Shortcut)


@pytest.mark.parametrize("norm", [lambda g: g.square().sum().sqrt(), torch.linalg.vector_norm])
def test_a_derivative_at_zeros_that_isnt_finite_is_found_of_a_nonlinear_backward(norm: Any) -> None:
    """PB205 for the root of a sum of squares, whose slope at 0 is infinite; PyTorch's norm has the slope 0 there."""

    class Clipped(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            length = norm(g)
            return g * torch.where(length > 1, 1 / torch.where(length > 1, length, 1), 1)

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grads: Any) -> Any:
            return grads[0] / grads[0].norm().clamp(min=1)

    _, findings = run_probe(second_order.PROBE, Clipped, (leaf(3),))
    assert len(findings) == (norm is not torch.linalg.vector_norm)
    for finding in findings:
        assert finding.message == (
            "the derivative of x's gradient by grad_output isn't finite where grad_output is all zeros, and the "
            "gradient is smooth there"
        )
        assert shows_the_fault(finding, Clipped=Clipped)


def test_a_graph_that_is_lost_where_an_argument_is_no_leaf_is_found() -> None:
    """An activation is detached before it is saved, a leaf isn't: PB205, with the derivative for leaves."""

    class Activations(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x if x.is_leaf else x.detach(), w)
            return x**2 * w

    finding = the_finding(Activations)
    assert (finding.rule, finding.evidence["by"]) == ("PB205", "x")
    assert finding.message.endswith("is another when the arguments are results of other operations")
    assert shows_the_fault(finding, Activations=Activations)


def test_a_refusal_where_an_argument_is_no_leaf_is_found() -> None:
    """PB207: the reference needs x, which wasn't saved, and only a leaf can be reached without that."""

    class Opaque(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(constants=(x > 0.5,))
            return torch.where(x > 0.5, x, x / 2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (above,) = ctx.saved_tensors
            return torch.where(above, g, g / 2).detach()

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return torch.where(x > 0.5, x, x / 2)

    finding = the_finding(Opaque, (leaf(3),))
    assert (finding.rule, finding.where) == ("PB207", "argument x, no leaves, sample 0")
    assert "PB207" in shown(finding, Opaque=Opaque)


def test_a_gradient_that_is_another_under_create_graph_for_what_is_no_leaf_is_found() -> None:
    """A third of it is left out where x is a result and its gradient will be differentiated: PB205."""

    class Third(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            share = 2 / 3 if torch.is_grad_enabled() and not x.is_leaf else 1
            return share * 2 * g * x * w, g * x**2

    finding = the_finding(Third)
    assert (finding.rule, finding.evidence["order"]) == ("PB205", 1)
    assert shows_the_fault(finding, Third=Third)
