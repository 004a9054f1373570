"""What is said of several places of one method is one finding."""

from __future__ import annotations

from tests.lint.helper import HEAD, findings, found

TEXT = (
    f"{HEAD}class Scaled(Function):\n"
    "    @staticmethod\n    def forward(ctx, x: torch.Tensor, n: int):\n"
    "        ctx.save_for_backward(x, 1, 2)\n        return x * 2\n"
    "    @staticmethod\n    def backward(ctx, g):\n        x, a, b = ctx.saved_tensors\n"
    "        g.mul_(2)\n        g += x\n        g[0] = 0\n        x.neg_()\n        return g * x * a * b, None\n"
)


def test_writes_into_one_tensor_are_one_finding() -> None:
    """It stands at the first line, and names the others, also where the operation is another."""
    assert found(TEXT) == ["6 PB332", "11 PB403", "14 PB404"]
    (write,) = [one for one in findings(TEXT) if one.rule == "PB403"]
    assert write.message == "backward changes g in place (mul_). The same in 2 more places (lines 12, 13)."
    assert write.evidence["more_lines"] == [12, 13]


def test_several_arguments_of_one_call_are_one_finding() -> None:
    """Two numbers in one save_for_backward are one mistake."""
    (number,) = [one for one in findings(TEXT) if one.rule == "PB332"]
    assert number.message == "ctx.save_for_backward is given a number. The same in 1 more place (line 6)."


def test_what_a_comment_sets_aside_isnt_counted() -> None:
    """The place that is meant hides none of the others, and the first of the others is told."""
    text = TEXT.replace("g.mul_(2)", "g.mul_(2)  # pullback: ignore[PB403] ours alone")
    (write,) = [one for one in findings(text) if one.rule == "PB403"]
    assert write.location.endswith(":12")
    assert write.evidence["more_lines"] == [13]


def test_each_call_of_a_function_is_a_finding() -> None:
    """A call has to be mended where it stands, so that each is told."""
    assert [one for one in found(f"{TEXT}Scaled(1, 2)\nScaled(3, 4)\n") if "PB108" in one] == ["16 PB108", "17 PB108"]
