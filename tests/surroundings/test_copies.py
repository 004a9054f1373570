"""F15: Function classes, and what holds them, are copied, pickled and sent to other processes by name."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function as TorchFunction

import pullback


class Square(pullback.Function):
    """Somebody's Function in a module of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, 2 * x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[1]


class Original(TorchFunction):
    """One that is adopted."""

    forward = staticmethod(Square.forward)
    backward = staticmethod(Square.backward)


class Outer:
    """Holds Functions in its body."""

    class Inner(Square):
        """A Function in a class."""

    class InnerOriginal(Original):
        """One that is adopted, in a class."""


class Abstract(pullback.Function):
    """A Function that is never applied."""


class WithFields(Square):
    """A Function with data on its class."""

    table = torch.arange(3)


class Affine(pullback.Function):
    """A Function of a nest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: dict[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
        ctx.save_for_backward(x, w["w"])
        ctx.scale = scale
        return {"y": x * w["w"] * scale}

    @staticmethod
    def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
        x, w = ctx.saved_tensors
        return {"x": g["y"] * w * ctx.scale, "w": {"w": g["y"] * x * ctx.scale}}


@pullback.custom_vjp
def squared(x: Tensor) -> Tensor:
    """Somebody's decorated function."""
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))

CLASSES: dict[str, Any] = {
    "by name": Square,
    "nested": Outer.Inner,
    "abstract": Abstract,
    "with fields": WithFields,
    "of nests": Affine,
    "adopted": pullback.adopt(Original),
    "adopted and nested": pullback.adopt(Outer.InnerOriginal),
    "torch's own": Original,
    "the base class": pullback.Function,
}

each_class = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)


def with_torch(thing: Any) -> Any:
    """Save with torch, and load again."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": with_torch,
    **{f"protocol {p}": lambda thing, p=p: pickle.loads(pickle.dumps(thing, p)) for p in range(6)},
}

each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def warm(cls: Any) -> None:
    """Apply the class, to first and second order, so that all that is made at the first calls is there."""
    if cls in (Abstract, pullback.Function):
        return
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        y = Affine.apply(x, {"w": x}, scale=2.0)["y"] if cls is Affine else cls.apply(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        if g.requires_grad:
            torch.autograd.grad(g.sum(), x)


@each_way
@each_class
def test_classes(cls: Any, way: Callable[[Any], Any]) -> None:
    """A class comes back as itself, alone and in containers, before it is applied and afterwards."""
    for _ in range(2):
        assert way(cls) is cls
        assert way([{"function": cls}])[0]["function"] is cls
        warm(cls)


@each_way
@each_class
def test_partials_of_apply(cls: Any, way: Callable[[Any], Any]) -> None:
    """A bound apply, and a partial of it, come back as those of the same class."""
    assert way(cls.apply).__self__ is cls
    partial = way(functools.partial(cls.apply, scale=2.0))
    assert partial.func.__self__ is cls
    assert partial.keywords == {"scale": 2.0}


@each_way
def test_decorated_functions(way: Callable[[Any], Any]) -> None:
    """A function with a rule comes back as itself, and its class can be told by it."""
    assert way(squared) is squared
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(*torch.autograd.grad(way(functools.partial(squared))(x).sum(), x), torch.full((3,), 2.0))


class Model(nn.Module):
    """Holds Functions in every way that people do."""

    def __init__(self) -> None:
        """Keep them."""
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 3, dtype=torch.float64))
        self.cls = Square
        self.f = Square.apply
        self.adopted = pullback.adopt(Original).apply
        self.partial = functools.partial(Affine.apply, scale=2.0)
        self.decorated = squared
        self.table = {"inner": [Outer.Inner.apply]}

    def forward(self, x: Tensor) -> Tensor:
        """Use them all, one after the other."""
        x = self.cls.apply(self.f(x * self.weight))
        x = self.partial(self.adopted(x), {"w": self.weight})["y"]
        x = self.table["inner"][0](self.decorated(x))
        return x


def gradients(model: Model) -> list[Tensor]:
    """Return first and second derivatives by the weight and the argument."""
    x = torch.linspace(0.4, 0.9, 3, dtype=torch.float64, requires_grad=True)
    leaves = [x, model.weight]
    firsts = torch.autograd.grad(model(x).sum(), leaves, create_graph=True)
    return [*firsts, *torch.autograd.grad(sum((g**2).sum() for g in firsts), leaves)]


@pytest.mark.parametrize("way", [name for name in WAYS if name != "copy"])
def test_modules(way: str) -> None:
    """A copy of a module trains its own weights with the same Functions, before and after the module was used."""
    model = Model()
    for _ in range(2):
        other = WAYS[way](model)
        assert other.weight is not model.weight
        assert other.f.__self__ is Square
        for one, expected in zip(gradients(other), gradients(model), strict=True):
            assert torch.equal(one, expected)


def test_a_state_dict_has_the_parameters_alone() -> None:
    """Functions that a module holds are none of its state."""
    assert list(Model().state_dict()) == ["weight"]


def test_a_class_that_pickle_cannot_find_is_refused() -> None:
    """A class in a function has no name to be found by: the same error as for torch's own."""
    errors = []
    for base in (TorchFunction, pullback.Function):

        class Local(base):
            forward = staticmethod(Square.forward)
            backward = staticmethod(Square.backward)

        assert copy.deepcopy(Local) is Local
        for _ in range(2):
            with pytest.raises((pickle.PicklingError, AttributeError)) as caught:
                pickle.dumps(Local)
            errors.append((type(caught.value), str(caught.value).partition(" 0x")[0]))
            x = torch.ones(2, requires_grad=True)
            Local.apply(x).sum().backward()
    assert len({kind for kind, _ in errors}) == 1


def _in_another_process(cls: Any, partial: Any, function: Any, model: Model, queue: Any) -> None:
    found = gradients(model)
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(cls.apply(x).sum(), x)
    (second,) = torch.autograd.grad(partial(x, {"w": x.detach()})["y"].sum(), x)
    (third,) = torch.autograd.grad(function(x).sum(), x)
    queue.put([tensor.tolist() for tensor in (*found, first, second, third)])


def test_another_process() -> None:
    """Classes, partials, functions and modules go to a spawned process as arguments, and work there."""
    context = multiprocessing.get_context("spawn")
    queue, model = context.Queue(), Model()
    arguments = (pullback.adopt(Original), functools.partial(Affine.apply, scale=2.0), squared, model, queue)
    process = context.Process(target=_in_another_process, args=arguments)
    process.start()
    try:
        *found, first, second, third = queue.get(timeout=240)
        process.join(30)
    finally:
        process.kill()
    assert found == [tensor.tolist() for tensor in gradients(model)]
    assert (first, second, third) == ([2.0] * 3, [2.0] * 3, [2.0] * 3)
