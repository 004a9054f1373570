"""The ledger keeps nothing alive, leaves nothing behind, and costs little."""

from __future__ import annotations

import gc
import statistics
import sys
import time
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import pullback
from tests.memory.models import Llama, made


def hooks() -> tuple[int, int, int, int]:
    """Return how much is registered where the ledger registers something."""
    return (
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
        len(gc.callbacks),
        len(warnings.filters),
    )


def test_no_tensor_lives_on_in_a_ledger() -> None:
    """Once the block has ended, model, inputs and graph go as soon as their owner lets go, without the collector."""
    model, inputs = made("llama")
    gc.collect()
    gc.disable()
    try:
        with pullback.saved_memory() as ledger:
            y = model(*inputs)
        alive = [weakref.ref(tensor.untyped_storage()) for tensor in (*model.parameters(), *inputs, y)]
        alive += [weakref.ref(model), weakref.ref(y)]
        del model, inputs, y
        assert [reference() for reference in alive if reference() is not None] == []
    finally:
        gc.enable()
    assert str(ledger)
    assert ledger.to_json()


def test_nothing_is_left_registered() -> None:
    """After the block, and after one that raised, PyTorch, the collector and warnings are as they were."""
    before = hooks()
    with pullback.saved_memory():
        assert hooks() > before
    assert hooks() == before
    with pytest.raises(ValueError, match="mine"), pullback.saved_memory():
        raise ValueError("mine")
    assert hooks() == before


def test_a_ledger_is_of_one_block() -> None:
    """It can't be entered twice."""
    ledger = pullback.saved_memory()
    with ledger:
        pass
    with pytest.raises(RuntimeError, match="make another for the next one"):
        ledger.__enter__()
    assert repr(ledger) == "<Ledger of 0 B>"


def test_before_the_end_of_its_block_a_ledger_has_nothing() -> None:
    """Printing it says why, in a sentence; asking for numbers raises, since there are none."""
    ledger = pullback.saved_memory()
    with ledger:
        assert str(ledger) == "The ledger is written when its block ends, so read it after the block."
        assert repr(ledger) == "<Ledger, not written yet>"
        with pytest.raises(RuntimeError, match="is written when its block ends"):
            _ = ledger.total


@pytest.mark.parametrize("collections", [0, 1, 2])
def test_the_collector_changes_nothing(collections: int) -> None:
    """Whichever generations are collected within the block, the graph that is alive at its end is found."""
    x = torch.randn(100, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = x.exp()
        gc.collect(collections)
        z = x.sin().sin()
        gc.collect(collections)
    assert ledger.total == 800
    assert (y.sum() + z.sum()).requires_grad


def test_a_tensor_that_was_there_before_may_get_the_graph() -> None:
    """A buffer that the block writes to has a graph at its end; so has a parameter's gradient."""
    x, buffer = torch.randn(100, requires_grad=True), torch.zeros(100)
    with pullback.saved_memory() as ledger:
        buffer.add_(x.exp())
    assert ledger.by_operation() == {"ExpBackward0": 400}


def test_an_input_is_known_though_its_first_object_is_gone() -> None:
    """What was alive before is known by its memory: a view of it is still an input."""
    w, batch = torch.randn(10, requires_grad=True), torch.randn(2, 5)
    with pullback.saved_memory() as ledger:
        batch = batch.view(10)
        y = w * batch
    assert (ledger.total, [entry.bytes for entry in ledger.inputs]) == (0, [40])
    assert y.requires_grad


def test_a_new_tensor_in_an_inputs_place_is_no_input() -> None:
    """Memory that was freed and given out again isn't taken for what was there before."""
    w, batch = torch.randn(1000, requires_grad=True), torch.randn(1000)
    with pullback.saved_memory() as ledger:
        del batch
        y = w * torch.randn(1000)
    assert (ledger.total, ledger.inputs) == (4000, ())
    assert y.requires_grad


class Chain(nn.Module):
    """Layers of five operations each."""

    def __init__(self, width: int, layers: int) -> None:
        """Make its parts."""
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + (layer(x).tanh() * 0.5)
        return x.sum()


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer makes Python slower, and nothing else")
def test_a_forward_within_costs_little_more() -> None:
    """A forward of 1,000 nodes takes hardly longer within a block: a loose bound on what the benchmark measures."""
    model, x = Chain(64, 250), torch.randn(64, 64)
    ratios = []
    for _ in range(9):
        begin = time.perf_counter()
        y = model(x)
        plain = time.perf_counter() - begin
        del y
        with pullback.saved_memory():
            begin = time.perf_counter()
            y = model(x)
            within = time.perf_counter() - begin
        del y
        ratios.append(within / plain)
    assert statistics.median(ratios) < 1.5


def test_large_models_are_read_in_time() -> None:
    """What the end of a block costs grows with the graph, and by no more than that."""
    tokens = torch.randint(50, (2, 6))
    model = nn.ModuleList([Llama() for _ in range(8)])
    for count in (1, 8):
        with pullback.saved_memory() as ledger:
            y = torch.stack([part(tokens) for part in model[:count]]).sum()
            begin = time.perf_counter()
        taken = time.perf_counter() - begin
        assert len(ledger.entries) >= 36 * count
        assert taken < 2 * count
        assert y.requires_grad
