"""The probe `first_order`: every gradient against the truth."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import first_order
from pullback.finding import Status
from tests.battery.running import leaf, rules, run_probe


class Square(Function):
    """x², its gradient for subclasses to spoil."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * g


class HalfTooMuch(Square):
    """One element in thousands is half as large again."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gradient = 2 * ctx.saved_tensors[0] * g
        gradient[17] *= 1.5
        return gradient


class Pair(Function):
    """Two outputs of two arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w + h, g * x + h


@pytest.mark.parametrize("shape", [(), (1,), (4,), (70,), (3000,), (0, 3)])
def test_a_right_gradient_passes_in_any_size(shape: tuple[int, ...]) -> None:
    """0-d, small, large and empty arguments."""
    x = torch.rand(shape, dtype=torch.float64).requires_grad_()
    assert run_probe(first_order.PROBE, Square, (x,))[1] == ()


@pytest.mark.parametrize("seed", range(20))
def test_one_wrong_element_of_three_thousand_is_found_for_every_seed(seed: int) -> None:
    """And named by its index."""
    torch.manual_seed(seed)
    _, (finding,) = run_probe(first_order.PROBE, HalfTooMuch, (leaf(3000),), seed=seed)
    assert finding.rule == "PB203"
    assert finding.evidence["index"] == [17]


def test_a_finding_tells_expected_got_and_where() -> None:
    """In numbers, with the argument's name and the sample."""
    (finding,) = check(HalfTooMuch, (leaf(20),), (leaf(30),), only=["first_order"]).findings
    assert finding.where == "argument x, sample 0"
    assert finding.evidence["samples"] == [0, 1]
    ratio = float(finding.got.split()[0]) / float(finding.expected.split()[0])
    assert ratio == pytest.approx(1.5, rel=1e-4)


def test_none_for_an_argument_that_matters_has_its_own_rule() -> None:
    """PB204; None for one that doesn't matter is right."""

    class Forgets(Pair):
        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
            return g * ctx.saved_tensors[1] + h, None

    class Unused(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2, None

    _, (finding,) = run_probe(first_order.PROBE, Forgets, (leaf(3), leaf(3)))
    assert (finding.rule, finding.evidence["argument"]) == ("PB204", "w")
    assert run_probe(first_order.PROBE, Unused, (leaf(3), leaf(3)))[1] == ()


def test_a_wrong_gradient_of_one_output_is_told_from_an_ignored_output() -> None:
    """PB203 names the output in which it shows, PB209 the output that is dropped."""

    class WrongForOne(Pair):
        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w + 2 * h, g * x + h

    class Ignores(Pair):
        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, g * x

    _, (finding,) = run_probe(first_order.PROBE, WrongForOne, (leaf(3), leaf(3)))
    assert (finding.rule, finding.where) == ("PB203", "argument x, output[1], sample 0")
    _, (finding,) = run_probe(first_order.PROBE, Ignores, (leaf(3), leaf(3)))
    assert (finding.rule, finding.evidence["output"]) == ("PB209", "output[1]")


def test_a_gradient_through_a_staircase_needs_a_surrogate() -> None:
    """PB216 without one; with it, the surrogate's derivative is proved."""

    class Rounds(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clone()

    assert rules(run_probe(first_order.PROBE, Rounds, (leaf(3),))[1]) == ["PB216"]
    assert run_probe(first_order.PROBE, Rounds, (leaf(3),), surrogate=lambda x: x)[1] == ()
    assert rules(run_probe(first_order.PROBE, Rounds, (leaf(3),), surrogate=lambda x: 2 * x)[1]) == ["PB203"]


def test_a_gradient_for_an_argument_without_influence_is_no_surrogate() -> None:
    """The output doesn't depend on w at all: PB203."""

    class Invents(Pair):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g, g

    _, (finding,) = run_probe(first_order.PROBE, Invents, (leaf(3), leaf(3)))
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "w")


def test_bfloat16_inside_backward_is_named_as_such() -> None:
    """Not PB203: the formula is right, the precision isn't."""

    class Coarse(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * ctx.saved_tensors[0] * g.bfloat16().double()

    _, (finding,) = run_probe(first_order.PROBE, Coarse, (leaf(5),))
    assert (finding.rule, finding.evidence["dtype"]) == ("PB214", "bfloat16")


def test_a_wrong_factor_is_not_excused_by_a_lower_dtype() -> None:
    """Rounding explains a percent, not a half."""

    class Wrong(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 3 * ctx.saved_tensors[0] * g.bfloat16().double()

    assert rules(run_probe(first_order.PROBE, Wrong, (leaf(5),))[1]) == ["PB203"]


def test_a_kink_is_moved_with_a_note() -> None:
    """Either subgradient at 0 is right."""
    for compare in (torch.gt, torch.ge):

        class Relu(Square):
            chosen = staticmethod(compare)

            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x.clamp(min=0)

            @classmethod
            def backward(cls, ctx: Any, g: Tensor) -> Any:
                return g * cls.chosen(ctx.saved_tensors[0], 0)

        outcome, findings = run_probe(first_order.PROBE, Relu, (torch.zeros(4, dtype=torch.float64),))
        assert findings == ()
        assert "sample 0 lies on a kink of forward: a point nearby was taken" in outcome.notes


def test_a_missing_conjugate_is_found() -> None:
    """Complex arguments are judged by real and imaginary parts."""

    class Squares(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * ctx.saved_tensors[0].conj() * g

    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    assert run_probe(first_order.PROBE, Squares, (z,))[1] == ()
    assert rules(run_probe(first_order.PROBE, Square, (z,))[1]) == ["PB203"]


def test_a_nonlinear_backward_is_compared_with_what_its_author_expects() -> None:
    """For small and large cotangents; without an expectation the probe is skipped."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clamp(-1, 1)

    class Expected(Clips):
        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Any:
            return (grad_outputs[0].clamp(-1, 1),)

    class Otherwise(Clips):
        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Any:
            return {"x": grad_outputs[0].clamp(-2, 2)}

    outcome, _ = run_probe(first_order.PROBE, Clips, (leaf(3),))
    assert outcome.status is Status.SKIPPED
    assert "no expected_backward" in outcome.reason
    assert run_probe(first_order.PROBE, Expected, (leaf(3),))[1] == ()
    assert rules(run_probe(first_order.PROBE, Otherwise, (leaf(3),))[1]) == ["PB203"]


def test_what_can_not_be_judged_is_no_pass() -> None:
    """An output that requires no grad and jumps, a point where forward is NaN."""
    outcome, (finding,) = run_probe(first_order.PROBE, lambda x: x.detach().round(), (leaf(3),))
    assert (outcome.status, finding.rule) == (Status.FAILED, "PB121")
    _, (finding,) = run_probe(first_order.PROBE, torch.log, (torch.tensor([-1.0], dtype=torch.float64),))
    assert finding.rule == "PB121"
    assert "isn't smooth" in finding.message


class Straight(Function):
    """Rounding, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.clone()


def test_the_lines_of_a_gradient_that_may_be_meant_say_that_they_show_what_is_declared() -> None:
    """They fail as long as there is a surrogate, too: a straight-through gradient, and a scaled one."""

    class Twice(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 4 * ctx.saved_tensors[0] * g

    for function, rule in ((Straight, "PB216"), (Twice, "PB203")):
        _, (finding,) = run_probe(first_order.PROBE, function, (leaf(5),))
        assert finding.rule == rule
        assert "; this difference stays where a declaration says that it is meant" in finding.repro


def test_a_wrong_factor_that_is_also_in_float32_is_told_as_both() -> None:
    """A bool times a Python number is float32; an error of hundreds of its roundings isn't its rounding."""

    class Masked(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g * (1 + 3e-5 * (x > 1))

    x = torch.tensor([-0.5, 0.3, 1.5, 2.5, 0.7], dtype=torch.float64, requires_grad=True)
    _, (finding,) = run_probe(first_order.PROBE, Masked, (x,))
    assert finding.rule == "PB214"
    assert "by more than a few roundings: backward computes in torch.float32" in finding.message
    assert finding.message.endswith("and its formula may be wrong too")
    assert finding.remedy.endswith("see whether the gradient is right then; if not, derive it anew.")
