"""The probe `generators`: a call sets no global generator of random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.probes import generators
from pullback.finding import Status
from pullback.rules import Severity
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe

Do = Callable[[], object]


def doubled(in_forward: Do, in_backward: Do) -> Any:
    """The Function 2x, which does something besides."""

    class Doubled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            in_forward()
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            in_backward()
            return 2 * g

    return Doubled


def nothing() -> None:
    """Do nothing."""


def at_home() -> None:
    """Draw numbers of a fixed seed, and leave the generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.rand(3)


SEEDS: dict[str, Do] = {
    "torch": lambda: torch.manual_seed(0),
    "random": lambda: random.seed(0),
    "numpy.random": lambda: numpy.random.seed(0),
}


@pytest.mark.parametrize("method", ["forward", "backward"])
@pytest.mark.parametrize("name", SEEDS)
def test_a_call_that_seeds_a_generator_is_found(name: str, method: str) -> None:
    """PB522 names the method and the generator, whichever it is, and its lines fail by themselves."""
    seeds = (SEEDS[name], nothing) if method == "forward" else (nothing, SEEDS[name])
    made = doubled(*seeds)
    _, (finding,) = run_probe(generators.PROBE, made, (leaf(3),))
    assert finding.rule == "PB522"
    assert finding.message.startswith(f"after {method} the generator of {name} is in the same state")
    assert shows_the_fault(finding, Doubled=made)


def test_a_state_of_forward_that_backward_puts_into_place_is_found() -> None:
    """As one is that runs forward again for the same numbers, and forgets the program's own."""

    class Again(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.before = torch.get_rng_state()
            return x * torch.rand(())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            torch.set_rng_state(ctx.before)
            return g * torch.rand(())

    _, (finding,) = run_probe(generators.PROBE, Again, (leaf(3),))
    assert finding.message.startswith("after backward the generator of torch")


@pytest.mark.parametrize("do", [nothing, at_home, lambda: torch.rand(2), random.random, lambda: numpy.random.rand()])
def test_one_that_draws_or_puts_back_passes(do: Do) -> None:
    """Drawing in forward goes on from where the generator was, and a fork leaves it there, in backward as well."""
    outcome, findings = run_probe(
        generators.PROBE, doubled(do, do if do in (nothing, at_home) else nothing), (leaf(3),)
    )
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_one_whose_outputs_have_no_gradient_passes() -> None:
    """There is no backward, which is no reason to take the generator for seeded."""

    class Rounded(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.round()
            ctx.mark_non_differentiable(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.zeros_like(g)

    _, findings = run_probe(generators.PROBE, Rounded, (leaf(3),))
    assert findings == ()


@pytest.mark.parametrize(
    ("do", "generator"), [(lambda: torch.rand(2), "torch"), (lambda: random.random() or None, "random")]
)
def test_a_backward_that_draws_for_nothing_is_found(do: Do, generator: str) -> None:
    """PB522 as a warning: what the program draws after it is another, and no gradient needs it."""
    made = doubled(nothing, do)
    _, (finding,) = run_probe(generators.PROBE, made, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB522", Severity.WARNING)
    assert finding.message == (
        f"backward draws random numbers from {generator}, and no gradient depends on them: whatever is drawn after it "
        "is another"
    )
    assert generator != "torch" or shows_the_fault(finding, Doubled=made)


def test_a_backward_that_needs_its_draws_is_left_alone() -> None:
    """As stochastic rounding does."""

    class Needs(doubled(nothing, nothing)):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * torch.rand_like(g).round()

    assert run_probe(generators.PROBE, Needs, (leaf(3),))[1] == ()


def test_a_forward_that_draws_and_puts_the_generator_back_is_found() -> None:
    """The next call has the same mask: PB522."""
    made = doubled(nothing, nothing)

    class PutBack(made):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                return 2 * x + torch.rand(())

    _, (finding,) = run_probe(generators.PROBE, PutBack, (leaf(3),))
    assert finding.rule == "PB522"
    assert "puts the generator back" in finding.message
    assert shows_the_fault(finding, PutBack=PutBack)


def test_a_forward_that_draws_by_the_seed_of_the_program_passes() -> None:
    """A table that is drawn once and for all, by a generator of its own with the program's seed, is meant to repeat."""
    made = doubled(nothing, nothing)

    class Table(made):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            own = torch.Generator().manual_seed(torch.initial_seed())
            return 2 * x + torch.rand((), generator=own)

    outcome, _ = run_probe(generators.PROBE, Table, (leaf(3),))
    assert outcome.status is Status.PASSED
