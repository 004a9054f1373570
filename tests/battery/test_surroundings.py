"""Whatever a check is called under, and whatever the code under test raises, there is a report."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pullback.battery.check import check
from pullback.errors import SampleError


def sample() -> Tensor:
    """A leaf that no default device moves."""
    return torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64, device="cpu", requires_grad=True)


class Square(Function):
    """x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * g


class OffByFactors(Square):
    """Wrong in every element."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 17 * ctx.saved_tensors[0] * g


class WithoutText(Exception):
    """Even its text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [WithoutText(), SystemExit(3)])
def test_whatever_forward_or_backward_raises_becomes_a_finding(error: BaseException) -> None:
    """An exception without a text, an attempt to end the process."""

    class InForward(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            raise error

    class InBackward(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            raise error

    assert [finding.rule for finding in check(InForward, (sample(),)).findings] == ["PB122"]
    assert [finding.rule for finding in check(InBackward, (sample(),)).findings] == ["PB125"]


def test_whatever_samples_raise_is_a_sample_error() -> None:
    """With the exception in it."""

    class Leaves(Square):
        @staticmethod
        def samples() -> Any:
            sys.exit(2)

    with pytest.raises(SampleError, match=r"samples\(\) raised SystemExit: 2"):
        check(Leaves)


def test_an_interrupt_is_the_persons_own() -> None:
    """It ends the check."""

    class Interrupted(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(Interrupted, (sample(),))


@pytest.mark.parametrize("mode", ["inference", "no_grad", "device"])
def test_the_callers_modes_change_no_finding(mode: str) -> None:
    """Without gradients nothing could be looked at, and on the meta device nothing has values."""
    modes: dict[str, Any] = {
        "inference": torch.inference_mode(),
        "no_grad": torch.no_grad(),
        "device": torch.device("meta"),
    }
    x = sample()
    with modes[mode]:
        assert [finding.rule for finding in check(OffByFactors, (x,)).findings] == ["PB203"]
        assert check(Square, (x,)).ok


def test_a_forward_makes_its_tensors_where_the_caller_says() -> None:
    """The default device is the caller's while forward runs."""
    seen = set()

    class Watches(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            seen.add(torch.empty(0).device.type)
            return Square.forward(ctx, x)

    with torch.device("meta"):
        assert check(Watches, (sample(),)).ok
    assert seen == {"meta"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (lambda: torch.eye(3).to_sparse().requires_grad_(), "sparse and requires grad"),
        (lambda: torch.eye(3).to_sparse_csr().requires_grad_(), "sparse and requires grad"),
        (lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8), "quantized"),
        (lambda: torch.rand(3, device="meta"), "without data"),
        (lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged), "nested"),
        (lambda: torch.rand(3).to_mkldnn(), "in the layout mkldnn"),
    ],
)
def test_samples_that_no_experiment_can_be_made_with_are_refused(tensor: Any, kind: str) -> None:
    """By name, with what kind of tensor it is, and with what can be used."""
    with pytest.raises(SampleError, match=f"sample 0 can't be used: x is {kind}") as refused:
        check(Square, (tensor(),))
    assert "dense tensors with data" in str(refused.value)


class SparseProduct(Function):
    """A constant sparse matrix times a dense one."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, x: Tensor) -> Any:
        ctx.save_for_backward(s)
        return torch.sparse.mm(s, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (s,) = ctx.saved_tensors
        return None, torch.sparse.mm(s.t(), g.to(s.dtype))


class Rows(Function):
    """Rows of a table, with a sparse gradient, once differentiable."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Any:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], g, ctx.shape), None


def test_constant_sparse_arguments_and_sparse_gradients_are_taken() -> None:
    """No probe is in their way."""
    dense = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    report = check(SparseProduct, (torch.eye(3, dtype=torch.float64).to_sparse(), dense))
    assert report.ok, str(report)
    report = check(Rows, (dense, torch.tensor([0, 2, 2])))
    assert report.ok, str(report)
