"""F2: a declaration of the wrong kind, or under almost the right name, is refused where the class is defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.define.definition import describe
from pullback.errors import DefinitionError
from tests.tracebacks import files


def scaled(ctx: Any, x: Tensor, factor: float) -> Tensor:
    """Compute factor x."""
    ctx.factor = factor
    return x * factor


def scaled_backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
    """Differentiate factor x."""
    return g * ctx.factor, None


def define(**body: Any) -> Any:
    """Define a Function named Scale with these attributes beside its forward and backward."""
    methods = {"forward": staticmethod(scaled), "backward": staticmethod(scaled_backward)}
    made = {name: staticmethod(value) if callable(value) else value for name, value in body.items()}
    return type("Scale", (pullback.Function,), {"__module__": __name__, **methods, **made})


def lines_of(body: dict[str, Any]) -> list[str]:
    """Return the lines of the error that such a class gets; no frame of pullback is in its traceback."""
    with pytest.raises(DefinitionError, match="PB106") as caught:
        define(**body)
    assert {*files(caught.value)} == {__file__}
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", ["reference", "surrogate", "double_backward", "expected_backward", "samples"])
@pytest.mark.parametrize("value", [3, "doi", {}], ids=["a number", "a word", "a mapping"])
def test_a_method_that_is_no_method(name: str, value: Any) -> None:
    """F2: what is to be called and can't be is PB106; it used to be passed over."""
    head, _, got, remedy = lines_of({name: value})
    assert head == f"PB106 Scale.{name} can't be called."
    assert got == f"  got: {value!r}"
    assert remedy == f"  remedy: Write @staticmethod def {name}(…), or give the attribute another name."


def test_a_long_value_is_cut() -> None:
    """The error stays readable, whatever was written there."""
    assert lines_of({"reference": "x" * 1000})[2] == f"  got: '{'x' * 56}…"


@pytest.mark.parametrize("name", ["reference", "surrogate", "double_backward", "expected_backward", "samples"])
def test_none_declares_nothing(name: str) -> None:
    """F2: a subclass takes a declaration of its base back with None."""
    assert getattr(describe(define(**{name: None})), name) is None


def test_samples_may_be_a_list() -> None:
    """A list or tuple of samples stands for a function that returns it."""
    samples = [(torch.ones(2), 3.0)]
    described = describe(define(samples=samples)).samples
    assert described is not None
    assert described() is samples


MISSPELT = {
    "nondiff_argname": ("nondiff_argnames", ("factor",)),
    "nondiff_arg_names": ("nondiff_argnames", "factor"),
    "nondiff_argnums": ("nondiff_argnames", (1,)),
    "contiguous_grad": ("contiguous_grads", True),
    "non_linear_backward": ("nonlinear_backward", True),
    "replayble": ("replayable", False),
    "double_backwards": ("double_backward", lambda ctx, gg, _: gg),
    "doubleBackward": ("double_backward", lambda ctx, gg, _: gg),
    "refrence": ("reference", lambda x, factor: x * factor),
    "surogate": ("surrogate", lambda x, factor: x * factor),
    "expected_backwards": ("expected_backward", lambda inputs, outputs, grads: grads),
}


@pytest.mark.parametrize("written", MISSPELT)
def test_a_misspelt_declaration(written: str) -> None:
    """F2: a name that is almost a declaration's would be heeded by nobody; the error says which was meant."""
    meant, value = MISSPELT[written]
    assert lines_of({written: value}) == [
        f"PB106 Scale.{written} is no declaration, and nothing would heed it.",
        f"  expected: {meant}",
        f"  got: {written}",
        f"  remedy: Did you mean {meant}? A name with an underscore in front is never taken for one.",
    ]


def test_a_misspelt_declaration_of_a_mixin() -> None:
    """F2: it is seen wherever it comes from."""
    mixin = type("Mixin", (), {"contiguous_grad": True})
    with pytest.raises(DefinitionError, match=r"PB106 Scale\.contiguous_grad is no declaration"):
        type("Scale", (mixin, pullback.Function), {})


FINE = {
    "a helper": {"sample": lambda: None},
    "a list of papers": {"references": ["one", "two"]},
    "a private name": {"_refrence": lambda x: x},
    "a name put away": {"reference_": lambda x: x},
    "a helper beside the declaration": {"reference": lambda x, factor: x * factor, "reference2": lambda x: x},
    "names of torch": {"jvp": lambda ctx, t, _: t, "vmap": lambda info, dims, x, factor: (x, 0)},
    "a flag that is no flag": {"contiguous_grad": lambda g: g.contiguous()},
    "other names": {"gradient": lambda x: x, "backward_impl": lambda g: g, "double_backward_fn": lambda g: g},
}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_other_names_are_the_authors_own(body: dict[str, Any]) -> None:
    """F1: a class that torch accepts is refused only where the declaration that was meant is beyond doubt."""
    x = torch.ones(2, requires_grad=True)
    define(**body).apply(x, 3.0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("declared", "remedy"),
    [
        ("factr", "Did you mean 'factor'?"),
        ("f", "Did you mean 'factor'?"),
        ("base", "Name arguments of forward, or remove it."),
    ],
)
def test_a_misnamed_argument(declared: str, remedy: str) -> None:
    """F2: nondiff_argnames with a name that forward lacks says which argument it may have meant."""
    assert lines_of({"nondiff_argnames": (declared,)}) == [
        f"PB106 Scale: nondiff_argnames names {declared!r}, which forward doesn't take.",
        "  expected: names among x, factor",
        f"  got: {declared}",
        f"  remedy: {remedy}",
    ]
