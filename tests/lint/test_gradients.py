"""Rules PB202, PB204, PB230 and PB232: what backward returns at each place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

PRODUCT = ["return x * w"]

NO_TENSOR: dict[str, list[str]] = {
    "a number": ["return g * 2, 0  # PB202"],
    "a number from a tensor": ["return g * 2, g.sum().item()  # PB202"],
    "a string": ["return g * 2, 'none'  # PB202"],
    "a list for two": ["return [g * 2, g]  # PB202"],
    "a list by a variable": ["grads = [None, None]", "grads[0] = g", "return grads  # PB202"],
    "a shape": ["return g * 2, g.shape  # PB202"],
    "an array": ["return g * 2, g.numpy()  # PB202"],
    "the tuple of autograd.grad": ["return g * 2, torch.autograd.grad(f(), h(), g)  # PB202"],
    "by a variable": ["size = g.numel()  # PB202", "return g * 2, size"],
    "on one branch": ["dw = None", "if ctx.late:", "    dw = 0.0  # PB202", "return g * 2, dw"],
}

TENSOR: dict[str, list[str]] = {
    "tensors": ["return g * 2, g.sum()"],
    "None": ["return g * 2, None"],
    "all of autograd.grad": ["return torch.autograd.grad(f(), (h(), i()), g)"],
    "the one of autograd.grad": ["return g * 2, torch.autograd.grad(f(), h(), g)[0]"],
    "unpacked": ["(dw,) = torch.autograd.grad(f(), h(), g)", "return g * 2, dw"],
    "nobody knows": ["return g * 2, kernel(g)"],
    "a list made a tuple": ["return tuple([g * 2, g])"],
    "a sum": ["return g * 2, sum(terms(g))"],
    "a comparison": ["return g * 2, (g > 0) * 1.0"],
}


@pytest.mark.parametrize("name", NO_TENSOR)
def test_what_is_no_gradient_is_found(name: str) -> None:
    """Numbers, strings, shapes, arrays, lists and tuples."""
    text = function(PRODUCT, NO_TENSOR[name])
    assert [one for one in found(text) if "PB202" in one] == expected(text)


@pytest.mark.parametrize("name", TENSOR)
def test_what_may_be_a_gradient_is_right(name: str) -> None:
    """Tensors, None, and what isn't known."""
    assert [one for one in found(function(PRODUCT, TENSOR[name]), hints=True) if "PB202" in one] == []


@pytest.mark.parametrize("takes", ["x", "x, w=None", "x, *others"])
@pytest.mark.parametrize("through", ["", "grads = "])
def test_what_autograd_gives_may_be_all_of_it(takes: str, through: str) -> None:
    """The tuple of all gradients, where it stands alone, is none of a first argument's gradient."""
    call = "torch.autograd.grad(f(), h(), g)"
    backward = [f"{through}{call}", "return grads"] if through else [f"return {call}"]
    assert found(function(["return 2 * x"], backward, takes=takes)) == []


@pytest.mark.parametrize("written", ["[g, g]", "{'x': g}", "{'x': g, 'w': [g, g]}"])
def test_a_nest_of_pullback(written: str) -> None:
    """A dict is by name, and a list the nest of a single argument."""
    takes = "x, w" if "'w'" in written else "x"
    text = function(["return 2 * g(x)"], [f"return {written}"], takes=takes, base="pullback.Function")
    assert found(text, hints=True) == []


UNDUE: dict[str, dict[str, Any]] = {
    "int": {"takes": "x, k: int", "backward": ["return g * 2, g.sum()  # PB230"]},
    "bool": {"takes": "x, k: bool", "backward": ["return g * 2, g.sum()  # PB230"]},
    "str": {"takes": "x, k: str", "backward": ["return g * 2, g.sum()  # PB230"]},
    "perhaps None": {"takes": "x, k: int | None", "backward": ["return g * 2, g.sum()  # PB230"]},
    "Optional": {"takes": "x, k: Optional[int]", "backward": ["return g * 2, g.sum()  # PB230"]},
    "in quotes": {"takes": "x, k: 'int'", "backward": ["return g * 2, g.sum()  # PB230"]},
    "a flag by default": {"takes": "x, k=True", "backward": ["return g * 2, g.sum()  # PB230"]},
    "a name by default": {"takes": "x, k='sum'", "backward": ["return g * 2, g.sum()  # PB230"]},
    "by a variable": {"takes": "x, k: int", "backward": ["dk = g.sum()  # PB230", "return g * 2, dk"]},
    "one place too early": {"takes": "x, k: int, w", "backward": ["return g * 2, g * 3, None  # PB230"]},
}

DUE: dict[str, dict[str, Any]] = {
    "None": {"takes": "x, k: int", "backward": ["return g * 2, None"]},
    "a tensor": {"takes": "x, k: torch.Tensor", "backward": ["return g * 2, g.sum()"]},
    "a number by default": {"takes": "x, k=1.0", "backward": ["return g * 2, g.sum()"]},
    "a number or a tensor": {"takes": "x, k: float | torch.Tensor", "backward": ["return g * 2, g.sum()"]},
    "only where its flag is on": {
        "takes": "x, k: float",
        "backward": ["return g * 2, g.sum() if ctx.needs_input_grad[1] else None"],
    },
    "perhaps": {"takes": "x, k: int", "backward": ["return g * 2, g.sum() if ctx.learns else None"]},
    "nobody knows": {"takes": "x, k: int", "backward": ["return g * 2, kernel(g)"]},
    "the None of an output": {"takes": "x, k: int", "gets": "g, h", "backward": ["return g * 2, h"]},
}


@pytest.mark.parametrize("name", UNDUE)
def test_a_gradient_for_no_tensor_is_found(name: str) -> None:
    """Where the annotation or the default says that the argument is none."""
    text = function(["return x * k"], **UNDUE[name])
    assert [one for one in found(text) if "PB230" in one] == expected(text)


def test_what_is_called_a_float_may_be_a_tensor() -> None:
    """PyTorch would refuse the gradient of a number, so where there is one the annotation is likelier to be wrong."""
    text = function(["return x * k"], takes="x, k: float", backward=["return g * 2, g.sum()  # PB230"])
    assert found(text) == []
    assert expected(text)[0] in found(text, hints=True)


@pytest.mark.parametrize("name", DUE)
def test_a_gradient_for_what_may_be_a_tensor(name: str) -> None:
    """And no gradient for what is none."""
    assert [one for one in found(function(["return x * k"], **DUE[name]), hints=True) if "PB230" in one] == []


def test_the_argument_is_named() -> None:
    """With what it is."""
    text = function(["return x * k"], ["return g * 2, g.sum()"], takes="x, k: int")
    (one,) = findings(text)
    assert one.message == "backward returns a gradient for k, which is an int."
    assert (one.where, one.expected, one.got) == ("backward, gradient of k", "None", "a gradient")


SWAPPED = {
    "grad_": ("x, weight", "grad_weight, grad_x"),
    "d": ("x, w", "dw, dx"),
    "_grad": ("x, w", "w_grad, x_grad"),
    "g": ("x, w", "gw, gx"),
    "the last two": ("x, weight, bias", "grad_x, grad_bias, grad_weight"),
}

IN_ORDER = {
    "in order": ("x, weight", "grad_x, grad_weight"),
    "other names": ("x, weight", "grad_weights, grad_input"),
    "one name": ("x, weight", "grad_weight, other"),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_gradients_that_change_places_are_found(name: str) -> None:
    """Where each has the other's name."""
    takes, returned = SWAPPED[name]
    text = function(["return f(x)"], [f"{returned} = make(g)", f"return {returned}  # PB232"], takes=takes)
    assert found(text) == expected(text)


@pytest.mark.parametrize("name", IN_ORDER)
def test_other_names_say_nothing(name: str) -> None:
    """Only two that are swapped are sure."""
    takes, returned = IN_ORDER[name]
    text = function(["return f(x)"], [f"{returned} = make(g)", f"return {returned}"], takes=takes)
    assert found(text) == []


def test_none_for_everything_is_a_hint() -> None:
    """Perhaps it is meant."""
    text = function(PRODUCT, ["return None, None"])
    assert found(text) == []
    assert found(text, hints=True) == ["13 PB204"]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (["y = x * w", "ctx.mark_non_differentiable(y)", "return y"], ["return None, None"]),
        (["return x * w"], ["return None, g"]),
        (["return x * w"], ["raise RuntimeError"]),
        (["return x * w"], ["if ctx.a:", "    return None, None", "return g, g"]),
    ],
)
def test_none_where_it_is_due(forward: list[str], backward: list[str]) -> None:
    """An output that is marked has no gradient; and one gradient is enough."""
    assert [one for one in found(function(forward, backward), hints=True) if "PB204" in one] == []
