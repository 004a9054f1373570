"""The probe `leaks`: memory that outlives a call."""

import gc
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import leaks
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import Square, leaf, run_probe
from tests.torch_features import needs_cycles


class PullbackSquare(pullback.Function):
    """The same with a double_backward."""

    forward = Square.forward
    backward = Square.backward

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        return 2 * gg


@pytest.mark.parametrize("function", [Square, PullbackSquare, torch.sin])
def test_what_is_freed_by_counting_passes(function: Any) -> None:
    """Functions of PyTorch and pullback, and plain code; and the collector is as it was."""
    outcome, findings = run_probe(leaks.PROBE, function, (leaf(2),))
    assert findings == ()
    assert outcome.status is Status.PASSED
    assert gc.isenabled()


@needs_cycles
def test_a_cycle_is_told_from_a_hoard() -> None:
    """A cycle waits for the collector; what hangs in a list outlives it."""

    class Cycle(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.me = ctx
            ctx.save_for_backward(x)
            return x**2

    class Hoard(Square):
        kept: ClassVar[list[Tensor]] = []

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            Hoard.kept.append(g)
            return 2 * x * g

    _, (cycle,) = run_probe(leaks.PROBE, Cycle, (leaf(2),))
    _, (hoard,) = run_probe(leaks.PROBE, Hoard, (leaf(2),))
    assert cycle.rule == hoard.rule == "PB306"
    assert cycle.evidence["outlive_collector"] == 0
    assert "cycle" in cycle.remedy
    assert hoard.evidence["outlive_collector"] == 2  # one of each call


@needs_cycles
def test_a_call_that_is_never_differentiated_must_be_freed_too() -> None:
    """backward breaks the cycle, so it shows only in a call without one."""

    class Until(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.me = ctx
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            ctx.me = None
            (x,) = ctx.saved_tensors
            return 2 * x * g

    _, (finding,) = run_probe(leaks.PROBE, Until, (leaf(2),))
    assert finding.evidence["backward"] is False
    assert "without a backward" in finding.message


def test_a_constant_in_a_cache_and_a_last_result_are_no_leaks() -> None:
    """What is bounded doesn't grow with the calls."""
    ramps: dict[int, Tensor] = {}

    class Caches(Square):
        last: ClassVar[Tensor | None] = None

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ramp = ramps.setdefault(x.numel(), torch.arange(x.numel(), dtype=x.dtype))
            Caches.last = (x + ramp).detach()
            ctx.save_for_backward(x)
            return x**2

    _, findings = run_probe(leaks.PROBE, Caches, (leaf(2),))
    assert findings == ()


def test_sparse_gradients_have_no_storage_to_watch() -> None:
    """An embedding's sparse gradient goes through without a crash, and without a finding."""

    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.shape = table.shape
            return table[index]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (index,) = ctx.saved_tensors
            return torch.sparse_coo_tensor(index[None], g, ctx.shape, check_invariants=False), None

    outcome, findings = run_probe(leaks.PROBE, Rows, (leaf(4, 2), torch.tensor([1, 3])))
    assert findings == ()
    assert outcome.status is Status.PASSED


def test_what_is_kept_by_the_identity_of_ctx_is_found() -> None:
    """The next ctx in its place pushes it out, so that no call by itself leaves more: PB306."""

    class Table(Square):
        kept: ClassVar[dict[int, Tensor]] = {}

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Table.kept[id(ctx)] = x.detach().sign()
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * Table.kept[id(ctx)] * g

    _, (finding,) = run_probe(leaks.PROBE, Table, (leaf(2),))
    assert finding.rule == "PB306"
    assert shows_the_fault(finding, Table=Table)


def test_a_pool_of_buffers_is_no_leak() -> None:
    """Each call takes a buffer and gives it back: there are as many as there were calls at a time."""

    class Pooled(Square):
        pool: ClassVar[list[Tensor]] = []

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.room = Pooled.pool.pop() if Pooled.pool else torch.empty_like(x)
            ctx.room.copy_(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            made = 2 * ctx.room * g
            Pooled.pool.append(ctx.room)
            return made

    _, findings = run_probe(leaks.PROBE, Pooled, (leaf(2),))
    assert findings == ()


@pytest.mark.parametrize("fresh", [False, True])
def test_scratch_that_is_written_to_by_out_is_older_than_a_call(fresh: bool) -> None:
    """One buffer for each shape, made by the first call; one that each call makes anew is kept for ever."""

    class Scratch(Function):
        kept: ClassVar[list[Any]] = []

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if fresh or not Scratch.kept or Scratch.kept[-1].shape != x.shape:
                Scratch.kept.append(torch.empty(x.shape, dtype=x.dtype))
            torch.mul(x.detach(), x.detach(), out=Scratch.kept[-1])
            ctx.save_for_backward(x)
            return Scratch.kept[-1] + 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    _, findings = run_probe(leaks.PROBE, Scratch, (leaf(3),))
    assert [finding.rule for finding in findings] == (["PB306"] if fresh else [])
