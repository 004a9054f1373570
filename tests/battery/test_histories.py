"""One call after another, as the probe `repeats` makes them: of the same tensors changed in place, of one cotangent."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import repeats
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Square(Function):
    """x², as it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


def test_a_copy_that_stays_on_a_tensor_is_found_when_the_tensor_is_changed() -> None:
    """backward keeps a cast on the tensor itself, and an optimiser changes the tensor in place: PB504."""

    class Beside(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            if not hasattr(x, "cast"):
                x.cast = x.detach().clone()
            return 2 * x.cast * g

    _, (finding,) = run_probe(repeats.PROBE, Beside, (leaf(2),))
    assert finding.rule == "PB504"
    assert "in tensors that an earlier call got with other values" in finding.message
    assert shows_the_fault(finding, Beside=Beside)


def test_a_copy_on_a_tensor_that_goes_by_its_version_is_right() -> None:
    """The version counter says that the tensor was changed: nothing is found."""

    class Beside(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if getattr(x, "cast_at", None) != x._version:
                x.cast, x.cast_at = x.detach().clone(), x._version
            ctx.save_for_backward(x)
            return x.cast**2

    outcome, findings = run_probe(repeats.PROBE, Beside, (leaf(2),))
    assert outcome.status is Status.PASSED, findings


def test_an_answer_that_goes_by_the_cotangent_is_found() -> None:
    """The last gradient is given again where grad_output comes again, on other values: PB504."""

    class Recalled(Square):
        last: ClassVar[list[Tensor]] = []

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            if Recalled.last and torch.equal(Recalled.last[0], g):
                return Recalled.last[1].clone()
            Recalled.last[:] = [g.clone(), 2 * x * g]
            return Recalled.last[1].clone()

    _, (finding,) = run_probe(repeats.PROBE, Recalled, (leaf(2),))
    assert finding.rule == "PB504"
    assert shows_the_fault(finding, Recalled=Recalled)


def test_a_mode_that_the_last_call_leaves_is_found() -> None:
    """A call that nobody differentiates leaves a flag, by which the next one computes otherwise: PB504."""

    class Flagged(Square):
        quick = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            factor = 1.5 if Flagged.quick and ctx.needs_input_grad[0] else 1.0
            Flagged.quick = not ctx.needs_input_grad[0]
            ctx.save_for_backward(factor * x)
            return factor * x**2

    _, (finding, *_) = run_probe(repeats.PROBE, Flagged, (leaf(2),))
    assert finding.rule == "PB504"
