"""Rules PB236, PB237, PB238, PB304 and PB508: what forward leaves on ctx against what the others read there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.helper import HEAD, expected, findings, found
from tests.lint.two_methods import function

KEPT = ["ctx.save_for_backward(x, w)", "return x * w"]

MISCOUNTED: dict[str, dict[str, Any]] = {
    "too many": {"forward": KEPT, "backward": ["x, w, y = ctx.saved_tensors  # PB236", "return g * w, g * x * y"]},
    "too few": {"forward": KEPT, "backward": ["(x,) = ctx.saved_tensors  # PB236", "return g * x, g * x"]},
    "behind the end": {"forward": KEPT, "backward": ["y = ctx.saved_tensors[2]  # PB236", "return g * y, None"]},
    "before a star": {
        "forward": KEPT,
        "backward": ["a, b, c, *d = ctx.saved_tensors  # PB236", "return g * a, g * b * c + len(d)"],
    },
    "none was saved": {
        "forward": ["return x * w"],
        "backward": ["x, w = ctx.saved_tensors  # PB236", "return g * w, g * x"],
    },
    "a list of targets": {"forward": KEPT, "backward": ["[x] = ctx.saved_tensors  # PB236", "return g * x, g * x"]},
    "on neither path": {
        "forward": [
            "if x.dim():",
            "    ctx.save_for_backward(x)",
            "else:",
            "    ctx.save_for_backward(x, w)",
            "return x * w",
        ],
        "backward": ["a, b, c = ctx.saved_tensors  # PB236", "return g * a, g * b * c"],
    },
}

COUNTED: dict[str, dict[str, Any]] = {
    "as many": {"forward": KEPT, "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"]},
    "a star": {"forward": KEPT, "backward": ["x, *w = ctx.saved_tensors", "return g * w[0], g * x"]},
    "whole": {"forward": KEPT, "backward": ["saved = ctx.saved_tensors", "return g * saved[1], g * saved[0]"]},
    "on one path": {
        "forward": ["ctx.save_for_backward(*((x,) if x.dim() else (x, w)))", "return x * w"],
        "backward": ["if ctx.needs_input_grad[1]:", "    x, w = ctx.saved_tensors", "return g * x, g"],
    },
    "a star in forward": {
        "forward": ["ctx.save_for_backward(x, *others(w))", "return x * w"],
        "backward": ["a, b, c = ctx.saved_tensors", "return g * a, g * b * c"],
    },
    "by a helper": {
        "forward": ["save(ctx, x, w)", "return x * w"],
        "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"],
    },
    "by super": {
        "forward": ["y = Base.forward(ctx, x, w)", "return y"],
        "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"],
    },
    "by a mixin": {
        "forward": ["return x * w"],
        "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"],
        "base": "Mixin, Function",
    },
    "with constants": {
        "forward": ["ctx.save_for_backward(x, constants=(w,))", "return x * w"],
        "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"],
        "base": "pullback.Function",
    },
}


@pytest.mark.parametrize("name", MISCOUNTED)
def test_another_number_than_was_saved_is_found(name: str) -> None:
    """Where saved_tensors is taken apart."""
    text = function(**MISCOUNTED[name])
    assert [one for one in found(text) if "PB236" in one] == expected(text)


@pytest.mark.parametrize("name", COUNTED)
def test_as_many_as_were_saved(name: str) -> None:
    """And what others may have saved."""
    assert [one for one in found(function(**COUNTED[name]), hints=True) if "PB236" in one] == []


def test_both_numbers_are_said() -> None:
    """What was saved, and what is read."""
    (one,) = [one for one in findings(function(**MISCOUNTED["too many"])) if one.rule == "PB236"]
    assert one.message == "backward takes saved_tensors apart into 3, and 2 are saved."
    assert one.expected == "2 saved tensors"


def test_what_a_base_saves_counts() -> None:
    """An inherited forward is forward."""
    text = function(
        KEPT,
        ["x, w = ctx.saved_tensors", "return g * w, g * x"],
        after=(
            "class G(F):\n    @staticmethod\n    def backward(ctx, g):\n"
            "        a, b, c = ctx.saved_tensors  # PB236\n        return g * a, g * b * c\n"
        ),
    )
    assert found(text) == expected(text)


UNREAD: dict[str, dict[str, Any]] = {
    "never": {"forward": ["ctx.save_for_backward(x)  # PB304", "return x + w"], "backward": ["return g, g"]},
    "one of two": {
        "forward": ["ctx.save_for_backward(x, w)  # PB304", "return x * w"],
        "backward": ["x, w = ctx.saved_tensors", "return g * w, None"],
    },
    "by an underscore": {
        "forward": ["ctx.save_for_backward(x, w)  # PB304", "return x * w"],
        "backward": ["_, w = ctx.saved_tensors", "return g * w, None"],
    },
    "by index": {
        "forward": ["ctx.save_for_backward(x, w)  # PB304", "return x * w"],
        "backward": ["return g * ctx.saved_tensors[1], None"],
    },
    "an intermediate of pullback": {
        "forward": ["ctx.save_for_backward(x, x.exp())  # PB304", "return x * w"],
        "backward": ["x, _ = ctx.saved_tensors", "return None, g * x"],
        "base": "pullback.Function",
        "takes": "x: torch.Tensor, w",
    },
}

READ: dict[str, dict[str, Any]] = {
    "both": {"forward": KEPT, "backward": ["x, w = ctx.saved_tensors", "return g * w, g * x"]},
    "in a loop": {"forward": KEPT, "backward": ["a = [one * g for one in ctx.saved_tensors]", "return a[0], a[1]"]},
    "whole": {"forward": KEPT, "backward": ["saved = ctx.saved_tensors", "return kernel(saved, g)"]},
    "by a helper": {"forward": KEPT, "backward": ["return helper(ctx, g)"]},
    "with a star": {"forward": KEPT, "backward": ["x, *rest = ctx.saved_tensors", "return g * x, g * rest[0]"]},
    "in an inner function": {
        "forward": KEPT,
        "backward": ["x, w = ctx.saved_tensors", "def f():", "    return x * w", "return g * f(), None"],
    },
    "an error": {"forward": KEPT, "backward": ["raise RuntimeError('no second derivative')"]},
    "the arguments of pullback": {
        "forward": KEPT,
        "backward": ["_, w = ctx.saved_tensors", "return g * w, None"],
        "base": "pullback.Function",
    },
    "for a gradient that is missing": {
        "forward": KEPT,
        "backward": ["_, w = ctx.saved_tensors", "return g * w"],
    },
    "kept by a function": {
        "forward": ["ctx.save_for_backward(x)", "ctx.read = lambda: ctx.saved_tensors[0]", "return x * w"],
        "backward": ["return g * ctx.read(), None"],
    },
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_saved_for_nothing_is_found(name: str) -> None:
    """Where it is saved."""
    text = function(**UNREAD[name])
    assert [one for one in found(text) if "PB304" in one] == expected(text)


@pytest.mark.parametrize("name", READ)
def test_what_is_read_or_may_be(name: str) -> None:
    """In whatever way."""
    assert [one for one in found(function(**READ[name]), hints=True) if "PB304" in one] == []


def test_none_is_saved_for_nothing_at_no_cost() -> None:
    """It keeps no memory."""
    text = function(["ctx.save_for_backward(None, w)", "return x * w"], ["return g * ctx.saved_tensors[1], None"])
    assert found(text, hints=True) == []


def test_the_tensor_is_named_that_is_saved_for_nothing() -> None:
    """As it is written in forward."""
    (one,) = findings(function(**UNREAD["one of two"]))
    assert one.message == "x is saved, and backward never reads it."
    assert one.where == "saved tensor 0"


NOT_SET: dict[str, dict[str, Any]] = {
    "misspelt": {"forward": ["ctx.factor = 2", "return x * w"], "backward": ["return g * ctx.facter, None  # PB237"]},
    "never": {"forward": ["return x * w"], "backward": ["return g * ctx.k, None  # PB237"]},
    "of the class": {
        "forward": ["return x * w"],
        "backward": ["return g * ctx.scale, None  # PB237"],
        "extra": "scale = 3\n",
    },
    "in try, and not caught": {
        "forward": ["return x * w"],
        "backward": ["try:", "    return g * ctx.k, None  # PB237", "finally:", "    release()"],
    },
    "only once": {
        "forward": ["return x * w"],
        "backward": ["h = g * ctx.k  # PB237", "return h * ctx.k, None"],
    },
}

SET: dict[str, dict[str, Any]] = {
    "in forward": {"forward": ["ctx.k = 2", "return x * w"], "backward": ["return g * ctx.k, None"]},
    "by unpacking": {"forward": ["ctx.a, ctx.b = x.shape", "return x * w"], "backward": ["return g * ctx.a, ctx.b"]},
    "in an inner function": {
        "forward": ["def keep(v):", "    ctx.k = v", "keep(2)", "return x * w"],
        "backward": ["return g * ctx.k, None"],
    },
    "by setattr": {"forward": ["setattr(ctx, 'k', 2)", "return x * w"], "backward": ["return g * ctx.k, None"]},
    "by a helper": {"forward": ["keep(ctx, 2)", "return x * w"], "backward": ["return g * ctx.k, None"]},
    "by update": {"forward": ["ctx.__dict__.update(k=2)", "return x * w"], "backward": ["return g * ctx.k, None"]},
    "in backward itself": {"forward": ["return x * w"], "backward": ["ctx.k = 2", "return g * ctx.k, None"]},
    "asked for": {
        "forward": ["return x * w"],
        "backward": ["if hasattr(ctx, 'k'):", "    g = g * ctx.k", "return g, None"],
    },
    "in try": {
        "forward": ["return x * w"],
        "backward": ["try:", "    g = g * ctx.k", "except AttributeError:", "    pass", "return g, None"],
    },
    "what every ctx has": {"forward": ["return x * w"], "backward": ["return g, ctx.needs_input_grad, ctx.name()"]},
    "what decorators leave": {"forward": ["return x * w"], "backward": ["return g, ctx._dtype"]},
    "from outside": {
        "forward": ["return x * w"],
        "backward": ["return g * ctx.k, None"],
        "after": "def late(y, k):\n    y.grad_fn.k = k\n",
    },
    "by an unknown base": {
        "forward": ["return x * w"],
        "backward": ["return g * ctx.k, None"],
        "base": "Mixin, Function",
    },
    "of another ctx in an inner function": {
        "forward": ["return x * w"],
        "backward": ["def inner(ctx):", "    return ctx.k", "return g, None"],
    },
    "of what the name stands for later": {
        "forward": ["return x * w"],
        "backward": ["ctx = step(g)", "return g * ctx.k, None"],
    },
    "deleted": {"forward": ["ctx.k = 2", "return x * w"], "backward": ["g = g * ctx.k", "del ctx.k", "return g, None"]},
}


@pytest.mark.parametrize("name", NOT_SET)
def test_an_attribute_that_nothing_sets_is_found(name: str) -> None:
    """Where it is first read."""
    text = function(**NOT_SET[name])
    assert [one for one in found(text) if "PB237" in one] == expected(text)


@pytest.mark.parametrize("name", SET)
def test_an_attribute_that_is_set_or_may_be(name: str) -> None:
    """Wherever ctx goes, it may be set."""
    assert [one for one in found(function(**SET[name]), hints=True) if "PB237" in one] == []


def test_an_attribute_of_the_class_is_told_apart() -> None:
    """Since ctx is no instance of it."""
    (one,) = findings(function(**NOT_SET["of the class"]))
    assert one.message == (
        "backward reads ctx.scale, and nothing sets it; it is an attribute of the class, which ctx doesn't see."
    )


def test_methods_of_an_instance_are_only_a_hint() -> None:
    """Before static methods, self was an instance of the class: nobody can call such a class any more."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        "    def forward(self, x):\n        return self.start(x)\n"
        "    def backward(self, g):\n        return self.finish(g)\n"
        "    def finish(self, g):\n        return g\n"
    )
    assert [one for one in found(text) if "PB237" in one] == []
    assert "6 PB237" in found(text, hints=True)


def jvp(forward: str, body: str) -> str:
    """A Function with a jvp, in the style with setup_context."""
    return (
        f"{HEAD}class F(Function):\n    @staticmethod\n    def forward(x):\n        return x * x\n"
        f"    @staticmethod\n    def setup_context(ctx, inputs, output):\n        x, = inputs\n        {forward}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        x, = ctx.saved_tensors\n        return 2 * g * x\n"
        f"    @staticmethod\n    def jvp(ctx, t):\n        {body}\n        return 2 * x * t\n"
    )


def test_a_jvp_without_saved_tensors_is_found() -> None:
    """save_for_backward is for backward alone."""
    text = jvp("ctx.save_for_backward(x)", "x, = ctx.saved_tensors  # PB508")
    assert found(text) == expected(text)
    text = jvp("ctx.save_for_backward(x)", "x = ctx.saved_tensors[0]  # PB508")
    assert found(text) == expected(text)


def test_a_jvp_with_saved_tensors() -> None:
    """Or with what may have them."""
    for forward in (
        "ctx.save_for_backward(x); ctx.save_for_forward(x)",
        "ctx.save_for_backward(x); keep(ctx)",
    ):
        assert [one for one in found(jvp(forward, "x, = ctx.saved_tensors"), hints=True) if "PB508" in one] == []
    assert found(jvp("ctx.save_for_backward(x)", "x = t")) == []


def test_the_old_name_is_found() -> None:
    """In each method that reads it."""
    text = function(KEPT, ["x, w = ctx.saved_variables  # PB238", "return g * w, g * x"])
    assert found(text) == expected(text)
    (one,) = findings(text)
    assert (one.expected, one.got) == ("ctx.saved_tensors", "ctx.saved_variables")
