"""`describe`: what an author wrote, read off torch's classes and pullback's alike, without running any of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from pullback.define.definition import describe

BASES = [torch.autograd.Function, pullback.Function]


def identity(ctx: Any, x: Tensor) -> Tensor:
    """Return x."""
    return x.clone()


def pass_on(ctx: Any, g: Tensor) -> Tensor:
    """Return the gradient."""
    return g


def define(base: type, **body: Any) -> Any:
    """Define a Function whose methods are static."""
    made = {name: staticmethod(value) if callable(value) else value for name, value in body.items()}
    return type("Described", (base,), {"__module__": __name__, **made})


@pytest.mark.parametrize("base", BASES)
def test_a_function_in_ctx_style(base: type) -> None:
    """Parameters don't count ctx, whatever its name; the rest are the methods themselves."""
    made = define(base, forward=lambda c, x, k=3, *rest, flag=True: x, backward=pass_on)
    found = describe(made)
    assert (found.name, found.cls.__module__) == ("Described", __name__)
    assert (found.style, found.parameters, found.variadic) == ("ctx", ("x", "k"), True)
    assert list(found.signature.parameters) == ["x", "k", "rest", "flag"]
    assert found.forward is made.forward
    assert found.backward is pass_on
    assert (found.double_backward, found.reference, found.surrogate, found.samples) == (None,) * 4
    assert (found.nonlinear_backward, found.once_differentiable, found.contiguous_grads) == (False,) * 3
    assert found.replayable
    assert found.nondiff_argnames == ()


@pytest.mark.parametrize("base", BASES)
def test_a_function_in_setup_context_style(base: type) -> None:
    """With setup_context, its own or inherited, forward has no ctx to leave out."""
    parent = define(base, setup_context=lambda ctx, inputs, output: None)
    found = describe(type("Child", (parent,), {"forward": staticmethod(lambda x, k: x)}))
    assert (found.style, found.parameters, found.variadic) == ("setup_context", ("x", "k"), False)


@pytest.mark.parametrize("base", BASES)
def test_an_abstract_class(base: type) -> None:
    """Without forward there are no parameters, and what PyTorch's base defines doesn't count as the author's."""
    found = describe(define(base))
    assert (found.forward, found.backward, found.parameters) == (None, None, ())


@pytest.mark.parametrize("base", BASES)
def test_vjp_stands_for_backward(base: type) -> None:
    """vjp is backward by another name."""
    assert describe(define(base, vjp=pass_on)).backward is pass_on


@pytest.mark.parametrize("base", BASES)
def test_once_differentiable_is_seen_through_decorators(base: type) -> None:
    """PyTorch's mark is found at any depth of functools.wraps, on a classmethod too, and nowhere else."""

    @functools.wraps(pass_on)
    def wrapped(ctx: Any, g: Tensor) -> Any:
        return once_differentiable(pass_on)(ctx, g)

    outside = functools.wraps(once_differentiable(pass_on))(lambda ctx, g: g)
    assert describe(define(base, backward=once_differentiable(pass_on))).once_differentiable
    assert describe(define(base, backward=outside)).once_differentiable
    assert describe(type("C", (base,), {"backward": classmethod(once_differentiable(pass_on))})).once_differentiable
    assert not describe(define(base, backward=pass_on)).once_differentiable
    assert not describe(define(base, backward=wrapped)).once_differentiable


def test_argument_names() -> None:
    """Arguments go by their parameter's name, variadic ones by theirs and a number."""
    found = describe(define(pullback.Function, forward=lambda ctx, x, *rest: x))
    assert [found.argument_name(index) for index in range(3)] == ["x", "rest[0]", "rest[1]"]
    assert describe(define(pullback.Function, forward=identity)).argument_name(4) == "argument 4"


@pytest.mark.parametrize(
    ("declared", "without"),
    [("x", {0}), (("x", "rest[1]"), {0, 2}), (["rest"], {1, 2}), ((), set())],
    ids=["a bare name", "one of several", "all of several", "none"],
)
def test_arguments_without_gradient(declared: Any, without: set[int]) -> None:
    """nondiff_argnames may be one name, or name a variadic parameter's arguments one by one or together."""
    found = describe(define(pullback.Function, forward=lambda ctx, x, *rest: x, nondiff_argnames=declared))
    assert {index for index in range(3) if found.is_nondiff(found.argument_name(index))} == without


def test_the_location_is_the_class_statement() -> None:
    """Location is file and line of the class, and empty where no source is found."""

    class Here(pullback.Function):
        forward = staticmethod(identity)

    file, _, line = describe(Here).location.rpartition(":")
    assert file == __file__
    with open(file, encoding="utf-8") as source:
        assert "class Here(" in source.readlines()[int(line) - 1]
    assert describe(type("Nowhere", (pullback.Function,), {"__module__": "no.such.module"})).location == ""


def test_a_forward_without_a_signature() -> None:
    """A forward whose signature can't be read takes anything."""
    found = describe(type("Builtin", (pullback.Function,), {"forward": torch.sin}))
    assert (found.parameters, found.variadic) == ((), True)
