"""The probe `outputs`: one output at a time, the others unused."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import outputs
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Two(Function):
    """2x and 3x, without materialized gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
        terms = [factor * term for factor, term in ((2, g), (3, h)) if term is not None]
        return sum(terms)


def test_none_for_an_unused_output_may_be_left_out() -> None:
    """As right as zeros."""
    assert run_probe(outputs.PROBE, Two, (leaf(3),))[1] == ()


def test_a_backward_that_raises_on_none_is_found() -> None:
    """PB210 names the output that was used alone."""

    class Adds(Two):
        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return 2 * g + 3 * h

    _, findings = run_probe(outputs.PROBE, Adds, (leaf(3),))
    assert rules(findings) == ["PB210", "PB210"]
    assert findings[0].where == "output[0] alone, sample 0"
    assert "TypeError" in findings[0].got


def test_a_backward_that_mistakes_none_is_found() -> None:
    """It doesn't raise, and gives another gradient than zeros would."""

    class Mistakes(Two):
        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return 5 * g if h is None else Two.backward(ctx, g, h)

    _, (finding,) = run_probe(outputs.PROBE, Mistakes, (leaf(3),))
    assert (finding.rule, finding.evidence["argument"]) == ("PB210", "x")


def test_an_ignored_output_is_found() -> None:
    """PB209 by name."""

    class Ignores(Two):
        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return None if g is None else 2 * g

    _, (finding,) = run_probe(outputs.PROBE, Ignores, (leaf(3),))
    assert (finding.rule, finding.evidence["output"]) == ("PB209", "output[1]")


def test_one_output_leaves_nothing_to_try() -> None:
    """Skipped, and not listed as untested."""
    outcome, _ = run_probe(outputs.PROBE, lambda x: x * 2, (leaf(3),))
    assert (outcome.status, outcome.reason) == (
        Status.SKIPPED,
        "there is only one output that can be differentiated",
    )


class Marks(Function):
    """2x and 3x, of which the second is marked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        twice, thrice = 2 * x, 3 * x
        ctx.mark_non_differentiable(thrice)
        return twice, thrice

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        return 2 * g + 3 * h


def test_a_marked_output_with_a_gradient_in_backward_is_found() -> None:
    """PB209: backward says what its derivative is, and nothing ever comes."""
    _, (finding,) = run_probe(outputs.PROBE, Marks, (leaf(3),))
    assert (finding.rule, finding.evidence["output"]) == ("PB209", "output[1]")
    assert finding.message == (
        "backward makes a gradient of x from that of output[1], which forward marks as non-differentiable: none ever "
        "comes"
    )
    assert shows_the_fault(finding, Marks=Marks)


def test_a_marked_output_that_backward_ignores_is_meant() -> None:
    """A number on the way, such as a logarithm of a sum, that is handed out and not to be differentiated."""

    class Meant(Marks):
        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            return 2 * g

    outcome, findings = run_probe(outputs.PROBE, Meant, (leaf(3),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
