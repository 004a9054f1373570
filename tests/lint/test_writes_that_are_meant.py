"""Rules PB403 and PB404 where the caller asks for the write, or a comment gives its reason."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, findings


def function(write: str, *, condition: str = "True", comment: str = "", saved: str = "y") -> str:
    """A Function whose backward writes under a condition, with a comment above the write."""
    return (
        f"{HEAD}class Scaled(Function):\n"
        "    @staticmethod\n    def forward(ctx, x: torch.Tensor, inplace, scale):\n"
        "        y = x * 2\n        ctx.inplace, ctx.scale = inplace, scale\n"
        f"        ctx.save_for_backward({saved})\n        return y + 1\n"
        "    @staticmethod\n    def backward(ctx, g):\n        (kept,) = ctx.saved_tensors\n"
        "        inplace = ctx.inplace\n"
        f"        if {condition}:\n            {comment}\n            {write}\n        return g * kept, None, None\n"
    )


def confidence(text: str) -> list[tuple[str, object]]:
    """Rule and confidence of what is found of writes."""
    found = findings(text, hints=True)
    return [(one.rule, one.evidence["confidence"]) for one in found if one.rule in ("PB403", "PB404")]


@pytest.mark.parametrize("condition", ["ctx.inplace", "inplace", "inplace and g is not None"])
@pytest.mark.parametrize(("write", "rule"), [("g.mul_(2)", "PB403"), ("kept.mul_(2)", "PB404")])
def test_a_write_that_the_caller_asked_for_is_a_hint(condition: str, write: str, rule: str) -> None:
    """Where an argument called inplace guards it, whoever calls the Function gave leave."""
    assert confidence(function(write, condition=condition)) == [(rule, "possible")]


@pytest.mark.parametrize("condition", ["ctx.scale", "not inplace", "inplace or ctx.scale"])
def test_another_condition_gives_no_leave(condition: str) -> None:
    """An argument of another name, or where the flag is off or need not be on."""
    assert confidence(function("g.mul_(2)", condition=condition)) == [("PB403", "certain")]


@pytest.mark.parametrize("comment", ["# reuse it as the gradient, to save memory", "# on purpose: overwritten"])
def test_a_comment_with_the_reason_makes_a_write_into_a_saved_result_a_hint(comment: str) -> None:
    """Who says that memory is saved knows that a second backward won't do."""
    assert confidence(function("kept.mul_(2)", comment=comment)) == [("PB404", "possible")]


def test_a_comment_gives_no_leave_for_what_others_hold() -> None:
    """A grad_output belongs to autograd and a saved argument to the caller, whatever saves memory."""
    comment = "# reuse it, to save memory"
    assert confidence(function("g.mul_(2)", comment=comment)) == [("PB403", "certain")]
    assert confidence(function("kept.mul_(2)", comment=comment, saved="x")) == [("PB404", "certain")]


def test_a_comment_without_a_reason_changes_nothing() -> None:
    """That the write is in place is what the line says."""
    assert confidence(function("kept.mul_(2)", comment="# scale it in place")) == [("PB404", "certain")]
