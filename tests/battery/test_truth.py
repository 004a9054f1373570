"""The right gradients, from whichever source there is, at a point where they exist."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.check import make_subject
from pullback.battery.truth import Truth, truth_of


def truth(function: Any, *args: object, **options: Any) -> Truth:
    """The truth for one sample."""
    subject = make_subject(function, args, **options)
    found = truth_of(subject, subject.cases[0])
    assert isinstance(found, Truth), found
    return found


def leaf(*shape: int) -> Tensor:
    """A float64 leaf."""
    return torch.rand(shape, dtype=torch.float64).add_(0.3).requires_grad_()


def verdict(found: Truth, factor: float = 1.0, element: int | None = None) -> Any:
    """What the truth says of autograd's gradient, or of one with a wrong element."""
    inputs = found.subject.fresh(found.case)
    outputs = found.subject.call(inputs)
    chosen = [outputs[position] for position in found.outputs]
    (gradient,) = found.subject.gradients(chosen[:1], found.cotangents[:1], inputs.varying)
    assert gradient is not None
    if element is None:
        gradient = gradient * factor
    else:
        gradient.view(-1)[element] *= factor
    return found.judge(inputs.varying[0], 0, gradient)


@pytest.fixture(params=["confirmed", "by elements and projections"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the shortcut for right gradients, and without."""
    way: str = request.param
    if way != "confirmed":
        monkeypatch.setattr("pullback.battery.truth.confirmed_gradients", lambda *_: {})
    return way


@pytest.mark.parametrize("shape", [(), (5,), (8, 9), (3000,)])
def test_right_gradients_are_accepted_and_wrong_ones_are_not(shape: tuple[int, ...], way: str) -> None:
    """Element by element for small arguments, by projections for large ones, and against what was confirmed."""
    found = truth(torch.exp, leaf(*shape))
    assert found.source == "finite differences"
    assert bool(found.confirmed) == (way == "confirmed")
    assert verdict(found) is None
    assert verdict(found, 1.001) is not None


@pytest.mark.usefixtures("way")
def test_the_wrong_element_of_many_is_named() -> None:
    """Halving the direction leads to it."""
    bad = verdict(truth(torch.exp, leaf(3000)), 1.5, element=1234)
    assert bad.index == (1234,)
    assert "at [1234]" in bad.got


def test_a_wrong_gradient_is_mapped_where_each_element_is_known(way: str) -> None:
    """By finite differences up to a size, by a reference at any; along random directions one element alone is known."""
    small = verdict(truth(lambda x: x.sin(), leaf(3, 4)), 2.0, element=7)
    wrong = [(i, j) for i, row in enumerate(small.error_map.values) for j, error in enumerate(row) if error]
    assert (small.error_map.shape, wrong, small.index) == ((3, 4), [(1, 3)], (1, 3))
    large = truth(lambda x: x.sin(), leaf(3000))
    assert (verdict(large, 2.0, element=7).error_map is None) == (way != "confirmed")
    known = verdict(truth(lambda x: x.sin(), leaf(3000), reference=torch.sin), 2.0, element=7).error_map
    assert [bool(error) for error in known.values[0]] == [True] + [False] * 31


@pytest.mark.usefixtures("way")
def test_a_missing_gradient_is_mapped_as_zeros() -> None:
    """None for a gradient that isn't 0 is wrong everywhere."""
    found = truth(lambda x: x.sin(), leaf(3))
    (variable,) = found.subject.fresh(found.case).varying
    mismatch = found.judge(variable, 0, None)
    assert mismatch is not None
    assert mismatch.error_map is not None
    assert all(mismatch.error_map.values[0])


def test_a_reference_is_compared_element_by_element() -> None:
    """And so finds what no projection could."""
    found = truth(torch.exp, leaf(3000), reference=lambda x: x.exp())
    assert found.source == "reference"
    assert verdict(found) is None
    assert verdict(found, 1 + 1e-5, element=7).index == (7,)


def test_a_surrogate_comes_before_the_reference() -> None:
    """What backward implements is the surrogate's derivative."""
    found = truth(lambda x: x * 2, leaf(3), reference=lambda x: x * 3, surrogate=lambda x: x * 2)
    assert found.source == "surrogate"
    assert verdict(found) is None


def test_a_reference_outside_autograd_is_differentiated_by_differences() -> None:
    """A NumPy reference is an oracle too."""
    found = truth(torch.exp, leaf(3), reference=lambda x: torch.from_numpy(x.detach().numpy()).exp())
    assert found.source == "finite differences"
    assert verdict(found) is None


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "function",
    [torch.relu, torch.abs, lambda x: x.amax(-1), lambda x: x.median(-1).values, lambda x: x.norm()],
)
def test_a_point_without_a_derivative_is_moved(function: Any) -> None:
    """Kinks and ties; the moved point is judged."""
    found = truth(function, torch.zeros(2, 5, dtype=torch.float64, requires_grad=True))
    assert found.case.moved
    assert verdict(found) is None


def test_a_function_that_is_smooth_nowhere_near_has_no_truth() -> None:
    """The reason is a sentence."""
    subject = make_subject(torch.log, (torch.tensor([-1.0], dtype=torch.float64, requires_grad=True),))
    assert truth_of(subject, subject.cases[0]) == "sample 0: forward isn't smooth there, nor at 3 points nearby"


@pytest.mark.usefixtures("way")
def test_complex_gradients_follow_pytorchs_convention() -> None:
    """A missing conjugate is found."""
    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    found = truth(lambda z: z * z, z)
    assert verdict(found) is None
    inputs = found.subject.fresh(found.case)
    conjugated = 2 * inputs.leaves[0].tensor.detach() * found.cotangents[0]
    assert found.judge(inputs.varying[0], 0, conjugated) is not None


def taking(dtype: torch.dtype, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function, for tensors of one dtype alone."""

    def strict(x: Tensor) -> Tensor:
        if x.dtype != dtype:
            raise TypeError(f"{dtype} only")
        return function(x)

    return strict


def test_arguments_below_float32_alone_need_a_reference() -> None:
    """Finite differences in bfloat16 prove nothing."""
    x = torch.rand(3, dtype=torch.bfloat16, requires_grad=True)
    subject = make_subject(taking(torch.bfloat16, torch.exp), (x,))
    reason = "sample 0: float64 and float32 are refused and there is no reference"
    assert truth_of(subject, subject.cases[0]) == reason


@pytest.mark.parametrize("function", [torch.exp, torch.relu, lambda x: (x * x).sum(0), lambda x: x.sort().values])
def test_differences_in_float32_see_gross_errors(function: Callable[[Tensor], Tensor]) -> None:
    """Where forward takes nothing else: a sign or a factor shows, and no right gradient is called wrong."""
    found = truth(taking(torch.float32, function), torch.randn(24, requires_grad=True))
    assert verdict(found) is None
    for factor in (0.0, -1.0, 0.5, 1.1):
        assert verdict(found, factor) is not None


def test_arguments_in_float32_alone_are_judged_sharply_by_a_reference() -> None:
    """Finite differences wouldn't see an error of a percent."""
    x = torch.rand(3, requires_grad=True)
    single = taking(torch.float32, torch.exp)
    found = truth(single, x, reference=torch.exp)
    assert verdict(found) is None
    assert verdict(found, 1.01) is not None


def test_the_truth_does_not_depend_on_who_asks_first() -> None:
    """Its cotangents come from a generator of their own."""
    first, second = (make_subject(torch.exp, (torch.ones(3, dtype=torch.float64),)) for _ in range(2))
    second.cotangent(torch.rand(9))
    found = [truth_of(subject, subject.cases[0]) for subject in (first, second)]
    assert isinstance(found[0], Truth)
    assert isinstance(found[1], Truth)
    assert torch.equal(found[0].cotangents[0], found[1].cotangents[0])
