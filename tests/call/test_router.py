"""F5: a call with nests or keywords as a flat call of a class of leaves, which all else is built on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pullback
from pullback.call.outputs import nested
from pullback.call.plan import Plan
from pullback.call.router import Route, routed
from pullback.define.definition import describe
from pullback.transforms.higher_order import differentiable_gradients
from tests.call.nests import KINDS, function
from tests.function.kinds import leaf

DICT, LIST, TUPLE = KINDS["dict"], KINDS["list"], KINDS["tuple"]


def route(made: Any, *args: Any, every_tensor: bool = False, **kwargs: Any) -> Route:
    """Take a call of `made` apart."""
    found = routed(Plan(made, differentiable_gradients), args, kwargs, every_tensor=every_tensor)
    assert found is not None
    return found


def test_flat_calls_stay_as_they_are() -> None:
    """Without a container that holds what requires grad, the class is the author's and so are the arguments."""
    made = function(DICT, TUPLE)
    x = leaf(3)
    for value in (x, 3, [torch.ones(2)], {"a": 1}, (2, 2), nn.Linear(2, 2).requires_grad_(False), object()):
        found = route(made, value, 2.0)
        assert found.plan.cls is made
        assert found.arguments[0] is value
        assert not found.plan.is_leafwise
    with torch.no_grad():
        assert route(made, [x], 2.0).plan.cls is made


def test_leaves_have_names() -> None:
    """A leafwise class is a class of its author's, whose parameters are the leaves by their paths."""

    class Many(pullback.Function):
        nondiff_argnames = ("fixed",)

        @staticmethod
        def forward(ctx: Any, state: Any, layer: Any, *more: Any, fixed: Any, **rest: Any) -> Any:
            return state["w"] * 2

    x = leaf(3)
    found = route(Many, {"w": x, "n": [2, x]}, nn.Linear(2, 2), [x], fixed=(x,), other=x)
    paths = ("state['w']", "state['n'][0]", "state['n'][1]", "layer", "layer.weight", "layer.bias", "more[0][0]")
    definition = describe(found.plan.cls)
    assert definition.parameters == (*paths, "fixed[0]", "other", "arguments")
    assert issubclass(found.plan.cls, Many)
    assert definition.cls is Many
    assert definition.name == "Many"
    assert [name for name in definition.parameters if definition.is_nondiff(name)] == ["fixed[0]"]
    assert len(found.arguments) == len(definition.parameters)


def test_the_same_structure_is_the_same_class() -> None:
    """Other leaves need no other class; another key, length or keyword does."""
    made = function(DICT, TUPLE)
    plan = Plan(made, differentiable_gradients)

    def cls(*args: Any, **kwargs: Any) -> type:
        found = routed(plan, args, kwargs)
        assert found is not None
        return found.plan.cls

    first = cls({"a": leaf(3), "b": leaf(2)}, 2.0)
    assert cls({"a": leaf(1), "b": 3}, k=5) is first
    others = [cls(n, 2.0) for n in ({"a": leaf(1)}, {"b": leaf(1), "a": leaf(1)}, [leaf(1)], (leaf(1),), [leaf(1)] * 2)]
    assert len({first, *others}) == 6


def test_every_tensor() -> None:
    """Inside of transforms containers are taken apart for any tensor, and built anew of the leaves that come in."""
    seen: list[Any] = []

    class Looks(pullback.Function):
        @staticmethod
        def forward(ctx: Any, n: Any, layer: nn.Linear) -> Any:
            seen.append((n, layer))
            return {"y": layer(n[0])}

    given, layer = [torch.ones(3)], nn.Linear(3, 2)
    found = route(Looks, given, layer, every_tensor=True)
    other = tuple(2 * leaf if isinstance(leaf, Tensor) else leaf for leaf in found.arguments)
    for arguments, same in ((found.arguments, True), (other, False)):
        with torch.no_grad():
            out = nested(found.plan.call(*arguments), always=True)
        n, module = seen[-1]
        assert n is not given
        assert n[0] is arguments[0]
        assert (module is layer) == same
        assert module.weight is arguments[2]
        torch.testing.assert_close(out["y"], arguments[0] @ arguments[2].t() + arguments[3])
    assert torch.equal(other[2], 2 * layer.weight)


class Twice(pullback.Function):
    """y = 2 n, with rules of its author's for forward mode and batches."""

    @staticmethod
    def forward(ctx: Any, n: Any, layer: Any, *, k: Any) -> Any:
        return {"y": n["x"] * 2, "k": k}

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return {"n": {"x": g["y"] * 2}, "layer": None}

    @staticmethod
    def jvp(ctx: Any, n: Any, layer: Any, k: Any) -> Any:
        assert ctx.needs_input_grad == (True, True, False)
        assert set(layer) == {"weight", "bias"}
        assert k is None
        return {"y": n["x"] * 2, "k": None}

    @staticmethod
    def vmap(info: Any, in_dims: Any, n: Any, layer: Any, *, k: Any) -> Any:
        assert in_dims == ({"x": 1}, {"weight": None, "bias": 0}, None)
        return {"y": n["x"] * 2, "k": k}, {"y": 1, "k": None}


def test_jvp_and_vmap_of_the_author() -> None:
    """They get nests of tangents and dimensions, a module as a dict, and give leaves."""
    x, layer = leaf(3), nn.Linear(2, 2)
    found = route(Twice, {"x": x}, layer, k=2)
    cls: Any = found.plan.cls
    outputs = found.plan.call(*found.arguments)
    assert found.plan.definition.parameters == ("n['x']", "layer", "layer.weight", "layer.bias", "k", "arguments")
    tangents = cls.jvp(outputs[0].grad_fn, x, None, layer.weight, None, None, None)
    assert torch.equal(tangents[0], x * 2)
    assert tangents[1:] == (None, None)
    batch, dims = cls.vmap(None, (1, None, None, 0, None, None), *found.arguments)
    assert torch.equal(batch[0], x * 2)
    assert batch[1] == 2
    assert dims == (1, None, None)
    assert nested(batch, always=True)["k"] == 2
