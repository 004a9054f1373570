"""The probe `shapes`: empty, size-1 and 0-d tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import shapes
from pullback.battery.samples import Sample
from pullback.rules import Severity
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Doubled(Function):
    """2x for every shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def test_a_function_for_every_shape_passes() -> None:
    """Nothing is found, nothing refused."""
    outcome, findings = run_probe(shapes.PROBE, Doubled, (leaf(2, 3),))
    assert findings == ()
    assert outcome.notes == ()


def test_a_backward_that_raises_for_an_empty_batch_is_found() -> None:
    """PB505 says with which shape, and shows the error."""

    class Rows(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.stack([2 * row for row in g])

    _, (finding,) = run_probe(shapes.PROBE, Rows, (leaf(2, 3),))
    assert finding.rule == "PB505"
    assert "an empty" in finding.where
    assert "non-empty" in finding.got
    assert "torch.zeros((0, 3)" in finding.repro


def test_a_backward_that_fails_for_scalars_only_is_found() -> None:
    """0-d tensors are tensors too."""

    class Indexes(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.cat([2 * g[:1], 2 * g[1:]])

    _, (finding,) = run_probe(shapes.PROBE, Indexes, (leaf(3),))
    assert "every tensor 0-d" in finding.where
    assert (finding.rule, finding.severity) == ("PB505", Severity.HINT)  # loud, and rarely meant


def test_a_wrong_number_for_scalars_only_is_an_error() -> None:
    """Nothing raises, so nobody would see it."""

    class Triples(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g if g.dim() else 3 * g

    _, (finding,) = run_probe(shapes.PROBE, Triples, (leaf(3),))
    assert "every tensor 0-d" in finding.where
    assert (finding.rule, finding.severity) == ("PB505", Severity.ERROR)


def test_after_a_hint_of_scalars_larger_sizes_are_tried_still() -> None:
    """A hint hides no fault."""

    class Small(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g if g.shape[0] < 8 else 3 * g

    _, findings = run_probe(shapes.PROBE, Small, (leaf(3),))
    assert [(finding.rule, finding.severity) for finding in findings] == [
        ("PB505", Severity.HINT),
        ("PB203", Severity.ERROR),
    ]


def test_a_reference_that_refuses_numbers_is_no_fault_of_backward() -> None:
    """A second derivative replays it; forward takes a number, and first derivatives are right there."""

    class Squares(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            if not x.dim():
                raise ValueError("axes, please")
            return x.square()

    _, findings = run_probe(shapes.PROBE, Squares, (leaf(3),))
    assert findings == ()


def test_a_wrong_number_at_size_one_is_found() -> None:
    """A branch for single columns that forgets a factor: right for all larger sizes."""

    class OneColumn(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.clone() if g.dim() == 2 and g.shape[1] == 1 else 2 * g

    _, (finding,) = run_probe(shapes.PROBE, OneColumn, (leaf(2, 3),))
    assert "size 3 made 1" in finding.where
    assert "the gradient of x is wrong" in finding.message
    assert finding.expected != finding.got


def test_a_fault_at_size_one_of_a_large_declared_sample_is_found() -> None:
    """Its values can't be written out, and they stand in no sample; the finding comes all the same."""

    class Doubles(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 4 * g if g.shape[0] == 1 else 2 * g

        @staticmethod
        def samples() -> list[tuple[Tensor]]:
            return [(leaf(3, 70, 10),)]

    report = pullback.check(Doubles, only="shapes")
    assert [finding.rule for finding in report.findings] == ["PB505"]


def test_garbage_from_nothing_is_found() -> None:
    """The outputs are empty, so the bias's gradient is 0, whatever was in memory."""

    class Bias(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
            return x + bias

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g, g.sum(0) if len(g) else torch.full(g.shape[1:], 7.0, dtype=g.dtype)

    _, (finding,) = run_probe(shapes.PROBE, Bias, (leaf(2, 3), leaf(3)))
    assert finding.evidence["argument"] == "bias"
    assert (finding.expected, finding.got) == ("0", "7.0")


def _without_tail(t: Tensor) -> Tensor:
    return t * (torch.arange(t.shape[-1]) < t.shape[-1] // 4 * 4) if t.dim() and t.shape[-1] >= 4 else t


def _one_block(t: Tensor) -> Tensor:
    return t * (torch.arange(t.numel()).view(t.shape) < 32)


@pytest.mark.parametrize("kernel", [_without_tail, _one_block])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 4)])
def test_what_a_kernel_leaves_out_of_larger_tensors_is_found(
    kernel: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    """Elements that four don't divide, or beyond the first block; the sample has none of either."""

    class InBlocks(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return kernel(2 * g)

    _, (finding,) = run_probe(shapes.PROBE, InBlocks, (leaf(*shape),))
    assert finding.rule == "PB203"
    assert "with larger sizes (" in finding.message
    assert shows_the_fault(finding, InBlocks=InBlocks)


class Chosen(Function):
    """Rows of a table, chosen by indices."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).index_add(0, index, g), None


def test_beside_indices_other_sizes_grow() -> None:
    """The width of the table isn't theirs."""

    class WithoutTail(Chosen):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return _without_tail(Chosen.backward(ctx, g)[0]), None

    sample = leaf(5, 3), torch.tensor([4, 0])
    assert run_probe(shapes.PROBE, Chosen, sample)[1] == ()
    assert rules(run_probe(shapes.PROBE, WithoutTail, sample)[1]) == ["PB203"]


def test_beside_indices_a_size_that_they_do_not_reach_is_made_one() -> None:
    """An index of 4 doesn't point into an axis of 3; the axis that it points into gets no smaller, nor its own."""
    seen = []

    class Squeezed(Chosen):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            seen.append(tuple(table.shape))
            return Chosen.forward(ctx, table, index)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return Chosen.backward(ctx, g.squeeze())

    _, (finding,) = run_probe(shapes.PROBE, Squeezed, (leaf(5, 3), torch.tensor([4, 0])))
    assert (finding.rule, finding.where) == ("PB505", "size 3 made 1, sample 0")
    assert min(rows for rows, _ in seen) == 5


@pytest.mark.parametrize("fewest", [1, 2])
def test_a_backward_that_fails_for_few_indices_is_found(fewest: int) -> None:
    """Whose number is that of no other axis, and of which one comes twice: none and one are numbers, too."""

    class Demands(Chosen):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            if len(g) < fewest:
                raise RuntimeError("too few")
            return Chosen.backward(ctx, g)

    sample = leaf(5, 4), torch.tensor([3, 0, 3])
    assert run_probe(shapes.PROBE, Chosen, sample)[1] == ()
    _, (finding,) = run_probe(shapes.PROBE, Demands, sample)
    assert (finding.rule, finding.where) == ("PB505", f"size 3 made {fewest - 1}, sample 0")
    assert shows_the_fault(finding, Demands=Demands)


def test_a_backward_that_raises_for_larger_sizes_is_found() -> None:
    """No special size, so it has the rule of any backward that raises."""

    class Small(Doubled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            assert g.numel() < 32, "the buffer is full"
            return 2 * g

    _, (finding,) = run_probe(shapes.PROBE, Small, (leaf(2, 3),))
    assert (finding.rule, finding.got) == ("PB125", "AssertionError: the buffer is full")


@pytest.mark.parametrize("divisor", [2, 3])
def test_larger_sizes_fit_a_forward_that_takes_multiples_alone(divisor: int) -> None:
    """Where odd sizes are refused even ones are tried, and then multiples; one of them is enough."""

    class InParts(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.shape[-1] % divisor:
                raise ValueError("no multiple")
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return _one_block(2 * g)

    assert rules(run_probe(shapes.PROBE, InParts, (leaf(2, 6),))[1]) == ["PB203"]


class Mean(Function):
    """The mean of whatever comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        count = ctx.shape.numel()
        return (g / count).expand(ctx.shape) if count else g.new_zeros(ctx.shape)


def test_what_makes_one_number_of_any_shape_gets_another_axis() -> None:
    """A sample with one axis doesn't show that the gradient has the length of the last one alone."""

    class OfTheLastAxis(Mean):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape[-1:]
            return x.mean()

    assert run_probe(shapes.PROBE, Mean, (leaf(4),))[1] == ()
    _, (finding,) = run_probe(shapes.PROBE, OfTheLastAxis, (leaf(4),))
    assert finding.rule == "PB125"
    assert "with another axis in front of each tensor" in finding.message
    assert shows_the_fault(finding, OfTheLastAxis=OfTheLastAxis)


def test_what_is_for_one_axis_alone_gets_no_other() -> None:
    """Its author thought of vectors, and forward takes matrices by chance."""

    class Sorted(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            values, order = x.sort()
            ctx.save_for_backward(order)
            return values

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.zeros_like(g).scatter(0, ctx.saved_tensors[0], g)

    assert run_probe(shapes.PROBE, Sorted, (leaf(4),))[1] == ()


def test_two_samples_are_made_larger_and_no_more() -> None:
    """Each costs a few calls, and a third of the same kind proves little."""
    seen = []

    class Watched(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(x.numel())
            return 2 * x

    outcome, _ = run_probe(shapes.PROBE, Watched, (leaf(3),), (leaf(4),), (leaf(5),))
    assert {count for count in seen if count > 32} == {39, 35, 131, 1031}
    assert outcome.notes[0] == "larger sizes were tried with samples 0 and 1 alone"


def test_what_forward_refuses_is_counted() -> None:
    """A refusal is no fault; the outcome says what was refused."""

    class Picky(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.dim() != 2 or x.numel() == 0:
                raise ValueError("x must be a matrix with something in it")
            return 2 * x

    outcome, findings = run_probe(shapes.PROBE, Picky, (leaf(2, 3),))
    assert findings == ()
    assert [note.partition(" (")[0] for note in outcome.notes] == [
        "refused: an empty first argument",
        "refused: an empty batch",
        "refused: every tensor 0-d",
    ]


def test_a_formula_that_ends_in_nan_is_let_off() -> None:
    """The mean of nothing is NaN: backward may do there what it likes."""

    class Mean(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape
            return x.mean()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.expand(ctx.shape) * (1 / ctx.shape.numel())

    _, findings = run_probe(shapes.PROBE, Mean, (leaf(4),))
    assert findings == ()


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ((leaf(3), torch.tensor([0, 2])), "holds integers"),
        (Sample((leaf(3), torch.ones(3, dtype=torch.float64)), vary=("layout",)), "not to be varied"),
    ],
)
def test_what_may_not_be_varied_is_left_as_it_is(sample: object, reason: str) -> None:
    """Indices could point out of bounds in a smaller tensor; and an author may forbid it."""

    class Fragile(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
            assert x.shape == (3,)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return 2 * g, None

    outcome, findings = run_probe(shapes.PROBE, Fragile, sample)
    assert findings == ()
    assert any(reason in note for note in outcome.notes)


def test_what_there_is_no_time_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow forward is tried as far as the time goes; the outcome says what was left out."""
    monkeypatch.setattr(shapes, "_SECONDS", -1.0)
    outcome, _ = run_probe(shapes.PROBE, Doubled, (leaf(2, 3),))
    assert len(outcome.notes) == 7
    assert all("was left out" in note for note in outcome.notes)


class Table(Function):
    """A table, linearly interpolated at places between 0 and 1; backward may forget a table's second entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, least: int) -> Tensor:
        ctx.save_for_backward(x, table)
        ctx.least = least
        place, share = Table.place(x, table, least)
        return table[place] * (1 - share) + table[(place + 1).clamp(max=len(table) - 1)] * share

    @staticmethod
    def place(x: Tensor, table: Tensor, least: int) -> tuple[Tensor, Tensor]:
        """The entry before each x, and how far behind it that lies."""
        steps = len(table) - 1
        place = (x * steps).floor().clamp(max=steps - 1).long().clamp(min=least)
        return place, x * steps - place

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, table = ctx.saved_tensors
        place, share = Table.place(x, table, ctx.least)
        slope = (table[place + 1] - table[place]) * (len(table) - 1)
        by_table = torch.zeros_like(table).index_add(0, place, g * (1 - share)).index_add(0, place + 1, g * share)
        return g * slope, by_table, None


def test_a_look_up_before_the_first_entry_is_not_meant() -> None:
    """A table of one entry is read at -1 by chance; where it is read at 0, what backward then raises is told."""
    sample = (torch.linspace(0.1, 0.9, 5, dtype=torch.float64).requires_grad_(), leaf(8))
    _, findings = run_probe(shapes.PROBE, Table, (*sample, -1))
    assert findings == ()
    (finding,) = run_probe(shapes.PROBE, Table, (*sample, 0))[1]
    assert (finding.rule, finding.severity) == ("PB505", Severity.ERROR)
    assert "size 8 made 1" in finding.where


def test_a_square_matrix_is_tried_beside_indices() -> None:
    """PB203 where a gradient is wrong for a square matrix alone; its sizes are out of the indices' reach."""

    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
            ctx.save_for_backward(rows)
            ctx.shape = x.shape
            return x.index_select(0, rows)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (rows,) = ctx.saved_tensors
            gx = g.new_zeros(ctx.shape).index_add(0, rows, g)
            return gx.tril() if ctx.shape[0] == ctx.shape[1] else gx, None

    _, (finding,) = run_probe(shapes.PROBE, Rows, (leaf(3, 5), torch.tensor([0, 2])))
    assert (finding.rule, finding.where) == ("PB203", "argument x, larger sizes (3 made 5), sample 0")
