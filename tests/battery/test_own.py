"""Two results of one program in low precision: sums in another order pass, and what is wrong in one setting doesn't."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.check import make_subject
from pullback.battery.own import Own
from pullback.battery.probes import batching, forward_mode, layouts, linearity, subsets
from tests.battery.approximate import BF16, F16, F32, any_order, draw, in_chunks, one_by_one
from tests.battery.running import rules, run_probe

LOW = [F32, F16, BF16]
Sum = Callable[[Tensor], Tensor]
"""A sum over the last dimension."""


def plain(terms: Tensor) -> Tensor:
    """Accumulated in float32, as kernels do, and rounded once."""
    return terms.float().sum(-1).to(terms.dtype)


def backwards(terms: Tensor) -> Tensor:
    """The same sum from its end, in float32."""
    return one_by_one(terms.float().flip(-1)).to(terms.dtype)


def by_chance(terms: Tensor) -> Tensor:
    """The same sum in an order that is another one at each call, as atomics add."""
    return any_order(terms.float()).to(terms.dtype)


def too_large(terms: Tensor) -> Tensor:
    """Wrong by an eighth."""
    return plain(terms) * 1.125


def by_parts(terms: Tensor) -> Tensor:
    """The same sum by parts, each rounded to the dtype before they are added."""
    return in_chunks(terms, terms.dtype).to(terms.dtype)


RIGHT = [backwards, by_chance, by_parts]


def kernel(low: torch.dtype, usual: Sum, other: Sum, when: Callable[[Any, Tensor], bool]) -> Any:
    """x plus a bias, in one dtype alone; the bias's gradient is another sum where `when` says so."""

    class Bias(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
            if x.dtype is not low:
                raise TypeError(f"{low} only")
            return x + bias

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            add = other if when(ctx, g) else usual
            return g.clone(), add(g.mT)

    return Bias


def strided(ctx: Any, g: Tensor) -> bool:
    """Whether the gradient isn't contiguous."""
    return not g.is_contiguous()


def alone(ctx: Any, g: Tensor) -> bool:
    """Whether the bias alone requires grad."""
    return not ctx.needs_input_grad[0]


def sample(seed: int, low: torch.dtype) -> tuple[Tensor, Tensor]:
    """Many rows, so that the order of a sum matters."""
    return draw(300, 5, seed=seed, dtype=low), draw(5, seed=seed + 1000, dtype=low)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("other", RIGHT)
def test_a_sum_in_another_order_is_the_same(other: Sum, low: torch.dtype) -> None:
    """For another layout, for another subset, and for parts of a linear combination."""
    for seed in range(2):
        assert run_probe(layouts.PROBE, kernel(low, plain, other, strided), sample(seed, low), seed=seed)[1] == ()
        found = run_probe(subsets.PROBE, kernel(low, plain, other, alone), sample(seed, low), seed=seed)[1]
        assert "PB208" not in rules(found)
        always = kernel(low, other, other, alone)
        assert run_probe(linearity.PROBE, always, sample(seed, low), seed=seed)[1] == ()


@pytest.mark.parametrize("low", LOW)
def test_a_sum_that_is_wrong_in_one_setting_is_found(low: torch.dtype) -> None:
    """By an eighth of a sum whose terms cancel, in every dtype."""
    found = run_probe(layouts.PROBE, kernel(low, plain, too_large, strided), sample(0, low))[1]
    assert "PB405" in rules(found)
    found = run_probe(subsets.PROBE, kernel(low, plain, too_large, alone), sample(0, low))[1]
    assert "PB208" in rules(found)


def batched(low: torch.dtype, usual: Sum, other: Sum) -> Any:
    """A sum over the last dimension, which is another one in a batch."""

    class Total(pullback.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            if x.dtype is not low:
                raise TypeError(f"{low} only")
            return usual(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.size = inputs[0].shape[-1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.unsqueeze(-1).expand(*g.shape, ctx.size)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
            entries = x.movedim(in_dims[0], 0)
            total = entries.sum(-1)
            return other(entries) + (total - total.detach()), 0  # the other's value, in a graph

    return Total


@pytest.mark.parametrize("low", LOW)
def test_a_batch_may_be_added_in_another_order(low: torch.dtype) -> None:
    """And may not be wrong."""
    x = draw(4, 200, seed=0, dtype=low)
    assert "PB509" not in rules(run_probe(batching.PROBE, batched(low, plain, backwards), (x,))[1])
    assert "PB509" in rules(run_probe(batching.PROBE, batched(low, plain, too_large), (x,))[1])


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(("factor", "expected"), [(1.0, []), (-3.0, ["PB507"])])
def test_a_jvp_in_low_precision(low: torch.dtype, factor: float, expected: list[str]) -> None:
    """Inner products of many terms lose little: a factor shows that a plain tolerance would let pass."""

    class Squares(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.dtype is not low:
                raise TypeError(f"{low} only")
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * t * factor

    for seed in range(2):
        found = run_probe(forward_mode.PROBE, Squares, (draw(40, 5, seed=seed, dtype=low),), seed=seed)[1]
        assert rules(found) == expected


def test_results_in_float64_are_compared_as_closely_as_ever() -> None:
    """There only the order of sums may differ."""
    subject = make_subject(torch.sin, (torch.rand(3, dtype=torch.float64, requires_grad=True),))
    known = torch.tensor([1.0, 2.0], dtype=torch.float64)
    own = Own(subject, subject.cases[0], {"x": known, "none": None}, lambda shake: {})
    assert own.differs("x", known * (1 + 1e-13)) is None
    assert own.differs("x", known * (1 + 1e-7)) is not None
    assert own.differs("none", None) is None
    assert own.differs("none", known) is not None


def test_a_result_that_is_missing_or_of_another_shape_is_told_as_such() -> None:
    """No rounding explains that."""

    def single(x: Tensor) -> Tensor:
        if x.dtype is not F32:
            raise TypeError("float32 only")
        return x * 2

    subject = make_subject(single, (torch.rand(3, requires_grad=True),))
    own = Own(subject, subject.cases[0], {"x": torch.ones(3)}, lambda shake: {})
    missing, other = own.differs("x", None), own.differs("x", torch.ones(2))
    assert missing is not None
    assert other is not None
    assert (missing.got, other.got) == ("None", "shape (2,)")
    assert own.differs("x", torch.ones(3)) is None
