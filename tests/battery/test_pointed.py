"""Larger samples with indices: what grows with them, and what nobody may make larger."""

from typing import Any

import pytest
import torch
from torch import Tensor, tensor
from torch.autograd import Function

from pullback.battery.check import make_subject
from pullback.battery.grown import LONG
from pullback.battery.pointed import with_indices
from pullback.battery.probes import shapes
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Nll(Function):
    """-Σ x[i, target_i]: for each row one class."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(target)
        ctx.shape = x.shape
        return -x.gather(1, target[:, None]).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (target,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter(1, target[:, None], -1.0) * g, None


TARGETS = tensor([4, 0, 0])


def sizes(function: Any, *sample: object) -> set[tuple[int, ...]]:
    """The shapes of the first argument in all variants."""
    subject = make_subject(function, sample)
    variants = with_indices(subject, subject.all_cases[0])
    return {tuple(subject.named_tensors(case.sample)[0][2].shape) for _, case in variants}


def test_a_batch_grows_with_its_targets() -> None:
    """The axis that they point into is read from end to end here, and grows as well."""
    assert sizes(lambda x, target: torch.nn.functional.cross_entropy(x, target), leaf(3, 5), TARGETS) == {
        *((27, 5), (LONG, 5)),
        *((3, 43), (3, LONG)),
    }


def test_an_axis_that_is_not_read_beyond_stays() -> None:
    """What lies there has no gradient, whatever comes back for it."""
    assert sizes(Nll, leaf(3, 5), TARGETS) == {(27, 5), (LONG, 5)}


def test_indices_that_never_repeat_stay() -> None:
    """To copy two rows to one place isn't meant."""
    assert sizes(lambda x, places, rows: x.index_copy(0, places, rows), leaf(2, 1), tensor([1, 0]), leaf(2, 1)) == set()


@pytest.mark.parametrize("wrong", ["the last rows", "a second block"])
def test_a_fault_in_more_rows_than_the_sample_has_is_found(wrong: str) -> None:
    """PB203, where the first 16 or 128 rows of a batch are worked on."""
    most = 16 if wrong == "the last rows" else 128

    class Blocked(Nll):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            gx, _ = Nll.backward(ctx, g)
            gx[most:] = 0
            return gx, None

    (finding,) = run_probe(shapes.PROBE, Blocked, (leaf(3, 5), TARGETS))[1]
    assert finding.rule == "PB203"
    assert "larger sizes (3 made" in finding.message
    assert shows_the_fault(finding, Blocked=Blocked)


class OfSegments(Function):
    """The mean of each segment, whose gradient is written to where segments are, and to nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(x, lengths)
        return torch.stack([part.mean(0) for part in _parts(x, lengths)])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, lengths = ctx.saved_tensors
        gx = torch.full_like(x, 1e3)  # as memory comes
        for part, own, length in zip(_parts(gx, lengths), g, lengths.tolist(), strict=True):
            part.copy_(own / length)
        return gx, None


class ByBounds(OfSegments):
    """The same, with the places where segments begin and end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bounds: Tensor) -> Tensor:
        return OfSegments.forward(ctx, x, bounds.diff())


class ByRows(Function):
    """Adds rows up by their groups, and goes back by how many are in each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(lengths)
        return x.new_zeros(len(lengths), x.shape[1]).index_add(0, groups, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (lengths,) = ctx.saved_tensors
        return g.repeat_interleave(lengths, 0), None, None


class ToColumns(Function):
    """Puts the elements of each row into columns of which none comes twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        return x.new_zeros(x.shape[0], 8).scatter(1, columns, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.gather(1, *ctx.saved_tensors), None


def _parts(x: Tensor, lengths: Tensor) -> list[Tensor]:
    ends = lengths.cumsum(0).tolist()
    return [x[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("function", "sample"),
    [
        (OfSegments, (leaf(4, 3), tensor([2, 2]))),
        (OfSegments, (leaf(4, 4), tensor([2, 2]))),
        (ByBounds, (leaf(5, 3), tensor([0, 2, 5]))),
        (ByBounds, (leaf(5, 5), tensor([0, 1, 5]))),
        (ByRows, (leaf(4, 3), tensor([0, 0, 1, 1]), tensor([2, 2]))),
        (ToColumns, (leaf(3, 2), tensor([[0, 1], [1, 2], [4, 2]]))),
    ],
)
def test_integers_of_other_meanings_raise_no_alarm(function: Any, sample: tuple[object, ...]) -> None:
    """Lengths, bounds, groups beside their lengths, and columns that are all different."""
    assert run_probe(shapes.PROBE, function, sample)[1] == ()
