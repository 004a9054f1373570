"""F12, F15: nothing of a call outlives its transforms: seen with the garbage collector off."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import TransformError
from tests.transforms.func.levels import NESTED, ONCE, under


class Cube(pullback.Function):
    """Saves its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The cube."""
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        return g * 3 * ctx.saved_tensors[0] ** 2


class Intermediate(pullback.Function):
    """Saves an intermediate, on ctx too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The product of x and its exponential."""
        exp = x.exp()
        ctx.save_for_backward(x, exp)
        ctx.kept = [exp]
        return x * exp

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        x, exp = ctx.saved_tensors
        return g * (exp + x * ctx.kept[0])


class InPlace(pullback.Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Double it in place."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        return 2 * g


class ByJvp(Cube):
    """With a jvp of its own."""

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        """Read what was saved for it."""
        return t * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The cube."""
        ctx.save_for_forward(x)
        ctx.save_for_backward(x)
        return x**3


@pytest.fixture
def _collector_off() -> Iterator[None]:
    """Collect what earlier tests have left, and nothing during this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def taken(function: Any, composition: str) -> list[weakref.ref[Tensor]]:
    """Run a composition, and return weak references to argument, inner argument, output and result."""
    x = torch.linspace(0.4, 1.2, 3, dtype=torch.float64)
    references = [weakref.ref(x)]

    def watched(x: Tensor) -> Tensor:
        inner = x.sin()
        references.append(weakref.ref(inner))
        output = function.apply(inner)
        references.append(weakref.ref(output))
        return output * 1

    with contextlib.suppress(TransformError):  # in place under vmap
        references.append(weakref.ref(under(composition, watched)(x)))
    return references


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("function", [Cube, Intermediate, InPlace, ByJvp], ids=lambda function: function.__name__)
def test_nothing_outlives_its_transforms(function: Any) -> None:
    """Arguments, outputs and results die with the last reference, in all compositions and where one is refused."""
    leaking = []
    for composition in (*ONCE, *NESTED):
        for _ in range(2):  # what is loaded at the first time may stay
            references = taken(function, composition)
        assert references
        alive = [place for place, reference in enumerate(references) if reference() is not None]
        if alive:
            leaking.append(f"{composition}: {alive}")
    assert not leaking


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("function", [Cube, Intermediate, InPlace], ids=lambda function: function.__name__)
def test_nothing_outlives_an_unused_pullback(function: Any) -> None:
    """What torch.func.vjp returns, and is never called, dies with its graph."""
    x = torch.linspace(0.4, 1.2, 3, dtype=torch.float64)
    inner: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        given = x * 1
        inner.append(weakref.ref(given))
        return function.apply(given)

    for _ in range(2):
        output, pull = torch.func.vjp(watched, x)
        inner.append(weakref.ref(output))
        del output, pull
    assert [place for place, reference in enumerate(inner) if reference() is not None] == []


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("level", ["grad", "jvp", "vmap"])
def test_nothing_outlives_an_error(level: str) -> None:
    """An exception of the author's, when it has been handled, keeps nothing alive."""

    class Fails(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            raise ValueError("inside")

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    def refused() -> weakref.ref[Tensor]:
        x = torch.linspace(0.4, 1.2, 3, dtype=torch.float64)
        with pytest.raises(ValueError, match="inside"):
            under(level, Fails.apply)(x)
        return weakref.ref(x)

    reference = refused()
    assert reference() is None
