"""Rules PB235, PB240 and PB241: what forward declares of its arguments and outputs."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found
from tests.lint.two_methods import function

NOT_RETURNED = {
    "a view": ["ctx.mark_dirty(x)  # PB240", "x.mul_(2)", "return x.view(-1)"],
    "another": ["ctx.mark_dirty(x)  # PB240", "x.mul_(2)", "return x * w"],
    "one of two": ["ctx.mark_dirty(x, w)  # PB240", "x.mul_(2)", "w.mul_(2)", "return x"],
    "no argument, and not returned": ["y = x * w", "ctx.mark_dirty(y)  # PB240", "return y * 2"],
    "no argument": ["y = x * w", "y.mul_(2)", "ctx.mark_dirty(y)  # PB240", "return y"],
    "on a path": ["if w:", "    ctx.mark_dirty(x)  # PB240", "x = torch.where(x > 0, x, 0)", "return x"],
}

RETURNED = {
    "it": ["ctx.mark_dirty(x)", "x.mul_(2)", "return x"],
    "by its method": ["ctx.mark_dirty(x)", "return x.mul_(2)"],
    "among others": ["ctx.mark_dirty(x)", "x.mul_(2)", "return x, x * w"],
    "by another name": ["y = x", "ctx.mark_dirty(y)", "y.mul_(2)", "return x"],
    "perhaps": ["ctx.mark_dirty(x)", "return change(x)"],
    "perhaps the same": ["ctx.mark_dirty(x)", "x.mul_(2)", "return x.contiguous()"],
    "on one path": ["if w:", "    ctx.mark_dirty(x)", "    return x.mul_(2)", "return x * 2"],
    "with out": ["ctx.mark_dirty(x)", "return torch.mul(x, w, out=x)"],
}


@pytest.mark.parametrize("name", NOT_RETURNED)
def test_what_is_marked_dirty_is_an_argument_and_returned(name: str) -> None:
    """Where it is marked."""
    text = function(NOT_RETURNED[name], ["return g, g"])
    assert [one for one in found(text) if "PB240" in one] == expected(text)


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_marked_dirty_and_may_be_returned(name: str) -> None:
    """By whatever name."""
    text = function(RETURNED[name], ["return g, g"], takes="x: torch.Tensor, w: torch.Tensor")
    assert [one for one in found(text, hints=True) if "PB240" in one] == []


def test_a_mark_on_no_argument_only_warns() -> None:
    """PyTorch does, too; where it isn't returned either, PyTorch raises."""
    assert findings(function(NOT_RETURNED["no argument"], ["return g, g"]))[0].severity.value == "warning"
    found_one = findings(function(NOT_RETURNED["no argument, and not returned"], ["return g, g"]))[0]
    assert found_one.severity.value == "error"
    assert found_one.message == "y is marked dirty, and forward doesn't return it."


def test_setup_context_marks_by_position() -> None:
    """What it gets are forward's arguments."""
    text = (
        f"{HEAD}class F(Function):\n    @staticmethod\n    def forward(x, w):\n        x.mul_(2)\n        return %s\n"
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        x, w = inputs\n"
        "        ctx.mark_dirty(x)%s\n    @staticmethod\n    def backward(ctx, g):\n        return 2 * g, None\n"
    )
    wrong = text % ("x * w", "  # PB240")
    assert [one for one in found(wrong) if "PB240" in one] == expected(wrong)
    assert [one for one in found(text % ("x", ""), hints=True) if "PB240" in one] == []


UNMARKED = {
    "a copy": ["m = x > 0", "ctx.mark_non_differentiable(m)  # PB241", "return x * w, m * 2"],
    "an intermediate": ["m = x > 0", "ctx.mark_non_differentiable(m)  # PB241", "return x * m"],
}

MARKED = {
    "an output": ["m = x > 0", "ctx.mark_non_differentiable(m)", "return x * w, m"],
    "on one path": ["m = x > 0", "ctx.mark_non_differentiable(m)", "if w:", "    return x * w, m", "return x, x"],
    "perhaps the same": ["m = x.round()", "ctx.mark_non_differentiable(m)", "return x * w, m.contiguous()"],
    "perhaps": ["m = x > 0", "ctx.mark_non_differentiable(m)", "return both(x, m)"],
    "nobody knows": ["m = mask(x)", "ctx.mark_non_differentiable(m)", "return x * 2"],
    "several": ["m = x > 0", "ctx.mark_non_differentiable(*masks(m))", "return x * 2"],
}


@pytest.mark.parametrize("name", UNMARKED)
def test_a_mark_without_effect_is_found(name: str) -> None:
    """What isn't returned can't be marked."""
    text = function(UNMARKED[name], ["return g, g"], takes="x: torch.Tensor, w: torch.Tensor", gets="*g")
    assert [one for one in found(text) if "PB241" in one] == expected(text)


@pytest.mark.parametrize("name", MARKED)
def test_a_mark_with_effect(name: str) -> None:
    """Or one that may have it."""
    text = function(MARKED[name], ["return g, g"], takes="x: torch.Tensor, w: torch.Tensor", gets="*g")
    assert [one for one in found(text, hints=True) if "PB241" in one] == []


def test_an_idle_mark_on_an_argument_is_a_hint() -> None:
    """Nothing goes wrong by it."""
    text = function(
        ["ctx.mark_non_differentiable(w)", "return x * 2"],
        ["return g * 2, None"],
        takes="x: torch.Tensor, w: torch.Tensor",
    )
    assert found(text) == []
    assert found(text, hints=True) == ["9 PB241"]


TWICE = {
    "two marks": [
        "a, b = x > 0, x > 1",
        "ctx.mark_non_differentiable(a)",
        "ctx.mark_non_differentiable(b)  # PB235",
        "return x, a, b",
    ],
    "dirty": ["ctx.mark_dirty(x)", "ctx.mark_dirty(w)  # PB235", "return x.mul_(2), w.mul_(2)"],
    "the first on a path": [
        "a, b = x > 0, x > 1",
        "if w:",
        "    ctx.mark_non_differentiable(a)",
        "ctx.mark_non_differentiable(b)  # PB235",
        "return x, a, b",
    ],
    "in a loop": [
        "outs = [x > 0, x > 1]",
        "for out in outs:",
        "    ctx.mark_non_differentiable(out)  # PB235",
        "return (x, *outs)",
    ],
    "saved in a loop": ["for one in (x, w):", "    ctx.save_for_backward(one)  # PB331", "return x * w"],
}

ONCE = {
    "all at once": ["a, b = x > 0, x > 1", "ctx.mark_non_differentiable(a, b)", "return x, a, b"],
    "on either path": [
        "a, b = x > 0, x > 1",
        "if w:",
        "    ctx.mark_non_differentiable(a)",
        "else:",
        "    ctx.mark_non_differentiable(b)",
        "return x, a, b",
    ],
    "a second with more": [
        "a, b = x > 0, x > 1",
        "ctx.mark_non_differentiable(a)",
        "if w:",
        "    ctx.mark_non_differentiable(a, b)",
        "return x, a, b",
    ],
    "after a return": [
        "a, b = x > 0, x > 1",
        "if w:",
        "    ctx.mark_non_differentiable(a)",
        "    return x, a, b",
        "ctx.mark_non_differentiable(b)",
        "return x, a, b",
    ],
    "with a star": ["outs = [x > 0, x > 1]", "ctx.mark_non_differentiable(*outs)", "return (x, *outs)"],
}


@pytest.mark.parametrize("name", TWICE)
def test_a_second_declaration_is_found(name: str) -> None:
    """It is the only one that counts."""
    text = function(TWICE[name], ["return g, g"], gets="*g")
    assert [one for one in found(text) if "PB235" in one or "PB331" in one] == expected(text)


@pytest.mark.parametrize("name", ONCE)
def test_a_declaration_by_path_counts_once(name: str) -> None:
    """Or says all that the first one did."""
    text = function(ONCE[name], ["return g, g"], gets="*g")
    assert [one for one in found(text, hints=True) if "PB235" in one] == []


def test_the_first_declaration_is_pointed_to() -> None:
    """By its line."""
    (one,) = [one for one in findings(function(TWICE["dirty"], ["return g, g"])) if one.rule == "PB235"]
    assert one.message == "forward: a second call of mark_dirty replaces the one in line 9."
