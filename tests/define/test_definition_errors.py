"""F2: what can never work raises when the class is defined, with its code, at the author's own line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError
from tests.tracebacks import files, last_function


def triple(ctx: Any, x: Tensor) -> Tensor:
    """Compute 3 x."""
    return x * 3


def triple_backward(ctx: Any, g: Tensor) -> Tensor:
    """Differentiate 3 x."""
    return g * 3


def define(**body: Any) -> Any:
    """Define a Function named Triple with these attributes, functions made static, on top of a forward."""
    body.setdefault("forward", triple)
    made = {name: staticmethod(value) if callable(value) else value for name, value in body.items()}
    return type("Triple", (pullback.Function,), {"__module__": __name__, **made})


def plain(x: Tensor) -> Tensor:
    """Compute 3 x, in plain PyTorch."""
    return x * 3


def other(y: Tensor) -> Tensor:
    """Compute 3 y: not forward's parameter."""
    return y * 3


def by_keyword(*, x: Tensor) -> Tensor:
    """Compute 3 x, which no call by position can reach."""
    return x * 3


def more(x: Tensor, scale: float) -> Tensor:
    """Compute scale x: a parameter more than forward has."""
    return x * scale


def no_context(x: Tensor) -> Tensor:
    """Compute 3 x, as a forward beside setup_context."""
    return x * 3


def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save nothing."""


Define = Callable[[], Any]

FAULTS: dict[str, tuple[Define, str, list[str]]] = {
    "backward and vjp": (
        lambda: define(backward=triple_backward, vjp=triple_backward),
        "PB102",
        [
            "PB102 Triple defines both backward and vjp.",
            "  expected: one of them",
            "  got: backward of Triple and vjp of Triple",
            "  remedy: Keep one of them.",
        ],
    ),
    "double_backward alone": (
        lambda: define(double_backward=triple_backward),
        "PB103",
        [
            "PB103 Triple defines double_backward, and no backward.",
            "  expected: backward beside it",
            "  got: double_backward alone",
            "  remedy: Define backward, or remove double_backward.",
        ],
    ),
    "setup_context beside ctx": (
        lambda: define(setup_context=setup_context, backward=triple_backward),
        "PB104",
        [
            "PB104 Triple defines setup_context, and its forward takes ctx.",
            "  expected: forward(x) beside setup_context(ctx, inputs, output)",
            "  got: forward(ctx, x)",
            "  remedy: Drop ctx from forward, or drop setup_context and save in forward.",
        ],
    ),
    "another reference": (
        lambda: define(backward=triple_backward, reference=other),
        "PB105",
        [
            "PB105 Triple.reference doesn't take the parameters of forward.",
            "  expected: reference(x)",
            "  got: reference(y)",
            "  remedy: Give it forward's parameters (without ctx), in the same order and with the same names.",
        ],
    ),
    "another surrogate": (
        lambda: define(backward=triple_backward, surrogate=more),
        "PB105",
        [
            "PB105 Triple.surrogate doesn't take the parameters of forward.",
            "  expected: surrogate(x)",
            "  got: surrogate(x, scale)",
            "  remedy: Give it forward's parameters (without ctx), in the same order and with the same names.",
        ],
    ),
    "a lambda as reference": (
        lambda: define(backward=triple_backward, reference=lambda x, k: x * k),
        "PB105",
        ["  expected: reference(x)", "  got: reference(x, k)"],
    ),
    "a reference that takes ctx": (
        lambda: define(backward=triple_backward, reference=triple),
        "PB105",
        ["  expected: reference(x)", "  got: reference(ctx, x)"],
    ),
    "a reference by keyword": (
        lambda: define(backward=triple_backward, reference=by_keyword),
        "PB105",
        ["  expected: reference(x)", "  got: reference(*, x)"],
    ),
    "an unknown argument without gradient": (
        lambda: define(backward=triple_backward, nondiff_argnames=("x", "base")),
        "PB106",
        [
            "PB106 Triple: nondiff_argnames names 'base', which forward doesn't take.",
            "  expected: names among x",
            "  got: x, base",
            "  remedy: Name arguments of forward, or remove it.",
        ],
    ),
    "one bare unknown name": (
        lambda: define(backward=triple_backward, nondiff_argnames="base"),
        "PB106",
        ["PB106 Triple: nondiff_argnames names 'base', which forward doesn't take.", "  got: base"],
    ),
    "names that are no names": (
        lambda: define(backward=triple_backward, nondiff_argnames=(0,)),
        "PB106",
        [
            "PB106 Triple.nondiff_argnames is not a tuple of names.",
            '  expected: a tuple such as ("base",)',
            "  got: (0,)",
            "  remedy: Name arguments of forward.",
        ],
    ),
    "no tuple at all": (
        lambda: define(backward=triple_backward, nondiff_argnames=3),
        "PB106",
        ["PB106 Triple.nondiff_argnames is not a tuple of names.", "  got: 3"],
    ),
    "an oracle for a linear backward": (
        lambda: define(backward=triple_backward, expected_backward=lambda inputs, outputs, grads: grads),
        "PB106",
        [
            "PB106 Triple: expected_backward is given, and backward isn't declared nonlinear.",
            "  expected: nonlinear_backward = True beside it",
            "  got: expected_backward alone",
        ],
    ),
    "a surrogate of a nonlinear backward": (
        lambda: define(backward=triple_backward, surrogate=plain, nonlinear_backward=True),
        "PB106",
        [
            "PB106 Triple: surrogate says that backward is a derivative, nonlinear_backward that it isn't.",
            "  expected: one of them",
            "  got: both",
        ],
    ),
    "two ways to vmap": (
        lambda: define(backward=triple_backward, generate_vmap_rule=True, vmap=lambda info, in_dims, x: (x, 0)),
        "PB106",
        ["PB106 Triple: generate_vmap_rule asks PyTorch for a vmap, and vmap is written by hand."],
    ),
    "a flag that is a word": (
        lambda: define(backward=triple_backward, replayable="no"),
        "PB106",
        [
            "PB106 Triple.replayable is not a bool.",
            "  expected: True or False",
            "  got: 'no'",
            "  remedy: Write replayable = True or replayable = False.",
        ],
    ),
    "a flag that is a number": (
        lambda: define(backward=triple_backward, contiguous_grads=1),
        "PB106",
        ["PB106 Triple.contiguous_grads is not a bool.", "  got: 1"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_can_never_work_is_a_definition_error(name: str) -> None:
    """F2: the error has the rule's code, says class, expected, got and remedy, and is a TypeError."""
    make, code, lines = FAULTS[name]
    with pytest.raises(DefinitionError, match=code) as caught:
        make()
    assert caught.value.rule == code
    assert isinstance(caught.value, TypeError)
    shown = str(caught.value).splitlines()
    assert [line for line in lines if line not in shown] == []
    assert shown[-1].startswith("  remedy: ")


@pytest.mark.parametrize("name", FAULTS)
def test_the_traceback_ends_where_the_class_is_defined(name: str) -> None:
    """F2: no frame of pullback; the last one is the author's own."""
    with pytest.raises(DefinitionError) as caught:
        FAULTS[name][0]()
    assert {*files(caught.value)} == {__file__}
    assert last_function(caught.value) in ("define", "<lambda>")


@pytest.mark.parametrize(
    "method",
    "forward setup_context backward vjp jvp vmap double_backward reference surrogate expected_backward".split(),
)
def test_instance_style_methods(method: str) -> None:
    """F2: a method with self and ctx can't work, since nothing is ever bound to self."""

    def instance_style(self: Any, ctx: Any, *rest: Any) -> Any:
        return rest

    with pytest.raises(DefinitionError) as caught:
        type("Odd", (pullback.Function,), {method: instance_style})
    assert str(caught.value).splitlines() == [
        f"PB101 Odd.{method} takes self and ctx.",
        f"  expected: @staticmethod def {method}(ctx, …)",
        f"  got: def {method}(self, ctx, …)",
        "  remedy: Make it a @staticmethod and drop self: def forward(ctx, x).",
    ]


def test_a_class_statement_is_the_last_frame() -> None:
    """F2: for an ordinary class statement the traceback ends at that statement."""
    with pytest.raises(DefinitionError, match=r"PB101 Square\.forward takes self and ctx") as caught:

        class Square(pullback.Function):
            def forward(self, ctx: Any, x: Tensor) -> Tensor:
                return x * x

    assert {*files(caught.value)} == {__file__}
    assert last_function(caught.value) == "test_a_class_statement_is_the_last_frame"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_vjp_over_an_inherited_backward() -> None:
    """F2: a vjp beside a backward of the base says whose each of them is."""

    class Base(pullback.Function):
        forward = staticmethod(triple)
        backward = staticmethod(triple_backward)

    with pytest.raises(DefinitionError, match="got: backward of Base and vjp of Derived"):
        type("Derived", (Base,), {"vjp": staticmethod(triple_backward)})


def test_vjp_as_another_name_of_backward() -> None:
    """F2: one function under both names is refused too, as PyTorch refuses it when differentiated."""
    with pytest.raises(DefinitionError, match="PB102"):
        define(backward=triple_backward, vjp=triple_backward)
    refused = type("Triple", (torch.autograd.Function,), {"forward": staticmethod(triple)})
    refused.backward = refused.vjp = staticmethod(triple_backward)
    y = refused.apply(torch.ones(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        y.backward()


def test_inherited_setup_context_beside_ctx() -> None:
    """F2: a forward that takes ctx, under a base that has setup_context, is seen."""

    class Base(pullback.Function):
        forward = staticmethod(no_context)
        setup_context = staticmethod(setup_context)
        backward = staticmethod(triple_backward)

    with pytest.raises(DefinitionError, match="PB104 Derived defines setup_context, and its forward takes ctx"):
        type("Derived", (Base,), {"forward": staticmethod(triple)})


def test_inherited_reference_of_another_forward() -> None:
    """F2: a subclass that changes forward's parameters must change the reference too."""

    class Base(pullback.Function):
        forward = staticmethod(triple)
        backward = staticmethod(triple_backward)
        reference = staticmethod(plain)

    with pytest.raises(DefinitionError, match=r"PB105 Derived.reference .*\n  expected: reference\(x, k\)"):
        type("Derived", (Base,), {"forward": staticmethod(lambda ctx, x, k: x * k)})


def test_an_abstract_class_is_judged_when_it_is_completed() -> None:
    """F2: what depends on forward waits for the subclass that has one."""

    class Base(pullback.Function):
        double_backward = staticmethod(triple_backward)
        reference = staticmethod(other)
        nondiff_argnames = ("y",)

    with pytest.raises(DefinitionError, match="PB103"):
        type("Derived", (Base,), {"forward": staticmethod(triple)})
    with pytest.raises(DefinitionError, match="PB105"):
        type("Derived", (Base,), {"forward": staticmethod(triple), "backward": staticmethod(triple_backward)})
    whole = {"forward": staticmethod(lambda ctx, y: y * 3), "backward": staticmethod(triple_backward)}
    assert type("Derived", (Base,), whole).reference is other


def test_a_refused_class_leaves_nothing_behind() -> None:
    """F2: after the error the same name can be defined right, and works."""
    with pytest.raises(DefinitionError):
        define(backward=triple_backward, vjp=triple_backward)
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    define(backward=triple_backward).apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]
