"""The ledger's totals, to the byte, beside a count that knows nothing of it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import pullback
from tests.memory.models import MODELS, beside, made
from tests.saved_bytes import bytes_kept, storage_of


def summed(result: Tensor) -> Tensor:
    """Return a loss of a model's output."""
    return result.float().pow(2).sum()


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_an_independent_count(name: str) -> None:
    """On each kind of model the total is, to the byte, what hooks around the step and a walk over its nodes count."""
    model, inputs = made(name)
    summed(model(*inputs))  # what a Function learns from its first call is learned
    with pullback.saved_memory() as ledger:
        loss = summed(model(*inputs))
    assert ledger.total == bytes_kept(lambda: summed(model(*inputs)), beside(model, inputs)) > 0
    assert ledger.unseen == ()
    assert loss.requires_grad


@pytest.mark.parametrize("name", ["mlp", "llama"])
def test_totals_hold_in_bfloat16(name: str) -> None:
    """A model in half the precision keeps other bytes, and the ledger has them exactly."""
    model, inputs = made(name)
    model = model.bfloat16()
    inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    with pullback.saved_memory() as ledger:
        loss = summed(model(*inputs))
    assert ledger.total == bytes_kept(lambda: summed(model(*inputs)), beside(model, inputs)) > 0
    assert {entry.dtype for entry in ledger.entries} >= {"bfloat16"}
    assert loss.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_all_ways_to_sum_up_agree(name: str) -> None:
    """Bytes by module, by operation and by argument each add up to the total, and so do those in JSON."""
    model, inputs = made(name)
    with pullback.saved_memory() as ledger:
        loss = summed(model(*inputs))
    for sums in (ledger.by_module(), ledger.by_module(depth=1), ledger.by_operation(), ledger.by_argument()):
        assert sum(sums.values()) == ledger.total
        assert list(sums.values()) == sorted(sums.values(), reverse=True)
    data = json.loads(ledger.to_json())
    assert data["total"] == sum(entry["bytes"] for entry in data["entries"]) == ledger.total
    assert loss.requires_grad


def test_parameters_and_inputs_stand_apart() -> None:
    """What the step didn't make is listed by itself: weights that backward reads, and the batch."""
    model, inputs = made("mlp")
    with pullback.saved_memory() as ledger:
        loss = summed(model(*inputs))
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    read = sorted(storage_of(weight)[1] for weight in weights[1:])  # that of the first layer is read for no gradient
    assert sorted(entry.bytes for entry in ledger.parameters) == read
    assert [(entry.operation, entry.argument, entry.bytes) for entry in ledger.inputs] == [
        ("AddmmBackward0", "mat1", storage_of(inputs[0])[1])
    ]
    assert loss.requires_grad


def test_an_input_that_the_block_makes_is_an_input_all_the_same() -> None:
    """A tensor that no operation of the graph made, given to the outermost module, is no activation."""
    model, _ = made("mlp")
    with pullback.saved_memory() as ledger:
        loss = summed(model(torch.randn(5, 9)))
    assert [entry.bytes for entry in ledger.inputs] == [5 * 9 * 4]
    assert loss.requires_grad


def test_a_storage_counts_once_and_names_all_that_keep_it() -> None:
    """What two operations keep is charged to the first, which names the other."""
    x = torch.randn(10, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = x.exp()
        z = y * y.view(2, 5).flatten() + y.sin()
    (entry,) = ledger.entries
    assert (entry.operation, entry.argument, entry.bytes) == ("ExpBackward0", "result", 40)
    assert [str(holder) for holder in entry.also] == [
        "MulBackward0.other",
        "MulBackward0.self",
        "SinBackward0.self",
    ]
    assert z.requires_grad


def test_what_a_graph_before_the_block_keeps_is_left_out() -> None:
    """A graph that was there already is not the block's, though the block's goes on from it."""
    x = torch.randn(10, requires_grad=True)
    before = x.exp().sin().exp()
    with pullback.saved_memory() as ledger:
        after = before.cos().tanh()
    assert ledger.by_operation() == {"TanhBackward0": 40}
    assert [entry.operation for entry in ledger.inputs] == ["CosBackward0"]
    assert after.requires_grad


def test_numbers_are_no_tensors() -> None:
    """A Python number in a product is kept by the node, but not as memory that anybody would count."""
    x = torch.randn(10, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = x * 2.5 + x * 3
    assert ledger.total == bytes_kept(lambda: x * 2.5 + x * 3, [x]) == 0
    with pullback.saved_memory() as ledger:
        y = x * torch.tensor(2.5, dtype=torch.float64)
    assert ledger.total == 8
    assert y.requires_grad


def test_a_graph_that_is_gone_counts_nothing() -> None:
    """Only what is alive at the end counts: not what was made and dropped in the block."""
    x = torch.randn(1000, requires_grad=True)
    with pullback.saved_memory() as ledger:
        x.exp().sin().sum()
    assert ledger.total == 0
    assert "Keep the loss in a variable" in str(ledger)


class Keeps(torch.autograd.Function):
    """Keeps a copy of its input."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        return 2 * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return 2 * grad


def test_what_backward_has_freed_counts_nothing() -> None:
    """After a backward within the block the loss is there, but what was saved isn't."""
    x = torch.randn(1000, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = Keeps.apply(x.exp()).sin().sum()
        y.backward()
    assert ledger.total == 0
    assert ledger.unseen == ("1 operation that backward has freed: what they kept is gone.",)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_gradient_that_can_be_differentiated_keeps_its_graph() -> None:
    """The graph of a gradient hangs from the parameter, where Python may never have looked."""
    x = torch.randn(10, requires_grad=True)
    with pullback.saved_memory() as ledger:
        torch.autograd.backward(x.exp().sum(), create_graph=True, inputs=[x])
    assert ledger.total >= 40
    x.grad = None
