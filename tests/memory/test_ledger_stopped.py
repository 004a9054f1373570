"""A step that ends with an exception: the ledger has what was kept up to there."""

from __future__ import annotations

import copy
import gc
import json
import weakref

import pytest
import torch
from torch import Tensor, nn

import pullback


class Head(nn.Module):
    """Fails as a step does that finds no more memory."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.exp()
        raise torch.OutOfMemoryError(f"no room for {wide.numel()} more")


class Model(nn.Module):
    """A block that works, and a head that doesn't."""

    def __init__(self) -> None:
        """Make the parts."""
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), Head()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x))
        return y


def test_the_ledger_of_a_step_that_failed_has_what_was_kept() -> None:
    """The exception goes on unchanged; the ledger says what it was, and in which module."""
    error = torch.OutOfMemoryError("mine")
    ledger = pullback.saved_memory()
    with pytest.raises(torch.OutOfMemoryError, match="no room for 32 more") as caught, ledger:
        Model()(torch.randn(4, 8))
    assert type(caught.value) is type(error)
    assert ledger.stopped == "OutOfMemoryError in Model.head"
    assert ledger.by_operation() == {"TanhBackward0": 128, "ExpBackward0": 128}
    first = str(ledger).splitlines()[0]
    assert first == "Stopped by OutOfMemoryError in Model.head; this is what was kept up to there."
    assert json.loads(ledger.to_json())["stopped"] == ledger.stopped
    assert copy.deepcopy(ledger).stopped == ledger.stopped


def test_an_error_outside_of_modules_has_no_place() -> None:
    """What the failing frames hold counts there, too."""

    def step() -> None:
        y = torch.ones(10, requires_grad=True).exp()
        raise RuntimeError(f"not {y.numel()}")

    ledger = pullback.saved_memory()
    with pytest.raises(RuntimeError, match="not 10"), ledger:
        step()
    assert (ledger.stopped, ledger.total) == ("RuntimeError", 40)


def test_a_step_that_ends_well_was_not_stopped() -> None:
    """There is no first line then."""
    with pullback.saved_memory() as ledger:
        pass
    assert ledger.stopped == ""
    assert str(ledger).startswith("The graph keeps 0 bytes")


def test_the_graph_lives_no_longer_than_the_exception() -> None:
    """When the exception is gone, so are the frames and what they kept, without the collector."""
    model, x = Model(), torch.randn(4, 8)
    alive: list[weakref.ref[Tensor]] = []
    model.body.register_forward_hook(lambda module, args, output: alive.append(weakref.ref(output)))
    ledger = pullback.saved_memory()
    gc.collect()
    gc.disable()
    try:
        try:
            with ledger:
                model(x)
        except torch.OutOfMemoryError:
            assert alive[0]() is not None
        assert alive[0]() is None
    finally:
        gc.enable()
    assert ledger.total == 256


def test_an_error_is_not_replaced_by_one_of_the_ledgers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory lacks for the ledger too, the step's own error is what is seen."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pullback.memory.ledger.walk", fail)
    with (
        pytest.warns(UserWarning, match="no ledger could be written: MemoryError"),
        pytest.raises(torch.OutOfMemoryError),
        pullback.saved_memory(),
    ):
        Model()(torch.randn(4, 8))
