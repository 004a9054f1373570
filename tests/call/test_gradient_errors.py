"""F3: a wrong return of backward says how many gradients were due, for which arguments, and what is missing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError
from tests.call.products import METHODS, STYLES, Returned, gradients, product
from tests.function.kinds import leaf
from tests.tracebacks import files, is_pullbacks

WRONG_COUNTS: dict[str, tuple[Returned, list[str]]] = {
    "the None of k": (
        lambda gx, gw: (gx, gw),
        [
            "PB201 Product.backward returned an incorrect number of gradients (expected 3, got 2).",
            "  expected: (x: gradient, w: gradient, k: gradient or None)",
            "  got: (Tensor(3,) float64, Tensor(3,) float64)",
            "  remedy: Return None for k too, which needs no gradient, in the order (x, w, k).",
        ],
    ),
    "two": (
        lambda gx, gw: gx,
        [
            "PB201 Product.backward returned an incorrect number of gradients (expected 3, got 1).",
            "  expected: (x: gradient, w: gradient, k: gradient or None)",
            "  got: Tensor(3,) float64",
            "  remedy: Return 2 more, in the order (x, w, k); None will do for k.",
        ],
    ),
    "everything": (
        lambda gx, gw: (),
        [
            "PB201 Product.backward returned an incorrect number of gradients (expected 3, got 0).",
            "  expected: (x: gradient, w: gradient, k: gradient or None)",
            "  got: ()",
            "  remedy: Return 3 more, in the order (x, w, k); None will do for k.",
        ],
    ),
    "everything, by a forgotten return": (
        lambda gx, gw: None,
        [
            "PB201 Product.backward returned an incorrect number of gradients (expected 3, got 1).",
            "  expected: (x: gradient, w: gradient, k: gradient or None)",
            "  got: None",
            "  remedy: Return 2 more, in the order (x, w, k); None will do for k.",
        ],
    ),
    "nothing: there is one too many": (
        lambda gx, gw: (gx, gw, None, gx),
        [
            "PB201 Product.backward returned an incorrect number of gradients (expected 3, got 4).",
            "  expected: (x: gradient, w: gradient, k: gradient or None)",
            "  got: (Tensor(3,) float64, Tensor(3,) float64, None, Tensor(3,) float64)",
            "  remedy: Return 3 entries, in the order (x, w, k); only Nones may follow.",
        ],
    ),
    "nothing: there is one after a None": (
        lambda gx, gw: (gx, gw, None, None, gx, None),
        ["PB201 Product.backward returned an incorrect number of gradients (expected 3, got 6)."],
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("missing", WRONG_COUNTS)
def test_a_wrong_number_of_gradients(missing: str, style: str, method: str, create_graph: bool) -> None:
    """F3: PB201 counts, names the arguments and says which entries are missing."""
    returned, lines = WRONG_COUNTS[missing]
    x, w = leaf(3), leaf(3)
    y = product(returned, style=style, method=method).apply(x, w, 2)
    with pytest.raises(GradientError, match="PB201") as caught:
        gradients(y, x, w, create_graph=create_graph)
    assert [line for line in lines if line not in str(caught.value).splitlines()] == []


def test_which_none_is_missing_in_the_middle() -> None:
    """F3: a None that is missing between two gradients is told from their number."""

    class Middle(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, k: float, w: Tensor) -> Tensor:
            return x * k + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g

    x, w = leaf(3), leaf(3)
    with pytest.raises(GradientError) as caught:
        gradients(Middle.apply(x, 2.0, w), x, w)
    assert str(caught.value).splitlines()[1:] == [
        "  expected: (x: gradient, k: gradient or None, w: gradient)",
        "  got: (Tensor(3,) float64, Tensor(3,) float64)",
        "  remedy: Return None for k too, which needs no gradient, in the order (x, k, w).",
    ]


def test_several_nones_are_missing() -> None:
    """F3: all arguments without gradient are named; where there are more of them than are missing, none is picked."""
    x, w = leaf(3), leaf(3).detach()
    with pytest.raises(GradientError, match="Return None for w and k too, which need no gradient, in the order"):
        gradients(product(lambda gx, gw: gx).apply(x, w, 2), x)
    with pytest.raises(GradientError, match=r"Return 1 more, in the order \(x, w, k\); None will do for w and k\."):
        gradients(product(lambda gx, gw: (gx, gw)).apply(x, w, 2), x)


@pytest.mark.parametrize(
    ("declared", "expected", "remedy"),
    [
        (("w",), "(x: gradient, w: None, k: gradient or None)", "Return None for w and k too, which need no gradient"),
        (("w", "k"), "(x: gradient, w: None, k: None)", "Return None for w and k too, which need no gradient"),
        (("x",), "(x: None, w: gradient, k: gradient or None)", "Return None for x and k too, which need no gradient"),
    ],
    ids=str,
)
def test_arguments_declared_without_gradient_are_owed_none(declared: Any, expected: str, remedy: str) -> None:
    """F3, F6: PB201 never asks for a gradient that PB222 would refuse, though the argument requires grad."""
    function = product(lambda gx, gw: gx, base=pullback.Function)
    restricted = type("Product", (function,), {"nondiff_argnames": declared})
    x, w = leaf(3), leaf(3)
    with pytest.raises(GradientError, match="PB201") as caught:
        gradients(restricted.apply(x, w, 2), x, w)
    assert str(caught.value).splitlines()[1:] == [
        f"  expected: {expected}",
        "  got: Tensor(3,) float64",
        f"  remedy: {remedy}, in the order (x, w, k).",
    ]


def test_the_count_follows_the_call() -> None:
    """F3: in ctx style an argument that was left out is owed nothing, as in torch."""
    x, w = leaf(3), leaf(3)
    for base in (torch.autograd.Function, pullback.Function):
        function = product(lambda gx, gw: (gx, gw), base=base)
        assert None not in gradients(function.apply(x, w), x, w)
        with pytest.raises(RuntimeError, match="incorrect number of gradients"):
            gradients(function.apply(x, w, 3), x, w)


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("value", "kind"),
    [(3.0, "float"), (True, "bool"), (np.ones(3), "ndarray"), ((1,), "tuple"), ([1], "list"), ("g", "str")],
)
def test_a_gradient_that_is_neither_tensor_nor_none(value: Any, kind: str, style: str, create_graph: bool) -> None:
    """F3: PB202 names the argument and the type."""
    x, w = leaf(3), leaf(3)
    y = product(lambda gx, gw: (gx, value, None), style=style).apply(x, w, 2)
    with pytest.raises(GradientError, match="PB202") as caught:
        gradients(y, x, w, create_graph=create_graph)
    assert str(caught.value).splitlines() == [
        f"PB202 Product.backward returned a value of type {kind} as the gradient of w.",
        "  expected: a tensor or None",
        f"  got: {kind}",
        "  remedy: Return a tensor, or None where there is no gradient.",
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (3.0, "PB202 Triple.backward returned a value of type float as the gradient of x."),
        (np.ones(3), "PB202 Triple.backward returned a value of type ndarray as the gradient of x."),
        ([torch.ones(3)], "PB202 Triple.backward returned a value of type list as its gradients."),
    ],
)
def test_a_single_gradient_that_is_no_tensor(value: Any, line: str) -> None:
    """F3: so it is for the only argument; a list is told to be a tuple."""
    body = {"forward": staticmethod(lambda ctx, x: x * 3), "backward": staticmethod(lambda ctx, g: value)}
    x = leaf(3)
    y = type("Triple", (pullback.Function,), body).apply(x)
    with pytest.raises(GradientError) as caught:
        gradients(y, x)
    assert str(caught.value).splitlines()[0] == line
    assert ("Return a tuple: (x,)" in str(caught.value)) == isinstance(value, list)


@pytest.mark.parametrize("returned", [case[0] for case in WRONG_COUNTS.values()], ids=list(WRONG_COUNTS))
def test_torch_raises_the_same_kind_of_error(returned: Returned) -> None:
    """F3: each of these is a RuntimeError in torch, with the same count, so a handler for it keeps working."""
    x, w = leaf(3), leaf(3)
    texts = []
    for base in (torch.autograd.Function, pullback.Function):
        with pytest.raises(RuntimeError, match="returned an incorrect number of gradients") as caught:
            gradients(product(returned, base=base).apply(x, w, 2), x, w)
        texts.append(str(caught.value).splitlines()[0].partition("returned")[2].rstrip("."))
    assert texts[0] == texts[1]


def test_a_wrong_shape_is_the_engines_to_refuse() -> None:
    """F3: a gradient of another shape raises the engine's own error."""
    x, w = leaf(3), leaf(3)
    with pytest.raises(RuntimeError, match=r"invalid gradient at index 1 - got \[5\] but expected shape"):
        gradients(product(lambda gx, gw: (gx, gx.new_ones(5), None)).apply(x, w, 2), x, w)


ALL_WRONG: dict[str, Returned] = {
    "count": lambda gx, gw: (gx, gw),
    "type": lambda gx, gw: (gx, 3.0, None),
    "list": lambda gx, gw: [gx, gw, None],
    "name": lambda gx, gw: {"x": gx, "weight": gw},
    "absent": lambda gx, gw: {"x": gx},
}


@pytest.mark.parametrize("attributes", [{}, {"contiguous_grads": True}], ids=["plain", "contiguous"])
@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("wrong", ALL_WRONG)
def test_no_frame_of_pullback_is_in_the_traceback(wrong: str, create_graph: bool, attributes: dict[str, Any]) -> None:
    """F3: the traceback leads from the user's call through PyTorch, not through pullback, on a first call or later."""
    x, w = leaf(3), leaf(3)
    function = product(ALL_WRONG[wrong], **attributes)
    for _ in range(2):
        with pytest.raises(GradientError) as caught:
            gradients(function.apply(x, w, 2), x, w, create_graph=create_graph)
        assert files(caught.value)[0] == __file__
        assert not any(map(is_pullbacks, files(caught.value)))
        assert caught.value.__cause__ is None


def test_backward_is_called_again_after_an_error() -> None:
    """F3: an error leaves the class as it was; a later right gradient passes."""
    answers: list[Returned] = [lambda gx, gw: (gx,), lambda gx, gw: (gx, gw, None)]
    function = product(lambda gx, gw: answers.pop(0)(gx, gw))
    x, w = leaf(3), leaf(3)
    y = function.apply(x, w, 2)
    with pytest.raises(GradientError, match="PB201"):
        torch.autograd.grad(y.sum(), (x, w), retain_graph=True)
    (gx, gw) = torch.autograd.grad(y.sum(), (x, w))
    assert torch.equal(gx, 2 * w)
    assert torch.equal(gw, 2 * x)


def test_the_authors_own_error_passes_unchanged() -> None:
    """F3: what backward raises by itself arrives as it is, with the author's frame last."""

    class Refuses(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            raise own

    own = LookupError("the author's")
    x = leaf(3)
    with pytest.raises(LookupError) as caught:
        gradients(Refuses.apply(x), x)
    assert caught.value is own
    assert caught.value.__cause__ is None
    assert files(caught.value)[-1] == __file__


def test_errors_are_copied_and_pickled() -> None:
    """F3: text, rule and remedy survive, as they must to leave a worker process."""
    x, w = leaf(3), leaf(3)
    with pytest.raises(GradientError) as caught:
        gradients(product(lambda gx, gw: gx).apply(x, w, 2), x, w)
    for again in (copy.copy(caught.value), copy.deepcopy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert type(again) is GradientError
        assert str(again) == str(caught.value)
        assert (again.rule, again.remedy) == ("PB201", caught.value.remedy)
