"""The probe `checkpoint`: a call in torch.utils.checkpoint gives what it gives alone."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import checkpoint
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class ReadsTwice(Function):
    """Reads ctx.saved_tensors for each of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]


def test_a_second_read_of_what_was_saved_is_found() -> None:
    """The non-reentrant kind hands each tensor out once."""
    (finding,) = run_probe(checkpoint.PROBE, ReadsTwice, (leaf(2), leaf(2)))[1]
    assert finding.rule == "PB518"
    assert finding.message.startswith("under checkpoint(use_reentrant=False), backward raises: ")
    assert finding.evidence["use_reentrant"] is False
    assert shows_the_fault(finding, ReadsTwice=ReadsTwice)


class Scrambles(Function):
    """Keeps a key on ctx that Python's generator made, and saves what goes with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shift = random.randrange(x.numel())
        ctx.save_for_backward((x > 0.6).roll(ctx.shift))
        return x * (x > 0.6)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask.roll(-ctx.shift)


def test_numbers_that_are_drawn_anew_are_found() -> None:
    """A wrong gradient in silence, for the argument by name."""
    (finding,) = run_probe(checkpoint.PROBE, Scrambles, (torch.linspace(0.1, 1, 8).double().requires_grad_(),))[1]
    assert finding.message == "under checkpoint(use_reentrant=False), the gradient is another one"
    assert finding.evidence["argument"] == "x"
    assert shows_the_fault(finding, Scrambles=Scrambles)


def test_a_fault_of_the_reentrant_kind_alone_is_found() -> None:
    """Its first run is without gradient mode."""

    def doubled_in_evaluation(x: Tensor) -> Tensor:
        return x * 2 if torch.is_grad_enabled() else x * 4

    (finding,) = run_probe(checkpoint.PROBE, doubled_in_evaluation, (leaf(2),))[1]
    assert finding.message == "under checkpoint(use_reentrant=True), the value is another one"
    assert finding.evidence["output"] == "output"
    assert shows_the_fault(finding, doubled_in_evaluation=doubled_in_evaluation)


class Dropout(Function):
    """Draws with torch's generator, which a checkpoint puts back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.rand_like(x) < 0.5
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return g * kept


class InPlace(Function):
    """Writes to its argument and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Nest(pullback.Function):
    """A list and a module."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor], layer: nn.Linear, *, gain: float) -> list[Tensor]:
        ctx.save_for_backward(*xs, layer.weight)
        ctx.gain = gain
        return [gain * layer(x) for x in xs]

    @staticmethod
    def backward(ctx: Any, gs: list[Tensor]) -> Any:
        *xs, weight = ctx.saved_tensors
        gw = sum(g.mT @ x for g, x in zip(gs, xs, strict=True))
        return [ctx.gain * g @ weight for g in gs], {"weight": ctx.gain * gw}, None


@pytest.mark.parametrize(
    ("function", "sample"),
    [
        (Dropout, (leaf(8),)),
        (InPlace, (leaf(3),)),
        (torch.sin, (leaf(3),)),
        (Nest, pullback.Sample(([leaf(4, 3), leaf(4, 3)], nn.Linear(3, 2, False, dtype=torch.float64)), {"gain": 2.0})),
    ],
)
def test_right_functions_pass(function: Any, sample: Any) -> None:
    """Random, in place, plain, and with containers of tensors: both kinds of checkpoint, and second derivatives."""
    outcome, findings = run_probe(checkpoint.PROBE, function, sample)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_a_backward_that_draws_is_not_compared() -> None:
    """Said in a note."""

    class Noisy(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2 + torch.randn_like(g)

    outcome, findings = run_probe(checkpoint.PROBE, Noisy, (leaf(2),))
    assert findings == ()
    assert outcome.notes == (
        "sample 0: backward draws random numbers, so gradients under checkpoint were not compared",
    )


def test_where_nothing_is_differentiated_nothing_is_tried() -> None:
    """Skipped, with the reason."""
    outcome, _ = run_probe(checkpoint.PROBE, torch.sign, (torch.ones(2, dtype=torch.int64),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "nothing is differentiated")


def test_state_outside_the_call_is_said_once() -> None:
    """A gradient that changes with each call is PB504, and nothing else."""

    class Grows(Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            Grows.calls += 1
            return g * (2 + Grows.calls)

    report = check(Grows, (leaf(2),), only=("repeats", "hooks", "checkpoint", "threads", "autocast"))
    assert rules(report.findings) == ["PB504"]


class Centred(Function):
    """Centres, and keeps a running mean, in place and marked dirty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, running: Tensor) -> Any:
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        ctx.mark_dirty(running)
        ctx.mark_non_differentiable(running)
        ctx.save_for_backward(x, gain)
        return (x - x.mean(0)) * gain, running

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        x, gain = ctx.saved_tensors
        return (g - g.mean(0)) * gain, (g * (x - x.mean(0))).sum(0), None


class ScramblesAndKeeps(Function):
    """Keeps a running mean, and on ctx a key that Python's generator made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Tensor) -> Tensor:
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        ctx.shift = random.randrange(x.numel())
        ctx.save_for_backward((x > 0.6).roll(ctx.shift))
        return x * (x > 0.6)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask.roll(-ctx.shift), None


class Kept(Function):
    """Keeps a running mean in place, says nothing of it, and returns the centred numbers alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Tensor) -> Tensor:
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g - g.mean(0), None


class Accumulates(Function):
    """Adds to a buffer, which it returns."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, x: Tensor) -> Tensor:
        ctx.mark_dirty(total)
        return total.add_(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g if ctx.needs_input_grad[0] else None, g


def zeros(*shape: int) -> Tensor:
    """A buffer."""
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "sample", "name"),
    [
        (Centred, (leaf(5, 3), leaf(3), zeros(3)), "running"),
        (Kept, (leaf(5, 3), zeros(3)), "running"),
        (Accumulates, (zeros(3, 4), leaf(3, 4)), "total"),
    ],
)
def test_buffers_may_be_written_to(function: Any, sample: Any, name: str) -> None:
    """In a checkpoint it happens twice, as with any batch norm; that is a note, and each time the buffer is a copy."""
    outcome, findings = run_probe(checkpoint.PROBE, function, sample)
    assert (outcome.status, findings) == (Status.PASSED, ())
    assert outcome.notes == (
        f"sample 0: forward writes to {name}, in a checkpoint twice: each time it got a fresh copy",
    )


def test_a_fault_beside_a_buffer_is_found() -> None:
    """The gradient is another one under the checkpoint, and the lines show it."""
    sample = (torch.linspace(0.1, 1, 8).double().requires_grad_(), zeros())
    (finding,) = run_probe(checkpoint.PROBE, ScramblesAndKeeps, sample)[1]
    assert finding.message == "under checkpoint(use_reentrant=False), the gradient is another one"
    assert finding.evidence["argument"] == "x"
    assert "running.clone()" in finding.repro
    assert shows_the_fault(finding, ScramblesAndKeeps=ScramblesAndKeeps)


def test_a_buffer_that_becomes_an_output_is_no_argument_to_differentiate_by() -> None:
    """After the call it requires grad, and was asked for then: probes crashed, or missed its gradient."""
    only = ("first_order", "second_order", "checkpoint", "autocast")
    report = check(Accumulates, (zeros(3, 4), leaf(3, 4)), only=only)
    assert rules(report.findings) == []

    class Halves(Accumulates):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g if ctx.needs_input_grad[0] else None, g / 2

    (finding, *_) = check(Halves, (zeros(3, 4), leaf(3, 4)), only=only).findings
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "x")
