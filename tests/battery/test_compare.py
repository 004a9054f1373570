"""Two tensors agree, or the largest difference is told with its place."""

import pytest
import torch

from pullback.battery.compare import compare, natural_scale, number
from pullback.battery.tolerances import Tolerance

LOOSE = Tolerance(0.1, 0.01, "for these tests")


def test_values_within_the_tolerance_agree() -> None:
    """Relative to the element, and to the largest."""
    assert compare(torch.tensor([1.0, 100.0]), torch.tensor([1.9, 105.0]), LOOSE) is None


def test_the_largest_difference_is_told_with_its_index() -> None:
    """A large tensor shows the element, a small one all."""
    expected = torch.zeros(3, 4) + 1
    got = expected.clone()
    got[2, 1] = 7.0
    found = compare(expected, got, LOOSE)
    assert found is not None
    assert (found.index, found.max_error, found.expected, found.got) == ((2, 1), 6.0, "1.0 at [2, 1]", "7.0 at [2, 1]")
    small = compare(torch.ones(2), torch.tensor([1.0, 2.0]), LOOSE)
    assert small is not None
    assert small.got == "[1.0, 2.0]"


def test_none_counts_as_zeros_and_is_shown_as_none() -> None:
    """None for a zero gradient is right, for another it isn't."""
    assert compare(torch.zeros(2), None, LOOSE) is None
    assert compare(None, None, LOOSE) is None
    found = compare(torch.ones(2), None, LOOSE)
    assert found is not None
    assert (found.expected, found.got) == ("[1.0, 1.0]", "None")
    other = compare(None, torch.ones(2), LOOSE)
    assert other is not None
    assert (other.expected, other.got) == ("None or zeros", "[1.0, 1.0]")


def test_nan_and_infinity_agree_with_themselves_only() -> None:
    """A NaN where a number was due is the largest of errors."""
    odd = torch.tensor([float("nan"), float("inf")])
    assert compare(odd, odd.clone(), LOOSE) is None
    found = compare(torch.ones(2), odd, LOOSE)
    assert found is not None
    assert found.max_error == float("inf")


def test_shapes_are_compared_first() -> None:
    """No broadcasting hides a wrong shape."""
    found = compare(torch.ones(3), torch.ones(1), LOOSE)
    assert found is not None
    assert (found.expected, found.got) == ("shape (3,)", "shape (1,)")


def test_complex_numbers_are_compared_by_part() -> None:
    """A missing conjugate shows in the imaginary part."""
    found = compare(torch.tensor([1 + 2j, 3 + 0j]), torch.tensor([1 - 2j, 3 + 0j]), LOOSE)
    assert found is not None
    assert (found.index, found.max_error) == ((0,), 4.0)


def test_a_scale_allows_for_what_cancels() -> None:
    """Terms of size 1 that should cancel leave a rounding of their own size."""
    zero, rounding = torch.zeros(2), torch.full((2,), 1e-3)
    assert compare(zero, rounding, LOOSE) is not None
    assert compare(zero, rounding, LOOSE, scale=1.0) is None


@pytest.mark.parametrize(("size", "expected"), [(1.0, 6.0), (100.0, 0.06)])
def test_the_natural_scale_is_that_of_output_over_argument(size: float, expected: float) -> None:
    """Output times cotangent over argument."""
    scale = natural_scale([torch.full((2,), 2.0)], [torch.full((2,), 3.0)], torch.full((4,), size))
    assert scale == pytest.approx(expected)


def test_numbers_are_shown_to_six_digits() -> None:
    """Nested lists, complex numbers, integers."""
    assert number(torch.tensor([[1.23456789], [2.0]], dtype=torch.float64)) == "[[1.23457], [2.0]]"
    assert number(torch.tensor(1.23456789 + 1j, dtype=torch.complex128)) == "(1.23457+1j)"
    assert number(torch.tensor([True, False])) == "[True, False]"
