"""The probe `special_points`: zeros and large values, kinks left in peace."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import first_order, special_points
from pullback.battery.samples import Sample
from pullback.finding import Status
from tests.battery.running import leaf, rules, run_probe


def elementwise(value: Any, slope: Any, *, reference: Any = None) -> type[Function]:
    """A Function with the given value and slope."""

    class Elementwise(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            result: Tensor = value(x)
            return result

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            result: Tensor = g * slope(x)
            return result

    if reference is not None:
        Elementwise.reference = staticmethod(reference)
    return Elementwise


RIGHT = {
    "relu": (lambda x: x.clamp(min=0), lambda x: (x > 0).to(x.dtype)),
    "relu with 1 at 0": (lambda x: x.clamp(min=0), lambda x: (x >= 0).to(x.dtype)),
    "abs": (torch.abs, torch.sign),
    "abs with nan at 0": (torch.abs, lambda x: x / x.abs()),
    "sqrt": (torch.sqrt, lambda x: 0.5 / x.sqrt()),
    "log": (torch.log, lambda x: 1 / x),
    "exp": (torch.exp, torch.exp),
    "reciprocal": (lambda x: 1 / x, lambda x: -1 / x**2),
    "tiny epsilon": (lambda x: x / x.abs().clamp(min=1e-12), lambda x: (x.abs() < 1e-12) * 1e12),
    "huber": (lambda x: torch.where(x.abs() < 1, x**2 / 2, x.abs() - 0.5), lambda x: x.clamp(-1, 1)),
    "floor step": (lambda x: x.floor() + x, torch.ones_like),
    "cubic root": (lambda x: x.sign() * x.abs() ** (1 / 3), lambda x: x.abs() ** (-2 / 3) / 3),
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_kinks_poles_and_steps_are_left_in_peace(name: str) -> None:
    """Where forward has no derivative, none is asked for; where it has one, this one is right."""
    _, findings = run_probe(special_points.PROBE, elementwise(*RIGHT[name]), (leaf(3),))
    assert findings == ()


WRONG = {
    "x² through a logarithm": (lambda x: x**2, lambda x: 2 * x * x / x, "0"),
    "tanh through exp": (torch.tanh, lambda x: 4 / (x.exp() + (-x).exp()) ** 2 * x.exp() / x.exp(), "1000"),
    "a constant at 1": (lambda x: x**3, lambda x: torch.where(x == 1, 0.0, 3 * x**2), "1"),
    "a root with a dead zone": (torch.sqrt, lambda x: torch.where(x < 1e-3, torch.inf, 0.5 / x.sqrt()), "1e-05"),
    "x·|x|, 1 at 0": (lambda x: x * x.abs(), lambda x: torch.where(x == 0, 1.0, 2 * x.abs()), "0"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_smooth_point_with_a_wrong_slope_is_found(name: str) -> None:
    """PB506 says at which value, what the slope is, and what came."""
    value, slope, where = WRONG[name]
    _, (finding,) = run_probe(special_points.PROBE, elementwise(value, slope), (leaf(3),))
    assert finding.rule == "PB506"
    assert f"one element {where}" in finding.where
    assert finding.expected != finding.got


REMEDIES = {
    "tanh through exp": "Backward overflows where forward doesn't: rearrange it",
    "a constant at 1": "Treat the point apart: torch.where",
    "an iteration": "If forward isn't meant for them, as where an iteration no longer converges",
}


def bisected(x: Tensor) -> Tensor:
    """The square root by an iteration of few steps, which converges up to ten or so."""
    if bool((x == 0).any()):
        raise ValueError("no square root of 0 by this iteration")
    root = torch.ones_like(x)
    for _ in range(4):
        root = (root + x / root) / 2
    return root


@pytest.mark.parametrize("name", list(REMEDIES))
def test_the_remedy_fits_what_was_found(name: str) -> None:
    """An overflow is rearranged, a point is treated apart, and a forward out of its range isn't asked there."""
    wrong = {**WRONG, "an iteration": (bisected, lambda x: 0.5 / x.abs().sqrt(), "1000")}
    value, slope, where = wrong[name]
    sample = torch.tensor([0.5, 0.3, 1.2], dtype=torch.float64, requires_grad=True)
    _, findings = run_probe(special_points.PROBE, elementwise(value, slope), (sample,))
    (finding,) = [finding for finding in findings if finding.rule == "PB506"]
    assert f"one element {where}" in finding.where
    assert REMEDIES[name] in finding.remedy
    assert ("vary=" in finding.remedy) == (name == "an iteration")


def test_a_value_beyond_the_samples_may_not_be_meant() -> None:
    """The remedy says what to do if forward isn't for -1, where nothing in the sample is as large, and there alone."""
    function = elementwise(lambda x: x**3, lambda x: torch.where(x == -1, 0.0, 3 * x**2))
    small = torch.tensor([0.5, 0.3, 0.7], dtype=torch.float64, requires_grad=True)
    large = torch.tensor([0.5, 0.3, 1.7], dtype=torch.float64, requires_grad=True)
    for sample, within in ((small, False), (large, True)):
        _, (finding,) = run_probe(special_points.PROBE, function, (sample,))
        assert "-1" in finding.where
        assert finding.remedy.startswith("Treat the point apart: torch.where")
        assert ("If forward isn't meant for them" in finding.remedy) is not within


def test_nan_at_a_kink_is_found_where_the_reference_is_finite() -> None:
    """At 0 the reference of |x| has the gradient 0: NaN isn't as good."""
    function = elementwise(torch.abs, lambda x: x / x.abs(), reference=lambda x: x.abs())
    _, (finding,) = run_probe(special_points.PROBE, function, (leaf(3),))
    assert finding.rule == "PB506"
    assert "nan" in finding.got


def test_another_subgradient_than_the_reference_is_fine() -> None:
    """At a kink the reference's choice binds nobody."""
    function = elementwise(torch.relu, lambda x: (x >= 0).to(x.dtype), reference=lambda x: x.relu())
    _, findings = run_probe(special_points.PROBE, function, (leaf(3),))
    assert findings == ()


def test_a_gradient_that_is_wrong_everywhere_is_another_probes_finding() -> None:
    """Nothing special about these points: the reason of the skip says once why nothing was judged, for all samples."""
    outcome, findings = run_probe(special_points.PROBE, elementwise(torch.sin, torch.sin), (leaf(3),), (leaf(2),))
    assert findings == ()
    assert (outcome.status, outcome.notes) == (Status.SKIPPED, ())
    assert outcome.reason == "the gradient isn't known to be right at ordinary points"


def test_a_sample_at_which_the_gradient_is_wrong_is_passed_over_with_a_note() -> None:
    """The others are judged."""
    function = elementwise(torch.abs, torch.ones_like)
    negative = -leaf(2).detach()
    outcome, _ = run_probe(special_points.PROBE, function, (negative.requires_grad_(),), (leaf(2),))
    assert "sample 0: the gradient isn't known to be right at ordinary points" in outcome.notes


def test_reductions_are_tried_too() -> None:
    """A softmax without the subtraction of the maximum overflows in backward alone."""

    class Softmax(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.softmax(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            p = x.exp() / x.exp().sum(-1, keepdim=True)
            return p * (g - (g * p).sum(-1, keepdim=True))

    _, (finding,) = run_probe(special_points.PROBE, Softmax, (leaf(2, 3),))
    assert "1000" in finding.where


def test_what_cannot_be_judged_is_skipped_with_a_reason() -> None:
    """A backward that isn't linear on purpose, and values that may not be varied."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.clamp(-0.1, 0.1)

    outcome, _ = run_probe(special_points.PROBE, Clips, (leaf(2),))
    assert outcome.status is Status.SKIPPED
    fixed = Sample((leaf(2),), vary=())
    outcome, _ = run_probe(special_points.PROBE, elementwise(torch.sin, torch.cos), fixed)
    assert outcome.status is Status.SKIPPED


def test_what_there_is_no_time_for_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow forward is tried as far as the time goes; the outcome says how much was left out."""
    monkeypatch.setattr(special_points, "_SECONDS", -1.0)
    outcome, findings = run_probe(special_points.PROBE, elementwise(*WRONG["a constant at 1"][:2]), (leaf(3),))
    assert findings == ()
    assert any(note.startswith("18 of 18 points were left out") for note in outcome.notes)


def test_a_forward_in_low_precision_is_not_judged_by_its_noise() -> None:
    """Where operators show float32, differences at large values are rounding: the skip says why nothing was judged."""
    function = elementwise(lambda x: (3 * x.float()).double(), lambda x: 3 * torch.ones_like(x))
    outcome, findings = run_probe(special_points.PROBE, function, (leaf(3),))
    assert findings == ()
    assert outcome.status is Status.SKIPPED
    assert "below float64" in outcome.reason


def test_low_precision_that_no_operator_shows_is_no_finding_either() -> None:
    """A kernel that rounds to float32 unseen is right to a few digits, and faults at such points are gross."""

    def rounded(x: Tensor) -> Tensor:
        return torch.from_numpy((3 * x.detach().numpy().astype("float32")).astype("float64"))

    function = elementwise(rounded, lambda x: 3 * torch.ones_like(x))
    _, findings = run_probe(special_points.PROBE, function, (leaf(3),))
    assert findings == ()


def within_one(x: Tensor) -> Tensor:
    """The identity, with a gradient between -1 and 1 only."""
    return torch.where(x.abs() <= 1, x, x.detach())


def rounded(x: Tensor) -> Tensor:
    """The values of round with the gradient of the identity."""
    return (x.round() - x).detach() + x


@pytest.mark.parametrize(
    ("surrogate", "slope"),
    [(within_one, lambda x: x.abs() <= 1), (rounded, torch.ones_like)],
)
def test_a_surrogates_derivative_is_what_autograd_says(surrogate: Any, slope: Any) -> None:
    """Whatever its values do: they are steps, or smooth where the gradient jumps."""
    cls = elementwise(lambda x: x.round(), slope)
    samples = [(3 * leaf(4).detach() - 2,), (torch.tensor([-1.0, 1.0, 0.5], dtype=torch.float64),)]
    for probe in (first_order.PROBE, special_points.PROBE):
        assert run_probe(probe, cls, *samples, surrogate=surrogate)[1] == ()


def test_a_surrogate_without_a_gradient_asks_for_none() -> None:
    """Detached altogether, it says that no gradient flows."""
    blocked = elementwise(lambda x: x * 2, torch.zeros_like)
    assert run_probe(first_order.PROBE, blocked, (leaf(3),), surrogate=torch.detach)[1] == ()
    passed_on = elementwise(lambda x: x * 2, torch.ones_like)
    assert rules(run_probe(first_order.PROBE, passed_on, (leaf(3),), surrogate=torch.detach)[1]) == ["PB203"]


def test_a_gradient_other_than_the_surrogates_is_found_at_special_points() -> None:
    """Right in general, wrong at 0."""
    cls = elementwise(lambda x: x.round(), lambda x: (x != 0).to(x.dtype))
    _, (finding,) = run_probe(special_points.PROBE, cls, (leaf(4),), surrogate=rounded)
    assert finding.rule == "PB506"
    assert "the surrogate's derivative" in finding.message


@pytest.mark.parametrize(
    "function", [torch.median, lambda x: x.kthvalue(2)[0], lambda x: torch.linalg.qr(x.view(2, 2))[1]]
)
def test_smooth_lines_without_a_derivative_are_left_in_peace(function: Any) -> None:
    """Among equal elements a median stands still along each one, and rises along all together."""
    assert run_probe(special_points.PROBE, function, (leaf(4),))[1] == ()


def positive_part(slope: Any) -> type[Function]:
    """``x[x > 0]``, its gradient times a factor that the slope gives."""

    class PositivePart(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x[x > 0]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return slope(x) * g.new_zeros(x.shape).masked_scatter(x > 0, g)

    return PositivePart


def test_where_the_outputs_size_depends_on_values_a_change_of_size_is_no_slope() -> None:
    """At 0 there are more outputs on one side: nothing is asked there, and elsewhere a wrong slope is still found."""
    sample = (torch.tensor([0.5, -1.5, 0.75, 2.5, -0.25, 1.25], dtype=torch.float64, requires_grad=True),)
    outcome, findings = run_probe(special_points.PROBE, positive_part(torch.ones_like), sample)
    assert (outcome.status, findings) == (Status.PASSED, ())
    tripled_at_one = positive_part(lambda x: torch.where(x == 1, 3.0, 1.0))
    _, (finding,) = run_probe(special_points.PROBE, tripled_at_one, sample)
    assert (finding.rule, finding.evidence["argument"]) == ("PB506", "x")
    assert "one element 1" in finding.message


def log_det(factor: float) -> type[pullback.Function]:
    """The logarithm of a determinant by Cholesky's factors, its gradient times a factor off the diagonal."""

    def value(a: Tensor) -> Tensor:
        result: Tensor = 2 * torch.linalg.cholesky(a).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return result

    class LogDet(pullback.Function):
        reference = staticmethod(value)

        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return value(a)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (a,) = ctx.saved_tensors
            on = torch.eye(a.shape[-1], dtype=a.dtype)
            return g[..., None, None] * torch.linalg.inv(a) * (on + factor * (1 - on))

    return LogDet


def symmetric() -> tuple[Tensor]:
    """A positive definite matrix."""
    root = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return ((root @ root.T + 3 * torch.eye(3, dtype=torch.float64)).requires_grad_(),)


def test_a_symmetric_matrix_is_kept_symmetric() -> None:
    """Beside those, what a reference by Cholesky's factors gives is another function, whatever the probe."""
    only = ("first_order", "second_order", "shapes", "special_points")
    report = check(log_det(1.0), symmetric(), only=only)
    assert rules(report.findings) == []
    reason = report.outcomes["special_points"].reason
    assert reason == "an argument is a symmetric matrix, which other values would not be"
    assert rules(check(log_det(0.5), symmetric(), only=only).findings) == ["PB203"]


def test_a_wrong_second_derivative_by_a_symmetric_matrix_is_found() -> None:
    """Along symmetric directions, too, the gradient of a cut graph stands still."""

    class Cut(Function):
        reference = staticmethod(log_det(1.0).reference)

        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return torch.logdet(a)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (a,) = ctx.saved_tensors
            return g * torch.linalg.inv(a.detach())

    findings = check(Cut, symmetric(), only=("first_order", "second_order")).findings
    assert [(finding.rule, finding.evidence["by"]) for finding in findings] == [("PB207", "a")]


def test_every_value_is_put_in_with_some_sample() -> None:
    """Of samples on several paths each makes some of the trials: a fault at one value is found whichever makes it."""

    class Wrong(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin() if x.dim() == 1 else torch.sin(x).clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.where(x == value, 7.0, g * x.cos())

    for value in special_points._VALUES:
        _, findings = run_probe(special_points.PROBE, Wrong, (leaf(3),), (leaf(2, 2),), (leaf(1, 2, 2),))
        assert rules(findings) == ["PB506"] * len(findings)
        assert findings, value


class Chamfer(Function):
    """The mean squared distance of each point to the nearest of some others."""

    wrong = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        least, nearest = (x[:, None] - y[None]).square().sum(-1).min(0)
        ctx.save_for_backward(x, y, nearest)
        return least.mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y, nearest = ctx.saved_tensors
        found = 2 * g / len(y) * (y - x[nearest])
        return torch.zeros_like(x).index_add(0, nearest, -found), found


class Cubed(Function):
    """x³, whose gradient stands still at 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x**3 + x**2 * y + x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        by_x = torch.where(x == 0, 3 * x**2, 3 * x**2 + 2 * x * y + 2 * x)
        return g * by_x, g * x**2


def test_a_gradient_with_a_kink_has_no_second_derivative() -> None:
    """Where all points are one, another is the nearest when a single one moves than when all do."""
    assert run_probe(special_points.PROBE, Chamfer, (leaf(3, 2), leaf(4, 2)))[1] == ()
    (finding,) = run_probe(special_points.PROBE, Cubed, (leaf(3), leaf(3)))[1]
    assert (finding.rule, finding.evidence["order"]) == ("PB205", 2)
