"""The probe `aliases`: one tensor for two arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import aliases
from pullback.battery.samples import Sample
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x·w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        x, w = ctx.saved_tensors
        return g * w, g * x


def test_the_sum_of_both_gradients_is_right() -> None:
    """x·x has the gradient 2x: passed."""
    outcome, findings = run_probe(aliases.PROBE, Product, (leaf(2), leaf(2)))
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_a_gradient_that_forgets_one_half_is_found() -> None:
    """PB408 names the two arguments, the sum and what came."""

    class Forgets(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
            x, w = ctx.saved_tensors
            return g * w, None if x.data_ptr() == w.data_ptr() else g * x

    _, (finding,) = run_probe(aliases.PROBE, Forgets, (leaf(2), leaf(2)))
    assert finding.rule == "PB408"
    assert "x and w are the same tensor" in finding.message
    assert "the sum of both" in finding.expected
    assert "w = x" in finding.repro.splitlines()


def test_a_value_that_depends_on_identity_is_found() -> None:
    """forward itself tells the two apart by identity."""

    class ByIdentity(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x.clone() if x is w else x * w

    _, (finding,) = run_probe(aliases.PROBE, ByIdentity, (leaf(2), leaf(2)))
    assert "output is another one" in finding.message


def test_arguments_of_other_shapes_are_skipped() -> None:
    """No two arguments fit: skipped with a reason."""
    outcome, _ = run_probe(aliases.PROBE, Product, (leaf(2, 2), leaf(2)))
    assert outcome.status is Status.SKIPPED
    assert "no two arguments" in outcome.reason


def test_an_author_may_forbid_it() -> None:
    """Sample(vary=…) without "repeat" leaves the arguments apart, and the outcome says so."""
    outcome, _ = run_probe(aliases.PROBE, Product, Sample((leaf(2), leaf(2)), vary=("shape",)))
    assert outcome.status is Status.SKIPPED
    assert any("not to be repeated" in note for note in outcome.notes)


def test_in_place_operations_are_left_alone() -> None:
    """Written to and read as one tensor, the arguments mean something else."""

    class Adds(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            x.add_(w)
            ctx.mark_dirty(x)
            return x, w * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return g, g + 2 * h

    outcome, findings = run_probe(aliases.PROBE, Adds, (leaf(2), leaf(2)))
    assert findings == ()
    assert any("forward writes to an argument" in note for note in outcome.notes)


def test_a_tensor_that_the_sample_passes_twice_is_one_argument() -> None:
    """The sample's own repetition is kept, and has nothing left to be made the same."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    outcome, findings = run_probe(aliases.PROBE, Product, (x, x))
    assert findings == ()
    assert outcome.status is Status.SKIPPED


def test_a_tensor_that_requires_grad_beside_one_that_doesnt_is_tried() -> None:
    """PB408: the author gave a constant of the same shape, in whose place the argument may be passed, too."""

    class Forgets(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, g * x * (0 if x.data_ptr() == w.data_ptr() else 1)

    _, (finding,) = run_probe(aliases.PROBE, Forgets, (leaf(3), leaf(3).detach()))
    assert (finding.rule, finding.message) == ("PB408", "the gradient is wrong when x and w are the same tensor")


@pytest.mark.parametrize("right", [True, False])
def test_a_tensor_may_be_passed_twice_already(right: bool) -> None:
    """It counts for one argument, and may be that of a third, too."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            ctx.save_for_backward(a, b, c)
            ctx.same = a is b
            return a * b.sin() * c

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b, c = ctx.saved_tensors
            by_b = g * a * b.cos() * c
            return g * b.sin() * c, by_b if right or not ctx.same else None, g * a * b.sin()

    x, y = leaf(3), leaf(3)
    _, findings = run_probe(aliases.PROBE, Product, (x, y, x))
    assert [finding.rule for finding in findings] == ([] if right else ["PB408"])


def test_a_tensor_that_the_sample_has_twice_is_one_argument() -> None:
    """x, y, x are two tensors, which become one: passed."""

    class Three(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            ctx.save_for_backward(a, b, c)
            return a * b.sin() * c

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            a, b, c = ctx.saved_tensors
            return g * b.sin() * c, g * a * b.cos() * c, g * a * b.sin()

    x, y = leaf(2), leaf(2)
    outcome, findings = run_probe(aliases.PROBE, Three, (x, y, x))
    assert outcome.status is Status.PASSED
    assert findings == ()


@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_a_shortcut_for_one_address_is_found_where_two_tensors_share_it(shape: tuple[int, ...]) -> None:
    """PB408: x·x has the gradient 2x, but x·x.detach() hasn't, nor the product of a matrix and its transpose."""

    class Squares(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
            x, w = ctx.saved_tensors
            same = x.data_ptr() == w.data_ptr() and (x.stride() != w.stride() if x.dim() > 1 else True)
            return (2 * g * x, None) if same else (g * w, g * x)

    _, (finding,) = run_probe(aliases.PROBE, Squares, (leaf(*shape), leaf(*shape).detach()))
    assert finding.rule == "PB408"
    assert f"when w is x.detach(){'.mT' if len(shape) > 1 else ''}, which shares its memory" in finding.message
    assert shows_the_fault(finding, Squares=Squares)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2)])
def test_two_tensors_that_are_kept_under_one_address_are_found(shape: tuple[int, ...]) -> None:
    """PB408 for the value, which is that of x·x; in other sizes where the sample's matrix isn't square."""

    class ByAddress(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            known = {x.data_ptr(): x}
            return Product.forward(ctx, x, known.get(w.data_ptr(), w))

    _, (finding,) = run_probe(aliases.PROBE, ByAddress, (leaf(*shape), leaf(*shape)))
    assert "output is another one when w is x.detach().mT" in finding.message
    assert shows_the_fault(finding, ByAddress=ByAddress)


def test_views_of_one_memory_pass() -> None:
    """Where they are told apart by nothing, or by which object they are."""

    class ByIdentity(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
            x, w = ctx.saved_tensors
            return (2 * g * x, None) if ctx.same else (g * w, g * x)

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.same = x is w
            return Product.forward(ctx, x, w)

    for function in (Product, ByIdentity):
        assert run_probe(aliases.PROBE, function, (leaf(2, 2), leaf(2, 2)))[1] == ()


def test_a_buffer_is_not_made_one_with_what_it_averages() -> None:
    """The average of x and x is x, so that only the version counter shows the write."""

    class Averages(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
            buffer.mul_(0.5).add_(x.detach(), alpha=0.5)
            ctx.mark_dirty(buffer)
            ctx.mark_non_differentiable(buffer)
            return 2 * x, buffer

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
            return 2 * g, None

    assert run_probe(aliases.PROBE, Averages, (leaf(3), torch.zeros(3, dtype=torch.float64)))[1] == ()
