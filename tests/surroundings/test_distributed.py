"""F15: data-parallel training on two gloo processes: gradients are the mean of what the two would have had alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch was built without gloo"
)

ROOT = Path(__file__).parents[2]

WAYS = ("plain", "static graph", "views of buckets", "checkpoint", "reentrant checkpoint", "fully_shard")


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    """What each of the two processes has found, in all ways to train."""
    with tempfile.TemporaryDirectory() as directory:
        meeting = Path(directory) / "meeting"
        outs = [Path(directory) / f"{rank}.pt" for rank in range(2)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.surroundings.ddp_worker", str(rank), str(meeting), str(out)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, out in enumerate(outs)
        ]
        try:
            told = [process.communicate(timeout=150)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0, 0], "\n".join(told)
        return [torch.load(out) for out in outs]


def expected(*, count: int = 3, unused: tuple[bool, bool] = (False, False)) -> list[Any]:
    """The mean over both processes of the formula's gradients, step by step."""
    from tests.surroundings.ddp_worker import Model, batch, collected

    found = []
    for step in range(count):
        both = []
        for rank in range(2):
            model = Model(plain=True)
            model(batch(rank, step), unused=unused[rank]).sum().backward()
            both.append(collected(model))
        found.append([_mean(*pair) for pair in zip(*both, strict=True)])
    return found


def _mean(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None and other is None:
        return None
    some = one if one is not None else other
    assert some is not None
    zero = torch.zeros_like(some)
    return ((zero if one is None else one) + (zero if other is None else other)) / 2


def assert_gradients(got: Any, due: list[Any]) -> None:
    """Require the gradients of each step."""
    assert isinstance(got, list), got
    for ours, theirs in zip(got, due, strict=False):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_the_mean(trained: list[dict[str, Any]], way: str) -> None:
    """Flat Functions, nests, modules as nests and decorated functions, in each way to train, in both processes."""
    for process in trained:
        assert_gradients(process[way], expected())


def test_parameters_that_nobody_uses(trained: list[dict[str, Any]]) -> None:
    """find_unused_parameters sees through Functions which parameters have a gradient to wait for."""
    for process in trained:
        assert_gradients(process["unused parameters"], expected(unused=(True, True)))
        assert_gradients(process["unused in one process"], expected(unused=(False, True)))


def test_gradients_that_are_accumulated(trained: list[dict[str, Any]]) -> None:
    """no_sync leaves a batch to each process alone until the next is synchronised."""
    steps = expected(count=2)
    due = [one + other for one, other in zip(*steps, strict=True)]
    for process in trained:
        assert_gradients(process["no_sync"], [due])
