"""F15: threads that meet within one step of pullback's: what each of them leaves behind fits together."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch

import pullback
from pullback.call import plan as plans
from pullback.call import router as routers
from tests.surroundings.kind import Kind, assert_same, derivatives
from tests.surroundings.kinds import KINDS
from tests.surroundings.test_threads import THREADS, at_once, branching, expected_of


def slowly(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have a step of pullback's wait before and after, so that every thread gets between it and the next one."""
    step = getattr(owner, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.001)
        result = step(*args, **kwargs)
        time.sleep(0.002)
        return result

    monkeypatch.setattr(owner, name, slow)


STEPS = [
    (plans, "node_class"),
    (plans, "bound_apply"),
    (plans, "read_layout"),
    (plans, "Call"),
    (plans, "steady_forward"),
    (plans.Plan, "_twin_with"),
    (plans.Plan, "_learn"),
    (plans, "returned_types"),
    (routers, "leafwise_class"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
def test_threads_that_meet_in_one_step(step: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever one thread is while others come in, the class is right in all of them, then and later."""
    slowly(monkeypatch, *step)
    for name in ("saves_intermediates", "keeps_on_ctx", "nests", "keyword_only", "reference"):
        kind = KINDS[name]
        expected, function = expected_of(kind), kind.function()

        def work(seed: int, kind: Kind = kind, function: Any = function, expected: Any = expected) -> None:
            for _ in range(2):
                assert_same(derivatives(function, kind.draw(seed), once=kind.once), expected[seed])

        at_once([lambda seed=seed, work=work: work(seed) for seed in range(4)])
        work(5)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
def test_threads_that_meet_in_one_step_with_flags(step: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a class whose calls are steered into branches by a flag."""
    slowly(monkeypatch, *step)
    ways, expected = ("inputs", "intermediate", "on ctx"), expected_of(Kind("", lambda base: base, torch.exp))
    made = branching()

    def work(seed: int) -> None:
        for turn in range(4):
            way = ways[(seed + turn) % 3]
            got = derivatives(lambda x, way=way: made.apply(x, way), KINDS["saves_output"].draw(seed))
            assert_same(got, expected[seed])

    at_once([lambda seed=seed: work(seed) for seed in range(4)])
    work(5)
    plan = made._backward_cls.pullback_plan
    assert plan._flags == (1,)
    assert len(plan._by_flags) == 3


def test_one_class_is_adopted_once() -> None:
    """Threads that adopt a class at once get one class."""
    for _ in range(20):
        original: Any = type("Original", (torch.autograd.Function,), {"forward": staticmethod(lambda ctx, x: x)})
        found = list[Any]()
        at_once([lambda original=original, found=found: found.append(pullback.adopt(original))] * THREADS)
        assert len({id(adopted) for adopted in found}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system doesn't fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_is_forked_off_while_a_thread_learns() -> None:
    """The child, in which that thread doesn't run on, can apply new classes."""
    held, done = threading.Event(), threading.Event()

    def learns() -> None:
        with plans._LEARNING:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=learns)
    thread.start()
    held.wait(60)
    function, leaves = KINDS["saves_intermediates"].function(), KINDS["saves_intermediates"].draw()
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (1,)).start()  # where it would wait for good
        with torch.no_grad():
            function(*leaves)
        function(*leaves)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
