"""Rules PB201 and PB111: how many gradients backward returns, and how many it takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.helper import HEAD, expected, findings, found
from tests.lint.two_methods import function

PRODUCT = ["return x * w"]

WRONG: dict[str, dict[str, Any]] = {
    "one too few": {"backward": ["return g * 2  # PB201"]},
    "one too few, as a tuple": {"backward": ["return (g * 2,)  # PB201"]},
    "one too many": {"backward": ["return g, g * 2, g * 3  # PB201"]},
    "None for two": {"backward": ["return None  # PB201"]},
    "an end without return": {"backward": ["a = g * 2", "b = g * 3  # PB201"]},
    "by a variable": {"backward": ["grads = (g * 2,)", "return grads  # PB201"]},
    "a list made a tuple": {"backward": ["grads = [g * 2, None]", "grads.append(g)", "return tuple(grads)  # PB201"]},
    "Nones by number": {"backward": ["return (g * 2,) + (None,) * 3  # PB201"], "takes": "x, a, b, c, d"},
    "a star over Nones": {"backward": ["return g * 2, *[None] * 2  # PB201"], "takes": "x, a, b, c"},
    "on one of two paths": {
        "backward": ["if ctx.needs_input_grad[1]:", "    return g * 2, g * 3", "return (g * 2,)  # PB201"]
    },
    "before a star": {"backward": ["return g, g * 2, g * 3, *rest()  # PB201"]},
    "fewer than are required": {"backward": ["return (g * 2,)  # PB201"], "takes": "x, w, k=1"},
    "more than can be passed": {"backward": ["return g * 2, g * 3, g * 4, g * 5  # PB201"], "takes": "x, w, k=1"},
    "fewer than a call passes": {
        "backward": ["return g * 2, g * 3  # PB201"],
        "takes": "x, w, k=1",
        "after": "def call(x, w):\n    return F.apply(x, w, 3)\n",
    },
    "fewer than a call passes, by a test of something else": {
        "backward": ["if ctx.late:", "    return (g * 2,)  # PB201", "return rest(g)"],
        "takes": "x, *others",
        "after": "y = F.apply(a, b)\n",
    },
    "fewer than an alias passes": {
        "backward": ["return (g * 2,)  # PB201"],
        "takes": "x, *others",
        "after": "f = F.apply\ny = f(a, b)\n",
    },
}

RIGHT: dict[str, dict[str, Any]] = {
    "as many": {"backward": ["return g * 2, g * 3"]},
    "more Nones": {"backward": ["return g * 2, g * 3, None, None"]},
    "a default that no call passes": {
        "backward": ["return g * 2, g * 3"],
        "takes": "x, w, k=1",
        "after": "y = F.apply(a, b)\n",
    },
    "by a list": {"backward": ["grads = [None] * 2", "grads[0] = g * 2", "return tuple(grads)"]},
    "a list in a loop": {
        "backward": ["grads = []", "for one in (1, 2):", "    grads.append(g * one)", "return tuple(grads)"]
    },
    "a list that a function fills": {"backward": ["grads = []", "fill(grads, g)", "return tuple(grads)"]},
    "a list that an inner function fills": {
        "backward": ["grads = []", "def add(one):", "    grads.append(one)", "add(g)", "add(g)", "return tuple(grads)"]
    },
    "a list by another name": {
        "backward": ["grads = []", "also = grads", "also.append(g)", "also.append(g)", "return tuple(grads)"]
    },
    "a list in a comprehension": {
        "backward": ["grads = []", "[grads.append(g * one) for one in (1, 2)]", "return tuple(grads)"]
    },
    "a generator": {"backward": ["return tuple(g if one else None for one in ctx.needs_input_grad)"]},
    "a star": {"backward": ["return g, *rest(g)"]},
    "a star in the middle": {"backward": ["return g, *rest(g), None"], "takes": "x, w, k"},
    "any number of arguments": {"backward": ["return (g * 2,)"], "takes": "*xs"},
    "keywords": {"backward": ["return (g * 2,)"], "takes": "x, **more"},
    "a call": {"backward": ["return gradients(g)"]},
    "a tuple that grows": {"backward": ["grads = (g * 2,)", "grads += (g * 3,)", "return grads"]},
    "only an error": {"backward": ["raise NotImplementedError('no')"]},
    "an error at the end": {
        "backward": ["if ctx.needs_input_grad[0]:", "    return g, None", "raise RuntimeError('no')"]
    },
    "any of the flags": {
        "backward": ["if any(ctx.needs_input_grad):", "    return g * 2, g * 3"],
    },
    "a return of an inner function": {"backward": ["def one():", "    return g", "return one(), one()"]},
    "in a with block": {"backward": ["with torch.no_grad():", "    return g, g * 2"]},
    "in try": {"backward": ["try:", "    return g, g * 2", "except ValueError:", "    raise"]},
    "a match": {
        "backward": ["match ctx.kind:", "    case 'a':", "        return g, g", "    case _:", "        return g, None"]
    },
    "by the number of grad_outputs": {
        "backward": ["if len(gs) == 1:", "    return gs[0], None", "a, b = gs", "return a, b, a"],
        "takes": "*xs",
        "gets": "*gs",
        "after": "y = F.apply(a), F.apply(a, b, c, d)\n",
    },
    "by a name for that number": {
        "backward": ["n = len(gs)", "if n == 1:", "    return (gs[0],)", "return gs[0], None"],
        "takes": "*xs",
        "gets": "*gs",
        "after": "y = F.apply(a, b, c)\n",
    },
    "by what was saved": {
        "backward": ["if len(ctx.saved_tensors) == 1:", "    return (g,)", "return rest(g)"],
        "takes": "*xs",
        "after": "y = F.apply(a, b, c)\n",
    },
    "an endless loop": {"backward": ["while True:", "    g = step(g)", "    if done(g):", "        return g, None"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_number_of_gradients_is_found(name: str) -> None:
    """On the line of the return, whatever way the tuple was made."""
    text = function(PRODUCT, **WRONG[name])
    assert [one for one in found(text) if "PB201" in one] == expected(text)


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_number_is_right(name: str) -> None:
    """And what isn't known is left alone."""
    assert [one for one in found(function(PRODUCT, **RIGHT[name]), hints=True) if "PB201" in one] == []


def test_the_arguments_without_a_gradient_are_named() -> None:
    """A finding says what is missing, for which arguments."""
    (one,) = findings(function(["return x * w"], ["return g * 2"], takes="x, w, k"))
    assert one.message == "backward returns 1 gradient for 3 arguments; there is none for w and k."
    assert one.expected == "an entry for each of (x, w, k)"
    assert one.got == "1 entry"
    assert one.where == "backward, what it returns"


def test_a_body_of_pass_is_only_a_hint() -> None:
    """It says: not to be differentiated."""
    text = function(PRODUCT, ["pass"])
    assert [one for one in found(text) if "PB201" in one] == []
    assert "13 PB201" in found(text, hints=True)


def test_a_default_that_no_known_call_passes_is_a_hint() -> None:
    """With one, the gradients are too few."""
    text = function(PRODUCT, ["return g * 2, g * 3"], takes="x, w, k=1")
    assert [one for one in found(text) if "PB201" in one] == []
    (one,) = [one for one in findings(text, hints=True) if one.rule == "PB201"]
    assert one.message == "backward returns 2 gradients for 3 arguments; there is none for k."


@pytest.mark.parametrize(
    "backward",
    [
        ["if ctx.idle:", "    return None", "return g * 2, g * 3"],
        ["grads = (g * 2, g * 3)", "return None if ctx.idle else grads"],
    ],
)
def test_none_on_a_path_of_its_own_is_only_a_hint(backward: list[str]) -> None:
    """It may never be taken."""
    text = function(PRODUCT, backward)
    assert [one for one in found(text) if "PB201" in one] == []
    assert any("PB201" in one for one in found(text, hints=True))


def test_what_derives_from_a_wrong_one_is_not_said_again() -> None:
    """The class that has the methods has the fault."""
    text = function(PRODUCT, ["return g * 2  # PB201"], after="class G(F):\n    pass\n")
    assert found(text) == expected(text)


def test_a_subclass_may_make_it_wrong() -> None:
    """A forward with more arguments than the inherited backward knows."""
    text = function(
        ["return x * 2"],
        ["return g * 2  # PB201"],
        takes="x",
        after="class G(F):\n    @staticmethod\n    def forward(ctx, x, w):\n        return x * w\n",
    )
    assert found(text) == expected(text)


def test_a_method_by_condition_is_left_alone() -> None:
    """Which of two forwards goes with which backward isn't known."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        "    if NEW:\n        @staticmethod\n        def forward(ctx, x, w):\n            return x * w\n"
        "    else:\n        @staticmethod\n        def forward(ctx, x):\n            return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
    )
    assert found(text, hints=True) == []


def test_forward_beside_setup_context() -> None:
    """All of its parameters are arguments."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        "    @staticmethod\n    def forward(x, w):\n        return x * w\n"
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g  # PB201\n"
    )
    assert found(text) == expected(text)


def test_methods_of_the_class() -> None:
    """cls is no argument."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        "    @classmethod\n    def forward(cls, ctx, x, w):\n        return x * w\n"
        "    @classmethod\n    def backward(cls, ctx, g):\n        return g * 1, g * 2, g * 3  # PB201\n"
    )
    assert found(text) == expected(text)


def test_a_method_for_others_to_call() -> None:
    """A static method that takes cls before ctx isn't what PyTorch calls."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        "    @staticmethod\n    def forward(cls, ctx, x, w):\n        return x * w\n"
        "    @staticmethod\n    def backward(ctx, g):\n        a, b = ctx.saved_tensors\n        return a * g, b * g\n"
    )
    assert found(text, hints=True) == []


def test_a_keyword_only_argument_of_pullback() -> None:
    """How many arguments there are depends on the call."""
    text = function(PRODUCT, ["return g * 2, g * 3"], takes="x, *, w", base="pullback.Function")
    assert [one for one in found(text, hints=True) if "PB201" in one] == []


COTANGENTS_WRONG = {
    "two outputs, one parameter": ("x.sin(), x.cos()", "g"),
    "one output, two parameters": ("x.sin()", "g, h"),
    "three, one with a default": ("x.sin(), x.cos(), x.tan()", "g, h=None"),
    "one, and a star behind two": ("x.sin()", "g, h, *more"),
}

COTANGENTS_RIGHT = {
    "one each": ("x.sin(), x.cos()", "g, h"),
    "a star": ("x.sin(), x.cos()", "*g"),
    "a default": ("x.sin()", "g, h=None"),
    "nobody knows": ("kernel(x)", "g, h"),
    "a list": ("[x.sin(), x.cos()]", "g"),
    "a star in the tuple": ("(x.sin(), *kernel(x))", "g"),
}


@pytest.mark.parametrize("name", COTANGENTS_WRONG)
def test_a_parameter_for_each_output(name: str) -> None:
    """Backward is called with one gradient for each output."""
    outputs, gets = COTANGENTS_WRONG[name]
    text = function([f"return {outputs}"], ["return something()"], takes="x: torch.Tensor", gets=gets)
    assert [one for one in found(text) if "PB111" in one] == ["12 PB111"]


@pytest.mark.parametrize("name", COTANGENTS_RIGHT)
def test_parameters_that_take_what_comes(name: str) -> None:
    """And outputs whose number isn't known."""
    outputs, gets = COTANGENTS_RIGHT[name]
    text = function([f"return {outputs}"], ["return something()"], takes="x: torch.Tensor", gets=gets)
    assert [one for one in found(text, hints=True) if "PB111" in one] == []


def test_another_number_on_one_path_is_only_a_hint() -> None:
    """A forward for inference may return more, where no gradient is ever asked for."""
    lines = ["if torch.is_inference_mode_enabled():", "    return x.sin(), x", "return x.sin()"]
    text = function(lines, ["return g"], takes="x: torch.Tensor")
    assert [one for one in found(text) if "PB111" in one] == []
    (one,) = [one for one in findings(text, hints=True) if one.rule == "PB111"]
    assert one.message == "forward returns 2 outputs (line 10), and backward takes 1 grad_output."


@pytest.mark.parametrize(
    ("call", "codes"), [("f(ctx, args)", []), ("f(ctx, *args)", ["PB201"]), ("f(*args)", ["PB201"])]
)
def test_a_decorator_of_the_file_that_rearranges_arguments_is_believed(call: str, codes: list[str]) -> None:
    """Forward then isn't called as it is written; one that hands on what it got changes nothing."""
    text = (
        f"{HEAD}def packed(f):\n    def wrapper(ctx, *args):\n        return {call}\n    return wrapper\n"
        "class A(Function):\n    @staticmethod\n    @packed\n    def forward(ctx, x):\n        return 2 * x[0]\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return 2 * g, 3 * g\n"
    )
    assert [one.split()[1] for one in found(text)] == codes


@pytest.mark.parametrize(("marked", "codes"), [("i", []), ("x", ["PB201"])])
def test_a_backward_that_nobody_calls_may_return_what_it_likes(marked: str, codes: list[str]) -> None:
    """Where every output is marked as not differentiable."""
    text = (
        f"{HEAD}class A(Function):\n    @staticmethod\n    def forward(ctx, x, k):\n        i = kernel(x, k)\n"
        f"        ctx.mark_non_differentiable({marked})\n        return i\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return ()\n"
    )
    assert [one.split()[1] for one in found(text) if "PB201" in one] == codes


def test_a_backward_that_only_raises_may_take_what_it_likes() -> None:
    """It says that nothing is to be differentiated, and that is what comes of a call."""
    text = (
        f"{HEAD}class A(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x + 1, x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        raise NotImplementedError\n"
    )
    assert found(text) == []
    assert found(text.replace("raise NotImplementedError", "return g * 1")) != []


def test_one_return_for_each_number_of_arguments_is_right() -> None:
    """Where another return has enough for the call, it's the one that the call gets."""
    text = (
        f"{HEAD}class A(Function):\n    @staticmethod\n    def forward(ctx, x, k=1, w=None):\n        return x * k\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        if ctx.count == 3:\n            return g * 2, None, g * 3\n"
        "        return (g * 2,)\n\n\ndef run(x):\n    return A.apply(x, 2, x)\n"
    )
    assert [one for one in found(text) if "PB201" in one] == []
    short = text.replace("return g * 2, None, g * 3", "return g * 2, None")
    assert len([one for one in found(short) if "PB201" in one]) == 2
