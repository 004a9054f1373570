"""The ledger under checkpoint, recompute, hooks, compiled code, and what it says that it can't see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import pullback
from tests.memory.models import Llama
from tests.saved_bytes import bytes_kept

Run = Callable[[Tensor], Tensor]


def block() -> nn.Module:
    """Return a small feed-forward block."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


def test_checkpoint_shows_what_it_keeps_in_their_place() -> None:
    """Of a checkpointed block its input is left, charged to checkpoint, and the random state, which no hook sees."""
    model, x = block(), torch.randn(4, 8, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = checkpoint(model, x * 2, use_reentrant=False)
    found = {entry.operation: (entry.how, entry.bytes) for entry in ledger.entries if entry.dtype == "float32"}
    assert found == {"checkpoint": ("hook", 128)}
    state = [entry for entry in ledger.entries if entry.dtype == "uint8"]
    assert [(entry.how, entry.bytes) for entry in state] == [("hook", torch.get_rng_state().nbytes)]
    counted = bytes_kept(lambda: checkpoint(model, x * 2, use_reentrant=False), [x, *model.parameters()])
    assert ledger.total - state[0].bytes == counted == 128
    assert y.requires_grad


def test_looking_at_a_checkpoint_does_not_run_it() -> None:
    """The ledger reads what hooks have packed, and unpacks nothing: that would run forward again."""
    runs = []
    model = block()
    model[1].register_forward_hook(lambda *_: runs.append(1))
    x = torch.randn(4, 8, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = checkpoint(model, x * 2, use_reentrant=False)
    assert len(runs) == 1
    y.sum().backward()
    assert len(runs) == 2
    assert ledger.total


def test_reentrant_checkpoint_is_a_function() -> None:
    """The old checkpoint is a Function of PyTorch's: its inputs are saved, its random state lies on ctx."""
    model, x = block(), torch.randn(4, 8, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = checkpoint(model, x * 2, use_reentrant=True)
    assert {(entry.operation, entry.argument, entry.how) for entry in ledger.entries} == {
        ("CheckpointFunction", "ctx.fwd_cpu_state", "ctx"),
        ("CheckpointFunction", "args[0]", "saved"),
    }
    assert y.requires_grad


def test_recompute_keeps_the_arguments_alone() -> None:
    """What a recomputed block keeps is its argument, charged to whoever kept that first."""
    model, x = pullback.recompute(block()), torch.randn(4, 8, requires_grad=True)
    model(x * 2)
    with pullback.saved_memory() as ledger:
        y = model(x * 2)
    assert [entry.bytes for entry in ledger.entries if entry.dtype == "float32"] == [128]
    assert {entry.how for entry in ledger.entries} == {"hook"}
    assert y.requires_grad


def test_what_hooks_put_in_place_of_tensors_is_counted() -> None:
    """Half of the precision under hooks that compress is half of the bytes."""
    x = torch.randn(100, requires_grad=True)
    with (
        pullback.saved_memory() as ledger,
        saved_tensors_hooks(lambda tensor: {"half": tensor.half()}, lambda packed: packed["half"].float()),
    ):
        y = x.exp().sin()
    assert [(str(entry.first), entry.how, entry.dtype, entry.bytes) for entry in ledger.entries] == [
        ("ExpBackward0.result['half']", "hook", "float16", 200),
        ("SinBackward0.self['half']", "hook", "float16", 200),
    ]
    assert y.requires_grad


def test_offloaded_tensors_are_counted_where_they_are() -> None:
    """save_on_cpu keeps them on the CPU, each with the device that it came from."""
    model, x = block(), torch.randn(4, 8, requires_grad=True)
    with pullback.saved_memory() as ledger, save_on_cpu():
        y = model(x * 2)
    assert {entry.how for entry in ledger.entries} == {"hook"}
    assert ledger.total == bytes_kept(lambda: model(x * 2), [x, *model.parameters()])
    assert y.requires_grad


def test_gradients_are_the_same_under_a_ledger() -> None:
    """Nothing that the ledger does shows in a result."""
    torch.manual_seed(0)
    model, tokens = Llama(), torch.randint(50, (2, 6))
    model(tokens).backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with pullback.saved_memory():
        loss = model(tokens)
    loss.backward()
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which the compiler asks for
def test_a_compiled_region_is_one_operation() -> None:
    """Compiled code shows its saved tensors, for all of the region at once, and the ledger says so."""
    model, x = block(), torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):  # while it is compiled, and afterwards
        with pullback.saved_memory() as ledger:
            y = compiled(x * 2)
        assert [*ledger.by_operation()] == ["CompiledFunction"]
        assert ledger.total == bytes_kept(lambda: compiled(x * 2), [x, *model.parameters()])
        count = len({str(entry.first) for entry in (*ledger.entries, *ledger.inputs, *ledger.parameters)})
        assert ledger.unseen == (
            f"Compiled code keeps {count} tensors, counted as CompiledFunction's: which operations and modules in it "
            "need them doesn't show.",
        )
        y.sum().backward()


def test_an_in_place_write_to_a_view_is_said_to_hide_something() -> None:
    """The node of such a write holds another one, which doesn't show."""
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8)
    with pullback.saved_memory() as ledger:
        y = x * 2
        y[0].mul_(w)
    assert ledger.unseen == ("1 in-place write to a view (CopySlices): what the write itself saved doesn't show.",)
    assert "what the ledger can't see" in str(ledger)
    assert y.requires_grad


def test_sparse_tensors_count_their_parts() -> None:
    """A sparse matrix is made of indices and values, each with a storage."""
    x = torch.randn(4, 4, requires_grad=True)
    sparse = torch.eye(4).to_sparse().coalesce()
    with pullback.saved_memory() as ledger:
        y = torch.sparse.mm(sparse * 2, x)
    assert sorted(entry.bytes for entry in ledger.entries) == [16, 64]
    assert y.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_tensors_without_memory_of_their_own_are_said_to_be_unseen() -> None:
    """What shows no storage isn't silently left out."""
    x = torch.randn(4, 4, requires_grad=True)
    with pullback.saved_memory() as ledger:
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (4, 4))
        y = torch.sparse.mm(sparse, x)
    assert ledger.unseen == (
        "1 tensor of the kind Tensor with layout torch.sparse_coo: such a tensor doesn't show its memory.",
    )
    assert y.requires_grad


def test_two_ledgers_at_once() -> None:
    """An inner block is seen by itself, and as a part of the outer one."""
    model, x = nn.Sequential(nn.Tanh(), nn.Tanh()), torch.randn(8, requires_grad=True)
    with pullback.saved_memory() as outer:
        y = model(x * 2)
        with pullback.saved_memory() as inner:
            z = model(y)
    assert (outer.total, inner.total) == (4 * 32, 2 * 32)
    assert {*inner.by_module()} == {"Sequential.0", "Sequential.1"}
    assert z.requires_grad


def test_without_a_graph_there_is_nothing() -> None:
    """Under no_grad nothing is kept."""
    with pullback.saved_memory() as ledger, torch.no_grad():
        y = block()(torch.randn(4, 8))
    assert (ledger.total, ledger.entries, ledger.parameters, ledger.inputs) == (0, (), (), ())
    assert not y.requires_grad


def test_transforms_of_torch_func_leave_no_graph() -> None:
    """A gradient by torch.func is a plain tensor: what it took is gone when it is there."""
    x = torch.randn(5)
    with pullback.saved_memory() as ledger:
        gradient = torch.func.grad(lambda x: x.exp().sin().sum())(x)
    assert ledger.total == 0
    assert gradient.shape == (5,)


def test_within_a_transform_of_torch_func_what_hides_is_told() -> None:
    """A block inside a transform sees wrappers; whatever it can't look into it says."""
    totals = []

    def loss(x: Tensor) -> Tensor:
        with pullback.saved_memory() as ledger:
            y = x.exp().sin().sum()
        totals.append(ledger.total or ledger.unseen)
        return y

    torch.func.grad(loss)(torch.randn(5))
    assert totals[0]
