"""Rules PB107, PB109 and PB133 of names that are nearly right."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found

METHODS = (
    "class A(Function):\n    @staticmethod\n    def {}(ctx, x):\n        return 2 * x\n"
    "    @staticmethod\n    def {}(ctx, g):\n        return 2 * g\n"
)


@pytest.mark.parametrize(
    ("forward", "backward", "code"),
    [("forward", "backwards", "PB109"), ("forward", "backwrad", "PB109"), ("forward", "Backward", "PB109"),
     ("foward", "backward", "PB107")],
)  # fmt: skip
def test_a_method_with_nearly_the_right_name_is_found(forward: str, backward: str, code: str) -> None:
    """PyTorch never calls it, and the one that it would call isn't there."""
    (finding,) = findings(HEAD + METHODS.format(forward, backward))
    wrong = backward if code == "PB109" else forward
    right = "backward" if code == "PB109" else "forward"
    assert (finding.rule, finding.expected, finding.got) == (code, f"def {right}", f"def {wrong}")
    assert finding.message == f"PyTorch never calls {wrong}, and there is no {right}."


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("backward_impl", ""),
        ("_backward", ""),
        ("apply_back", ""),
        ("backwards", "    backward = backwards\n"),
        ("backwards", "A.backward = staticmethod(other)\n"),
        ("backwards", "setattr(A, 'backward', other)\n"),
        ("backwards", "A.backwards(None, 1)\n"),
    ],
)
def test_a_method_that_is_used_or_is_another_is_right(name: str, more: str) -> None:
    """A helper may be called what it likes; a backward may be given to the class later."""
    assert found(HEAD + METHODS.format("forward", name) + more) == []


def test_a_function_without_backward_is_right() -> None:
    """It may be meant for inference alone, or get its backward from a base or a decorator that isn't known."""
    lines = METHODS.format("forward", "backwards")
    assert found(HEAD + METHODS.format("forward", "backward").rpartition("    @static")[0]) == []
    assert found(HEAD + lines.replace("(Function)", "(Mixin, Function)")) == []
    assert found(HEAD + "@complete\n" + lines) == []


CTX = (
    "class A(Function):\n    @staticmethod\n    def forward(ctx, x):\n{}        return 2 * x\n"
    "    @staticmethod\n    def backward(ctx, g):\n        return 2 * g\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "ctx.save_for_backwards(x)  # PB133",
        "ctx.mark_drity(x)  # PB133",
        "ctx.set_materialise_grads(False)  # PB133",
        "ctx.need_input_grad[0]  # PB133",
        "ctx.saver(x)",
        "ctx.save_for_backward(x * 1)",
        "ctx.mark_dirt = 1; ctx.mark_dirt",
    ],
)
def test_a_name_that_ctx_nearly_has_is_found(line: str) -> None:
    """What is set first, or is like nothing that ctx has, is somebody's own."""
    text = HEAD + CTX.format(f"        {line}\n")
    assert [one for one in found(text) if "PB133" in one] == expected(text)


def test_what_is_tried_or_asked_for_is_right() -> None:
    """Code for several releases asks for a name first."""
    for lines in (
        "        try:\n            ctx.mark_drity(x)\n        except AttributeError:\n            pass\n",
        "        if hasattr(ctx, 'mark_drity'):\n            ctx.mark_drity(x)\n",
    ):
        assert found(HEAD + CTX.format(lines)) == []


CONTEXTS = (
    "class A(Function):\n    @staticmethod\n    def forward({}):\n        return x * 2\n"
    "    @staticmethod\n    def {}({}):\n        ctx.shape = output.shape\n"
    "    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n"
)


@pytest.mark.parametrize("name", ["setup_ctx", "setup_contex", "set_context", "setupContext", "setup_contexts"])
def test_what_was_to_be_setup_context_is_found(name: str) -> None:
    """PyTorch doesn't see it, and calls forward with ctx in front."""
    text = HEAD + CONTEXTS.format("x", name, "ctx, inputs, output")
    (finding,) = findings(text)
    assert finding.message == f"PyTorch never calls {name}, so that forward is called with ctx where it takes x."
    assert (finding.expected, finding.got) == ("def setup_context", f"def {name}")
    two = CONTEXTS.format("x, y", name, "ctx, inputs, output").replace("g * 2", "g * 2, g") + "A.apply(1, 2)\n"
    assert [one.rule for one in findings(HEAD + two)] == ["PB111"]  # and no wrong count
    other = CONTEXTS.format("x", "setup_context", "ctx, inputs, output").replace("class A", "class B")
    assert [one for one in findings(text + other) if one.rule == "PB111"]  # that another class has one says nothing


@pytest.mark.parametrize(
    ("forward", "name", "parameters", "more"),
    [
        ("x", "setup_context", "ctx, inputs, output", ""),
        ("ctx, x", "setup_ctx", "ctx, inputs, output", ""),
        ("x", "save_context", "ctx, inputs, output", ""),
        ("x", "setup_ctx", "ctx, output", ""),
        ("x", "setup_ctx", "inputs, output, ctx", ""),
        ("x", "setup_ctx", "ctx, inputs, output", "A.setup_context = staticmethod(A.setup_ctx)\n"),
        ("x", "setup_ctx", "ctx, inputs, output", "A.setup_ctx(None, 1, 2)\n"),
    ],
)
def test_a_helper_that_takes_ctx_may_be_called_what_it_likes(
    forward: str, name: str, parameters: str, more: str
) -> None:
    """Where forward takes ctx, where it takes something else, or where somebody calls it."""
    text = HEAD + CONTEXTS.format(forward, name, parameters) + more
    assert [one for one in found(text, hints=True) if "PB111" in one] == []
