"""Rules PB111 and PB508, as far as setup_context and jvp are concerned: what they are called with."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def function(setup: str, *, takes: str = "x, w, k=2", jvp: str = "") -> str:
    """A Function with this line in setup_context, and perhaps a jvp with these parameters."""
    text = (
        f"{HEAD}class F(Function):\n    @staticmethod\n    def forward({takes}):\n        return make({takes[0]})\n"
        f"    @staticmethod\n    def setup_context(ctx, inputs, output):\n        {setup}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return gradients(g)\n"
    )
    return text + (f"    @staticmethod\n    def jvp(ctx{jvp}\n        return tangent()\n" if jvp else "")


@pytest.mark.parametrize(
    "line",
    [
        "x, w = inputs  # PB111",
        "x, w, k, l = inputs  # PB111",
        "a, b, c, d, *e = inputs  # PB111",
        "x = inputs[3]  # PB111",
    ],
)
def test_another_number_of_inputs_is_found(line: str) -> None:
    """There are as many as forward has parameters, defaults included."""
    text = function(line)
    assert found(text) == expected(text)


@pytest.mark.parametrize(
    "line",
    [
        "x, w, k = inputs",
        "x, *rest = inputs",
        "*rest, k = inputs",
        "x = inputs[0]; k = inputs[-1]",
        "for one in inputs: pass",
        "x, w = inputs[:2]",
        "inputs = inputs[1:]; w, k = inputs",
    ],
)
def test_as_many_inputs_as_there_are(line: str) -> None:
    """Or some of them."""
    assert found(function(line), hints=True) == []


def test_any_number_of_inputs() -> None:
    """With a star in forward, nobody knows."""
    assert found(function("x, w = inputs", takes="x, *others"), hints=True) == []


def test_both_numbers_are_said() -> None:
    """With forward's parameters."""
    (one,) = findings(function("x, w = inputs"))
    assert one.message == "setup_context takes inputs apart into 2, and forward has 3 arguments: (x, w, k)."


@pytest.mark.parametrize(
    "jvp", [", t):  # PB508", ", t, u, v, w):  # PB508", "):  # PB508", ", a, b, c, d, *e):  # PB508"]
)
def test_a_jvp_that_cant_take_its_tangents_is_found(jvp: str) -> None:
    """One comes for each argument."""
    text = function("pass", jvp=jvp)
    assert found(text) == expected(text)


@pytest.mark.parametrize("jvp", [", t, u, v):", ", *t):", ", t, *more):", ", t, u):", ", t, u, v, extra=None):"])
def test_a_jvp_that_can(jvp: str) -> None:
    """With fewer, where a default may be left out."""
    assert found(function("pass", jvp=jvp), hints=True) == []
