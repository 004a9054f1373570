"""The probe `runs`: samples that don't run, and return values of backward that the engine can't use."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import runs
from pullback.finding import Finding, Status
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x times w; subclasses return something else from backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradients[0] * w, gradients[0] * x


def found(function: Any, *samples: object) -> Finding:
    """The one finding of the probe."""
    outcome, (finding,) = run_probe(runs.PROBE, function, *(samples or ((leaf(3), leaf(3)),)))
    assert outcome.status is Status.FAILED
    return finding


def test_a_function_that_runs_passes() -> None:
    """Forward and backward take both samples."""
    outcome, findings = run_probe(runs.PROBE, Product, (leaf(3), leaf(3)), (leaf(2), torch.rand(2)))
    assert (outcome.status, findings) == (Status.PASSED, ())


def test_a_sample_that_forward_refuses_is_named() -> None:
    """Only that one: PB122 for sample 1."""
    finding = found(Product, (leaf(3), leaf(3)), (leaf(3), leaf(4)))
    assert (finding.rule, finding.where) == ("PB122", "sample 1")
    assert "forward raises: RuntimeError: The size of tensor a (3)" in finding.message


def test_a_sample_with_an_argument_too_many_says_nothing_of_dtypes() -> None:
    """forward refuses it in every dtype: no note makes a lower one the reason, as for a forward that takes no other."""

    def single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x * 2

    one = torch.rand(3, requires_grad=True)
    outcome, _ = run_probe(runs.PROBE, Product, (one, one, one))
    assert outcome.notes == ()
    outcome, _ = run_probe(runs.PROBE, single, (one,))
    assert outcome.notes == ("sample 0: forward takes lower dtypes than float64 only",)


def test_a_backward_that_raises_is_named() -> None:
    """PB125 with what it raised."""

    class Raises(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            raise LookupError("lost")

    finding = found(Raises)
    assert (finding.rule, finding.got) == ("PB125", "LookupError: lost")


def test_a_missing_backward_is_named() -> None:
    """PB109 rather than an exception without a name."""

    class Forward(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    assert found(Forward, (leaf(3),)).rule == "PB109"


def test_too_few_gradients_are_counted_with_the_names_that_were_due() -> None:
    """PB201."""

    class Short(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradients[0]

    finding = found(Short)
    assert (finding.rule, finding.got, finding.expected) == ("PB201", "1 gradient", "2: one for each of x, w")


def test_too_many_gradients_are_counted() -> None:
    """A spare one that isn't None is a slip; spare Nones are fine."""

    class Long(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return (gradients[0],) * 3

    class Spare(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return *gradients, *gradients, None

    assert found(Long).got == "3 gradients"
    assert run_probe(runs.PROBE, Spare, (leaf(3), leaf(3)))[1] == ()


def test_a_number_for_a_gradient_is_named() -> None:
    """PB202 with the argument."""

    class Numeric(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradients[0], 3.5

    finding = found(Numeric)
    assert (finding.rule, finding.evidence["argument"], finding.got) == ("PB202", "w", "float 3.5")


def test_a_gradient_of_a_wrong_shape_is_named() -> None:
    """PB213; one that the engine can sum is no fault."""

    class Cropped(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradients[0], gradients[0][:2]

    class Unsummed(Product):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return gradients[0] * w, gradients[0] * x

    finding = found(Cropped)
    assert (finding.rule, finding.expected, finding.got) == ("PB213", "shape (3,)", "shape (2,)")
    assert run_probe(runs.PROBE, Unsummed, (leaf(2, 3), leaf(3)))[1] == ()


def test_a_gradient_despite_nondiff_argnames_is_named() -> None:
    """PB222: the declaration is proved, for an argument that requires grad as well."""

    class Both(pullback.Function):
        nondiff_argnames = ("w",)

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clone(), g.clone()

    class One(Both):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clone(), None

    assert found(Both).rule == "PB222"
    assert run_probe(runs.PROBE, One, (leaf(3), leaf(3)))[1] == ()


def test_an_error_of_pullback_keeps_its_rule() -> None:
    """What pullback.Function raises in backward is reported by its own code."""

    class Short(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clone()

    assert found(Short).rule == "PB201"


class Single(Function):
    """A backward that adds up in float32, whatever forward was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return torch.zeros(x.shape).addmm_(g, w.t()), x.t() @ g


def test_a_backward_of_float32_alone_is_told_so_and_tried_in_float32() -> None:
    """PB125 for float64, which forward takes; the other probes go on in the dtype that came, or that is guessed."""
    given = torch.rand(2, 3, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    for samples in ((given,), ()):
        report = pullback.check(Single, *samples, only=("runs", "subsets", "first_order"))
        error = report.findings[0]
        assert error.rule == "PB125"
        assert error.message.endswith(
            "this is in float64, which forward takes: in float32, as the sample came, it works"
        )
        assert "dtype=torch.float64" in error.repro
        assert [finding.rule for finding in report.findings[1:]] == ["PB601"]
