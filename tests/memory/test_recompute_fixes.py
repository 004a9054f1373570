"""What recompute does under hooks where nothing is differentiated, and in a backward that runs under a transform."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import SavedTensorError
from tests.memory.recompute_kinds import DTYPE, drawn
from tests.saved_bytes import bytes_kept


def wavy(x: Tensor) -> Tensor:
    """Return a smooth function whose derivative needs intermediates."""
    return (x.exp() + 1).log().sin()


def test_hooks_get_nothing_of_a_call_without_gradients() -> None:
    """Saved-tensor hooks around a call that nothing is differentiated of get no tensor, as without recompute."""
    assert bytes_kept(lambda: pullback.recompute(wavy)(drawn(3).detach())) == 0


def test_hooks_get_arguments_that_only_a_parameter_needs() -> None:
    """Where no argument requires grad, but something captured does, hooks get the arguments, each once."""
    w, x = nn.Parameter(drawn(3).detach()), drawn(3).detach()
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t * 1)[1], lambda t: t):
        y = pullback.recompute(lambda x, z: wavy(x * z * w))(x, x)
    assert [tensor is x for tensor in packed] == [True]
    (found,) = torch.autograd.grad(y.sum(), w)
    assert torch.equal(found, torch.autograd.grad(wavy(x * x * w).sum(), w)[0])


def test_a_write_before_hooks_get_the_argument() -> None:
    """An argument that the function writes to first is noticed under hooks, too."""
    w, x = nn.Parameter(drawn(3).detach()), drawn(3).detach()

    def writes(x: Tensor) -> Tensor:
        return wavy(x.add_(1) * w)

    with torch.autograd.graph.save_on_cpu():
        y = pullback.recompute(writes)(x)
    with pytest.raises(SavedTensorError, match="argument 0 was changed in place"):
        y.sum().backward()


def test_a_backward_under_vmap() -> None:
    """A rerun in a backward that runs under vmap is outside of it, as the call was: one draw, the right gradients."""
    x, seeds = drawn(3), torch.eye(3, dtype=DTYPE)

    def noisy(x: Tensor) -> Tensor:
        return torch.dropout(x.exp(), 0.5, train=True).sin() + wavy(x)

    def rows(function: Callable[[Tensor], Tensor]) -> Tensor:
        torch.manual_seed(1)
        y = function(x)
        return torch.func.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(seeds)

    assert torch.equal(rows(pullback.recompute(noisy)), rows(noisy))
    y = pullback.recompute(wavy)(x)
    (found,) = torch.autograd.grad(y, x, seeds, is_grads_batched=True)
    assert torch.equal(found, torch.autograd.grad(wavy(x), x, seeds, is_grads_batched=True)[0])


def test_gradients_that_need_no_rerun() -> None:
    """Where arguments and parameters are all that PyTorch asks for, nothing is run again."""
    weight, x = nn.Parameter(drawn(3).detach()), drawn(2, 3)
    runs: list[int] = []
    product = pullback.recompute(lambda x: (runs.append(1), x * x + x * weight)[1])
    found = torch.autograd.grad(product(x).sum(), [x, weight])
    assert len(runs) == 1
    expected = torch.autograd.grad((x * x + x * weight).sum(), [x, weight])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_what_the_graph_lets_go_of_is_not_kept() -> None:
    """A tensor that only a dropped output needs is not kept by the rerun; the others are, until they are used."""
    w = drawn(3)
    kept: list[weakref.ref[torch.UntypedStorage]] = []

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        dropped = (x * 3).exp()
        early = (x * w).exp()
        late = early.sin().exp()
        kept[:] = [weakref.ref(tensor.untyped_storage()) for tensor in (dropped, early, late)]
        return dropped.sin(), late.sin()

    y, z = pullback.recompute(function)(drawn(3))
    del y
    alive: list[list[bool]] = []
    z.grad_fn.register_hook(lambda *_: alive.append([reference() is not None for reference in kept[:2]]))
    z.sum().backward()
    assert alive == [[False, True]]


def test_a_parameter_stepped_between() -> None:
    """An optimiser's step between forward and backward raises, as without recompute; checkpoint is silent."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    x = drawn(2, 3)

    def stepped(call: Callable[[Tensor], Tensor]) -> None:
        y = call(x).square().sum()
        y.backward(retain_graph=True)
        optimiser.step()
        y.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stepped(module)
    stepped(lambda x: checkpoint(module, x, use_reentrant=False))
    with pytest.raises(SavedTensorError, match="PB301 recompute"):
        stepped(pullback.recompute(module))
