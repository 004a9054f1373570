"""The ledger around torch.func: nothing that it does reaches the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.utils.rnn import pack_sequence

import pullback

MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4)),
    "batch norm": lambda: nn.BatchNorm1d(4).eval(),
    "relu": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)),
}


def _scalar(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x[None]).pow(2).sum()


def _functional(module: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda parameters, x: functional_call(module, parameters, (x,)).pow(2).sum()


TRANSFORMS: dict[str, Callable[[nn.Module], Any]] = {
    "vmap": lambda module: vmap(lambda x: module(x[None])[0])(torch.ones(5, 4)),
    "grad": lambda module: grad(_scalar(module))(torch.ones(4)),
    "hessian": lambda module: hessian(_scalar(module))(torch.ones(4)),
    "jvp": lambda module: jvp(lambda x: module(x), (torch.ones(5, 4),), (torch.ones(5, 4),)),
    "jacrev": lambda module: jacrev(_scalar(module))(torch.ones(4)),
    "jacfwd": lambda module: jacfwd(_scalar(module))(torch.ones(4)),
    "vjp": lambda module: vjp(module, torch.ones(5, 4))[1](torch.ones(5, 4)),
    "vmap of grad": lambda module: vmap(grad(_scalar(module)))(torch.ones(5, 4)),
    "grad of functional_call": lambda module: grad(_functional(module))(
        dict(module.named_parameters()), torch.ones(5, 4)
    ),
    "vmap of grad of functional_call": lambda module: vmap(grad(_functional(module)), in_dims=(None, 0))(
        dict(module.named_parameters()), torch.ones(5, 1, 4)
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("module", MODULES)
def test_a_module_under_a_transform_runs_as_without_a_ledger(module: str, transform: str) -> None:
    """The result is the same, and the ledger says that torch.func was there."""
    torch.manual_seed(0)
    made = MODULES[module]()
    expected = TRANSFORMS[transform](made)
    with pullback.saved_memory() as ledger:
        result = TRANSFORMS[transform](made)
    torch.testing.assert_close(result, expected)
    assert any("inside torch.func: what torch.func keeps for its own derivatives" in one for one in ledger.unseen)
    assert str(ledger)


def test_what_a_module_is_given_under_vmap_is_an_input() -> None:
    """The batch that vmap hands out in parts is what the step was given, and no entry."""
    model = nn.Linear(4, 4)
    with pullback.saved_memory() as ledger:
        y = vmap(lambda x: model(x[None])[0])(torch.randn(5, 4))
    assert (ledger.total, [entry.bytes for entry in ledger.inputs]) == (0, [80])
    assert y.requires_grad


class Sly:
    """An argument that raises when it is looked at."""

    @property
    def __class__(self) -> Any:
        raise ValueError("not to be looked at")


def test_arguments_that_can_not_be_looked_through_are_said_to_be_unseen() -> None:
    """An error of a hook's own ends in a sentence, and not in the model."""

    class Model(nn.Module):
        def forward(self, x: Tensor, other: Sly) -> Tensor:
            return x.exp()

    x = torch.randn(3, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = Model()(x, Sly())
    assert ledger.total == 12
    assert ledger.unseen[0].startswith("1 call of modules with arguments that can't be looked through")
    assert y.requires_grad


def test_a_ledger_that_can_not_be_written_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step goes on; who reads the ledger is told what went wrong."""

    def fail(*_: Any) -> Any:
        raise TypeError("not that way")

    monkeypatch.setattr("pullback.memory.ledger.walk", fail)
    ledger = pullback.saved_memory()
    with pytest.warns(UserWarning, match="no ledger could be written: TypeError: not that way"), ledger:
        y = torch.ones(3, requires_grad=True).exp()
    assert str(ledger) == "No ledger could be written: TypeError: not that way."
    with pytest.raises(RuntimeError, match="not that way"):
        _ = ledger.total
    assert y.requires_grad


def test_a_packed_sequence_is_an_input() -> None:
    """What a recurrent module is given packed is given, too."""
    model = nn.GRU(3, 4)
    with pullback.saved_memory() as ledger:
        y, _ = model(pack_sequence([torch.randn(5, 3), torch.randn(2, 3)]))
    assert 7 * 3 * 4 in [entry.bytes for entry in ledger.inputs]
    assert 7 * 3 * 4 not in [entry.bytes for entry in ledger.entries]
    assert y.data.requires_grad
