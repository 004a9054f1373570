"""The transforms as maps from a function of one tensor to another, so that any goes on top of any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback.errors import PullbackError

Map = Callable[[Tensor], Tensor]
Level = Callable[[Map], Map]


def weights(like: Tensor) -> Tensor:
    """Numbers from 0.5 to 1.5, no two alike."""
    return torch.linspace(0.5, 1.5, like.numel(), dtype=torch.float64).reshape(like.shape)


def score(output: Tensor) -> Tensor:
    """A number that depends on each element, in a way that isn't linear."""
    return (output * weights(output)).sin().sum()


def grad(function: Map) -> Map:
    """The gradient of a score."""
    return torch.func.grad(lambda x: score(function(x)))


def vjp(function: Map) -> Map:
    """The pullback of a cotangent that varies with the output."""

    def call(x: Tensor) -> Tensor:
        output, pull = torch.func.vjp(function, x)
        found: Tensor = pull(output.cos())[0]
        return found

    return call


def jvp(function: Map) -> Map:
    """The output and the push of a tangent that varies with the argument, as one tensor."""
    return lambda x: torch.stack(torch.func.jvp(function, (x,), (weights(x) * x.cos(),)))


def vmap(function: Map) -> Map:
    """The outputs of a batch of two."""
    return lambda x: torch.func.vmap(function, randomness="different")(torch.stack([x, 0.9 * x]))


def dual(function: Map) -> Map:
    """The output and its tangent, by dual numbers outside of torch.func."""

    def call(x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            primal, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x.clone(), weights(x) * x.cos())))
            return torch.stack([primal, torch.zeros_like(primal) if tangent is None else tangent])

    return call


def backward(function: Map) -> Map:
    """The gradient of a score by plain autograd."""

    def call(x: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(score(function(leaf)), leaf)
        return found

    return call


INSIDE: dict[str, Level] = {
    "grad": grad,
    "vjp": vjp,
    "jvp": jvp,
    "jacrev": torch.func.jacrev,
    "jacfwd": lambda function: torch.func.jacfwd(function, randomness="same"),
    "vmap": vmap,
}
LEVELS: dict[str, Level] = {**INSIDE, "dual": dual, "backward": backward}

ONCE = (*LEVELS, "vmap of grad", "grad of vmap", "vmap of jvp", "jvp of vmap", "backward of vmap", "dual of vmap")
"""Compositions that take one derivative at most."""

NOT_IN_PYTORCH = frozenset({"dual of jvp", "dual of jacfwd"})
"""PyTorch itself refuses dual numbers around another forward mode."""

TWICE = tuple(
    name
    for outer, inner in product(LEVELS, INSIDE)
    if "vmap" not in (outer, inner) and (name := f"{outer} of {inner}") not in NOT_IN_PYTORCH
)
"""All that take two."""

NESTED = (*TWICE, "vmap of grad of grad", "vmap of jvp of grad", "grad of vmap of grad", "jvp of vmap of jvp")
"""These, and some with batches between."""


def under(composition: str, function: Map) -> Map:
    """The function under all levels of a composition, the outermost first: ``jvp of grad``."""
    for name in reversed(composition.split(" of ")):
        function = LEVELS[name](function)
    return function


def assert_as_plain(function: Map, plain: Map, x: Tensor, compositions: Iterable[str] = (*ONCE, *NESTED)) -> None:
    """Require under each composition the numbers that plain PyTorch has there, and name each that differs."""
    failures = []
    for composition in compositions:
        expected = under(composition, plain)(x)
        try:
            torch.testing.assert_close(under(composition, function)(x), expected, rtol=1e-9, atol=1e-11)
        except (AssertionError, RuntimeError) as error:
            failures.append(f"{composition}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


def assert_refused(
    function: Map, x: Tensor, rule: str, says: Iterable[str], compositions: Iterable[str], kind: type[PullbackError]
) -> None:
    """Require under each composition the error of a rule, with a remedy, whose text has all of `says`."""
    for composition in compositions:
        with pytest.raises(kind) as caught:
            under(composition, function)(x)
        text = str(caught.value)
        assert caught.value.rule == rule, f"{composition}: {text}"
        assert caught.value.remedy in text
        assert caught.value.remedy
        for part in says:
            assert part in text, f"{composition}: {text}"
