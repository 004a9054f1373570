"""F6: gradients that don't fit a nest are an error that names the argument and the leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError, GradientError, HigherOrderError, SavedTensorError
from tests.call.nests import KINDS, Record
from tests.function.kinds import leaf
from tests.tracebacks import files, is_pullbacks

DICT, LIST, TUPLE = KINDS["dict"], KINDS["list"], KINDS["tuple"]


def returning(returned: Any, *, single: bool = False, **attributes: Any) -> Any:
    """Define Odd(state, k) or, if `single`, Odd(state), whose backward returns `returned` of grad_output."""

    def forward(ctx: Any, state: Any, k: Any = None) -> Tensor:
        return torch.zeros(3, dtype=torch.float64)

    def alone(ctx: Any, state: Any) -> Tensor:
        return torch.zeros(3, dtype=torch.float64)

    body = {"forward": staticmethod(alone if single else forward), "backward": staticmethod(lambda ctx, g: returned(g))}
    return type("Odd", (pullback.Function,), {**body, **attributes})


def raised(made: Any, state: Any, *more: Any, create_graph: bool = False) -> str:
    """Return the text of the error that the gradient of the call ends in."""
    leaves = [x for x in torch.utils._pytree.tree_leaves(state) if isinstance(x, Tensor)]
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(made.apply(state, *more).sum(), leaves, allow_unused=True, create_graph=create_graph)
    assert not any(map(is_pullbacks, files(caught.value)))
    return str(caught.value)


WRONG: dict[str, tuple[Any, Any, list[str]]] = {
    "a tensor for a list": (
        lambda x: [x, x],
        lambda g: (g, None),
        [
            "PB202 Odd.backward returned a value of type Tensor(3,) float64 as the gradient of state.",
            "  expected: a list of 2",
            "  got: Tensor(3,) float64",
        ],
    ),
    "too few for a list": (
        lambda x: [x, x, x],
        lambda g: ([g, g], None),
        [
            "PB201 Odd.backward returned an incorrect number of gradients for state (expected 3, got 2).",
            "  expected: 3 entries for state, one for each thing in it",
            "  got: 2",
            "  remedy: Return a nest like state: a tensor or None for each leaf, or None for all of them.",
        ],
    ),
    "a list for a dict": (
        lambda x: {"w": x, "b": [x]},
        lambda g: ([g, g], None),
        [
            "PB202 Odd.backward returned a value of type a list of 2 as the gradient of state.",
            "  expected: a dict with the keys 'w', 'b'",
            "  got: a list of 2",
        ],
    ),
    "a missing key": (
        lambda x: {"w": x, "b": [x]},
        lambda g: ({"w": g}, None),
        [
            "PB218 Odd.backward returned no entry for state['b'], which needs a gradient.",
            "  expected: an entry for state['b']",
            "  got: a dict with the keys 'w'",
            "  remedy: Add \"state['b']\": its gradient, or None on purpose.",
        ],
    ),
    "an unknown key": (
        lambda x: {"w": x},
        lambda g: ({"w": g, "v": g}, None),
        [
            "PB218 Odd.backward returned a gradient for state['v'], which is no leaf of the argument.",
            "  expected: keys among 'w'",
            "  got: a dict with the keys 'w', 'v'",
        ],
    ),
    "a number deep inside": (
        lambda x: [{"w": (x, 2)}],
        lambda g: ([{"w": (g, 2)}], None),
        [
            "PB202 Odd.backward returned a value of type int as the gradient of state[0]['w'][1].",
            "  expected: a tensor or None",
            "  got: int",
        ],
    ),
    "a dict for a dataclass": (
        lambda x: Record(x, x),
        lambda g: ({"a": g, "b": g}, None),
        [
            "PB202 Odd.backward returned a value of type a dict with the keys 'a', 'b' as the gradient of state.",
            "  expected: a Record",
            "  got: a dict with the keys 'a', 'b'",
        ],
    ),
    "a list of both": (
        lambda x: [x, x],
        lambda g: [g, g],
        [
            "PB202 Odd.backward returned a value of type list as its gradients.",
            "  expected: a tuple with one entry for each of (state, k), or a dict by argument name",
            "  got: list",
            "  remedy: Return a tuple: (state, k), each a tensor or None.",
        ],
    ),
    "one gradient for each leaf": (
        lambda x: [x, x],
        lambda g: (g, g, None),
        [
            "PB202 Odd.backward returned a value of type Tensor(3,) float64 as the gradient of state.",
            "  expected: a list of 2",
            "  got: Tensor(3,) float64",
        ],
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_nests(name: str, create_graph: bool) -> None:
    """F6: what is due and what came, by the leaf's own name."""
    nest, returned, text = WRONG[name]
    assert raised(returning(returned), nest(leaf(3)), 2, create_graph=create_graph).splitlines()[: len(text)] == text


SINGLE: dict[str, tuple[Any, Any, list[str]]] = {
    "a dict that isn't wrapped": (
        lambda x: {"w": x},
        lambda g: {"w": g},
        [
            "PB218 Odd.backward returned a gradient for 'w', which is no argument of forward.",
            "  expected: names among state",
            "  got: 'w'",
            '  remedy: The gradient of a single nest is wrapped: ({…},) or {"state": {…}}.',
        ],
    ),
    "a tuple that isn't wrapped": (
        lambda x: (x, x),
        lambda g: (g, g),
        [
            "PB201 Odd.backward returned an incorrect number of gradients (expected 1, got 2).",
            "  expected: (state: gradient)",
            "  got: (Tensor(3,) float64, Tensor(3,) float64)",
            '  remedy: The gradient of a single nest is wrapped: ((…),) or {"state": (…)}.',
        ],
    ),
    "a dataclass that isn't wrapped": (
        lambda x: Record(x, x),
        lambda g: Record(g, g),
        [
            "PB202 Odd.backward returned a value of type Record as its gradients.",
            "  expected: a tuple with one entry for each of (state,), or a dict by argument name",
            "  got: Record",
            "  remedy: Return a tuple: (state,), each a tensor or None.",
        ],
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_the_nest_of_a_single_argument(name: str) -> None:
    """F6: a tuple is positional and a dict by argument name, always: others than a list have to be wrapped."""
    nest, returned, text = SINGLE[name]
    assert raised(returning(returned, single=True), nest(leaf(3))).splitlines() == text


RIGHT: dict[str, tuple[Any, Any]] = {
    "a list, alone": (lambda x: [x, x], lambda g: [g, g]),
    "a tuple for a list": (lambda x: [x, x], lambda g: ((g, g),)),
    "a list for a tuple, alone": (lambda x: (x, x), lambda g: [g, g]),
    "a list for a tuple": (lambda x: (x, x), lambda g: ([g, g],)),
    "keys in another order": (lambda x: {"w": x, "v": x}, lambda g: ({"v": g, "w": g},)),
    "by name": (lambda x: {"w": x, "v": x}, lambda g: {"state": {"w": g, "v": g}}),
    "a dataclass": (lambda x: Record(x, [x]), lambda g: (Record(g, [g]),)),
    "a key without a gradient left out": (lambda x: [x, {"w": x, "n": 2}], lambda g: [g, {"w": g}]),
    "None for a leaf": (lambda x: [x, x, x], lambda g: [g, g, None]),
    "None for a container": (lambda x: [[x, x], [x]], lambda g: [[g, g], None]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_forms_that_fit(name: str) -> None:
    """F6: lists and tuples are alike, keys come in any order, None stands for a leaf or for a whole container."""
    nest, returned = RIGHT[name]
    made = returning(returned, single=True)
    for create_graph in (False, True):
        x = leaf(3)
        (gradient,) = torch.autograd.grad(made.apply(nest(x)).sum(), x, create_graph=create_graph)
        assert gradient.tolist() == [2, 2, 2]


def test_declared_to_have_no_gradient() -> None:
    """F6: nondiff_argnames names the argument, and means all of its leaves."""
    made = returning(lambda g: ({"w": g}, None), nondiff_argnames=("state",))
    assert raised(made, {"w": leaf(3)}, 2).splitlines()[0] == (
        "PB222 Odd.backward returned a gradient for state, which nondiff_argnames declares to have none."
    )
    silent = returning(lambda g: {}, nondiff_argnames=("state",))
    x = leaf(3)
    assert torch.autograd.grad(silent.apply({"w": x}, 2).sum(), x, allow_unused=True) == (None,)


def test_a_backward_that_takes_leaves() -> None:
    """F3: backward gets one cotangent for each output as forward returned it; more parameters are PB111."""
    body = {
        "forward": staticmethod(lambda ctx, x: [x * 2, x * 3]),
        "backward": staticmethod(lambda ctx, g, h: g * 2 + h * 3),
    }
    made: Any = type("Split", (pullback.Function,), body)
    x = leaf(3)
    for _ in range(2):
        with pytest.raises(DefinitionError) as caught:
            made.apply(x)[0].sum().backward()
        assert str(caught.value).splitlines() == [
            "PB111 Split.backward can't take what it is called with.",
            "  expected: ctx and one grad_output",
            "  got: backward(ctx, g, h)",
            "  remedy: Write backward(ctx, grad_output), or backward(ctx, *grad_outputs).",
        ]


def test_a_saved_leaf_that_was_changed() -> None:
    """F3: the error says which leaf it was."""
    body = {
        "forward": staticmethod(lambda ctx, state: (ctx.save_for_backward(*state["w"]), state["w"][0] * 1)[1]),
        "backward": staticmethod(lambda ctx, g: ({"w": [g * ctx.saved_tensors[0], None]},)),
    }
    made: Any = type("Saves", (pullback.Function,), body)
    for _ in range(2):
        x, y = leaf(3), leaf(3)
        changed = y * 1
        z = made.apply({"w": [x, changed]})
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(SavedTensorError, match=r"PB301 saved tensor 1 of Saves \(argument state\['w'\]\[1\]\)"):
            z.sum().backward()


def test_an_opaque_backward_names_the_leaf() -> None:
    """F9: what can't be differentiated again is named by its leaf."""

    class Opaque(pullback.Function):
        replayable = False

        @staticmethod
        def forward(ctx: Any, state: Any) -> Tensor:
            ctx.save_for_backward(state["w"])
            return state["w"].exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (w,) = ctx.saved_tensors
            return {"state": {"w": torch.from_numpy(g.detach().numpy() * w.detach().exp().numpy())}}

    w = leaf(3)
    (gradient,) = torch.autograd.grad(Opaque.apply({"w": w}).sum(), w, create_graph=True)
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient of state\['w'\] that Opaque\.backward returns"):
        gradient.sum().backward()


def test_a_reference_that_returns_another_nest() -> None:
    """F10: the error says what is due; the order of a dict's keys doesn't matter, nor do lists for tuples."""

    def made(reference: Any) -> Any:
        body = {
            "forward": staticmethod(lambda ctx, x: (ctx.save_for_backward(x), {"a": x**2, "b": [x**3]})[1]),
            "backward": staticmethod(
                lambda ctx, g: 2 * ctx.saved_tensors[0] * g["a"] + 3 * ctx.saved_tensors[0] ** 2 * g["b"][0]
            ),
            "reference": staticmethod(reference),
        }
        return type("Powers", (pullback.Function,), body)

    x = leaf(3)
    for reference in (lambda x: {"b": (x**3,), "a": x**2}, lambda x: {"a": x**2, "b": [x**3]}):
        out = made(reference).apply(x)
        (first,) = torch.autograd.grad(out["a"].sum() + out["b"][0].sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 2 + 6 * x, rtol=1e-12, atol=0)
    for reference, text in (
        (lambda x: {"a": x**2}, r"PB219 the reference of Powers returned a dict with the keys 'a' for output\['b'\]"),
        (lambda x: [x**2, x**3], "PB219 the reference of Powers returned a list of 2 for output"),
        (lambda x: x**2, r"PB219 the reference of Powers returned Tensor\(3,\) float64 for output"),
    ):
        out = made(reference).apply(x)
        with pytest.raises(HigherOrderError, match=text):
            torch.autograd.grad(out["a"].sum() + out["b"][0].sum(), x, create_graph=True)
