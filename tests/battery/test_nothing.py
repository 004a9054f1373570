"""A clean report means that a derivative was looked at."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import check
from pullback.rules import Severity
from tests.battery.running import leaf


class Square(Function):
    """x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * g


class ReturnsNone(Square):
    """Nothing to differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return None


class ReturnsAnInteger(Square):
    """Nor here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return 3


class TakesHalves(Square):
    """Bfloat16 alone, without a reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        if x.dtype != torch.bfloat16:
            raise TypeError("bfloat16, please")
        return Square.forward(ctx, x)


class MarksItsOutput(Square):
    """Its only output is smooth, and marked non-differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        y = 2 * x
        ctx.mark_non_differentiable(y)
        return y


class OffByFactors(Square):
    """Wrong in every element."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 17 * ctx.saved_tensors[0] * g


@pytest.mark.parametrize(
    ("function", "sample", "reason"),
    [
        (ReturnsNone, leaf(3), "forward returned no tensor"),
        (ReturnsAnInteger, leaf(3), "forward returned no tensor"),
        (Square, torch.tensor([1, 2]), "no argument is a dense floating tensor"),
        (Square, np.ones(3), "no argument is a dense floating tensor"),
        (lambda x: x.argmax(), leaf(3), "no output is a floating tensor"),
        (lambda x: x.detach().round(), leaf(3), "no output requires grad"),
        (TakesHalves, torch.rand(3).bfloat16().requires_grad_(), "float32 are refused and there is no reference"),
        (Square, torch.full((2,), math.nan, dtype=torch.float64, requires_grad=True), "no output is finite"),
    ],
)
def test_a_report_without_any_derivative_is_not_clean(function: Any, sample: Any, reason: str) -> None:
    """PB121 says why no derivative could be looked at."""
    report = check(function, (sample,))
    assert not report.ok
    (finding,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert finding.rule == "PB121"
    assert reason in finding.message


@pytest.mark.parametrize("function", [MarksItsOutput, torch.detach])
def test_outputs_that_are_all_cut_off_and_vary_smoothly_are_named(function: Any) -> None:
    """Nothing comes back from them, though they have a derivative."""
    (finding,) = check(function, (leaf(3),)).findings
    assert (finding.rule, finding.evidence["output"]) == ("PB209", "output")


@pytest.mark.parametrize("reference", [None, torch.square])
def test_what_a_nan_of_the_author_does_not_reach_is_compared(reference: Any) -> None:
    """And the report says that the rest was not."""
    sample = torch.tensor([1.0, math.nan, 2.0], dtype=torch.float64, requires_grad=True)
    (finding,) = check(OffByFactors, (sample,), reference=reference).findings
    assert (finding.rule, finding.evidence["index"]) in (("PB203", [0]), ("PB203", [2]))
    report = check(Square, (sample,), reference=reference)
    assert report.ok, str(report)
    assert any("holds NaN" in note for note in report.outcomes["first_order"].notes)


def test_a_nan_that_reaches_some_elements_leaves_the_others() -> None:
    """A row with a NaN is NaN all along, forward and backward; the other rows are compared."""
    sample = torch.rand(3, 4, dtype=torch.float64)
    sample[1, 2] = math.nan
    softmax = lambda x: x.softmax(-1)  # noqa: E731  # a lambda is what is tested
    assert check(softmax, (sample.requires_grad_(),)).ok
