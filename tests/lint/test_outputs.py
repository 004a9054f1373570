"""Rule PB209: an output whose gradient is never read; a hint."""

from __future__ import annotations

import pytest

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

TAKES = "x: torch.Tensor, w: torch.Tensor"

IGNORED = {
    "one of two": (["return x * w, x + w"], ["return g * 2, g * 3  # PB209"]),
    "by its name": (["y = x * w", "z = y.exp()", "return y, z"], ["return g * 2, None  # PB209"]),
    "with two returns": (["return x * w, x + w"], ["if x.dim():", "    return g, None", "return g * 2, g * 3"]),
}

READ = {
    "both": (["return x * w, x + w"], ["return g * 2 + h, g * 3 + h"]),
    "marked": (["y = x * w", "ctx.mark_non_differentiable(y)", "return x + w, y"], ["return g * 2, g * 3"]),
    "a comparison": (["return x * w, x > 0"], ["return g * 2, g * 3"]),
    "an argument": (["return x * w, w"], ["return g * 2, g * 3"]),
    "nobody knows": (["return x * w, make(x)"], ["return g * 2, g * 3"]),
    "an error": (["return x * w, x + w"], ["raise RuntimeError('no')"]),
    "on one of two paths": (["if x.dim():", "    return x * w, x + w", "return x * w, x * 2"], ["return g * 2, g * 3"]),
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_output_that_is_ignored_is_a_hint(name: str) -> None:
    """It may be made of integers, which source doesn't say."""
    forward, backward = IGNORED[name]
    text = function(forward, backward, takes=TAKES, gets="g, h")
    assert [one for one in found(text) if "PB209" in one] == []
    lines = [one for one in found(text, hints=True) if "PB209" in one]
    assert lines == (expected(text) or ["12 PB209"])


@pytest.mark.parametrize("name", READ)
def test_an_output_that_is_used_or_marked(name: str) -> None:
    """Or has no gradient."""
    forward, backward = READ[name]
    text = function(forward, backward, takes=TAKES, gets="g, h")
    assert [one for one in found(text, hints=True) if "PB209" in one] == []


def test_the_gradient_is_named() -> None:
    """As backward calls it."""
    text = function(*IGNORED["one of two"], takes=TAKES, gets="g, h")
    (one,) = [one for one in findings(text, hints=True) if one.rule == "PB209"]
    assert one.message == ("backward never reads h, the gradient of an output that isn't marked as non-differentiable.")
