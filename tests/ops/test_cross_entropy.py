"""What is special to cross_entropy: many pieces, memory, rows that don't count, extreme logits, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pullback
from pullback.errors import OperationError
from pullback.ops import chunks, cross_entropy, linear_cross_entropy
from tests.ops.kinds import Kind
from tests.ops.kinds.cross_entropy import KINDS
from tests.ops.live_bytes import most_alive, normal
from tests.ops.runs import drawn, gradients, mapped, second
from tests.ops.test_each_op import TRANSFORMS, close, of_leaves
from tests.saved_bytes import bytes_kept

each = pytest.mark.parametrize("kind", KINDS, ids=str)
BLOCK = 48
"""So few bytes a block that the samples are cut into pieces, the last of them shorter than the others."""


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even small logits."""
    monkeypatch.setattr(chunks, "BLOCK_BYTES", BLOCK)


def of(function: Any, logits: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, each row weighted differently where there is one for each."""
    leaf = logits.detach().requires_grad_()
    loss = function(leaf, *arguments, **options)
    g = torch.arange(1.0, 1 + loss.numel()).to(loss.dtype).view(loss.shape)
    return loss.detach(), torch.autograd.grad(loss, leaf, g)[0]


@each
@pytest.mark.usefixtures("in_pieces")
def test_pieces_give_the_whole(kind: Kind) -> None:
    """Cut into many pieces, values and first and second derivatives are the formula's."""
    arguments = drawn(kind)
    close(gradients(kind.call, arguments), gradients(kind.formula, arguments))
    close(second(kind.call, arguments), second(kind.formula, arguments))


@each
@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_pieces_under_torch_func(kind: Kind, transform: str) -> None:
    """The transforms of torch.func give the same for logits that are cut."""
    arguments = drawn(kind)
    ours, leaves = of_leaves(kind.call, arguments)
    plain, _ = of_leaves(kind.formula, arguments)
    change = TRANSFORMS[transform]
    close(change(ours, len(leaves))(*leaves), change(plain, len(leaves))(*leaves))


@each
@pytest.mark.usefixtures("in_pieces")
def test_pieces_in_low_precision(kind: Kind) -> None:
    """Cut or not, bfloat16 logits give the same numbers, within a rounding of the loss."""
    low = mapped(drawn(kind), lambda tensor: tensor.to(torch.bfloat16))
    cut = gradients(kind.call, low)
    chunks.BLOCK_BYTES = 2**20
    torch.testing.assert_close(cut, gradients(kind.call, low), rtol=8e-3, atol=1e-6)


@pytest.mark.usefixtures("in_pieces")
def test_pieces_are_proven() -> None:
    """The whole battery finds nothing where logits are cut."""
    report = pullback.check(cross_entropy, drawn(KINDS[0]))
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory(dtype: torch.dtype) -> None:
    """Forward holds some blocks, never a copy of the logits; backward holds the gradient and some blocks."""
    logits, target = normal(512, 8192, dtype=dtype), torch.arange(512)
    size, block = logits.nbytes, chunks.block_bytes()
    kept: list[Tensor] = []
    assert most_alive(lambda: kept.append(cross_entropy(logits, target)), [logits, target]) < 3 * block
    loss = kept[0]
    most = most_alive(lambda: torch.autograd.grad(loss, logits), [logits, target])
    assert size <= most < size + 3 * block
    assert bytes_kept(lambda: cross_entropy(logits, target), [logits, target]) == 4 * 512


def test_a_batch_of_one_large_picture_is_cut_too() -> None:
    """Where the batch has one entry, rows are cut along the longest axis of the picture."""
    logits, target = normal(1, 64, 256, 128), torch.zeros(1, 256, 128).long()
    kept: list[Tensor] = []
    assert most_alive(lambda: kept.append(cross_entropy(logits, target)), [logits, target]) < 3 * chunks.block_bytes()
    close(of(cross_entropy, logits, target), of(F.cross_entropy, logits, target), rtol=1e-5, atol=1e-9)


def test_the_gradient_lies_in_memory_as_the_logits_do() -> None:
    """For channels-last logits the gradient is channels-last."""
    logits = normal(2, 8, 64, 300).detach().to(memory_format=torch.channels_last)
    _, gradient = of(cross_entropy, logits, torch.zeros(2, 64, 300).long())
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_where_no_row_counts(reduction: str, weighted: bool, smoothing: float) -> None:
    """As in PyTorch the mean of nothing is NaN, each loss and the sum are 0, and so is each gradient."""
    logits, target = normal(3, 4), torch.full((3,), -100)
    options = {"reduction": reduction, "label_smoothing": smoothing, "weight": torch.ones(4) if weighted else None}
    got = of(cross_entropy, logits, target, **options)
    torch.testing.assert_close(got, of(F.cross_entropy, logits, target, **options), rtol=0, atol=0, equal_nan=True)
    assert not got[1].any()


INF = math.inf
EXTREME = {
    "masked classes": [[0.0, -INF, 1.0], [-INF, -INF, 2.0]],
    "the target masked": [[-INF, 0.0, 1.0], [0.0, 1.0, -INF]],
    "a row of -inf": [[-INF, -INF, -INF], [0.0, 1.0, 2.0]],
    "inf": [[INF, 0.0, 1.0], [0.0, INF, 1.0]],
    "nan": [[math.nan, 0.0, 1.0], [0.0, 1.0, 2.0]],
    "huge": [[1e30, 1e30, -1e30], [3e38, -3e38, 0.0]],
    "ties of large numbers": [[1e6, 1e6, 1e6], [-1e6, -1e6, -2e6]],
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", EXTREME)
def test_extreme_logits(name: str, smoothing: float) -> None:
    """Infinite, huge and equal logits give what PyTorch gives: NaN and infinity where it does, exact ties."""
    logits, target = torch.tensor(EXTREME[name]), torch.tensor([0, 2])
    options = {"reduction": "none", "label_smoothing": smoothing}
    got, due = of(cross_entropy, logits, target, **options), of(F.cross_entropy, logits, target, **options)
    torch.testing.assert_close(got, due, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_large_logits_lose_no_digit() -> None:
    """A shift of all logits by a large number changes neither loss nor gradient beyond the shift's own rounding."""
    logits, target = normal(8, 16).detach().mul(8).round(), torch.arange(8)
    plain = of(cross_entropy, logits, target, reduction="none")
    torch.testing.assert_close(of(cross_entropy, logits + 2.0**20, target, reduction="none"), plain, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_class_indices_of_other_dtypes(dtype: torch.dtype) -> None:
    """Each integer dtype gives what int64 gives, to second order."""
    logits = normal(3, 4, dtype=torch.float64)
    target = torch.tensor([3, 0, 2])

    def run(kind: torch.dtype) -> list[Tensor]:
        return second(lambda x: cross_entropy(x, target.to(kind), ignore_index=0), (logits,))

    close(run(dtype), run(torch.int64))


def test_probabilities_are_left_to_pytorch() -> None:
    """A target of probabilities gives PyTorch's own numbers, gradients of the target too."""
    logits, target = normal(3, 4), normal(3, 4, seed=1).detach().softmax(1).requires_grad_()
    ours = torch.autograd.grad(cross_entropy(logits, target, label_smoothing=0.1), (logits, target))
    due = torch.autograd.grad(F.cross_entropy(logits, target, label_smoothing=0.1), (logits, target))
    torch.testing.assert_close(ours, due, rtol=0, atol=0)


def test_under_autocast_the_loss_is_in_float32() -> None:
    """As PyTorch's: logits in bfloat16 then give a loss in float32, and a gradient in bfloat16."""
    logits, target = normal(3, 4, dtype=torch.bfloat16), torch.tensor([0, 1, 2])
    with torch.autocast("cpu", torch.bfloat16):
        got, due = of(cross_entropy, logits, target), of(F.cross_entropy, logits, target)
    assert [tensor.dtype for tensor in got] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(got, due, rtol=8e-3, atol=1e-3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size_average": ({"size_average": False}, r"`size_average`(.|\n)*Write reduction='sum'"),
    "reduce": ({"reduce": False}, r"`reduce`(.|\n)*Write reduction='none'"),
    "reduction": ({"reduction": "max"}, r"`reduction`(.|\n)*'none', 'mean' or 'sum'(.|\n)*got: +'max'"),
    "smoothing": ({"label_smoothing": 1.5}, r"`label_smoothing`(.|\n)*from 0 to 1(.|\n)*got: +1\.5"),
    "target's shape": ({"target": torch.zeros(4).long()}, r"`target` doesn't fit(.|\n)*\(3, 5\)(.|\n)*\(3,\)"),
    "target's dtype": ({"target": torch.zeros(3)}, r"`target` of shape \(3,\)(.|\n)*torch\.int64(.|\n)*torch\.float32"),
    "weight's shape": ({"weight": torch.ones(4)}, r"`weight` has a factor for each of the 5(.|\n)*shape \(4,\)"),
    "weight's gradient": ({"weight": torch.ones(5).requires_grad_()}, r"no gradient for `weight`(.|\n)*detach"),
    "input's dtype": ({"input": torch.zeros(3, 5).long()}, r"`input` has the logits(.|\n)*torch\.int64"),
    "no classes": ({"input": torch.zeros(3, 0)}, r"`input` has no classes(.|\n)*\(3, 0\)"),
    "too large": ({"target": torch.tensor([0, 5, 7])}, r"Target 5 is out of bounds(.|\n)*0 to 4(.|\n)*2 of 3 targets"),
    "negative": ({"target": torch.tensor([0, -1, 2])}, r"Target -1 is out of bounds(.|\n)*ignore_index, which is -100"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """PB130 names the argument, what was expected and what came."""
    change, text = REFUSED[name]
    arguments = {"input": torch.zeros(3, 5, requires_grad=True), "target": torch.tensor([0, 1, 2]), **change}
    with pytest.raises(OperationError, match=text) as caught:
        cross_entropy(**arguments)
    assert caught.value.rule == "PB130"


def test_other_errors_stay_what_they_are() -> None:
    """What goes wrong in a call whose targets are all classes is raised as it is."""
    target = torch.tensor([0, 1, 2], device="meta")
    with pytest.raises(RuntimeError) as caught:
        cross_entropy(torch.zeros(3, 5), target)
    assert not isinstance(caught.value, OperationError)


@pytest.mark.parametrize(("dtype", "ignored"), [(torch.uint8, -100), (torch.uint8, 257), (torch.int8, 257)], ids=str)
def test_an_index_to_ignore_that_the_targets_dtype_lacks(dtype: torch.dtype, ignored: int) -> None:
    """It ignores no row, though in the dtype of the target -100 would be 156, and 257 would be 1."""
    count = 200 if dtype == torch.uint8 else 120
    logits, target = normal(count, count), torch.arange(count)
    due = F.cross_entropy(logits, target, reduction="none")
    got = cross_entropy(logits, target.to(dtype), ignore_index=ignored, reduction="none")
    torch.testing.assert_close(got, due)
    x, w = normal(count, 3), normal(count, 3, seed=1)
    plain = F.cross_entropy(F.linear(x, w), target)
    torch.testing.assert_close(linear_cross_entropy(x, w, target.to(dtype), ignore_index=ignored), plain)


def test_class_weights_that_require_grad_where_none_is_recorded() -> None:
    """Without grad mode a trained weight of the classes is a weight as any other, as for PyTorch."""
    logits, target, weight = normal(3, 4), torch.tensor([0, 1, 2]), torch.rand(4).requires_grad_()
    with torch.no_grad():
        got = cross_entropy(logits, target, weight)
    torch.testing.assert_close(got, F.cross_entropy(logits, target, weight.detach()))
