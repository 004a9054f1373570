"""Rules PB210 and PB233: gradients that are None, and names that have no value."""

from __future__ import annotations

import pytest

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

PRODUCT = ["ctx.save_for_backward(x, w)", "return x @ w"]
SAVED = "x, w = ctx.saved_tensors"

UNSET = {
    "if": ["if ctx.needs_input_grad[0]:", "    dx = g @ w", "return dx, x @ g  # PB233"],
    "two ifs": [
        "if ctx.needs_input_grad[0]:",
        "    dx = g @ w",
        "dw = None",
        "if ctx.needs_input_grad[1]:",
        "    dw = x @ g",
        "return dx, dw  # PB233",
    ],
    "used before": ["if ctx.needs_input_grad[1]:", "    h = g * 2", "dx = h @ w  # PB233", "return dx, x @ g"],
}

SET = {
    "first": ["dx = None", "if ctx.needs_input_grad[0]:", "    dx = g @ w", "return dx, x @ g"],
    "else": ["if ctx.needs_input_grad[0]:", "    dx = g @ w", "else:", "    dx = None", "return dx, x @ g"],
    "read under the same flag": [
        "if ctx.needs_input_grad[0]:",
        "    dx = g @ w",
        "return dx if ctx.needs_input_grad[0] else None, x @ g",
    ],
    "returned under the same flag": [
        "if ctx.needs_input_grad[0]:",
        "    dx = g @ w",
        "if ctx.needs_input_grad[0]:",
        "    return dx, None",
        "return None, x @ g",
    ],
    "another test": ["if w.dim() > 1:", "    dx = g @ w", "return dx, x @ g"],
    "a flag and another test": [
        "if ctx.needs_input_grad[0]:",
        "    if w.dim() > 1:",
        "        dx = g @ w",
        "    else:",
        "        dx = g",
        "else:",
        "    dx = None",
        "return dx, x @ g",
    ],
    "nothing else is due": ["if ctx.needs_input_grad[0]:", "    dx = g @ w", "return dx, None"],
    "one of both": ["if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:", "    h = g * 2", "return h @ w, x @ h"],
    "a loop": ["for one in (1, 2):", "    dx = g @ w", "return dx, x @ g"],
    "an assertion": [
        "if ctx.needs_input_grad[0]:",
        "    dx = g @ w",
        "assert ctx.needs_input_grad[0]",
        "return dx, x @ g",
    ],
}


@pytest.mark.parametrize("name", UNSET)
def test_a_name_without_value_is_found(name: str) -> None:
    """Where it is read, and the flag is off."""
    text = function(PRODUCT, [SAVED, *UNSET[name]])
    assert [one for one in found(text) if "PB233" in one] == expected(text)


@pytest.mark.parametrize("name", SET)
def test_a_name_that_has_a_value_or_may_have_one(name: str) -> None:
    """Only what is sure is said."""
    assert [one for one in found(function(PRODUCT, [SAVED, *SET[name]]), hints=True) if "PB233" in one] == []


def test_when_the_name_has_no_value_is_said() -> None:
    """With the argument that is due all the same."""
    (one,) = findings(function(PRODUCT, [SAVED, *UNSET["if"]]))
    assert one.message == (
        "dx is read here, and nothing sets it where ctx.needs_input_grad[0] is off and w needs a gradient."
    )


TWO = ["ctx.set_materialize_grads(False)", "return x.sin(), x.cos()"]

UNTESTED = {
    "arithmetic": ["return g * 2 + h  # PB210"],
    "a method": ["return g.sum(), h.t()  # PB210"],
    "an index": ["return g[0]  # PB210", "h"],
    "one of two": ["if h is not None:", "    print(h)", "return 2 * g + 3  # PB210"],
}

TESTED = {
    "is None": ["if g is None or h is None:", "    return None", "return g + h"],
    "by truth": ["return (g * 2 if g is not None else 0) + (h if h is not None else 0)"],
    "handed on": ["return kernel(g, h)"],
    "in a call": ["g, h = filled(g, h)", "return g + h"],
    "isinstance": [
        "if isinstance(g, torch.Tensor) and isinstance(h, torch.Tensor):",
        "    return g + h",
        "return None",
    ],
}


@pytest.mark.parametrize("name", UNTESTED)
def test_a_gradient_that_may_be_none_is_found(name: str) -> None:
    """Where it is first used."""
    text = function(TWO, UNTESTED[name], takes="x", gets="g, h")
    assert [one for one in found(text) if "PB210" in one] == expected(text)


@pytest.mark.parametrize("name", TESTED)
def test_a_gradient_that_is_tested(name: str) -> None:
    """Or handed on to whoever may test it."""
    text = function(TWO, TESTED[name], takes="x", gets="g, h")
    assert [one for one in found(text, hints=True) if "PB210" in one] == []


def test_the_gradient_of_a_single_output_is_only_a_hint() -> None:
    """It is None only where a later Function returns None."""
    text = function(["ctx.set_materialize_grads(False)", "return x.sin()"], ["return g * 2"], takes="x")
    assert [one for one in found(text) if "PB210" in one] == []
    assert found(text, hints=True) == ["14 PB210"]


def test_gradients_are_materialized_unless_said() -> None:
    """True, or a condition, is no promise."""
    for said in ("ctx.set_materialize_grads(True)", "ctx.set_materialize_grads(lazy)"):
        text = function([said, "return x.sin(), x.cos()"], ["return g + h"], takes="x", gets="g, h")
        assert [one for one in found(text, hints=True) if "PB210" in one] == []


def test_who_marks_outputs_has_thought_of_which_come_together() -> None:
    """Where an output is marked as non-differentiable, it's a hint."""
    marked = ["y, z = x.sin(), x.cos()", "ctx.mark_non_differentiable(y)", "ctx.set_materialize_grads(False)"]
    text = function([*marked, "return y, z, z * 2"], ["return h * 2 + k"], takes="x", gets="g, h, k")
    assert [one for one in found(text) if "PB210" in one] == []
    assert [one for one in found(text, hints=True) if "PB210" in one] != []
