"""F8: a saved intermediate can't hide: second derivatives are exact, or raise and name it, and never for nothing."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, assert_exact, penalty
from tests.transforms.situations import Situation, each_situation, outcome


def saved_intermediate(*, replayable_: bool = True) -> Any:
    """Make sinh with both exponentials saved, and not its argument."""

    class SavedIntermediate(pullback.Function):
        replayable = replayable_

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e, n = x.exp(), (-x).exp()
            ctx.save_for_backward(e, n)
            return (e - n) / 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            e, n = ctx.saved_tensors
            return g * (e + n) / 2

    return SavedIntermediate


def intermediate_on_ctx() -> Any:
    """Make (2x)² with 2x kept on ctx."""

    class IntermediateOnCtx(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.t = 2 * x
            return ctx.t**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 4 * ctx.t * g

    return IntermediateOnCtx


OUT_OF_REACH = ("inside_by_grad", "inside_by_backward", "penalty_on_the_inner", "other_paths_inside", "checkpointed")


@each_situation
def test_saved_intermediate(situation: Situation, draw: Draw) -> None:
    """F8: exact where the argument is a leaf; where nothing leads back to it, PB206."""
    found = outcome(situation, saved_intermediate(), torch.sinh, draw)
    inside = (*OUT_OF_REACH, "applied_twice")
    assert found == ("PB206" if situation.__name__ in inside else "exact")


@each_situation
def test_intermediate_on_ctx(situation: Situation, draw: Draw) -> None:
    """F8: the same for a tensor kept on ctx."""
    found = outcome(situation, intermediate_on_ctx(), lambda x: (2 * x) ** 2, draw)
    inside = (*OUT_OF_REACH, "applied_twice")
    assert found == ("PB206" if situation.__name__ in inside else "exact")


@each_situation
def test_without_a_replay(situation: Situation, draw: Draw) -> None:
    """F8: where forward may not run again, each of these situations raises."""
    assert outcome(situation, saved_intermediate(replayable_=False), torch.sinh, draw) == "PB206"


def test_the_error_names_tensor_class_and_remedy(draw: Draw) -> None:
    """F8: the text says which tensors of which class, why they can't be connected, and what to do."""
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError) as caught:
        torch.autograd.grad(penalty(saved_intermediate(replayable_=False).apply(x), x), x)
    assert str(caught.value).splitlines() == [
        "PB206 the gradient of x that SavedIntermediate.backward returns is being differentiated, and it depends on "
        "saved tensor 0, saved tensor 1, which forward computed and the graph doesn't know; replayable = False forbids "
        "running forward again.",
        "  expected: saved tensors that are arguments or outputs, or a forward that can be run again to connect them",
        "  got: saved tensor 0, saved tensor 1, cut off from the graph",
        "  remedy: " + caught.value.remedy,
    ]
    assert "constants=" in caught.value.remedy
    inner = draw.inner(3)
    with pytest.raises(
        HigherOrderError, match=r"depends on ctx.t, which forward computed .*; x was not saved"
    ) as caught:
        penalty(intermediate_on_ctx().apply(inner), inner)
    assert caught.value.remedy.startswith("Save x too")


def test_create_graph_alone_never_raises(draw: Draw) -> None:
    """F8: a gradient that is never differentiated is right, whatever it depends on."""
    x = draw.leaf(3)
    y = saved_intermediate(replayable_=False).apply(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), x.detach().cosh())


# -- Where on ctx ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kept:
    """A dataclass with a tensor in it."""

    t: Tensor


Named = collections.namedtuple("Named", "t")


@dataclasses.dataclass
class Holder:
    """An object with a method that needs its tensor."""

    t: Tensor

    def double(self, g: Tensor) -> Tensor:
        """Multiply by the tensor."""
        return 4 * self.t * g


PLACES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "list": (lambda t: [0, [t]], lambda kept: kept[1][0]),
    "tuple": (lambda t: (t, None), lambda kept: kept[0]),
    "named_tuple": (Named, lambda kept: kept.t),
    "dict": (lambda t: {"a": {"b": t}}, lambda kept: kept["a"]["b"]),
    "ordered_dict": (lambda t: collections.OrderedDict(t=t), lambda kept: kept["t"]),
    "set": (lambda t: {t}, lambda kept: next(iter(kept))),
    "dataclass": (Kept, lambda kept: kept.t),
    "namespace": (lambda t: types.SimpleNamespace(inner=[t]), lambda kept: kept.inner[0]),
    "closure": (lambda t: lambda: t, lambda kept: kept()),
    "default": (lambda t: lambda t=t: t, lambda kept: kept()),
    "partial": (lambda t: functools.partial(lambda a, t: t, 1, t=t), lambda kept: kept()),
    "method": (lambda t: Holder(t).double, lambda kept: kept(torch.ones((), dtype=torch.float64)) / 4),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_tensors_anywhere_on_ctx(place: Any, draw: Draw) -> None:
    """F8: a tensor on ctx is found and connected in containers, objects and closures too."""
    keep, look_up = place

    class Kept(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = keep(2 * x)
            return (2 * x) ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 4 * look_up(ctx.kept) * g

    for _ in range(2):
        assert_exact(Kept.apply, lambda x: (2 * x) ** 2, [draw.leaf(3)])
    x = draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on ctx\.kept"):
        penalty(Kept.apply(x), x)


@pytest.mark.parametrize("read", [float, lambda t: t.item(), lambda t: t.tolist(), lambda t: float(t.numpy())])
def test_python_numbers_read_from_a_tensor(read: Callable[[Tensor], float], draw: Draw) -> None:
    """F8: a number that forward reads from a tensor and keeps can't be connected: its derivative raises."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.total = read(x.sum())
            return x.sum() ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return (2 * ctx.total * g).expand_as(ctx.saved_tensors[0])

    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on ctx\.total.*a Python number has no place"):
        torch.autograd.grad(penalty(Scaled.apply(x), x), x)


def test_python_numbers_that_are_constants(draw: Draw) -> None:
    """F8: numbers on ctx are no cause of alarm where they are arguments or were read from nothing that varies."""

    class Clamp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, top: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.top, ctx.scale, ctx.count = top, 2.0, float((x > 0).sum())
            return (x * x * ctx.scale).clamp(max=top)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return torch.where(x * x * ctx.scale < ctx.top, 2 * ctx.scale * x * g, 0), None

    assert_exact(lambda x: Clamp.apply(x, 1.5), lambda x: (2 * x * x).clamp(max=1.5), [draw.leaf(9)])


# -- What forward computes where nothing sees it -----------------------------------------------------------------------


def numpy_into_zeros(x: Tensor) -> Tensor:
    """Write to a buffer behind PyTorch's back."""
    out = torch.zeros_like(x)
    np.exp(x.detach().numpy(), out=out.numpy())
    return out


HIDDEN: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "numpy": (lambda x: torch.from_numpy(np.exp(x.detach().numpy())), "PB206"),
    "numpy_into_zeros": (numpy_into_zeros, "PB206"),
    "list": (lambda x: torch.tensor(x.exp().tolist(), dtype=x.dtype), "PB206"),
    "detached": (lambda x: x.detach().exp(), "exact"),
    "data": (lambda x: x.data.exp(), "exact"),
    "no_grad": (torch.no_grad()(torch.exp), "exact"),
    "detached_in_part": (lambda x: x.exp() * x.norm() / x.detach().norm(), "exact"),
    "number_in_part": (lambda x: x.exp() * x.norm() / x.norm().item(), "PB206"),
    "number_looked_at": (lambda x: x.exp() * 0.5 * 2.0 if x.sum().item() > -9 else x, "exact"),
    "foreach": (lambda x: torch._foreach_exp([x])[0], "exact"),
    "in_place": (lambda x: torch.zeros_like(x).add_(x).exp_(), "exact"),
    "out": (lambda x: x.clone().exp_(), "exact"),
    "bits_looked_at": (lambda x: torch.where(x.view(torch.int64) != 0, x, x).exp(), "exact"),
    "copied_in_parts": (lambda x: torch.stack([x[i].exp() for i in range(len(x))]), "exact"),
}


@pytest.mark.parametrize("case", HIDDEN.values(), ids=HIDDEN)
def test_however_it_is_computed(case: tuple[Callable[[Tensor], Tensor], str], draw: Draw) -> None:
    """F8: an intermediate that autograd can't follow raises; one that it can follow is connected."""
    compute, expected = case

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = compute(x)
            ctx.save_for_backward(x, e)
            return e.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    leaf = draw.leaf(3)
    if expected == "exact":
        assert_exact(Exp.apply, torch.exp, [leaf])
        return
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on saved tensor 1"):
        torch.autograd.grad(penalty(Exp.apply(leaf), leaf), leaf)


ALIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "detached": lambda y: y.detach(),
    "view": lambda y: y.view(-1).view(y.shape),
    "data": lambda y: y.data,
}


@pytest.mark.parametrize("on_ctx", [False, True], ids=["saved", "on_ctx"])
@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_aliases_of_an_output(alias: Callable[[Tensor], Tensor], on_ctx: bool, draw: Draw) -> None:
    """F8: a detached output, kept so that no cycle is made, is the output."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            kept = alias(y)
            ctx.save_for_backward(*((x,) if on_ctx else (x, kept)))
            ctx.kept = kept if on_ctx else None
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * (ctx.saved_tensors[1] if ctx.kept is None else ctx.kept)

    assert_exact(Exp.apply, torch.exp, [draw.leaf(3)])
    assert_exact(lambda x: Exp.apply(x * 1.5), lambda x: (x * 1.5).exp(), [draw.leaf(3)])


def test_a_detached_argument(draw: Draw) -> None:
    """F8: a detached argument is the argument, where the graph leads to that."""

    class Cube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.detach())
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g

    assert_exact(Cube.apply, lambda x: x**3, [draw.leaf(3)], order=4)
    inner = draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on saved tensor 0.*x was not saved"):
        penalty(Cube.apply(inner), inner)


def test_one_tensor_kept_in_several_places(draw: Draw) -> None:
    """F8: an intermediate that is saved twice and kept on ctx too is connected in each place."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = x.exp()
            ctx.save_for_backward(x, e, e)
            ctx.kept = {1: e, "again": [e]}
            return e.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, one, two = ctx.saved_tensors
            return g * (one + two + ctx.kept[1] + ctx.kept["again"][0]) / 4

    assert_exact(Exp.apply, torch.exp, [draw.leaf(3)], order=4)
