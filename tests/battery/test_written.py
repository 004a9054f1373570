"""Arguments that are written to in some settings alone: where nobody asks for a gradient, or for another's."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import first_order, repeats, subsets, writes
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Product(Function):
    """x w, as it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, g * x


class SavesMemory(Product):
    """The result lies in x where no gradient will be asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w if any(ctx.needs_input_grad) else x.mul_(w)


class SavesMemoryInBackward(Product):
    """The gradient lies in what was saved where only one is asked for."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        if all(ctx.needs_input_grad):
            return g * w, g * x
        return (g * w, None) if ctx.needs_input_grad[0] else (None, x.data.mul_(g))


def test_an_argument_that_is_overwritten_in_inference_is_found() -> None:
    """Where no argument requires grad, forward writes to x: PB401, since the version counter moves."""
    _, (finding,) = run_probe(repeats.PROBE, SavesMemory, (leaf(2), leaf(2)))
    assert finding.rule == "PB401"
    assert finding.message == "forward changes x in place when no argument requires grad, and otherwise it doesn't"
    assert shows_the_fault(finding, SavesMemory=SavesMemory)


def test_a_saved_tensor_that_one_gradient_is_written_to_is_found() -> None:
    """Where only w requires grad, backward writes to x: PB404."""
    _, findings = run_probe(subsets.PROBE, SavesMemoryInBackward, (leaf(2), leaf(2)))
    (finding,) = (finding for finding in findings if finding.rule == "PB404")
    assert finding.message == "backward changes x in place when only w requires grad, and otherwise it doesn't"
    assert shows_the_fault(finding, SavesMemoryInBackward=SavesMemoryInBackward)


def test_an_argument_that_no_sample_differentiates_by_is_looked_at_too() -> None:
    """The sample's w requires no grad, and backward has a gradient for it, for which it writes to x: PB404."""
    _, findings = run_probe(first_order.PROBE, SavesMemoryInBackward, (leaf(2), leaf(2).detach()))
    (finding,) = (finding for finding in findings if finding.rule == "PB404")
    assert finding.evidence["argument"] == "x"


def test_a_buffer_that_every_call_writes_to_is_no_matter_of_the_setting() -> None:
    """Running statistics are updated whoever asks; the probe writes tells of them."""

    class Counts(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            with torch.no_grad():
                w += 0.0 if ctx is None else 1.0
            ctx.save_for_backward(x, w - 1)
            return x * (w - 1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # w is a buffer
            _, w = ctx.saved_tensors
            return g * w, None

    outcome, findings = run_probe(repeats.PROBE, Counts, (leaf(2), leaf(2).detach()))
    assert outcome.status is Status.PASSED, rules(findings)


def test_an_argument_of_the_results_shape_that_is_used_for_it_is_found() -> None:
    """Where the matrix is square, the transpose lies in its memory: PB401 or PB402, which the sample doesn't show."""

    class Transposed(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            made = 2 * x.mT
            if made.shape == x.shape:
                x.data.copy_(made)
            return made

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g.mT

    _, (finding,) = run_probe(writes.PROBE, Transposed, (leaf(2, 3),))
    assert finding.rule == "PB402"
    assert "(2 made 3)" in finding.message
    assert shows_the_fault(finding, Transposed=Transposed)


def test_what_one_branch_alone_uses_up_is_found() -> None:
    """For a negative sum, which the sample doesn't have, a second backward finds nothing on ctx: PB404."""

    class Branches(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.negative = bool(x.sum() < 0)
            return -x if ctx.negative else 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            negative, ctx.negative = ctx.negative, None
            return -g if negative else 2 * g

    _, findings = run_probe(writes.PROBE, Branches, (torch.tensor([0.25, 0.5], dtype=torch.float64).requires_grad_(),))
    assert rules(findings) == ["PB404"]
    assert shows_the_fault(findings[0], Branches=Branches)


def test_as_many_indices_as_a_table_has_rows_are_tried() -> None:
    """Rows of a table have its shape then, and forward puts them there: PB402."""

    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.shape = table.shape
            made = table[index]
            if made.shape == table.shape:
                table.data.copy_(made)
            return made

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (index,) = ctx.saved_tensors
            return g.new_zeros(ctx.shape).index_add(0, index, g), None

    _, (finding,) = run_probe(writes.PROBE, Rows, (leaf(4, 2), torch.tensor([2, 1, 2])))
    assert finding.rule == "PB402"
    assert shows_the_fault(finding, Rows=Rows)


def recomputed(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by running forward again, on the arguments themselves."""
    with torch.enable_grad():
        return torch.autograd.grad(x.requires_grad_() * w.requires_grad_(), (x, w), g.detach())


class Recomputes(Product):
    """Turns requires_grad on for what it recomputes with, a slip for detach()."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return recomputed(*ctx.saved_tensors, g)


def test_a_frozen_argument_that_backward_thaws_is_found() -> None:
    """Where only w requires grad, x does too afterwards, and an optimiser would train it: PB330."""
    _, findings = run_probe(subsets.PROBE, Recomputes, (leaf(2), leaf(2)))
    (finding,) = (finding for finding in findings if finding.rule == "PB330")
    assert finding.message.startswith("backward changes w.requires_grad in place when only x requires grad")
    assert (finding.expected, finding.got) == ("False", "True")
    assert shows_the_fault(finding, Recomputes=Recomputes, recomputed=recomputed)


def test_a_constant_of_the_sample_that_backward_thaws_is_found() -> None:
    """The sample's own w requires no grad: PB330 from the probe `writes`."""
    _, (finding,) = run_probe(writes.PROBE, Recomputes, (leaf(2), leaf(2).detach()))
    assert (finding.rule, finding.message) == ("PB330", "backward changes w.requires_grad in place")
    assert shows_the_fault(finding, Recomputes=Recomputes)


def test_an_argument_that_forward_thaws_is_found() -> None:
    """A buffer is made one that requires grad: PB330."""

    class Thaws(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            w.requires_grad_()
            return Product.forward(ctx, x, w)

    _, (finding,) = run_probe(writes.PROBE, Thaws, (leaf(2), leaf(2).detach()))
    assert (finding.rule, finding.message) == ("PB330", "forward changes w.requires_grad in place")
    assert shows_the_fault(finding, Thaws=Thaws)


def test_a_grad_that_backward_fills_by_itself_is_found() -> None:
    """`.backward()` on what is recomputed adds to .grad of the argument, and what is returned is added again: PB404."""

    class ByBackward(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            one = x.detach().requires_grad_()
            with torch.enable_grad():
                (one * w).backward(g)
            assert one.grad is not None
            return one.grad, g * x

    _, (finding, *_) = run_probe(writes.PROBE, ByBackward, (leaf(2), leaf(2)))
    assert (finding.rule, finding.message) == ("PB404", "backward changes w.grad is None in place")
    assert shows_the_fault(finding, ByBackward=ByBackward)


def test_a_hook_that_forward_leaves_is_found() -> None:
    """It runs for each gradient of x from then on: PB401."""

    class Hooks(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            if x.requires_grad and x.is_leaf:
                x.register_hook(torch.nan_to_num)
            return Product.forward(ctx, x, w)

    _, (finding, *_) = run_probe(writes.PROBE, Hooks, (leaf(2), leaf(2)))
    assert (finding.rule, finding.message) == ("PB401", "forward changes x._backward_hooks in place")
    assert shows_the_fault(finding, Hooks=Hooks)


@pytest.mark.parametrize("what", ["requires_grad_", "detach_"])
def test_a_grad_output_that_is_another_to_autograd_afterwards_is_found(what: str) -> None:
    """Whoever passed it holds it still: PB330."""

    class Changes(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            if not torch.is_grad_enabled():
                getattr(g, what)()
            x, w = ctx.saved_tensors
            return g.detach() * w, g.detach() * x

    _, (finding,) = run_probe(writes.PROBE, Changes, (leaf(2), leaf(2)))
    assert (finding.rule, finding.message) == ("PB330", "backward changes grad_output.requires_grad in place")
    assert shows_the_fault(finding, Changes=Changes)


def ones(g: Tensor) -> bool:
    """Whether a product with it can be left out."""
    return bool((g == 1).all())


def test_an_argument_that_is_written_to_along_ones_alone_is_found() -> None:
    """The product of w and grad_output is taken to be a new tensor, and is w where grad_output is ones: PB404."""

    class InPlace(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            part = w.data if ones(g) else g * w
            return part.mul_(2).div(2), g * x

    _, (finding,) = run_probe(writes.PROBE, InPlace, (leaf(2), leaf(2)))
    assert finding.rule == "PB404"
    assert "when it is differentiated along a grad_output of ones" in finding.message
    assert shows_the_fault(finding, InPlace=InPlace, ones=ones)


def test_a_gradient_that_is_an_argument_itself_along_ones_is_found() -> None:
    """In place of a product with ones w itself is returned, which a clip of gradients then changes: PB504."""

    class Itself(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return w.detach() if ones(g) else g * w, g * x

    _, (finding,) = run_probe(writes.PROBE, Itself, (leaf(2), leaf(2)))
    assert finding.rule == "PB504"
    assert "the gradient of x lies in the memory of w" in finding.message
    assert shows_the_fault(finding, Itself=Itself, ones=ones)


def test_a_large_grad_output_that_is_clipped_in_place_is_found() -> None:
    """Declared not to be linear, it may clip; whoever passed grad_output doesn't expect it to be changed: PB403."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * (g.clamp_(-1e3, 1e3) if not torch.is_grad_enabled() else g.clamp(-1e3, 1e3))

    _, findings = run_probe(writes.PROBE, Clips, (leaf(2),))
    (finding,) = (finding for finding in findings if "a large grad_output" in finding.message)
    assert finding.rule == "PB403"
    assert shows_the_fault(finding, Clips=Clips)
