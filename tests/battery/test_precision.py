"""The probe `precision`: dtype and digits of gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import precision
from pullback.battery.samples import Sample
from pullback.rules import Severity
from tests.battery.running import leaf, rules, run_probe


def square_with(backward: Any, base: Any = Function) -> Any:
    """x² with a backward of one's own."""

    class Made(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

    Made.backward = staticmethod(backward)
    return Made


def test_gradients_in_the_arguments_dtype_pass() -> None:
    """In float64 and, where forward takes them, float32, bfloat16 and float16."""
    outcome, findings = run_probe(precision.PROBE, square_with(lambda ctx, g: 2 * ctx.saved_tensors[0] * g), (leaf(9),))
    assert findings == ()
    assert outcome.notes == ()


def test_a_gradient_of_another_dtype_is_a_warning() -> None:
    """Seen before the engine casts it."""
    cls = square_with(lambda ctx, g: (2 * ctx.saved_tensors[0] * g).to(torch.float32))
    _, findings = run_probe(precision.PROBE, cls, (leaf(9),))
    (warning,) = [finding for finding in findings if finding.rule == "PB215"]
    assert (warning.severity, warning.expected, warning.got) == (Severity.WARNING, "float64", "float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_detour_through_a_lower_dtype_is_found(dtype: torch.dtype) -> None:
    """Though the dtype that comes back is right."""
    cls = square_with(lambda ctx, g: (2 * ctx.saved_tensors[0].to(dtype) * g.to(dtype)).double())
    _, findings = run_probe(precision.PROBE, cls, (leaf(9),))
    assert set(rules(findings)) == {"PB214"}
    assert findings[0].evidence["dtype"] == str(dtype).removeprefix("torch.")


def test_a_detour_that_torch_does_not_see_is_found_by_its_digits() -> None:
    """NumPy in float32."""
    cls = square_with(lambda ctx, g: torch.from_numpy((2 * ctx.saved_tensors[0] * g).numpy().astype("f4")).double())
    assert "PB214" in rules(run_probe(precision.PROBE, cls, (leaf(9),))[1])


def test_round_numbers_are_no_detour() -> None:
    """A gradient of ones or of signs is exact in every dtype, and so are the outputs."""
    assert run_probe(precision.PROBE, lambda x: x.abs().sum(), (leaf(9),))[1] == ()
    assert run_probe(precision.PROBE, lambda x: (x * 0).sum(), (leaf(9),))[1] == ()


def test_a_declared_nonlinear_gradient_may_be_round() -> None:
    """Clipped and quantised gradients are round numbers on purpose."""
    cls = square_with(lambda ctx, g: g.sign() * 0.5, pullback.Function)
    cls.nonlinear_backward = True
    assert run_probe(precision.PROBE, cls, (leaf(9),))[1] == ()


def test_a_gradient_that_is_wrong_in_low_precision_alone_is_found() -> None:
    """Right in float64, off by ten percent in float32."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        factor = 2.2 if g.dtype == torch.float32 else 2.0
        result: Tensor = factor * ctx.saved_tensors[0] * g
        return result

    _, (finding,) = run_probe(precision.PROBE, square_with(backward), (leaf(9),))
    assert (finding.rule, finding.where) == ("PB214", "argument x, float32, sample 0")


def test_a_backward_that_raises_in_low_precision_is_found() -> None:
    """Forward took the dtype, so backward must."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        if g.dtype == torch.bfloat16:
            raise NotImplementedError("no bfloat16 kernel")
        result: Tensor = 2 * ctx.saved_tensors[0] * g
        return result

    _, (finding,) = run_probe(precision.PROBE, square_with(backward), (leaf(9),))
    assert (finding.rule, finding.where) == ("PB125", "bfloat16, sample 0")


def by_lu(ctx: Any, g: Tensor) -> Tensor:
    """2 x g, by way of an operator that PyTorch has in no 16-bit dtype."""
    (x,) = ctx.saved_tensors
    factors, pivots = torch.linalg.lu_factor(torch.eye(len(x), dtype=x.dtype))
    result: Tensor = torch.linalg.lu_solve(factors, pivots, (2 * x * g)[:, None])[:, 0]
    return result


def test_an_operator_that_pytorch_lacks_in_a_dtype_is_no_fault_of_the_author() -> None:
    """It is a note like a refusal of forward's."""
    outcome, findings = run_probe(precision.PROBE, square_with(by_lu), (leaf(9),))
    assert findings == ()
    assert [note.split(":")[1] for note in outcome.notes] == [" bfloat16, sample 0", " float16, sample 0"]
    assert all("what PyTorch lacks there" in note and "not implemented for" in note for note in outcome.notes)


def test_an_operator_that_the_reference_does_without_is_a_fault() -> None:
    """Where the reference gives a gradient in that dtype, backward could too."""
    _, findings = run_probe(precision.PROBE, square_with(by_lu), (leaf(9),), reference=lambda x: x**2)
    assert rules(findings) == ["PB125", "PB125"]


def test_a_dtype_that_forward_refuses_is_counted() -> None:
    """Three notes, no finding."""

    def double_only(x: Tensor) -> Tensor:
        if x.dtype != torch.float64:
            raise TypeError("float64 only")
        return x**2

    outcome, findings = run_probe(precision.PROBE, double_only, (leaf(9),))
    assert findings == ()
    assert len(outcome.notes) == 3
    assert outcome.notes[0] == "refused: float32, sample 0: TypeError: float64 only"


def test_dtypes_stay_where_the_author_says_so() -> None:
    """vary without dtype."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        result: Tensor = (2.2 if g.dtype == torch.float32 else 2.0) * ctx.saved_tensors[0] * g
        return result

    assert run_probe(precision.PROBE, square_with(backward), Sample((leaf(9),), vary=("layout",)))[1] == ()


def test_what_a_dtype_can_not_hold_is_not_compared() -> None:
    """Gradients of a million are infinite in float16."""
    tiny = torch.tensor([1e-6, 2e-6], dtype=torch.float64, requires_grad=True)
    outcome, findings = run_probe(precision.PROBE, torch.log, (tiny,))
    assert findings == ()
    assert any("beyond its range" in note or "already differ" in note for note in outcome.notes)


@pytest.mark.parametrize("reference", [None, torch.sin])
@pytest.mark.parametrize("size", [5, 300])
def test_one_factor_in_float32_is_found(reference: Any, size: int) -> None:
    """The error is in the eighth digit, with a reference and without."""

    class Sine(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0].float().cos().double()

    report = check(Sine, (leaf(size),), reference=reference)
    assert {finding.rule for finding in report.findings} == {"PB214"}, str(report)


def test_a_mask_in_float32_costs_no_digit() -> None:
    """What float32 holds exactly is no loss."""
    cls = square_with(lambda ctx, g: 2 * ctx.saved_tensors[0] * g * (ctx.saved_tensors[0] > 0).float())
    assert run_probe(precision.PROBE, cls, (leaf(5),))[1] == ()


def test_a_gradient_above_the_given_dtype_is_a_warning() -> None:
    """A float32 sample, though it is raised to float64 for all else."""
    cls = square_with(lambda ctx, g: (2 * ctx.saved_tensors[0] * g).double())
    _, findings = run_probe(precision.PROBE, cls, (torch.rand(5, requires_grad=True),))
    assert [(f.rule, f.expected, f.got) for f in findings] == [("PB215", "float32", "float64")]


@pytest.mark.parametrize(("dtype", "severity"), [(torch.float32, Severity.HINT), (torch.bfloat16, Severity.ERROR)])
def test_a_gradient_as_coarse_as_forwards_own_results_is_a_hint(dtype: torch.dtype, severity: Severity) -> None:
    """A kernel for float32 that takes any dtype; but a backward that is coarser than forward is wrong still."""

    class Tanh(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.float().tanh().to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            y = ctx.saved_tensors[0].to(dtype).tanh()
            return ((1 - y * y) * g.to(dtype)).to(g.dtype)

    findings = run_probe(precision.PROBE, Tanh, (leaf(9),))[1]
    assert [(finding.rule, finding.severity) for finding in findings] == [("PB214", severity)]
