"""A gradient that is wrong in a way that may be meant gets one finding, which says how to declare it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.probes import first_order
from pullback.finding import Finding
from tests.battery.running import rules, run_probe

Change = Callable[[Tensor, Tensor], Tensor]


def product(change: Change) -> Any:
    """x times w, whose gradients something is done to."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return change(w * g, x), change(x * g, w)

    return Product


def arguments() -> tuple[Tensor, Tensor]:
    """Numbers on both sides of 1."""
    x, w = (torch.linspace(low, 2.0, 20, dtype=torch.float64) for low in (0.1, 0.2))
    return x.requires_grad_(), w.requires_grad_()


def findings(function: Any, **options: Any) -> tuple[Finding, ...]:
    """What first_order finds."""
    return run_probe(first_order.PROBE, function, arguments(), **options)[1]


@pytest.mark.parametrize(
    ("change", "noun", "surrogate"),
    [
        (lambda g, x: -g, "reversal", "-<forward's formula>"),
        (lambda g, x: 3 * g, "scaling", "3 * <forward's formula>"),
        (lambda g, x: g * (x <= 1), "mask", "<forward's formula, of a clamped argument>"),
    ],
)
def test_one_finding_says_how_to_declare_it(change: Change, noun: str, surrogate: str) -> None:
    """For all arguments together: what to mend, and the line to write if it is meant."""
    (finding,) = findings(product(change))
    assert finding.rule == "PB203"
    assert finding.message.endswith("; the same holds for w")
    assert finding.where == "arguments x and w, sample 0"
    assert finding.evidence["arguments"] == ["x", "w"]
    assert f"if the {noun} is meant" in finding.remedy
    assert finding.remedy.endswith(f"@staticmethod def surrogate(x, w): return {surrogate}.")


def test_what_the_remedy_says_settles_it() -> None:
    """With the surrogate declared, nothing is found."""
    Reversed = product(lambda g, x: -g)
    Reversed.surrogate = staticmethod(lambda x, w: -(x * w))
    assert findings(Reversed) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda g, x: g + 1,
        lambda g, x: torch.cat([g[:-1], g[-1:] * 0]),
        lambda g, x: g.flip(0),
    ],
)
def test_what_nobody_means_keeps_its_remedy(change: Change) -> None:
    """An offset, an element that a kernel forgot, a wrong order."""
    found = findings(product(change))
    assert rules(found) == ["PB203", "PB203"]
    assert not any("surrogate(" in finding.remedy for finding in found)


def test_one_reversed_gradient_of_two_is_no_reversal() -> None:
    """No function has both derivatives, so there is nothing to declare."""

    class HalfReversed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return -w * g, x * g

    (finding,) = findings(HalfReversed)
    assert finding.evidence["argument"] == "x"
    assert "surrogate(" not in finding.remedy


def test_a_factor_against_a_declared_surrogate_is_a_fault() -> None:
    """What was declared is what counts."""
    found = findings(product(lambda g, x: 3 * g), surrogate=lambda x, w: 2 * x * w)
    assert rules(found) == ["PB203", "PB203"]
    assert all("one of the two is wrong" in finding.remedy for finding in found)
