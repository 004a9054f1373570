"""The probe `threads`: calls in other threads don't change a result."""

import sys
import threading
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.interleaving import Others, between_lines, between_operators
from pullback.battery.probes import threads
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe

CPU = torch.device("cpu")
WORKSPACE = torch.empty(64, dtype=torch.float64)
LOCK = threading.Lock()
LOCAL = threading.local()


class Scratch(Function):
    """Keeps an intermediate on the class for a line."""

    held: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        Scratch.held = x.detach() * 2
        return Scratch.held * x.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * g * x


def test_scratch_memory_on_the_class_is_found() -> None:
    """Between two lines of forward; the finding names the output and shows the race without luck."""
    (finding,) = run_probe(threads.PROBE, Scratch, (leaf(3),))[1]
    assert finding.rule == "PB520"
    assert finding.message == "with calls of another thread between its lines, the value is another one"
    assert finding.evidence["output"] == "output"
    assert len(finding.repro.splitlines()) <= 25
    assert shows_the_fault(finding, Scratch=Scratch)


class Workspace(Function):
    """backward writes to a global workspace and copies it out, in one line."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.mul(g, 3, out=WORKSPACE.resize_(g.shape)).clone()


def test_a_workspace_of_backward_is_found_within_one_line() -> None:
    """Between two operators, by other cotangents than the call's own."""
    (finding,) = run_probe(threads.PROBE, Workspace, (leaf(3),))[1]
    assert finding.message == "with calls of another thread between its operators, the gradient is another one"
    assert finding.evidence["argument"] == "x"
    assert shows_the_fault(finding, Workspace=Workspace)


def test_a_thread_local_value_that_backward_lacks_is_found() -> None:
    """As on a GPU, where backward never runs in forward's thread."""

    class SetUp(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            LOCAL.factor = 3.0
            return x * LOCAL.factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            factor: float = LOCAL.factor
            return g * factor

    (finding,) = run_probe(threads.PROBE, SetUp, (leaf(3),))[1]
    assert finding.message.startswith(
        "when backward runs in another thread than forward, backward raises: AttributeError"
    )
    assert shows_the_fault(finding, SetUp=SetUp)


class Locked(Function):
    """The same scratch memory, under a lock."""

    held: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with LOCK:
            Locked.held = x.detach() * 2
            return Locked.held * x.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * g * x


def test_a_lock_is_waited_for() -> None:
    """The other call waits for the end of the lock, the check doesn't hang, and says so."""
    outcome, findings = run_probe(threads.PROBE, Locked, (leaf(3),))
    assert findings == ()
    assert outcome.notes == ("sample 0: the call holds a lock, so calls of another thread waited for its end",)
    assert outcome.seconds < 10
    assert threading.active_count() == 1 or not any("pullback" in t.name for t in threading.enumerate())


class Product(pullback.Function):
    """A right one of pullback's, with a random part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        kept = torch.rand_like(x) < 0.5
        ctx.save_for_backward(x, w, kept)
        return x * w * kept

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, kept = ctx.saved_tensors
        return g * w * kept, g * x * kept


def test_right_functions_pass() -> None:
    """Random ones too: what the other thread draws is none of the call's."""
    for function, count in ((Product, 2), (torch.sin, 1), (torch.mul, 2)):
        outcome, findings = run_probe(threads.PROBE, function, tuple(leaf(3) for _ in range(count)))
        assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_others_come_between_lines_and_operators() -> None:
    """Once before each line of the file, once after each operator, in one thread of their own."""
    seen: list[str] = []
    others = Others(lambda: seen.append(threading.current_thread().name), CPU)
    with between_lines(others, frozenset({__file__})):
        _three_lines()
    assert seen == ["pullback: another call"] * 3
    others = Others(lambda: seen.append("operator"), CPU)
    with between_operators(others):
        torch.ones(2) + 1
    assert seen[3:] == ["operator"] * 2


def _three_lines() -> None:
    a = 1
    b = a + 1
    del a, b


def test_a_tracer_is_left_alone() -> None:
    """Under a debugger nothing comes between lines, and the tracer is still there afterwards."""
    before = sys.gettrace()

    def tracer(*_: Any) -> None:
        return None

    sys.settrace(tracer)
    try:
        others = Others(lambda: None, CPU)
        with between_lines(others, frozenset({__file__})):
            _three_lines()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is tracer
    assert others.count == 0


def test_what_the_other_call_raises_is_kept() -> None:
    """And raised nowhere else."""

    def fails() -> None:
        raise ValueError("oh")

    others = Others(fails, CPU)
    with between_operators(others):
        torch.ones(1)
    assert isinstance(others.error, ValueError)


def test_a_backward_that_waits_for_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never ends off the thread of its forward is found; the check itself ends."""
    monkeypatch.setattr(threads, "_LEAST_WAIT", 0.1)
    free = threading.Event()
    here = threading.current_thread()

    class Waits(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            if threading.current_thread() is not here:
                free.wait()
            return g * 2

    try:
        (finding,) = run_probe(threads.PROBE, Waits, (leaf(3),))[1]
    finally:
        free.set()
    assert finding.rule == "PB520"
    assert "backward raises: TimeoutError: not done after" in finding.message


def test_calls_at_once_do_not_share_a_generator() -> None:
    """One that comes with the arguments would be moved on by the others; what backward does alone is compared still."""

    class Dropout(Function):
        home: ClassVar[Any] = None

        @staticmethod
        def forward(ctx: Any, x: Tensor, generator: torch.Generator) -> Tensor:
            keep = torch.rand(x.shape, generator=generator) > 0.5
            ctx.save_for_backward(keep)
            return x * keep

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            factor = 1 if Dropout.home in (None, threading.get_ident()) else 2
            return factor * g * ctx.saved_tensors[0], None

    sample = leaf(12), torch.Generator().manual_seed(3)
    assert run_probe(threads.PROBE, Dropout, sample)[1] == ()
    Dropout.home = threading.get_ident()
    assert rules(run_probe(threads.PROBE, Dropout, sample)[1]) == ["PB520"]
