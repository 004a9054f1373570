"""`pullback.recompute` leaves values and derivatives as they are, in each form, and keeps the arguments alone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.errors import OperationError
from pullback.memory.recompute import Recomputed
from tests.memory.recompute_kinds import DTYPE, MODELS, Model, assert_equal, derivatives, drawn, made
from tests.saved_bytes import bytes_kept

FORMS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "module": pullback.recompute,
    "function": lambda module: pullback.recompute(lambda *args, **kwargs: module(*args, **kwargs)),
    "method": lambda module: pullback.recompute(module.forward),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives_of_two_orders(name: str, form: str) -> None:
    """They are the model's own, bit for bit: for arguments in containers and keywords, and for its parameters."""
    model = made(name)
    twin = copy.deepcopy(model)
    recomputed = FORMS[form](twin.module)
    assert_equal(derivatives(recomputed, twin), derivatives(model.module, model))


@pytest.mark.parametrize("name", MODELS)
def test_bytes(name: str) -> None:
    """The graph keeps the tensors among the arguments, each once, and nothing else."""
    model = made(name)
    parameters = [*model.module.parameters(), *model.module.buffers()]
    recomputed = pullback.recompute(model.module)
    arguments = {id(leaf): leaf for leaf in model.leaves if not isinstance(leaf, nn.Parameter)}
    size = sum(leaf.untyped_storage().nbytes() for leaf in arguments.values())
    assert bytes_kept(lambda: recomputed(*model.args, **model.kwargs), parameters) == size
    assert bytes_kept(lambda: model.module(*model.args, **model.kwargs), parameters) > size


def test_training_counts_each_batch_once() -> None:
    """Batch norm's running numbers are those of one forward, as without recompute, though it ran twice."""
    model = made("batch_norm")
    twin = copy.deepcopy(model)
    for module, entry in ((model.module, model), (pullback.recompute(twin.module), twin)):
        for _ in range(2):
            module(*entry.args).sum().backward()
    for one, other in zip(model.module.buffers(), twin.module.buffers(), strict=True):
        assert torch.equal(one, other)
    assert int(twin.module[1].num_batches_tracked) == 2


def captured(norm: nn.BatchNorm1d) -> Callable[[Tensor], Tensor]:
    """Return a function whose closure has the module."""
    return pullback.recompute(lambda x: norm(x).tanh())


def given(norm: nn.BatchNorm1d) -> Callable[[Tensor], Tensor]:
    """Return a function that gets the module."""
    inner = pullback.recompute(lambda module, x: module(x).tanh())
    return lambda x: inner(norm, x)


@pytest.mark.parametrize("way", [captured, given, lambda norm: pullback.recompute(norm.forward)])
def test_modules_that_are_found(way: Callable[[nn.BatchNorm1d], Callable[[Tensor], Tensor]]) -> None:
    """So it is where a function captures the module, gets it, or is a method of it."""
    norm = nn.BatchNorm1d(4).to(DTYPE)
    mean = norm.running_mean
    way(norm)(drawn(5, 4)).tanh().sum().backward()
    assert int(norm.num_batches_tracked) == 1
    assert norm.running_mean is mean


def test_a_decorated_function_and_method() -> None:
    """Decorators keep name and documentation; methods get their object."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 2.0))

        @pullback.recompute
        def forward(self, x: Tensor, power: int = 1) -> Tensor:
            """Multiply."""
            return (x * self.weight).tanh() ** power

    layer, x = Layer(), torch.ones(3, requires_grad=True)
    layer(x, power=2).sum().backward()
    weight, y = layer.weight.detach().requires_grad_(), torch.ones(3, requires_grad=True)
    ((y * weight).tanh() ** 2).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(layer.weight.grad, weight.grad)
    assert Layer.forward.__name__ == "forward"
    assert Layer.forward.__doc__ == "Multiply."
    assert repr(Layer.forward).startswith("recompute(<function")


def test_a_tensor_that_is_captured() -> None:
    """A captured tensor gets its gradient, leaf or not."""
    w, x = drawn(3), drawn(3)
    captured = w.exp()
    found = torch.autograd.grad(pullback.recompute(lambda x: (x * captured).tanh().sin())(x).sum(), [w, x])
    assert_equal([*found], [*torch.autograd.grad((x * w.exp()).tanh().sin().sum(), [w, x])])


def test_a_recomputed_module_is_the_module() -> None:
    """It is of the module's class, has its state and its keys, prints what it is, and leaves the module as it was."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    kind = type(module)
    recomputed = pullback.recompute(module)
    assert isinstance(recomputed, nn.Sequential)
    assert type(module) is kind
    assert list(recomputed.state_dict()) == list(module.state_dict())
    assert recomputed[0].weight is module[0].weight
    assert repr(recomputed).startswith("RecomputedSequential(")
    recomputed.eval()
    assert not module.training
    module.double()
    assert recomputed[0].weight.dtype == torch.float64
    assert pullback.recompute(recomputed) is recomputed
    assert type(pullback.recompute(module)) is type(recomputed)


def test_hooks_of_the_module_run_once() -> None:
    """The module's own hooks are around what is recomputed, so they see one call, and their changes count."""
    module = nn.Linear(2, 2)
    seen: list[str] = []
    module.register_forward_pre_hook(lambda module, args: (seen.append("before"), (args[0] * 2,))[1])
    module.register_forward_hook(lambda module, args, output: seen.append("after"))
    x = torch.ones(1, 2, requires_grad=True)
    pullback.recompute(module)(x).tanh().sum().backward()
    assert seen == ["before", "after"]
    (gradient,) = torch.autograd.grad(nn.functional.linear(x * 2, module.weight, module.bias).tanh().sum(), x)
    assert torch.equal(x.grad, gradient)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_recompute(how: Callable[[nn.Module], nn.Module]) -> None:
    """A copy, or what comes out of a pickle, has parameters of its own and recomputes."""
    model = nn.ModuleList([pullback.recompute(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))])
    (block,) = model
    (other,) = how(model)
    assert type(other) is type(block)
    assert other[0].weight is not block[0].weight
    assert torch.equal(other[0].weight, block[0].weight)
    x = torch.ones(2, 4, requires_grad=True)
    assert bytes_kept(lambda: other(x), other.parameters()) == 32
    assert torch.equal(other(x), block(x))


@pullback.recompute
def doubled_sine(x: Tensor) -> Tensor:
    """Return sin 2x."""
    return (2 * x).sin()


def sine(x: Tensor) -> Tensor:
    """Return sin 3x."""
    return (3 * x).sin()


def test_functions_pickle() -> None:
    """A decorated function is pickled by its name, another one with the function in it."""
    assert pickle.loads(pickle.dumps(doubled_sine)) is doubled_sine
    other = pickle.loads(pickle.dumps(pullback.recompute(sine)))
    assert isinstance(other, Recomputed)
    assert other.function is sine


def test_a_method_is_copied_with_its_module() -> None:
    """A copy of a module that holds a recomputed method of one of its parts has that of the copied part."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(2, 2)
            self.run = pullback.recompute(self.part.forward)

    outer = copy.deepcopy(Outer())
    assert outer.run.function.__self__ is outer.part


def generator(x: Tensor) -> Any:
    """Yield, not return."""
    yield x


async def later(x: Tensor) -> Tensor:
    """Return when it is waited for."""
    return x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (nn.Linear, "a class"),
        (3, "what can't be called"),
        (generator, "a generator"),
        (later, "an asynchronous function"),
    ],
)
def test_what_cant_be_recomputed(function: Any, kind: str) -> None:
    """What does its work elsewhere than in its call is refused at once."""
    with pytest.raises(OperationError) as caught:
        pullback.recompute(function)
    assert str(caught.value) == (
        f"PB130 recompute: {kind} can't be recomputed.\n"
        "  expected: a function or a module\n"
        f"  got: {function!r}\n"
        "  remedy: Give it an object of the class, or a function that returns its tensors."
    )


def test_a_function_is_recomputed_once() -> None:
    """To recompute what is recomputed changes nothing."""
    assert pullback.recompute(doubled_sine) is doubled_sine


@pytest.mark.parametrize("name", ["mlp", "lstm", "functions"])
def test_nothing_is_left(name: str) -> None:
    """After backward, and where there is none, all goes with the outputs, without the garbage collector."""
    model = made(name)
    gc.collect()
    gc.disable()
    try:
        for backward in (True, False):
            seen = alive_after(model, backward=backward)
            assert seen
            assert [reference for reference in seen if reference() is not None] == []
    finally:
        gc.enable()


def alive_after(model: Model, *, backward: bool) -> list[weakref.ref[Tensor]]:
    """Return weak references to what the forward, and the rerun, computed."""
    seen: list[weakref.ref[Tensor]] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        outputs = model.module(*args, **kwargs)
        seen.extend(weakref.ref(leaf) for leaf in torch.utils._pytree.tree_leaves(outputs))
        return outputs

    args = torch.utils._pytree.tree_map(lambda leaf: leaf * 1, model.args)
    seen.extend(weakref.ref(leaf) for leaf in torch.utils._pytree.tree_leaves(args))
    outputs = pullback.recompute(noted)(*args, **model.kwargs)
    if backward:
        torch.utils._pytree.tree_leaves(outputs)[0].sum().backward()
    return seen
