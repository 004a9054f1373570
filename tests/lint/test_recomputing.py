"""Rule PB234: autograd in backward, for whichever argument."""

from __future__ import annotations

import pytest

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

KEPT = ["ctx.save_for_backward(x, w)", "return f(x, w)"]
SAVED = "x, w = ctx.saved_tensors"

UNASKED = {
    "a tuple": [
        SAVED,
        "with torch.enable_grad():",
        "    y = f(x, w)",
        "    a, b = torch.autograd.grad(y, (x, w), g)  # PB234",
        "return a, b",
    ],
    "as it comes": [SAVED, "return torch.autograd.grad(f(x, w), (x, w), g)  # PB234"],
    "a list": [SAVED, "a, b = torch.autograd.grad(f(x, w), [x, w], g)  # PB234", "return a, b"],
    "by keyword": [SAVED, "a, b = torch.autograd.grad(f(x, w), inputs=(x, w), grad_outputs=g)  # PB234", "return a, b"],
}

ASKED = {
    "the flags": [
        SAVED,
        "if all(ctx.needs_input_grad):",
        "    a, b = torch.autograd.grad(f(x, w), (x, w), g)",
        "else:",
        "    a, b = one(g)",
        "return a, b",
    ],
    "a single one": [SAVED, "(a,) = torch.autograd.grad(f(x, w), (x,), g)", "return a, g * x"],
    "one gradient": [SAVED, "a, b = torch.autograd.grad(f(x, w), (x, w), g)", "return a, None"],
    "nobody knows which": [SAVED, "a, b = torch.autograd.grad(f(x, w), inputs_of(x, w), g)", "return a, b"],
    "by a helper": [SAVED, "keep = wanted(ctx)", "a, b = torch.autograd.grad(f(x, w), (x, w), g)", "return a, b"],
}


@pytest.mark.parametrize("name", UNASKED)
def test_a_gradient_nobody_asked_for_is_found(name: str) -> None:
    """An argument that doesn't require grad makes it raise."""
    text = function(KEPT, UNASKED[name])
    assert [one for one in found(text) if "PB234" in one] == expected(text)


@pytest.mark.parametrize("name", ASKED)
def test_a_gradient_that_is_asked_for(name: str) -> None:
    """Or one that isn't known."""
    assert [one for one in found(function(KEPT, ASKED[name]), hints=True) if "PB234" in one] == []


def test_leaves_of_its_own_are_a_hint() -> None:
    """Nothing raises then; it only costs time."""
    lines = [
        "x, w = (one.detach().requires_grad_() for one in ctx.saved_tensors)",
        "a, b = torch.autograd.grad(f(x, w), (x, w), g)",
        "return a, b",
    ]
    assert [one for one in found(function(KEPT, lines)) if "PB234" in one] == []
    (one,) = [one for one in findings(function(KEPT, lines), hints=True) if one.rule == "PB234"]
    assert one.message == (
        "backward has autograd differentiate for 2 tensors, and never asks which of x, w need a gradient."
    )


INTO_LEAVES = {
    "a tensor": ["y = torch.sin(x * w)", "y.backward(g)  # PB234"],
    "the function": ["torch.autograd.backward(f(x, w), g)  # PB234"],
}

NOT_INTO_LEAVES = {
    "for some": ["torch.autograd.backward(f(x, w), g, inputs=[x])"],
    "another Function": ["Other.backward(ctx, g)"],
    "nobody knows": ["kernel.backward(g)"],
    "the flags": ["if ctx.needs_input_grad[0]:", "    torch.autograd.backward(f(x, w), g)"],
}


@pytest.mark.parametrize("name", INTO_LEAVES)
def test_a_backward_within_backward_is_a_hint(name: str) -> None:
    """It reaches every leaf; a checkpoint may mean that."""
    text = function(
        KEPT,
        [SAVED, "with torch.enable_grad():", *(f"    {one}" for one in INTO_LEAVES[name]), "return x.grad, w.grad"],
    )
    assert [one for one in found(text) if "PB234" in one] == []
    assert [one for one in found(text, hints=True) if "PB234" in one] == expected(text)


@pytest.mark.parametrize("name", NOT_INTO_LEAVES)
def test_another_backward_within_backward(name: str) -> None:
    """That is limited, or isn't autograd's."""
    text = function(KEPT, [SAVED, *NOT_INTO_LEAVES[name], "return x.grad, w.grad"])
    assert [one for one in found(text, hints=True) if "PB234" in one] == []
