"""A sample with another number, flag or choice among its arguments: which ones are tried, and what only they show."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback import Sample
from pullback.battery.check import make_subject
from pullback.battery.other_numbers import with_other_numbers
from pullback.battery.probes import first_order, special_points
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Scaled(Function):
    """The square times a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float = 1.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.by = by
        return by * x * x

    @staticmethod
    def kept(by: float) -> float:
        """The number, as backward has it."""
        return by

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * cls.kept(ctx.by) * x * g, None


def spoilt(kept: Callable[[float], float]) -> Any:
    """Scaled, with a backward that keeps another number."""

    class Spoilt(Scaled):
        @staticmethod
        def kept(by: float) -> float:
            return kept(by)

    return Spoilt


KEPT: dict[str, tuple[Callable[[float], float], float]] = {
    "none": (lambda by: 1.0, 1.0),
    "none for 0": (lambda by: by or 1.0, 2.5),
    "eight bits": (lambda by: torch.tensor(by, dtype=torch.bfloat16).item(), 2.5),
    "an integer": (lambda by: round(by), 3.0),
}
"""What backward keeps of a number, and one for which it is the number."""


@pytest.mark.parametrize("name", KEPT)
def test_a_gradient_that_is_right_for_the_samples_number_alone_is_found(name: str) -> None:
    """A scale of 1 is forgotten, 0 is taken for one that is missing, a digit is lost."""
    kept, by = KEPT[name]
    function = spoilt(kept)
    sample = Sample((leaf(3), by))
    _, (finding,) = run_probe(special_points.PROBE, function, sample)
    assert finding.rule == "PB203"
    assert f"with by={0.0 if name == 'none for 0' else 0.73 * by:g}" in finding.message
    assert shows_the_fault(finding, Spoilt=function)
    assert run_probe(special_points.PROBE, Scaled, sample)[1] == ()


def test_a_number_left_at_its_default_is_tried_as_well() -> None:
    """No sample has to give it."""
    function = spoilt(lambda by: 1.0)
    _, (finding,) = run_probe(special_points.PROBE, function, (leaf(3),))
    assert "with by=0.73" in finding.message
    assert shows_the_fault(finding, Spoilt=function)
    assert run_probe(special_points.PROBE, Scaled, (leaf(3),))[1] == ()


class Softmax(Function):
    """A softmax along any axis."""

    axis: int | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = x.softmax(dim)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(cls.axis or ctx.dim, keepdim=True)), None


class AlongTheLastAxis(Softmax):
    """Its gradient is right along one axis."""

    axis = -1


class Reduced(Function):
    """A sum or a mean, by a flag or by name."""

    divides: bool | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor, reduction: str = "mean", halved: bool = False) -> Tensor:
        ctx.share = (1 / x.numel() if reduction == "mean" else 1.0) * (0.5 if halved else 1.0)
        ctx.shape = x.shape
        return x.sum() * ctx.share

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return (g * (1 / ctx.shape.numel() if cls.divides else ctx.share)).expand(ctx.shape), None, None


class AlwaysTheMean(Reduced):
    """Its gradient is right for a mean that isn't halved."""

    divides = True


def test_an_axis_that_backward_takes_for_the_last_is_found() -> None:
    """Along another axis of a square matrix no shape tells."""
    _, findings = run_probe(special_points.PROBE, AlongTheLastAxis, (leaf(3, 3), 1))
    assert [finding.message.partition(",")[0] for finding in findings] == ["with dim=0"]
    assert run_probe(special_points.PROBE, Softmax, (leaf(3, 3), 1))[1] == ()


@pytest.mark.parametrize("sample", [(leaf(3),), (leaf(3), "mean"), (leaf(3), "mean", False)])
def test_a_flag_or_choice_that_backward_ignores_is_found(sample: tuple[object, ...]) -> None:
    """Where it is given, and where it is left at its default."""
    _, findings = run_probe(special_points.PROBE, AlwaysTheMean, sample)
    assert rules(findings) == ["PB203"]
    assert run_probe(special_points.PROBE, Reduced, sample)[1] == ()


def test_values_beside_the_reference_are_compared_with_other_numbers() -> None:
    """forward is held to its reference there, too."""

    class Forgets(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
            ctx.by = by
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return ctx.by * g, None

        @staticmethod
        def reference(x: Tensor, by: float) -> Tensor:
            return by * x

    _, findings = run_probe(special_points.PROBE, Forgets, (leaf(3), 1.0))
    assert rules(findings) == ["PB219"]


def test_a_backward_that_isnt_linear_is_tried_with_other_numbers() -> None:
    """Against what its author expects."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g.clamp(-0.5, 0.5), None

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Any:
            return grad_outputs[0].clamp(-inputs[1], inputs[1]), None

    _, findings = run_probe(first_order.PROBE, Clips, (leaf(3), 0.5))
    assert ["with limit=0.365" in finding.message for finding in findings] == [True]


class Refuses(Function):
    """Takes one number alone; with another flag, backward says that it can't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float, keeps: bool) -> Tensor:
        if by != 2.0:
            raise ValueError("by is 2")
        ctx.keeps = keeps
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.keeps:
            raise RuntimeError("nothing was kept")
        return 2 * g, None, None


def test_what_is_refused_with_another_number_is_no_fault() -> None:
    """In forward, or aloud in backward."""
    outcome, findings = run_probe(special_points.PROBE, Refuses, (leaf(3), 2.0, True))
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_values_that_may_not_vary_keep_their_numbers() -> None:
    """The author says so of a sample."""
    sample = Sample((leaf(3), 1.0), vary=("layout", "shape", "dtype", "repeat"))
    assert run_probe(special_points.PROBE, spoilt(lambda by: 1.0), sample)[1] == ()


def tried(function: Callable[..., Any], sample: Sample) -> Iterator[tuple[object, ...]]:
    """The arguments of each variant, but for the tensor."""
    subject = make_subject(function, sample)
    return (made.args[1:] + tuple(made.kwargs.items()) for _, _, made in with_other_numbers(subject, sample))


def test_numbers_stay_in_their_range() -> None:
    """Nearer to 0 first; 0 itself where the number may not be one that an iteration stops at; no infinity."""

    def takes(x: Tensor, a: object) -> Tensor:
        return x

    def values(a: object) -> list[object]:
        return [value for (value,) in tried(takes, Sample((leaf(2), a)))]

    assert values(2.5) == [1.825, 0.0]
    assert values(-0.5) == [-0.365, 0.0]
    assert values(1e-5) == [7.3e-06]
    assert values(0.0) == [0.5]
    assert [values(a) for a in (float("inf"), None, "text")] == [[], [], []]
    assert [values(a) for a in (3, 1, 0, -1)] == [[2], [2, 0], [1], [0, -2]]
    assert values(True) == [False]
    assert values("sum") == ["mean", "none"]


def test_an_argument_by_keyword_alone_stays_one() -> None:
    """Given or left at its default; what stands before one that is left is passed with it."""

    def takes(x: Tensor, a: str = "text", b: float = 0.0, *, key: float = 0.0) -> Tensor:
        return x

    assert list(tried(takes, Sample((leaf(2),)))) == [("text", 0.5), (("key", 0.5),)]
    assert list(tried(takes, Sample((leaf(2), "a", 1.0), {"key": 1.0})))[2:] == [
        ("a", 1.0, ("key", 0.73)),
        ("a", 1.0, ("key", 0.0)),
    ]


def test_four_arguments_are_exchanged() -> None:
    """Whoever takes more has the first of them tried."""

    def takes(x: Tensor, a: float, b: float, c: float, d: float, e: float) -> Tensor:
        return x

    found = list(tried(takes, Sample((leaf(2), 1.0, 1.0, 1.0, 1.0, 1.0))))
    assert len(found) == 8
    assert {args[-1] for args in found} == {1.0}


def test_second_derivatives_are_not_asked_for_at_the_number_0() -> None:
    """x / 0 is infinite, where the gradient is right, and its derivative inf · 0."""

    class Call(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, strike: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.strike = strike
            return x * torch.special.ndtr((x / strike).log())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            d = (x / ctx.strike).log()
            return g * (torch.special.ndtr(d) + torch.exp(-d * d / 2) / (2 * torch.pi) ** 0.5), None

    outcome, findings = run_probe(special_points.PROBE, Call, (leaf(3), 1.5))
    assert (outcome.status, findings) == (Status.PASSED, ())
