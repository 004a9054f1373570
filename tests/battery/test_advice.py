"""Remedies fit what is checked: PyTorch's Function, pullback's, numbers on ctx, surrogates and expectations."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.finding import Finding
from pullback.rules import Severity
from tests.battery.running import leaf


class CutOff(Function):
    """exp(x) with a saved intermediate, and declarations that PyTorch passes over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(2 * x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class NumberOnCtx(Function):
    """x times its norm, which is kept as a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.n = x.norm().item()
        ctx.save_for_backward(x)
        return x * x.norm()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * ctx.n + x * (g * x).sum() / ctx.n


def only(function: Any, **options: Any) -> Finding:
    """The one finding about a function."""
    options.setdefault("skip", "compiled")  # as no advice here is about compiled code
    (finding,) = check(function, (torch.rand(3, dtype=torch.float64) + 0.5,), **options).findings
    return finding


def test_the_first_way_out_for_a_torch_function_is_the_other_base() -> None:
    """pullback.Function reconnects what was saved; constants= means nothing to PyTorch."""
    finding = only(CutOff)
    assert finding.rule == "PB206"
    assert finding.remedy.startswith("Change the base to pullback.Function, which reconnects it or raises")
    assert "constants=" not in finding.remedy


def test_declarations_on_a_torch_function_are_said_to_be_passed_over() -> None:
    """A double_backward that PyTorch never calls explains nothing, and settles nothing."""

    class Declares(CutOff):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            return 2 * gg

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x * x

    finding = only(Declares)
    assert finding.rule == "PB206"
    assert finding.remedy.endswith("PyTorch never calls double_backward and reference; pullback.Function does.")


def test_a_number_on_ctx_is_named_and_can_not_be_saved() -> None:
    """It is found like a tensor, and the remedy doesn't speak of saving it as a constant."""
    finding = only(NumberOnCtx)
    assert finding.rule == "PB206"
    assert "ctx.n varies" in finding.message
    assert "recompute it from saved inputs in backward, where autograd can follow it" in finding.remedy
    assert "constants=" not in finding.remedy


def test_a_refusal_over_a_number_on_ctx_names_no_constants() -> None:
    """pullback.Function raises where it can't run forward again; the finding has a remedy that works for numbers."""

    class Refuses(pullback.Function):
        replayable = False
        forward = NumberOnCtx.forward
        backward = NumberOnCtx.backward

    finding = only(Refuses)
    assert finding.rule == "PB206"
    assert "ctx.n" in finding.message
    assert finding.remedy.startswith("Recompute it from saved inputs in backward")
    assert "constants=" not in finding.remedy


def test_a_gradient_that_is_not_the_surrogates_is_one_finding() -> None:
    """What is wrong to begin with has no second derivative to judge, and no tensor was changed in place."""

    class Doubles(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return x

    finding = only(Doubles)
    assert finding.rule == "PB203"
    assert finding.remedy.startswith("Derive backward anew from the surrogate, or mend the surrogate")


def test_a_gradient_that_is_not_the_expected_one_needs_no_surrogate() -> None:
    """A backward with an expectation is wrong against that."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.clamp(-1, 1)

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Tensor:
            return grad_outputs[0].clamp(-0.5, 0.5)

    finding = only(Clips)
    assert finding.rule == "PB203"
    assert "surrogate" not in finding.remedy


def test_a_backward_that_ignores_grad_output_is_told_so() -> None:
    """A loss whose backward returns what forward kept is right only where nothing follows it."""

    class Loss(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (x * x).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0]

    finding = only(Loss)
    assert finding.rule == "PB211"
    assert finding.message == "backward ignores grad_output: the gradient of x is the same for every one"
    assert finding.remedy.startswith("Multiply by grad_output")


def test_clips_and_signs_are_not_linear_whatever_the_seed() -> None:
    """Numbers that are round on purpose are no loss of precision."""

    class Clips(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.clamp(-1, 1)

    class Signs(Clips):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.sign()

    for seed in range(6):
        assert (only(Clips, seed=seed).rule, only(Signs, seed=seed).rule) == ("PB211", "PB211")


def test_a_forward_that_counts_its_calls_has_no_derivative_and_one_cause() -> None:
    """That nothing could be differentiated is what the state outside the call does."""

    class Counts(Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Counts.calls += 1
            return x * Counts.calls

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * Counts.calls

    assert only(Counts).rule == "PB504"


class SurrogateCutOff(pullback.Function):
    """Rounds, with the derivative of x³, which its surrogate has through a detached factor alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return x * x * x.detach() + x.detach() ** 2 * x


def test_a_surrogate_that_autograd_can_not_follow_is_what_the_remedy_speaks_of() -> None:
    """Its first derivative is right, and the detached part is lost in the second."""
    finding = only(SurrogateCutOff)
    assert finding.rule == "PB205"
    assert "surrogate, and autograd must be able to follow it: no detach in it" in finding.remedy
    assert "double_backward" in finding.remedy


def test_a_surrogate_that_is_all_detached_has_that_remedy_too() -> None:
    """The second derivative has no path at all there."""

    class Constant(SurrogateCutOff):
        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return 3 * x.detach() ** 2 * x

    finding = only(Constant)
    assert finding.rule == "PB207"
    assert "no detach in it" in finding.remedy


def test_a_wrong_double_backward_beside_a_surrogate_is_what_its_remedy_speaks_of() -> None:
    """The surrogate isn't asked for second derivatives there."""

    class Written(SurrogateCutOff):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
            (x,) = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            return gg * 3 * x * x, gg * g * 5 * x

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return x**3

    finding = only(Written)
    assert finding.rule == "PB205"
    assert "Correct double_backward" in finding.remedy


def test_an_undeclared_surrogate_is_one_finding_that_says_how_to_declare_it() -> None:
    """Rounding two arguments, both straight through: one PB216 with the code to write."""

    class Rounds(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x.round() + w.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g.clone(), g.clone()

    report = check(Rounds, (leaf(3), leaf(3)), skip=("compiled",))
    (finding,) = [found for found in report.findings if found.severity is not Severity.HINT]
    assert (finding.rule, finding.where) == ("PB216", "arguments x and w, sample 0")
    assert "def surrogate(x, w): return" in finding.remedy


def test_an_undeclared_clip_is_one_finding_that_says_how_to_declare_it() -> None:
    """Of two arguments; and rounding gradients to whole numbers is no lower dtype."""

    class Clips(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g.clamp(-0.5, 0.5), (g * 8).round() / 8

    report = check(Clips, (leaf(3), leaf(3)), skip=("compiled",))
    (finding,) = [found for found in report.findings if found.severity is not Severity.HINT]
    assert (finding.rule, finding.evidence["arguments"]) == ("PB211", ["x", "w"])
    assert "nonlinear_backward = True" in finding.remedy
