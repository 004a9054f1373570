"""Rules PB208 and PB231: flags of needs_input_grad."""

from __future__ import annotations

import pytest

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

PRODUCT = ["ctx.save_for_backward(x, w)", "return x @ w"]
SAVED = "x, w = ctx.saved_tensors"

WRONG_FLAG = {
    "if else": [
        "dx = g @ w if ctx.needs_input_grad[0] else None",
        "dw = x @ g if ctx.needs_input_grad[0] else None  # PB208",
        "return dx, dw",
    ],
    "in the return": ["return g @ w, x @ g if ctx.needs_input_grad[0] else None  # PB208"],
    "if": [
        "dx = dw = None",
        "if ctx.needs_input_grad[1]:",
        "    dx = g @ w  # PB208",
        "if ctx.needs_input_grad[1]:",
        "    dw = x @ g",
        "return dx, dw",
    ],
    "together": [
        "dx = dw = None",
        "if ctx.needs_input_grad[0]:",
        "    dx = g @ w",
        "    dw = x @ g  # PB208",
        "return dx, dw",
    ],
    "by a name": ["needs = ctx.needs_input_grad", "dw = x @ g if needs[0] else None  # PB208", "return g @ w, dw"],
    "unpacked": [
        "need_x, need_w = ctx.needs_input_grad",
        "dw = x @ g if need_x else None  # PB208",
        "return g @ w, dw",
    ],
    "a flag by a name": [
        "need = ctx.needs_input_grad[0]",
        "dw = None",
        "if need:",
        "    dw = x @ g  # PB208",
        "return g @ w, dw",
    ],
    "an early return": [
        "if not ctx.needs_input_grad[0]:",
        "    return None, None",
        "dx = g @ w",
        "dw = x @ g  # PB208",
        "return dx, dw",
    ],
    "and something else": [
        "dw = None",
        "if ctx.needs_input_grad[0] and x.dim() > 2:",
        "    dw = x @ g  # PB208",
        "return g @ w, dw",
    ],
    "in a list": [
        "grads = [None, None]",
        "if ctx.needs_input_grad[0]:",
        "    grads[1] = x @ g  # PB208",
        "return tuple(grads)",
    ],
    "from the end": ["dx = g @ w if ctx.needs_input_grad[-1] else None  # PB208", "return dx, x @ g"],
    "filled in a loop": [
        "dw = torch.zeros_like(w) if ctx.needs_input_grad[0] else None  # PB208",
        "for one in range(3):",
        "    if dw is not None:",
        "        dw[one] = x[one] @ g",
        "        dw += 1",
        "return g @ w, dw",
    ],
    "after None": [
        "dw = None",
        "if ctx.needs_input_grad[0]:",
        "    dw = x @ g  # PB208",
        "if dw is not None:",
        "    dw = dw.t()",
        "return g @ w, dw",
    ],
}

RIGHT_FLAG = {
    "its own": [
        "dx = g @ w if ctx.needs_input_grad[0] else None",
        "dw = x @ g if ctx.needs_input_grad[1] else None",
        "return dx, dw",
    ],
    "one of both": [
        "dx = dw = None",
        "if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:",
        "    h = g * 2",
        "    dx = h @ w",
        "    dw = x @ h",
        "return dx, dw",
    ],
    "any": ["dx = dw = None", "if any(ctx.needs_input_grad):", "    dx, dw = g @ w, x @ g", "return dx, dw"],
    "any of some": ["dw = None", "if any(ctx.needs_input_grad[:2]):", "    dw = x @ g", "return g @ w, dw"],
    "nested": [
        "dx = dw = None",
        "if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:",
        "    if ctx.needs_input_grad[1]:",
        "        dw = x @ g",
        "return dx, dw",
    ],
    "another way where it is off": [
        "if ctx.needs_input_grad[0]:",
        "    dx, dw = both(g)",
        "else:",
        "    dx, dw = None, x @ g",
        "return dx, dw",
    ],
    "another way in a chain": [
        "dx = dw = None",
        "if ctx.needs_input_grad[0]:",
        "    dx, dw = g @ w, x @ g",
        "elif ctx.needs_input_grad[1]:",
        "    dw = x @ g",
        "return dx, dw",
    ],
    "another return": ["if not ctx.needs_input_grad[1]:", "    return g @ w, None", "return g @ w, x @ g"],
    "no flag": ["return g @ w, x @ g"],
    "something else": ["dw = x @ g if x.requires_grad else None", "return g @ w, dw"],
    "a flag off": ["dw = None if ctx.needs_input_grad[0] else x @ g", "return g @ w, dw"],
}


@pytest.mark.parametrize("name", WRONG_FLAG)
def test_the_flag_of_another_argument_is_found(name: str) -> None:
    """On the line that makes the gradient."""
    text = function(PRODUCT, [SAVED, *WRONG_FLAG[name]])
    assert [one for one in found(text) if "PB208" in one] == expected(text)


@pytest.mark.parametrize("name", RIGHT_FLAG)
def test_the_flag_of_its_own_is_right(name: str) -> None:
    """One of several too, and a gradient that is made in any case."""
    assert [one for one in found(function(PRODUCT, [SAVED, *RIGHT_FLAG[name]]), hints=True) if "PB208" in one] == []


def test_both_arguments_are_named() -> None:
    """The one that is guarded, and the one whose flag guards it."""
    text = function(PRODUCT, [SAVED, *WRONG_FLAG["if else"]])
    (one,) = findings(text)
    assert one.message == "backward makes the gradient of w only where x needs one."
    assert (one.expected, one.got) == ("ctx.needs_input_grad[1]", "ctx.needs_input_grad[0]")


NO_FLAG = {
    "behind the end": ["return g, g if ctx.needs_input_grad[2] else None  # PB231"],
    "in a test": ["if x.dim() > 1 and ctx.needs_input_grad[2]:  # PB231", "    g = g * 2", "return g, g"],
    "by a name": ["needs = ctx.needs_input_grad", "return g, g if needs[5] else None  # PB231"],
    "before the start": ["return g, g if ctx.needs_input_grad[-3] else None  # PB231"],
    "unpacked into too many": ["a, b, c = ctx.needs_input_grad  # PB231", "return g, g"],
    "unpacked into too few": ["(a,) = ctx.needs_input_grad  # PB231", "return g, g"],
    "of a part": ["return g, g if ctx.needs_input_grad[1:][1] else None  # PB231"],
}

FLAG = {
    "the last": ["return g, g if ctx.needs_input_grad[1] else None"],
    "from the end": ["return g, g if ctx.needs_input_grad[-1] else None"],
    "unpacked": ["a, b = ctx.needs_input_grad", "return g, g"],
    "with a star": ["a, *b = ctx.needs_input_grad", "return g, g"],
    "a part": ["a, b = ctx.needs_input_grad[:2]", "return g, g"],
    "by a number": ["return tuple(g if ctx.needs_input_grad[i] else None for i in range(2))"],
}


@pytest.mark.parametrize("name", NO_FLAG)
def test_a_flag_that_is_not_there_is_found(name: str) -> None:
    """Most often ctx was counted."""
    text = function(["return x @ w"], NO_FLAG[name])
    assert [one for one in found(text) if "PB231" in one] == expected(text)


@pytest.mark.parametrize("name", FLAG)
def test_a_flag_that_is_there(name: str) -> None:
    """Each argument has one."""
    assert [one for one in found(function(["return x @ w"], FLAG[name]), hints=True) if "PB231" in one] == []


def test_a_default_may_be_left_out() -> None:
    """Then there are fewer flags; with all arguments there are as many as parameters."""
    for written in ("a, b = ctx.needs_input_grad", "a, b, c = ctx.needs_input_grad", "c = ctx.needs_input_grad[2]"):
        text = function(["return x @ w"], [written, "return g, g, None"], takes="x, w, k=1")
        assert [one for one in found(text, hints=True) if "PB231" in one] == []


def test_how_many_flags_there_are_is_said() -> None:
    """And whose the first one is."""
    (one,) = [one for one in findings(function(["return x @ w"], NO_FLAG["behind the end"])) if one.rule == "PB231"]
    assert one.message == (
        "backward asks for flag 2 of needs_input_grad, which has 2 flags, for (x, w): flag 0 is that of x."
    )
