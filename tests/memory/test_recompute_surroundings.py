"""`pullback.recompute` in other surroundings: what it runs again, when, under which state, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import SavedTensorError
from tests.memory.recompute_kinds import DTYPE, drawn
from tests.saved_bytes import bytes_kept


class Counted:
    """A function that counts its runs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        """Count the runs of `function`."""
        self.function = function
        self.runs = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.function(x)


def wave(x: Tensor) -> Tensor:
    """A function that saves intermediates."""
    return x.sin().exp().tanh()


def test_it_runs_again_once_for_each_backward() -> None:
    """Not in forward, not where no gradient is asked for; once in backward, and once more in a second one."""
    counted, x = Counted(wave), drawn(4)
    y = pullback.recompute(counted)(x)
    assert counted.runs == 1
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert counted.runs == 2
    (second,) = torch.autograd.grad(y.sum(), x)
    assert counted.runs == 3
    torch.testing.assert_close(first, torch.autograd.grad(wave(x).sum(), x)[0], rtol=0, atol=0)
    assert torch.equal(first, second)


def test_no_rerun_for_gradients_that_need_none() -> None:
    """A sum has the same gradient everywhere."""
    counted, x = Counted(lambda x: (x * 3).sum()), drawn(4)
    (gradient,) = torch.autograd.grad(pullback.recompute(counted)(x), x)
    assert torch.equal(gradient, torch.full_like(x, 3))
    assert counted.runs == 1


@pytest.mark.parametrize("enter", [torch.no_grad, torch.inference_mode])
def test_without_gradients_it_is_a_plain_call(enter: Callable[[], Any]) -> None:
    """Nothing is kept, and nothing runs again."""
    counted = Counted(wave)
    with enter():
        y = pullback.recompute(counted)(torch.ones(3))
    assert not y.requires_grad
    assert counted.runs == 1


def test_autocast_is_as_it_was() -> None:
    """The rerun casts as the call did, though backward runs outside the region."""
    linear, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    results = []
    for function in (linear, pullback.recompute(linear)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(x).sin()
        results.append(torch.autograd.grad(y.float().sum(), [x, *linear.parameters()]))
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)


def test_random_numbers_are_those_of_the_call() -> None:
    """The rerun draws what the call drew, and the generator goes on as if there had been no rerun."""
    x = drawn(64)

    def noisy(x: Tensor) -> Tensor:
        return (x * torch.rand_like(x)).sin()

    results = []
    for function in (noisy, pullback.recompute(noisy)):
        torch.manual_seed(3)
        y = function(x)
        torch.rand(5)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        results.append((gradient, torch.rand(3)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_write_to_an_argument_is_noticed() -> None:
    """PB301: the rerun would be that of other values."""
    x = drawn(3) * 1
    y = pullback.recompute(wave)(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(SavedTensorError, match="PB301"):
        y.sum().backward()


def test_a_rerun_that_is_another_one_is_noticed() -> None:
    """PB307: what the rerun saves is of another number or shape than what the call was to save."""
    runs = iter(range(9))

    def moody(x: Tensor) -> Tensor:
        return x.sin().exp() if next(runs) == 0 else x[:2].sin().exp()

    x = drawn(3)
    y = pullback.recompute(moody)(x)
    with pytest.raises(SavedTensorError, match=r"PB307 .*moody") as caught:
        y.sum().backward()
    assert "expected: " in str(caught.value)
    assert "got: " in str(caught.value)
    assert "remedy: " in str(caught.value)


def test_an_error_inside_comes_out() -> None:
    """What the function raises is raised, in the call and in the rerun."""
    runs = iter(range(9))

    def fails(x: Tensor) -> Tensor:
        if next(runs) == 1:
            raise KeyError("second")
        return x.sin().exp()

    y = pullback.recompute(fails)(drawn(3))
    with pytest.raises(KeyError, match="second"):
        y.sum().backward()
    with pytest.raises(ZeroDivisionError):
        pullback.recompute(lambda x: x * (1 // 0))(drawn(3))


NESTS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "recompute in recompute": lambda f: pullback.recompute(lambda x: pullback.recompute(f)(x.cos()).sin()),
    "recompute in checkpoint": lambda f: (
        lambda x: checkpoint(lambda x: pullback.recompute(f)(x.cos()).sin(), x, use_reentrant=False)
    ),
    "checkpoint in recompute": lambda f: pullback.recompute(
        lambda x: checkpoint(f, x.cos(), use_reentrant=False).sin()
    ),
}


@pytest.mark.parametrize("nest", NESTS)
def test_nested(nest: str) -> None:
    """One in the other gives the plain gradient, and the second derivative."""
    x = drawn(4)
    results = []
    for function in (NESTS[nest](wave), lambda x: wave(x.cos()).sin()):
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        results.append((first, *torch.autograd.grad(first.square().sum(), x)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_hooks_around_see_the_arguments() -> None:
    """save_on_cpu and its like get the arguments alone, and hand them out again."""
    x = drawn(4) * 1
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = pullback.recompute(wave)(x)
    assert [tensor.shape for tensor in packed] == [x.shape]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(wave(x).sum(), x)[0])


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum()),
    "vmap": lambda f: torch.func.vmap(f),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_torch_func(transform: str) -> None:
    """The transforms of torch.func give what they give of the function itself."""
    x, change = torch.randn(4, dtype=DTYPE), TRANSFORMS[transform]
    torch.testing.assert_close(change(pullback.recompute(wave))(x), change(wave)(x), rtol=1e-12, atol=1e-12)


def test_vmap_inside_is_recomputed() -> None:
    """The documented way round keeps the argument alone."""
    x = drawn(4)
    function = pullback.recompute(torch.func.vmap(wave))
    assert bytes_kept(lambda: function(x), [x]) == 0
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(wave(x).sum(), x)[0])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
def test_compiled() -> None:
    """It compiles in one piece, and gives the plain values and gradients."""
    torch._dynamo.reset()
    linear, x = nn.Linear(4, 4, dtype=DTYPE), drawn(3, 4)
    block = pullback.recompute(lambda x: linear(x).tanh())
    compiled = torch.compile(lambda x: block(x).sum(), backend="aot_eager", fullgraph=True)
    leaves = [x, *linear.parameters()]
    got = torch.autograd.grad(compiled(x), leaves)
    expected = torch.autograd.grad(linear(x).tanh().sum(), leaves)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch._dynamo.reset()


def test_threads() -> None:
    """Eight threads that recompute one function get their own gradients."""
    recomputed = pullback.recompute(wave)
    leaves = [drawn(50) for _ in range(8)]
    found: dict[int, list[Tensor]] = {}

    def work(index: int) -> None:
        found[index] = [torch.autograd.grad(recomputed(leaves[index]).sum(), leaves[index])[0] for _ in range(20)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for index, x in enumerate(leaves):
        expected = torch.autograd.grad(wave(x).sum(), x)[0]
        assert len(found[index]) == 20
        assert all(torch.equal(got, expected) for got in found[index])


def test_hooks_of_parameters_fire_once() -> None:
    """As data-parallel training counts on: each parameter's gradient is accumulated once."""
    linear, fired = nn.Linear(4, 4), []
    for name, parameter in linear.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    pullback.recompute(linear)(torch.randn(2, 4)).sin().sum().backward()
    assert sorted(fired) == ["bias", "weight"]
