"""The probe `afterwards`: what the calls of other probes have left, and what calls leave that ran out of memory."""

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from torch import Tensor

import pullback
from pullback.battery import battery
from pullback.battery.check import make_subject
from pullback.battery.probe import Probe
from pullback.battery.probes import afterwards, repeats
from pullback.battery.subject import Subject
from pullback.finding import Finding, Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import Square, leaf, run_probe


def test_a_pure_function_passes() -> None:
    """Nothing is left behind, by calls that fail neither."""
    outcome, _ = run_probe(afterwards.PROBE, Square, (leaf(2),))
    assert outcome.status is Status.PASSED


class LowForGood(Square):
    """After a call on a large tensor, those on small ones compute in bfloat16."""

    low: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.numel() > 20:
            LowForGood.low.append(1)
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        made = 2 * x * g
        return made.bfloat16().to(x.dtype) if LowForGood.low and x.numel() < 20 else made


def test_what_calls_of_other_probes_leave_is_found() -> None:
    """A probe that compares no small tensors with what they gave before has called it on a large one: PB504."""

    def large(_: Subject) -> Iterator[Finding]:
        LowForGood.apply(leaf(30))
        yield from ()

    probes = [repeats.PROBE, Probe("large", "nothing", large), afterwards.PROBE]
    *_, (_, _, findings) = battery.run(make_subject(LowForGood, (leaf(2),)), probes)
    (finding,) = findings
    LowForGood.low.clear()
    assert finding.rule == "PB504"
    assert finding.message == "after all that the other probes called, the gradient is another one"
    assert shows_the_fault(finding, LowForGood=LowForGood)


class LeftBusy(Square):
    """backward marks itself as running, and only a good end takes the mark off."""

    busy: ClassVar[list[int]] = []

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if LeftBusy.busy:
            raise RuntimeError("in use")
        LeftBusy.busy.append(1)
        made = 2 * x * g
        LeftBusy.busy.clear()
        return made


class LowAfterAnError(Square):
    """Once backward has failed, it computes in bfloat16 for good."""

    failed: ClassVar[list[int]] = []

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        try:
            return (2 * x * g).bfloat16().to(x.dtype) if LowAfterAnError.failed else 2 * x * g
        except RuntimeError:
            LowAfterAnError.failed.append(1)
            raise


@pytest.mark.parametrize("function", [LeftBusy, LowAfterAnError])
def test_what_a_call_without_memory_leaves_is_found(function: Any) -> None:
    """The next call raises, or gives another gradient: PB504."""
    _, (finding,) = run_probe(afterwards.PROBE, function, (leaf(2),))
    kept = function.busy if function is LeftBusy else function.failed
    kept.clear()
    assert finding.rule == "PB504"
    assert finding.message.startswith("after calls that ran out of memory midway, ")
    assert shows_the_fault(finding, LeftBusy=LeftBusy, LowAfterAnError=LowAfterAnError)
    kept.clear()


def test_a_mark_that_is_taken_off_whatever_comes_is_right() -> None:
    """With a finally clause, and with a lock in a with statement, nothing is left."""

    class Careful(Square):
        busy: ClassVar[list[int]] = []
        lock = threading.Lock()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with Careful.lock:
                if Careful.busy:
                    raise RuntimeError("in use")
                Careful.busy.append(1)
                try:
                    return 2 * x * g
                finally:
                    Careful.busy.clear()

    outcome, _ = run_probe(afterwards.PROBE, Careful, (leaf(2),))
    assert outcome.status is Status.PASSED


def test_a_lock_that_is_not_let_go_of_ends_the_check_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call waits for ever, in a thread of its own: PB504."""
    monkeypatch.setattr(afterwards, "_LEAST_WAIT", 0.5)

    class Locked(Square):
        lock = threading.Lock()

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Locked.lock.acquire()
            ctx.save_for_backward(x)
            made = x**2
            Locked.lock.release()
            return made

    _, (finding,) = run_probe(afterwards.PROBE, Locked, (leaf(2),))
    Locked.lock.release()  # or the thread would wait on
    assert finding.rule == "PB504"
    assert "not done after" in finding.message


def test_other_faults_come_first() -> None:
    """A wrong gradient isn't hidden behind what an error leaves."""

    class Wrong(LeftBusy):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 1.5 * LeftBusy.backward(ctx, g)

    report = pullback.check(Wrong, (leaf(2),), only=("first_order", "afterwards"))
    assert [finding.rule for finding in report.findings] == ["PB203"]
