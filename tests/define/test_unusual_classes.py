"""F2: what works in PyTorch, though unusual, works here: the same values and gradients, and no error."""

from __future__ import annotations

import abc
import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch import Tensor

import pullback
from tests.function.kinds import leaf

Make = Callable[[type], Any]
T = TypeVar("T")


class Square(pullback.Function):
    """x², at the top of a module, so that it can be pickled by name."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: pullback.Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


def square(ctx: Any, x: Tensor) -> Tensor:
    """Compute x², keeping x."""
    ctx.save_for_backward(x)
    return x * x


def square_backward(ctx: Any, g: Tensor) -> Tensor:
    """Differentiate x²."""
    (x,) = ctx.saved_tensors
    return 2 * x * g


def scaled(scale: float, ctx: Any, x: Tensor) -> Tensor:
    """Compute scale x², scale to be bound."""
    ctx.save_for_backward(x)
    return scale * x * x


def scaled_backward(scale: float, ctx: Any, g: Tensor) -> Tensor:
    """Differentiate scale x²."""
    return 2 * scale * ctx.saved_tensors[0] * g


@dataclass(frozen=True)
class Method:
    """An object that is called as a method of a Function is."""

    method: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Pass everything on."""
        return self.method(*arguments)


def without_staticmethod(base: type) -> Any:
    """Bare functions, as they are when the decorator is forgotten."""
    return type("Odd", (base,), {"forward": square, "backward": square_backward})


def with_classmethods(base: type) -> Any:
    """Class methods, ctx after the class."""

    class Odd(base):
        factor = 2

        @classmethod
        def forward(cls, ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return cls.factor * x * x

        @classmethod
        def backward(cls, ctx: Any, g: Tensor) -> Tensor:
            return 2 * cls.factor * ctx.saved_tensors[0] * g

    return Odd


def with_classmethods_that_say_self(base: type) -> Any:
    """Class methods whose first parameter has an unfitting name."""

    class Odd(base):
        @classmethod
        def forward(self, ctx: Any, x: Tensor) -> Tensor:
            return square(ctx, x)

        @classmethod
        def backward(self, ctx: Any, g: Tensor) -> Tensor:
            return square_backward(ctx, g)

    return Odd


def with_classmethods_and_setup_context(base: type) -> Any:
    """Class methods in the other style."""

    class Odd(base):
        @classmethod
        def forward(cls, x: Tensor) -> Tensor:
            return x * x

        @classmethod
        def setup_context(cls, ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @classmethod
        def backward(cls, ctx: Any, g: Tensor) -> Tensor:
            return square_backward(ctx, g)

    return Odd


def with_partials(base: type) -> Any:
    """functools.partial objects as static methods."""
    forward, backward = functools.partial(scaled, 3.0), functools.partial(scaled_backward, 3.0)
    return type("Odd", (base,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def with_callable_objects(base: type) -> Any:
    """Instances with __call__, not even wrapped in staticmethod."""
    return type("Odd", (base,), {"forward": Method(square), "backward": Method(square_backward)})


def with_lambdas(base: type) -> Any:
    """Lambdas for methods."""
    body = {"forward": staticmethod(lambda ctx, x: x * 3), "backward": staticmethod(lambda ctx, g: g * 3)}
    return type("Odd", (base,), body)


def with_everything_variadic(base: type) -> Any:
    """Methods that take all, ctx too, in one tuple."""

    class Odd(base):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            return square(*arguments)

        @staticmethod
        def backward(*arguments: Any) -> Tensor:
            return square_backward(*arguments)

    return Odd


def with_ctx_called_self(base: type) -> Any:
    """ctx under the name self, as in code of ten years ago."""

    class Odd(base):
        @staticmethod
        def forward(self: Any, x: Tensor) -> Tensor:
            self.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(self: Any, g: Tensor) -> Tensor:
            return 2 * self.saved_tensors[0] * g

    return Odd


def with_vjp(base: type) -> Any:
    """backward under its other name."""
    return type("Odd", (base,), {"forward": staticmethod(square), "vjp": staticmethod(square_backward)})


def with_decorated_methods(base: type) -> Any:
    """Methods behind a decorator that keeps the signature by functools.wraps."""

    def traced(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def inner(*arguments: Any) -> Any:
            return method(*arguments)

        return staticmethod(inner)

    return type("Odd", (base,), {"forward": traced(square), "backward": traced(square_backward)})


def with_data_beside(base: type) -> Any:
    """Annotations, constants, properties and nested classes, which are the author's own business."""

    class Odd(base):
        factor: float = 3.0
        names: tuple[str, ...] = ("x",)

        class Options:
            factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * Odd.factor * Odd.Options.factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * Odd.factor * Odd.Options.factor

    return Odd


def inherited_backward(base: type) -> Any:
    """An abstract base with backward alone."""
    abstract = type("Abstract", (base,), {"backward": staticmethod(square_backward)})
    return type("Odd", (abstract,), {"forward": staticmethod(square)})


def backward_from_a_mixin(base: type) -> Any:
    """backward from a class that is no Function."""
    mixin = type("Mixin", (), {"backward": staticmethod(square_backward)})
    return type("Odd", (mixin, base), {"forward": staticmethod(square)})


def overridden_backward(base: type) -> Any:
    """A subclass that changes backward alone."""
    whole = type("Whole", (base,), {"forward": staticmethod(square), "backward": staticmethod(square_backward)})
    return type("Odd", (whole,), {"backward": staticmethod(lambda ctx, g: ctx.saved_tensors[0] * g)})


def overridden_forward(base: type) -> Any:
    """A subclass that changes forward alone."""
    whole = type("Whole", (base,), {"forward": staticmethod(square), "backward": staticmethod(square_backward)})

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(2 * x)
        return 2 * x * x

    return type("Odd", (whole,), {"forward": staticmethod(forward)})


def super_calls(base: type) -> Any:
    """A subclass that calls what it overrides."""
    whole: Any = type("Whole", (base,), {"forward": staticmethod(square), "backward": staticmethod(square_backward)})

    class Odd(whole):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * whole.forward(ctx, x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * whole.backward(ctx, g)

    return Odd


def generic(base: type) -> Any:
    """A class with a type parameter."""

    class Odd(base, Generic[T]):
        forward = staticmethod(square)
        backward = staticmethod(square_backward)

    return Odd[int]


KINDS: list[Make] = [
    without_staticmethod,
    with_classmethods,
    with_classmethods_that_say_self,
    with_classmethods_and_setup_context,
    with_partials,
    with_callable_objects,
    with_lambdas,
    with_everything_variadic,
    with_ctx_called_self,
    with_vjp,
    with_decorated_methods,
    with_data_beside,
    inherited_backward,
    backward_from_a_mixin,
    overridden_backward,
    overridden_forward,
    super_calls,
    generic,
]


def observe(function: Any) -> list[list[float]]:
    """Return value and gradient of three calls, since the first of a class runs apart."""
    seen = []
    for seed in range(3):
        x = leaf(3, seed=seed)
        y = function.apply(x)
        (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 0.5))
        seen += [y.tolist(), gradient.tolist()]
    return seen


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_unusual_classes_work(make: Make) -> None:
    """F2: the same values and gradients as on torch's class."""
    assert observe(make(pullback.Function)) == observe(make(torch.autograd.Function))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_their_gradients_are_the_same_when_they_are_to_be_differentiated(make: Make) -> None:
    """F2: with create_graph the first gradient is the author's too."""
    x = leaf(3)
    expected = torch.autograd.grad(make(torch.autograd.Function).apply(x).sum(), x)[0]
    (got,) = torch.autograd.grad(make(pullback.Function).apply(x).sum(), x, create_graph=True)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "companion",
    [
        torch.sin,
        lambda x: x.sin(),
        functools.partial(torch.mul, 3),
        functools.partial(lambda x, *, scale: x * scale, scale=3),
        torch.nn.Linear(3, 3),
        lambda *arguments: arguments[0],
        lambda x, **options: x,
        lambda x, /: x,
    ],
    ids=["builtin", "lambda", "partial of a builtin", "partial", "module", "variadic", "options", "by position"],
)
def test_companions_that_take_forwards_arguments(companion: Any) -> None:
    """F2: a reference or surrogate that forward's arguments fit is accepted, whatever kind of callable it is."""
    for name in ("reference", "surrogate"):
        body = {"forward": staticmethod(square), "backward": staticmethod(square_backward)}
        made: Any = type("Sine", (pullback.Function,), {**body, name: staticmethod(companion)})
        x = leaf(3)
        (gradient,) = torch.autograd.grad(made.apply(x).sum(), x)
        assert torch.equal(gradient, 2 * x)


def test_declarations_that_do_not_contradict() -> None:
    """F2: each declaration by itself, an empty one, one bare name, and names for a variadic forward are accepted."""
    for declared in (
        {"nondiff_argnames": ()},
        {"nondiff_argnames": "x"},
        {"nondiff_argnames": ["x"]},
        {"nonlinear_backward": True},
        {"nonlinear_backward": True, "expected_backward": staticmethod(lambda inputs, outputs, grads: grads)},
        {"replayable": False},
        {"reference": None, "surrogate": None, "double_backward": None, "samples": None},
    ):
        made = type("Quiet", (pullback.Function,), {"forward": staticmethod(square), **declared})
        assert issubclass(made, torch.autograd.Function)
    variadic = {"forward": staticmethod(lambda ctx, *xs: xs[0]), "nondiff_argnames": ("xs[1]",)}
    assert issubclass(type("Variadic", (pullback.Function,), variadic), torch.autograd.Function)


def test_a_metaclass_conflict_is_pythons_own() -> None:
    """F2: abc.ABC beside a Function is refused by Python, as it is beside torch's."""
    for base in (torch.autograd.Function, pullback.Function):
        with pytest.raises(TypeError, match="metaclass conflict"):
            type("Abstract", (base, abc.ABC), {})


def test_class_keywords_are_refused_as_by_torch() -> None:
    """F2: nobody takes a class keyword, on torch's class or on pullback's."""
    for base in (torch.autograd.Function, pullback.Function):
        with pytest.raises(TypeError, match="takes no keyword arguments"):
            type("Keyed", (base,), {}, keyed=True)


def test_an_authors_own_init_subclass_runs() -> None:
    """F2: a base that registers its subclasses works, and they are judged all the same."""
    registered = []

    class Base(pullback.Function):
        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            registered.append(cls.__name__)

    type("One", (Base,), {"forward": staticmethod(square)})
    with pytest.raises(pullback.errors.DefinitionError, match="PB102"):
        type("Two", (Base,), {"backward": staticmethod(square_backward), "vjp": staticmethod(square_backward)})
    assert registered == ["One"]


@pytest.mark.parametrize("warm", [False, True], ids=["at once", "after a call"])
def test_classes_are_copied_and_pickled_by_name(warm: bool) -> None:
    """F2: as for any class, copying and pickling give the class itself, before and after its first call."""
    if warm:
        Square.apply(leaf(3)).sum().backward()
    assert copy.copy(Square) is Square
    assert copy.deepcopy(Square) is Square
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Square, protocol)) is Square
    assert pickle.loads(pickle.dumps({"f": Square.apply}))["f"].__self__ is Square


def test_methods_changed_after_the_definition() -> None:
    """F2: a method that is replaced after the first call is the one that runs, with create_graph too."""
    made: Any = type("Patched", (pullback.Function,), {"forward": staticmethod(square)})
    made.apply(leaf(3))
    made.backward = staticmethod(square_backward)
    x = leaf(3)
    assert torch.equal(torch.autograd.grad(made.apply(x).sum(), x)[0], 2 * x)
    made.backward = staticmethod(lambda ctx, g: 7 * ctx.saved_tensors[0] * g)
    for create_graph in (False, True):
        (gradient,) = torch.autograd.grad(made.apply(x).sum(), x, create_graph=create_graph)
        assert torch.equal(gradient, 7 * x)
    made.forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(x), x * 3)[1])
    assert torch.equal(made.apply(x), x * 3)


def test_methods_changed_on_a_base() -> None:
    """F2: what is replaced on a base class is replaced for a subclass that was applied before."""
    base: Any = type("Base", (pullback.Function,), {"forward": staticmethod(square)})
    base.backward = staticmethod(square_backward)
    derived: Any = type("Derived", (base,), {})
    derived.apply(leaf(3)).sum().backward()
    base.backward = staticmethod(lambda ctx, g: 7 * ctx.saved_tensors[0] * g)
    x = leaf(3)
    assert torch.equal(torch.autograd.grad(derived.apply(x).sum(), x)[0], 7 * x)


def test_a_base_and_its_subclass_each_run_their_own_methods() -> None:
    """F2: a subclass defined after its base was applied doesn't inherit the base's way to run."""
    base: Any = type("Base", (pullback.Function,), {"forward": staticmethod(square)})
    base.apply(leaf(3))
    derived: Any = type("Derived", (base,), {"forward": staticmethod(lambda ctx, x: x * 7)})
    x = leaf(3)
    assert torch.equal(derived.apply(x), x * 7)
    assert torch.equal(base.apply(x), x * x)
