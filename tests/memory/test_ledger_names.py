"""Whose bytes are they: operation, argument and module of each entry."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback.ops.swiglu import swiglu
from tests.memory.models import Llama, Square, TorchSquare, made


def leaf(*shape: int) -> Tensor:
    """Return a tensor that requires grad."""
    return torch.randn(*shape, requires_grad=True)


def test_modules_are_named_from_the_outermost_one() -> None:
    """A node belongs to the module that was running: its path, and the class of the outermost module in front."""
    model = Llama()
    with pullback.saved_memory() as ledger:
        loss = model(torch.randint(50, (2, 6)))
    modules = ledger.by_module()
    assert {"Llama", "Llama.layers.0", "Llama.layers.1.down", "Llama.norm"} <= modules.keys()
    # silu(gate) and their product are made by the block itself, after a module in it has returned.
    silu = [entry for entry in ledger.entries if entry.operation == "SiluBackward0"]
    assert [entry.module for entry in silu] == ["Llama.layers.0", "Llama.layers.1"]
    assert [*ledger.by_module(depth=1)] == ["Llama"]
    assert ledger.by_module(depth=2)["Llama.layers"] == sum(
        count for path, count in modules.items() if path.startswith("Llama.layers.")
    )
    assert loss.requires_grad


def test_what_runs_outside_of_modules_has_no_module() -> None:
    """An operation between two modules, or after them, has an empty path."""
    first, second, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(3, 4)
    with pullback.saved_memory() as ledger:
        loss = second(first(x).exp()).tanh()
    assert [(entry.operation, entry.module) for entry in ledger.entries] == [
        ("ExpBackward0", ""),
        ("TanhBackward0", ""),
    ]
    assert "(outside of modules)" in str(ledger)
    assert loss.requires_grad


def test_outermost_modules_of_one_class_are_told_apart() -> None:
    """The second one of a class has a number."""
    first, second, x = nn.Softplus(), nn.Softplus(), leaf(3)
    with pullback.saved_memory() as ledger:
        y = second(first(x))
    assert [entry.module for entry in ledger.inputs] == ["Softplus"]
    assert [entry.module for entry in ledger.entries] == ["Softplus#2"]
    assert y.requires_grad


class Hides(nn.Module):
    """Keeps its layers where PyTorch doesn't look for them."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.layers = [nn.Sequential(nn.Tanh())]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_module_that_its_parent_hides_is_named_by_its_class() -> None:
    """A module in a plain list has no path of its own; its class stands for it."""
    model, x = Hides(), leaf(3)
    with pullback.saved_memory() as ledger:
        y = model(x)
    assert [*ledger.by_module()] == ["Hides.(Sequential).0"]
    assert y.requires_grad


class Fails(nn.Module):
    """Has a part that raises, and goes on without it."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.part = Raises()

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.part(x)
        except ValueError:
            return x.exp()


class Raises(nn.Module):
    """Raises."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(x.shape)


def test_a_module_that_raises_has_ended() -> None:
    """What its parent does instead is the parent's."""
    model, x = Fails(), leaf(3)
    with pullback.saved_memory() as ledger:
        y = model(x)
    assert [*ledger.by_module()] == ["Fails"]
    assert y.requires_grad


def test_saved_tensors_of_operations_are_named_as_pytorch_does() -> None:
    """``self``, ``result``, and of a list which one."""
    x, where = leaf(5), torch.tensor([0, 2])
    with pullback.saved_memory() as ledger:
        y = x.sigmoid()[where.clone()].log()
    assert ledger.by_argument() == {
        "SigmoidBackward0.result": 20,
        "IndexBackward0.indices[0]": 16,
        "LogBackward0.self": 8,
    }
    assert y.requires_grad


def test_saved_tensors_of_functions_are_named_by_argument() -> None:
    """pullback's Functions know what is what; of PyTorch's own those arguments that need a gradient are known."""
    x = leaf(4).exp()
    for _ in range(2):  # the first call of a class is watched, those after it aren't
        with pullback.saved_memory() as ledger:
            y, z = Square.apply(x.sin()), TorchSquare.apply(x.sin())
        assert sorted(ledger.by_argument()) == [
            "Square.intermediate",
            "Square.x",
            "TorchSquare.ctx.twice['twice']",
            "TorchSquare.saved 1",
            "TorchSquare.x",
        ]
        del y, z


def test_operations_of_pullback_show_what_they_keep() -> None:
    """swiglu keeps its two inputs, by the names of its parameters."""
    gate, up = leaf(6).exp(), leaf(6).exp()
    with pullback.saved_memory() as ledger:
        y = swiglu(2 * gate, 2 * up)
    assert ledger.by_argument() == {"SwiGLU.gate": 24, "SwiGLU.up": 24}
    assert y.requires_grad


def test_functions_of_custom_vjp_go_by_the_function_that_was_decorated() -> None:
    """No class of pullback's own shows."""

    @pullback.custom_vjp
    def square(x: Tensor) -> Tensor:
        return x * x

    def forward(x: Tensor) -> tuple[Tensor, Any]:
        return x * x, (x, x.sign())

    square.defvjp(forward, lambda kept, grad: (2 * grad * kept[0],))
    x = leaf(4).exp()
    with pullback.saved_memory() as ledger:
        y = square(2 * x)
    assert ledger.by_argument() == {"square.x": 16, "square.intermediate": 16}
    assert y.requires_grad


def test_two_intermediates_are_told_apart() -> None:
    """Names that would be the same carry their place in ctx.saved_tensors."""

    class Twice(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.sin(), x.cos())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * grad

    x = leaf(4)
    with pullback.saved_memory() as ledger:
        y = Twice.apply(x)
    assert [entry.argument for entry in ledger.entries] == ["intermediate (saved 0)", "intermediate (saved 1)"]
    assert y.requires_grad


def test_modules_in_other_threads_are_said_to_be_unseen() -> None:
    """Nodes of another thread are numbered by themselves, so the ledger says what it may lack."""
    model, x = nn.Tanh(), leaf(3)
    results: list[Tensor] = []
    with pullback.saved_memory() as ledger:
        thread = threading.Thread(target=lambda: results.append(model(x)))
        thread.start()
        thread.join()
    assert [sentence.partition(":")[0] for sentence in ledger.unseen] == ["1 call of modules in other threads"]


@pytest.mark.parametrize("name", ["mlp", "llama", "unet"])
def test_every_entry_says_all_of_itself(name: str) -> None:
    """Operation, argument, shape and dtype are never empty, and the bytes are those of the shape or more."""
    model, inputs = made(name)
    with pullback.saved_memory() as ledger:
        y = model(*inputs)
    for entry in ledger.entries:
        assert entry.operation
        assert entry.argument
        assert entry.how == "saved"
        assert entry.device == "cpu"
        elements = torch.Size(entry.shape).numel() * getattr(torch, entry.dtype).itemsize
        assert entry.bytes >= entry.first.bytes == elements
    assert y.requires_grad


def test_a_dropout_mask_is_charged_to_dropout() -> None:
    """The product with the mask happens within the module, whose path it has."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5)), torch.randn(4, 8)
    with pullback.saved_memory() as ledger:
        y = model(x)
    _, entry = ledger.entries
    assert (entry.module, entry.recompute) == (
        "Sequential.2",
        "a dropout mask, drawn again from the state of the generator",
    )
    assert F.mse_loss(y, y).requires_grad
