"""F5: a module among the arguments is a nest of its parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.errors import GradientError
from tests.function.kinds import leaf


class Tied(nn.Module):
    """One weight under two names, one submodule in two places, a buffer, and a module that has nothing."""

    scale: Tensor

    def __init__(self) -> None:
        """Tie them."""
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.again = self.first
        self.empty = nn.Sequential()
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers one after the other."""
        y = self.again(self.second(self.first(x)).sin()) * self.scale
        return self.empty(y)


MODULES: dict[str, Any] = {
    "a layer": lambda: nn.Linear(3, 2, dtype=torch.float64),
    "layers": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
    "tied": Tied,
    "recurrent": lambda: nn.RNN(3, 2, batch_first=True, dtype=torch.float64),
    "parametrised": lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2, dtype=torch.float64)),
}


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Return what the module computes, its first output where there are several."""
    y = module(x)
    return y[0] if isinstance(y, tuple) else y


def gradients_by_autograd(module: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients of x and of each parameter, as backward of a Function may find them."""
    with torch.enable_grad():
        alias = copy.deepcopy(module)
        x = x.detach().requires_grad_()
        named = dict(alias.named_parameters())
        gx, *gradients = torch.autograd.grad(run(alias, x), [x, *named.values()], g)
    return gx, dict(zip(named, gradients, strict=True))


def through(**attributes: Any) -> Any:
    """Define the Function that runs a module, differentiated by hand to first order alone."""

    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        return run(module, x)

    def backward(ctx: Any, g: Tensor) -> Any:
        gx, named = gradients_by_autograd(ctx.module, ctx.saved_tensors[0], g.detach())
        return {"x": gx, "module": named}

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Through", (pullback.Function,), {**body, **attributes})


def derivatives(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return first and second derivatives of Σ y³."""
    first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
    return [*first, *torch.autograd.grad(sum((gradient**2).sum() for gradient in first), leaves)]


@pytest.mark.parametrize("given", ["a reference", "forward alone"])
@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_has_its_gradient(name: str, given: str) -> None:
    """F5: to second order too, where the module is run again with the tensors of the graph for its parameters."""
    made = through(reference=staticmethod(lambda x, module: run(module, x))) if given == "a reference" else through()
    for seed in range(3):
        torch.manual_seed(seed)
        module, x = MODULES[name](), leaf(2, 5, 3, seed=seed)
        leaves = [x, *module.parameters()]
        y = made.apply(x, module)
        torch.testing.assert_close(y, run(module, x), rtol=1e-12, atol=1e-12)
        for got, due in zip(derivatives(y, leaves), derivatives(run(module, x), leaves), strict=True):
            torch.testing.assert_close(got, due, rtol=1e-9, atol=1e-9)


def test_forward_gets_the_module_itself() -> None:
    """F5: with its own parameters; one that is to be trained nowhere goes through as well."""
    seen: list[Any] = []

    class Looks(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, module: nn.Linear) -> Tensor:
            seen.append((module, module.weight, ctx.needs_input_grad))
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2, {}

    module = nn.Linear(3, 2, bias=False)
    for flags in ((True, True), (True, False)):
        module.requires_grad_(flags[1])
        for _ in range(2):
            y = Looks.apply(leaf(3), module)
            assert seen[-1][0] is module
            assert seen[-1][1] is module.weight
            assert seen[-1][2] == flags
        if not flags[1]:
            y.sum().backward()


def test_modules_in_containers() -> None:
    """F5: a module in a list is a nest in a nest."""

    class Both(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, modules: list[nn.Linear]) -> Tensor:
            ctx.save_for_backward(x, *(module.weight for module in modules))
            return modules[0](x) * modules[1](x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, v, w = ctx.saved_tensors
            a, b = g * (x @ w.t()), g * (x @ v.t())
            return a @ v + b @ w, [{"weight": a.t() @ x}, {"weight": b.t() @ x}]

    for seed in range(2):
        modules, x = [nn.Linear(3, 2, bias=False, dtype=torch.float64) for _ in range(2)], leaf(4, 3, seed=seed)
        leaves = [x, modules[0].weight, modules[1].weight]
        got = derivatives(Both.apply(x, modules), leaves)
        due = derivatives(modules[0](x) * modules[1](x), leaves)
        for one, other in zip(got, due, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_some_parameters_are_frozen() -> None:
    """F5: names that need no gradient may be missing; None stands for all of them."""

    class Linear(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, module: nn.Linear) -> Tensor:
            ctx.save_for_backward(x)
            return module(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, returned(g, *ctx.saved_tensors)

    module, x = nn.Linear(3, 2, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    module.bias.requires_grad_(False)
    returned = lambda g, x: {"weight": g.t() @ x}  # noqa: E731  # backward reads it by this name
    (gradient,) = torch.autograd.grad(Linear.apply(x, module).sum(), module.weight)
    torch.testing.assert_close(gradient, x.sum(0).expand(2, 3))
    returned = lambda g, x: None  # noqa: E731  # backward reads it by this name
    assert torch.autograd.grad(Linear.apply(x, module).sum(), module.weight, allow_unused=True) == (None,)


WRONG: dict[str, tuple[Any, list[str]]] = {
    "no dict": (
        lambda g: [g, g],
        [
            "PB202 Zero.backward returned a value of type a list of 2 as the gradient of module.",
            "  expected: a dict by the names of its parameters: first.weight, first.bias",
            "  got: a list of 2",
        ],
    ),
    "an unknown name": (
        lambda g: {"weight": g},
        [
            "PB218 Zero.backward returned a gradient for module['weight'], which is no leaf of the argument.",
            "  expected: keys among 'first.weight', 'first.bias'",
            "  got: a dict with the keys 'weight'",
        ],
    ),
    "a missing name": (
        lambda g: {"first.bias": g},
        [
            "PB218 Zero.backward returned no entry for module.first.weight, which needs a gradient.",
            "  expected: an entry for module.first.weight",
            "  got: a dict with the keys 'first.bias'",
        ],
    ),
    "one parameter by both its names": (
        lambda g: {"first.weight": g, "second.weight": g, "first.bias": g},
        [
            "PB218 Zero.backward returned a gradient for module['second.weight'], which is no leaf of the argument.",
            "  expected: 'first.weight' once: 'second.weight' is another name of it",
            "  got: a dict with the keys 'first.weight', 'second.weight', 'first.bias'",
        ],
    ),
    "no tensor": (
        lambda g: {"first.weight": 2, "first.bias": None},
        [
            "PB202 Zero.backward returned a value of type int as the gradient of module.first.weight.",
            "  expected: a tensor or None",
            "  got: int",
        ],
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_of_modules(name: str, create_graph: bool) -> None:
    """F6: the error names the module, the parameter, and what is due."""
    returned, text = WRONG[name]
    body = {
        "forward": staticmethod(lambda ctx, module: module.first.bias * 1),
        "backward": staticmethod(lambda ctx, g: (returned(g),)),
    }
    made: Any = type("Zero", (pullback.Function,), body)
    module = Tied()
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(made.apply(module).sum(), module.first.weight, create_graph=create_graph)
    assert str(caught.value).splitlines()[:3] == text


def test_either_name_of_a_tied_parameter() -> None:
    """F5: a parameter with two names may be called by the second."""
    body = {
        "forward": staticmethod(lambda ctx, module: module.second.weight.sum() * 2),
        "backward": staticmethod(lambda ctx, g: ({"second.weight": g.expand(3, 3) * 2, "again.bias": None},)),
    }
    made: Any = type("Twice", (pullback.Function,), body)
    module = Tied()
    (gradient,) = torch.autograd.grad(made.apply(module), module.first.weight)
    assert gradient.tolist() == [[2.0] * 3] * 3
