"""F15: checkpoints, of both kinds, around Functions, within each other, and within a backward."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import PullbackError
from tests.surroundings.kind import Around, Called, Kind, assert_right, assert_same, derivatives
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch
from tests.transforms.derivatives import outputs_of, score


def once(function: Called) -> Called:
    """Put a function into a checkpoint, on what is no leaf."""
    return lambda *leaves: checkpoint(lambda *inner: function(*inner), *leaves, use_reentrant=False)


def inside(function: Called) -> Called:
    """Have the checkpoint begin before the Function, which then runs on no leaf."""
    return lambda *leaves: checkpoint(lambda *xs: function(*(x * 2 / 2 for x in xs)), *leaves, use_reentrant=False)


def nested(function: Called) -> Called:
    """Put a checkpoint into a checkpoint."""
    return once(once(inside(function)))


def to_the_end(function: Called) -> Called:
    """Don't stop a recomputation early."""

    def around(*leaves: Tensor) -> Any:
        with checkpoints.set_checkpoint_early_stop(False):
            return once(function)(*leaves)

    return around


def selective(policy: checkpoints.CheckpointPolicy) -> Around:
    """Keep, or compute again, what each operation returns."""

    def around(function: Called) -> Called:
        contexts = functools.partial(
            checkpoints.create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: policy
        )
        return lambda *leaves: checkpoint(function, *leaves, use_reentrant=False, context_fn=contexts)

    return around


AROUND: dict[str, Around] = {
    "once": once,
    "inside": inside,
    "nested": nested,
    "to the end": to_the_end,
    "prefer recompute": selective(checkpoints.CheckpointPolicy.PREFER_RECOMPUTE),
    "must recompute": selective(checkpoints.CheckpointPolicy.MUST_RECOMPUTE),
}


@pytest.mark.parametrize("around", AROUND)
@each_kind
def test_values_and_derivatives_of_two_orders(kind: Kind, around: str) -> None:
    """In a non-reentrant checkpoint all is what the formula gives outside of one, random numbers included."""
    assert_right(kind, AROUND[around])


@each_kind
def test_operations_that_are_kept(kind: Kind) -> None:
    """A policy that keeps every result gives the formula's values and gradients."""
    keeps = selective(checkpoints.CheckpointPolicy.MUST_SAVE)
    if kind.name == "writes_its_argument":  # plain PyTorch refuses to keep what is then written to
        with pytest.raises(RuntimeError, match="has been mutated"):
            derivatives(keeps(lambda x: (x * 1).mul_(1.5) ** 2), kind.draw(), 1)
        with pytest.raises(RuntimeError, match="has been mutated"):
            derivatives(keeps(kind.function()), kind.draw(), 1)
        return
    assert_right(kind, keeps, order=1)


def test_a_second_backward_over_operations_that_are_kept() -> None:
    """PyTorch allows one; the error is the same for a Function as for its formula, where this torch refuses that."""
    kind, keeps = KINDS["saves_inputs"], selective(checkpoints.CheckpointPolicy.MUST_SAVE)
    with pytest.raises(RuntimeError, match="backward an extra time"):
        derivatives(keeps(kind.function()), kind.draw())
    try:
        derivatives(keeps(kind.formula), kind.draw())
    except RuntimeError as error:
        assert "backward an extra time" in str(error)  # noqa: PT017  # raising isn't certain
    else:
        pytest.skip("this torch allows a second backward over the formula")


def accumulated(function: Called, leaves: list[Tensor]) -> list[Tensor]:
    """Return the gradients that backward() leaves on the leaves."""
    torch.manual_seed(3)
    score(outputs_of(function(*leaves)), torch.Generator().manual_seed(7)).backward()
    found = [leaf.grad for leaf in leaves]
    assert all(gradient is not None for gradient in found)
    return found


def reentrant(function: Called) -> Called:
    """Put a function into a reentrant checkpoint, and that into another."""
    return lambda *leaves: checkpoint(
        lambda *inner: checkpoint(function, *inner, use_reentrant=True), *leaves, use_reentrant=True
    )


MIXED: dict[str, Around] = {
    "reentrant": reentrant,
    "reentrant in the other": lambda function: once(reentrant(function)),
    "the other in reentrant": lambda function: reentrant(once(function)),
}


@pytest.mark.parametrize("around", MIXED)
@each_kind
def test_reentrant_checkpoints(kind: Kind, around: str) -> None:
    """The older kind gives the formula's gradients, also in and around the newer one."""
    function = MIXED[around](kind.function())
    for seed in range(2):
        expected = accumulated(kind.formula, kind.draw(seed))
        assert_same([accumulated(function, kind.draw(seed))], [expected])


def test_reentrant_checkpoints_refuse_the_second_order_as_in_pytorch() -> None:
    """PyTorch's error comes, whoever made the Function."""
    errors = []
    for base in (TorchFunction, pullback.Function):
        kind = KINDS["saves_inputs"]
        with pytest.raises(RuntimeError) as caught:
            derivatives(reentrant(kind.function(base)), kind.draw())
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "use_reentrant" in errors[0]


@each_on_torch
def test_as_many_runs_of_forward_as_in_pytorch(kind: Kind) -> None:
    """A checkpoint runs forward no more often than it does for torch's own Function, and nothing else runs it."""
    counts = []
    for base in (TorchFunction, pullback.Function):
        runs: list[int] = []
        function = kind.function(base)

        def counted(*leaves: Tensor, function: Called = function, runs: list[int] = runs) -> Any:
            runs.append(1)
            return function(*leaves)

        for seed in range(2):
            derivatives(once(counted), kind.draw(seed), order=1)
        counts.append(len(runs))
    assert counts[0] == counts[1]
    # A backward that reads no saved tensor starts no recomputation.
    assert counts[0] == (2 if kind.name == "keeps_on_ctx" else 4)


def test_random_state_that_isnt_preserved() -> None:
    """With preserve_rng_state=False a mask is drawn anew, as PyTorch says; the state goes on as it does there."""
    states = []
    for base in (TorchFunction, pullback.Function):
        kind = KINDS["random"]
        function, (x,) = kind.function(base), kind.draw()
        torch.manual_seed(1)
        y = checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        states.append([gradient, torch.get_rng_state()])
    assert_same([states[1]], [states[0]])


def test_random_state_afterwards() -> None:
    """No order leaves the generator elsewhere than the formula does."""
    kind = KINDS["random"]
    function = kind.function()
    for seed in range(2):
        states = []
        for called in (function, kind.formula):
            derivatives(once(called), kind.draw(seed))
            states.append(torch.get_rng_state())
        assert torch.equal(*states)


def test_second_derivatives_of_a_mask_that_was_drawn_anew() -> None:
    """Where the checkpoint has changed what was saved, no replay can be right, and the error says so."""
    (x,) = KINDS["random"].draw()
    y = checkpoint(KINDS["random"].function(), x, use_reentrant=False, preserve_rng_state=False)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(PullbackError, match="PB221 Noisy"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_checkpoint_in_forward_and_in_backward() -> None:
    """A backward may itself checkpoint what it differentiates; its own derivative is exact."""

    class Recomputed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return checkpoint(lambda t: t.sin() * t, x, use_reentrant=False)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = checkpoint(lambda t: t.sin() * t, x, use_reentrant=False)
            return torch.autograd.grad(y, x, g)[0]

    kind = Kind("recomputed", lambda base: Recomputed.apply, lambda x: x.sin() * x)
    for around in (lambda function: function, once, nested):
        assert_right(kind, around)


def test_an_error_names_the_function_in_a_checkpoint() -> None:
    """What can't be right raises in a checkpoint as it does outside."""

    class Opaque(pullback.Function):
        replayable = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    for _ in range(2):
        with pytest.raises(PullbackError, match=r"PB206 .*Opaque"):
            derivatives(once(Opaque.apply), KINDS["saves_output"].draw())


def test_a_module_of_checkpointed_layers() -> None:
    """Layers that use Functions on parameters train in checkpoints to the formula's gradients."""

    class Layer(torch.nn.Module):
        def __init__(self, function: Called) -> None:
            super().__init__()
            self.function = function
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x, self.weight)

    kind = KINDS["saves_inputs"]

    def trained(function: Called, reentrant: bool) -> list[Tensor]:
        layers = torch.nn.ModuleList(Layer(function) for _ in range(3))
        (x,) = KINDS["saves_output"].draw()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        x.sum().backward()
        return [layer.weight.grad for layer in layers]

    for reentrant_kind in (False, True):
        assert_same([trained(kind.function(), reentrant_kind)], [trained(kind.formula, reentrant_kind)])
