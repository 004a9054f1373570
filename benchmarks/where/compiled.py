"""Compiled code: first gradients of regions that torch.compile takes, and transforms inside of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, func

from benchmarks.where.calls import BY_NAME, KEYWORD_ONLY, by_keyword, scaled
from benchmarks.where.nests import DICT_OUT, LIST, MODULE, Pair, through_list, through_outputs
from benchmarks.where.operations import CUBE, SET_UP, WITH_JVP
from benchmarks.where.want import (
    Call,
    Operation,
    Section,
    Want,
    classes,
    custom_op,
    direction,
    leaf,
    pair_gradients,
    point,
    vjp,
)

BACKEND = "aot_eager"
"""Traces forward and backward, as the default backend does, and leaves out the code generation behind it."""


def whole(function: Call, backend: str = BACKEND, **options: Any) -> Call:
    """Compile a function in which nothing may be left to Python."""
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def in_parts(function: Call) -> Call:
    """Compile a function of which Python may run what the compiler doesn't take."""
    torch.compiler.reset()
    return torch.compile(function, backend=BACKEND)


def gradient(run: Call, x: Tensor) -> Tensor:
    """The first gradient of a function of one tensor."""
    (run(x) * x.new_tensor([0.5, -2]).repeat(4)[: len(x)]).sum().backward()
    assert x.grad is not None
    return x.grad


def amid(f: Call) -> Call:
    """The operation between others."""
    return lambda x: f(x.sin()) * 2


def by_default(f: Call) -> Tensor:
    """The first gradient, from the default compiler."""
    return gradient(whole(amid(f), "inductor"), leaf())


def traced(f: Call) -> Tensor:
    """The first gradient."""
    return gradient(whole(amid(f)), leaf())


def resized(f: Call) -> list[Tensor]:
    """First gradients for several lengths, of one graph with a symbol for the length."""
    run = whole(amid(f), dynamic=True)
    return [gradient(run, torch.linspace(-1, 2, length, dtype=torch.float64).requires_grad_()) for length in (3, 5, 8)]


def list_in(f: Call) -> Any:
    """Gradients of the tensors of a list that is made in the compiled region."""
    return through_list(whole(lambda pair: f([tensor.clone() for tensor in pair])))


def dict_out(f: Call) -> Any:
    """The gradient through the tensors of a dict that the operation returns."""
    return through_outputs(whole(f))


def module_in(f: Call) -> Any:
    """Gradients of the parameters of a module that the compiled region is given."""
    module = Pair()
    return pair_gradients((module.a, module.b), whole(f)(module))


def keyword_only(f: Call) -> Any:
    """Gradients of two arguments, one of them by keyword."""
    return by_keyword(whole(lambda x, weight: f(x, weight=weight)))


def returned_by_name(f: Call) -> Any:
    """Gradients that backward returns by argument name."""
    return scaled(whole(f))


def doubled_gradient(base: type) -> Any:
    """The identity, with twice its gradient."""

    class Reweighted(base):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2

    return Reweighted


REWEIGHTED = Operation(
    "Reweighted",
    lambda x: 2 * x - x.detach(),
    {
        **classes(doubled_gradient),
        **vjp("reweighted", lambda x: x.clone(), lambda x: (x.clone(), None), lambda _, g: (g * 2,)),
        **custom_op("reweighted", "(Tensor x) -> Tensor", torch.clone, lambda ctx, g: g * 2, fake=torch.empty_like),
    },
)
"""A gradient that isn't forward's, so that nobody can mistake one for the other."""


def total(f: Call) -> Call:
    """A number to be differentiated."""
    return lambda x: (f(x) * direction()).sum()


def transform_whole(f: Call) -> Tensor:
    """torch.func.grad inside of a compiled region."""
    return whole(func.grad(total(f)))(point())


def transform(f: Call) -> Tensor:
    """The same, where Python may run parts of it."""
    return in_parts(func.grad(total(f)))(point())


def tangent(f: Call) -> Tensor:
    """torch.func.jvp inside of a compiled region, where Python may run parts of it."""
    return in_parts(lambda x, t: func.jvp(f, (x,), (t,))[1])(point(), direction())


def transform_outside(f: Call) -> Tensor:
    """torch.func.grad of a compiled function; with fullgraph=True Dynamo refuses that, whatever is compiled."""
    return func.grad(in_parts(total(f)))(point())


SECTION = Section(
    "Compiled code",
    "First gradients, by `torch.compile(fullgraph=True)` where the row doesn't say otherwise. The first row has the "
    'default compiler; the others have the backend "aot_eager", which traces forward and backward alike and generates '
    "no code. Reweighted is the identity with twice its gradient, so that forward's own derivative can't pass for it; "
    "its classes are in setup_context style, which torch.func demands of PyTorch's class.",
    [
        Want("compiled by the default compiler", CUBE, by_default, compiled=True),
        Want("compiled, setup_context style", SET_UP, traced, compiled=True),
        Want("compiled, a `jvp` written by hand", WITH_JVP, traced, compiled=True),
        Want("compiled for dynamic shapes", CUBE, resized, compiled=True),
        Want("compiled, a list of tensors as an argument", LIST, list_in, compiled=True),
        Want("compiled, a module as an argument", MODULE, module_in, compiled=True),
        Want("compiled, a dict of tensors as the result", DICT_OUT, dict_out, compiled=True),
        Want("compiled, a keyword-only tensor", KEYWORD_ONLY, keyword_only, compiled=True),
        Want("compiled, gradients returned by argument name", BY_NAME, returned_by_name, compiled=True),
        Want("torch.func.grad inside, Reweighted", REWEIGHTED, transform_whole, compiled=True),
        Want("torch.func.grad inside, without fullgraph, Reweighted", REWEIGHTED, transform, compiled=True),
        Want("torch.func.jvp inside, without fullgraph, Reweighted", REWEIGHTED, tangent, compiled=True),
        Want(
            "torch.func.grad of a function compiled without fullgraph, Reweighted",
            REWEIGHTED,
            transform_outside,
            compiled=True,
        ),
    ],
)
