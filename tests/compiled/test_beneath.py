"""F13: what torch.compile itself gets wrong is as the document says, with pullback and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch.autograd import Function as TorchFunction

import pullback
from tests.compiled.running import fully
from tests.surroundings.beneath import each_base, leaf, still, tenfold

BUILT_IN = frozenset({int, float})


def refused(run: Callable[[], Any], text: str, error: type[Exception] = Unsupported) -> bool:
    """Tell whether `run` raises an error with this text."""
    try:
        run()
    except error as raised:
        return text in str(raised)
    return False


def triple(base: Any, *, returned: bool) -> Any:
    """Make three times its argument, in place; what is returned is the argument, or what the write gave."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            y = x.mul_(3)
            return x if returned else y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Triple


@each_base
def test_write_to_an_argument_of_the_region(base: Any) -> None:
    """The gradient lacks the operation's factor; a tensor made in the region has the right one, 3."""
    function, gradients = triple(base, returned=True), []
    for program in (lambda h: function.apply(h), lambda h: function.apply(h * 1)):
        x = leaf()
        y = fully(program)(x * 1)
        gradients.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(gradients[1], torch.full_like(gradients[1], 3))
    still("compiled: `mark_dirty` on an argument of the region", torch.equal(gradients[0], torch.ones(3).double()))


@each_base
def test_returning_the_write_itself(base: Any) -> None:
    """Dynamo knows the argument again only under its own name."""
    function = triple(base, returned=False)
    compiled = fully(lambda x: function.apply(x * 1))
    still("compiled: `return x.mul_(3)`", refused(lambda: compiled(leaf()), "mark_dirty input not returned"))


@each_base
def test_sole_output_that_has_no_gradient(base: Any) -> None:
    """An assertion inside of Dynamo fails."""

    class Rounded(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.round()
            ctx.mark_non_differentiable(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

    compiled = fully(lambda x: Rounded.apply(x) * x)
    failed = refused(lambda: compiled(leaf()), "Expected fwd_out to be", AssertionError)
    still("compiled: `mark_non_differentiable` on the only output", failed)


@each_base
def test_gradients_that_are_not_materialised(base: Any) -> None:
    """Compiled code hands backward zeros where eager code hands it None."""

    class Both(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor | None) -> Tensor:
            return g * 2 if h is None else g * 3

    def program(x: Tensor) -> Any:
        return Both.apply(x)

    factors = []
    for run in (program, fully(program)):
        x = leaf()
        factors.append(torch.autograd.grad(run(x)[0].sum(), x)[0][0].item())
    still("compiled: `set_materialize_grads(False)`", factors == [2, 3])


def test_same_tensor_twice() -> None:
    """An assertion inside of Dynamo fails; of pullback's class PB515 says so beforehand."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
            return 2 * (g + h)

    compiled = fully(lambda x: Twice.apply(x)[0])
    failed = refused(lambda: compiled(leaf()), "Placeholder node not found", AssertionError)
    still("compiled: the same tensor returned twice", failed)
    adopted = pullback.adopt(Twice)
    with pytest.raises(Exception, match=r"PB515"):
        fully(lambda x: adopted.apply(x)[0])(leaf())


def test_leaves_and_nodes_are_not_guarded() -> None:
    """What was compiled for a leaf runs for any other tensor, too."""

    def program(x: Tensor) -> Tensor:
        return x * (2 if x.is_leaf else 3) * (5 if x.grad_fn is None else 7)

    x = leaf()
    compiled = fully(program, "eager")
    first, second = compiled(x), compiled(x * 1)
    assert torch.equal(first, x * 10)
    still("compiled: `x.is_leaf`, `x.grad_fn`", torch.equal(second, x * 10))


def test_transforms_follow_forward() -> None:
    """torch.func.grad and torch.func.jvp of PyTorch's class, compiled, are forward's own derivatives."""

    class Both(tenfold(TorchFunction)):
        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 10 * t * x.cos()

    def grad(x: Tensor) -> Any:
        return torch.func.grad(lambda y: Both.apply(y).sum())(x)

    def jvp(x: Tensor) -> Any:
        return torch.func.jvp(Both.apply, (x,), (torch.ones_like(x),))[1]

    x = leaf().detach()
    programs = {
        "compiled: torch.func.grad inside of the region": grad,
        "compiled: torch.func.jvp inside of the region": jvp,
    }
    for about, program in programs.items():
        torch.testing.assert_close(program(x), 10 * x.cos())
        still(about, torch.allclose(fully(program)(x), x.cos()))


def test_breaks_within_a_transform() -> None:
    """The backend "eager" goes on compiling after a break within torch.func.grad, and fails; others don't."""

    def broken(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.sin().sum()

    def program(x: Tensor) -> Any:
        return torch.func.grad(lambda y: broken(y.exp()).cos())(x)

    x = leaf().detach()
    torch.testing.assert_close(torch.compile(program, backend="aot_eager")(x), program(x))
    torch._dynamo.reset()
    failed = refused(lambda: torch.compile(program, backend="eager")(x), "False != True", AssertionError)
    still('compiled: a graph break within torch.func.grad, backend="eager"', failed)


def test_classes_in_frozen_sets() -> None:
    """The class of a number isn't found in a frozenset of types; its type is."""

    def by_class(k: Any, x: Tensor) -> Tensor:
        return x * 2 if k.__class__ in BUILT_IN else x * 3

    def by_type(k: Any, x: Tensor) -> Tensor:
        return x * 2 if type(k) in BUILT_IN else x * 3

    x = leaf()
    assert torch.equal(fully(by_type, "eager")(1, x), x * 2)
    still("compiled: `k.__class__ in frozenset({int, float})`", torch.equal(fully(by_class, "eager")(1, x), x * 3))


@each_base
def test_gradients_within_backward(base: Any) -> None:
    """A backward that calls torch.autograd.grad isn't compiled in one piece, and is right in several."""

    class Inner(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                z = x.detach().requires_grad_()
                return torch.autograd.grad(z.sin(), z, g)[0]

    x = leaf()
    y = torch.compile(lambda x: Inner.apply(x), backend="aot_eager")(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.cos())
    compiled = fully(lambda x: Inner.apply(x))
    still(
        "compiled: torch.autograd.grad within backward", refused(lambda: compiled(leaf()), "trace_autograd_ops=False")
    )


@each_base
def test_second_derivatives_of_compiled_code(base: Any) -> None:
    """Compiled code can be differentiated once."""
    function, x = tenfold(base), leaf()
    y = fully(lambda x: function.apply(x))(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    failed = refused(lambda: torch.autograd.grad(gradient.sum(), x), "double backward", RuntimeError)
    still("compiled: a second derivative through the region", failed)


@each_base
def test_second_derivatives_that_count_as_unused(base: Any) -> None:
    """What no saved tensor leads to has no second derivative in silence, from torch.autograd.grad."""
    function, x, weight = tenfold(base), leaf(), leaf().detach().expand(3, 3)
    y = fully(lambda x: function.apply(x @ weight))(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    title = "compiled: a second derivative through the region"
    if not gradient.requires_grad:  # said, not silent
        still(title, False)
    alone = torch.autograd.grad(gradient.sum(), x, allow_unused=True)
    (beside,) = torch.autograd.grad(gradient.sum() + x.sum(), x)
    still(title, alone == (None,) and torch.equal(beside, torch.ones_like(x)))
