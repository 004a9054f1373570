"""What forward does with indices: one by one, or as the bounds or lengths of segments."""

from typing import Any

import pytest
import torch
from torch import Tensor, tensor
from torch.autograd import Function

from pullback.battery.check import make_subject
from pullback.battery.indices import taken_one_by_one
from pullback.battery.probes import shapes
from tests.battery.running import leaf, rules, run_probe


def rows(table: Tensor, index: Tensor) -> Tensor:
    """Each index has a row of its own."""
    return table[index]


def columns(table: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Each index has a column of the first output, and a place in the second."""
    return table.index_select(1, index), index + 1


def added(table: Tensor, index: Tensor) -> Tensor:
    """Where the rows go: an output has nothing of one index alone."""
    return torch.zeros(4, table.shape[1], dtype=table.dtype).index_add(0, index, table[: len(index)])


def segments(table: Tensor, bounds: Tensor) -> Tensor:
    """Sums between bounds, as a kernel makes them of running sums: in reverse they have the other sign."""
    sums = torch.cat([torch.zeros(1, table.shape[1], dtype=table.dtype), table.cumsum(0)])
    return sums[bounds[1:]] - sums[bounds[:-1]]


def parts(table: Tensor, lengths: Tensor) -> Tensor:
    """A sum for each length: in reverse they begin elsewhere."""
    return torch.stack([part.sum(0) for part in table.split(lengths.tolist())])


@pytest.mark.parametrize(
    ("forward", "index", "expected"),
    [
        (rows, tensor([0, 2, 2]), True),
        (columns, tensor([0, 2, 2]), True),
        (added, tensor([0, 2, 2]), False),
        (segments, tensor([0, 1, 4]), False),
        (parts, tensor([1, 3]), False),
        (rows, tensor([2, 2, 2]), False),
    ],
)
def test_whether_indices_are_taken_one_by_one(forward: Any, index: Tensor, expected: bool) -> None:
    """A look-up's are, whatever numbers they are; those that are the same in reverse tell nothing."""
    subject = make_subject(forward, (leaf(4, 3), index))
    case = subject.all_cases[0]
    assert taken_one_by_one(subject, case, case.sample.args[1]) is expected


def look_up(flattened: Any) -> Any:
    """Rows of a table, with a backward that flattens what comes in."""

    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.shape = table.shape
            return table[index]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (index,) = ctx.saved_tensors
            return torch.zeros(ctx.shape, dtype=g.dtype).index_add(0, index, flattened(g).reshape(g.shape)), None

    return Rows


def test_no_rows_at_all_are_tried_of_a_look_up() -> None:
    """The indices 0, 2, 2 could be bounds, but they are looked up: none of them may be there. PB505."""
    rows_known = look_up(lambda g: g.reshape(g.shape[0], -1))
    _, findings = run_probe(shapes.PROBE, rows_known, (leaf(4, 2), tensor([0, 2, 2])))
    assert rules(findings) == ["PB505"]
    assert "with size 3 made 0, forward gives a result and backward raises" in findings[0].message


def test_no_indices_are_not_no_columns() -> None:
    """There are 3 of both, and 0 of both is a case that reshape(-1, columns) can't take, nor anybody has."""
    columns_known = look_up(lambda g: g.reshape(-1, g.shape[1]))
    assert run_probe(shapes.PROBE, columns_known, (leaf(4, 3), tensor([1, 1, 3])))[1] == ()
