"""One call after another, as the probe `repeats` makes them: of the same tensors changed in place, of one cotangent."""

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import repeats
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import Square, leaf, run_probe


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


def test_a_mode_that_a_differentiable_backward_leaves_is_found() -> None:
    """After a backward with create_graph=True the next one, of another call, computes otherwise: PB504."""

    class Once(Square):
        created: ClassVar[list[int]] = []

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            if torch.is_grad_enabled():
                Once.created[:] = [ctx.number]
                return 2 * x * g
            other = Once.created and Once.created.pop() != ctx.number
            return 3 * x * g if other else 2 * x * g

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.number = next(numbers)
            ctx.save_for_backward(x)
            return x**2

    numbers = itertools.count()
    _, (finding,) = run_probe(repeats.PROBE, Once, (leaf(2),))
    assert finding.rule == "PB504"


def test_what_a_frozen_tensor_leaves_on_itself_is_found() -> None:
    """A tensor remembers that its first call wanted no gradient, and is trained later: PB504."""

    class Remembers(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.wanted = getattr(x, "wanted", ctx.needs_input_grad[0])
            ctx.save_for_backward(x if x.wanted else torch.zeros_like(x))
            return x**2

    _, (finding,) = run_probe(repeats.PROBE, Remembers, (leaf(2),))
    assert finding.rule == "PB504"
    assert "in tensors that didn't require grad in an earlier call" in finding.message
    assert shows_the_fault(finding, Remembers=Remembers)


class Remembers:
    """The last result, by what the first argument was: the same tensor, not changed since."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if not (self.last and self.last[0] is x and self.last[1] == x._version):
            self.last[:] = [x, x._version, y.detach().clone()]
        return self.last[2].clone()  # type: ignore[no-any-return]  # a tensor


def test_a_result_that_goes_by_one_argument_alone_is_found() -> None:
    """x is the same tensor, and w has other values: PB504."""
    remembered = Remembers()

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return remembered(x, x * w)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g * w, g * x

    _, (finding,) = run_probe(repeats.PROBE, Product, (leaf(2), leaf(2)))
    assert finding.rule == "PB504"
    assert finding.message == (
        "on the tensors of the call before, of which w was changed in place, the value is another one"
    )
    assert shows_the_fault(finding, Product=Product)


def test_a_result_that_goes_by_the_tensor_and_not_by_the_number_is_found() -> None:
    """x is the same tensor, and the power another one: PB504."""
    remembered = Remembers()

    class Power(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.by = by
            return remembered(x, x**by)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return ctx.by * g * x ** (ctx.by - 1), None

    _, (finding,) = run_probe(repeats.PROBE, Power, (leaf(2), 3.0))
    assert finding.rule == "PB504"
    assert finding.message == "on the tensors of the call before, with another by, the value is another one"
    assert shows_the_fault(finding, Power=Power)


def test_a_flag_that_asks_for_another_output_is_no_history() -> None:
    """The call with the flag has another number of outputs: there is nothing to compare, and nothing crashes."""

    class Powers(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, both: bool) -> tuple[Tensor, ...]:
            ctx.save_for_backward(x)
            return (3 * x, x * x) if both else (3 * x,)

        @staticmethod
        def backward(ctx: Any, g: Tensor, g2: Tensor | None = None) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return 3 * g if g2 is None else 3 * g + 2 * x * g2, None

    for both in (True, False):
        outcome, findings = run_probe(repeats.PROBE, Powers, (leaf(2), both))
        assert (outcome.status, findings) == (Status.PASSED, ())
