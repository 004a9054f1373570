"""F5: a module with other tensors for its parameters computes with them, wherever its attributes lead to itself."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.call.module_nests import parameters_of, with_parameters
from tests.function.kinds import leaf


def linear() -> nn.Linear:
    """Make a layer from 3 to 3."""
    return nn.Linear(3, 3, dtype=torch.float64)


class Elsewhere(nn.Module):
    """Reaches its layer, and the weight of it, by attributes that PyTorch doesn't register."""

    def __init__(self, how: str) -> None:
        """Put the layer there."""
        super().__init__()
        self.layer = linear()
        self.steps: Any = {
            "list": [lambda x: x, self.layer],
            "nested": ({"inner": [self.layer]}["inner"][0].forward,),
            "closure": [lambda x: self.layer(x)],
            "bound method": [self.layer.forward, self.twice],
            "partial": [functools.partial(nn.functional.linear, weight=self.layer.weight)],
        }[how]

    def twice(self, x: Tensor) -> Tensor:
        """Apply the layer again, and double that."""
        return 2 * self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        """Take the steps one after the other."""
        for step in self.steps:
            x = step(x).sin()
        return x


class Child(nn.Module):
    """Reads a parameter of its parent, which is no submodule of it."""

    def __init__(self, parent: nn.Module) -> None:
        """Keep the parent in a list, so that PyTorch doesn't register it."""
        super().__init__()
        self.parents = [parent]

    def forward(self, x: Tensor) -> Tensor:
        """Scale by the parent's weight."""
        return x * self.parents[0].weight


class Parent(nn.Module):
    """Has a child that leads back to it."""

    def __init__(self) -> None:
        """Make the child."""
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 3, dtype=torch.float64))
        self.child = Child(self)

    def forward(self, x: Tensor) -> Tensor:
        """Leave it to the child."""
        scaled: Tensor = self.child(x)
        return scaled


def with_own_forward() -> nn.Module:
    """Make a layer whose forward was replaced on the object."""
    layer: Any = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    layer.forward = types.MethodType(lambda self, x: x @ self.weight, layer)
    made: nn.Module = layer
    return made


def compiled_in_place() -> nn.Module:
    """Make a layer that was compiled by its own method."""
    layer = linear()
    layer.compile(backend="eager")
    return layer


MODULES: dict[str, Any] = {
    **{how: functools.partial(Elsewhere, how) for how in ("list", "nested", "closure", "bound method", "partial")},
    "parent": Parent,
    "forward of its own": with_own_forward,
    "compiled": lambda: torch.compile(linear(), backend="eager"),
    "compiled in place": compiled_in_place,
}


@pytest.mark.parametrize("name", MODULES)
def test_the_copy_computes_with_the_tensors(name: str) -> None:
    """The copy has the derivatives of the tensors that were given, and the module stays as it is."""
    torch.manual_seed(0)
    module, x = MODULES[name](), leaf(4, 3)
    before = module(x)
    own, _ = parameters_of(module)
    copy = with_parameters(module, {key: value.detach().clone().requires_grad_() for key, value in own.items()})
    mine, theirs = [*own.values()], [*parameters_of(copy)[0].values()]
    assert not any(one is other for one in mine for other in theirs)
    torch.testing.assert_close(copy(x), before, rtol=1e-12, atol=1e-12)
    due = torch.autograd.grad((module(x) ** 2).sum(), [x, *mine], allow_unused=True)
    got = torch.autograd.grad((copy(x) ** 2).sum(), [x, *theirs], allow_unused=True)
    for one, other in zip(got, due, strict=True):
        assert (one is None) is (other is None)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_second_derivatives_through_the_copy(name: str) -> None:
    """F10: a replay of forward with such a module is exact."""

    class Runs(pullback.Function):
        @staticmethod
        def forward(ctx: Any, module: Any, x: Tensor) -> Tensor:
            ctx.module = module
            ctx.save_for_backward(x)
            return module(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            named = dict(ctx.module.named_parameters())
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                wanted = [x, *named.values()]
                gx, *found = torch.autograd.grad(ctx.module(x), wanted, g.detach(), allow_unused=True)
            return {"x": gx, "module": dict(zip(named, found, strict=True))}

        @staticmethod
        def reference(module: Any, x: Tensor) -> Tensor:
            result: Tensor = module(x)
            return result

    torch.manual_seed(0)
    module, x = MODULES[name](), leaf(4, 3)
    leaves = [x, *(p for p in module.parameters() if name != "partial" or p.dim() == 2)]

    def second(y: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(((gradient**2).sum() for gradient in first), torch.zeros(())), leaves)

    made: Any = Runs
    for got, due in zip(second(made.apply(module, x)), second(module(x)), strict=True):
        torch.testing.assert_close(got, due, rtol=1e-9, atol=1e-9)


def test_what_others_have_too_is_no_copy() -> None:
    """An object that holds the module, such as a log, is the same in the copy: what is written there is seen."""
    module: Any = linear()
    module.log = types.SimpleNamespace(owner=module, entries=[])
    module.names = ["a"]
    copy: Any = with_parameters(module, {"weight": module.weight.detach(), "bias": module.bias})
    assert copy is not module
    assert copy.log is module.log
    assert copy.names is module.names
