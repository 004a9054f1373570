"""Two tensors agree, or the largest difference is told with its place."""

import pytest
import torch

from pullback.battery.compare import compare, natural_scale, number
from pullback.battery.tolerances import Tolerance
from pullback.finding import ErrorMap

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


def test_a_sparse_tensor_is_shown_by_its_element() -> None:
    """As a dense one is: it has no reshape."""
    expected = torch.zeros(4, 3)
    expected[2, 1] = 2.0
    found = compare(expected.to_sparse(), (3 * expected).to_sparse(), LOOSE)
    assert found is not None
    assert (found.expected, found.got) == ("2.0 at [2, 1]", "6.0 at [2, 1]")


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


def errors_of(expected: torch.Tensor | None, got: torch.Tensor | None) -> ErrorMap:
    """Where two tensors that differ do."""
    found = compare(expected, got, LOOSE)
    assert found is not None
    assert found.error_map is not None
    assert ErrorMap.read(found.evidence["error_map"]) == found.error_map
    return found.error_map


def test_errors_are_mapped_element_by_element() -> None:
    """What is within the tolerance is 0; what is infinite or no number is None; three digits are kept."""
    got = torch.tensor([[1.05, 1.0, 3.23456], [float("nan"), float("inf"), 0.5]], dtype=torch.float64)
    errors = errors_of(torch.ones(2, 3, dtype=torch.float64), got)
    assert errors == ErrorMap(shape=(2, 3), block=(1, 1, 1), values=((0.0, 0.0, 2.23), (None, None, 0.5)))


def test_a_large_map_is_pooled_by_its_largest_error() -> None:
    """Over blocks of the last two axes, the last of which may be smaller, and over the leading axes."""
    expected = torch.zeros(2, 70, 33, dtype=torch.float64)
    got = expected.clone()
    got[1, 69, 32] = 4.0
    got[0, 69, 32] = 3.0
    got[0, 3, 1] = 2.0
    errors = errors_of(expected, got)
    assert (errors.shape, errors.block) == ((2, 70, 33), (2, 3, 2))
    assert (len(errors.values), len(errors.values[0])) == (24, 17)
    wrong = {(i, j): value for i, row in enumerate(errors.values) for j, value in enumerate(row) if value}
    assert wrong == {(23, 16): 4.0, (1, 0): 2.0}


@pytest.mark.parametrize(("shape", "size"), [((), (1, 1)), ((3,), (1, 3)), ((100,), (1, 25)), ((2, 1, 3), (1, 3))])
def test_a_map_has_the_last_two_axes(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    """A vector has one row, a single number one cell; a map has at most 32 rows and columns."""
    errors = errors_of(torch.zeros(shape), torch.ones(shape))
    assert (len(errors.values), len(errors.values[0])) == size
    assert {value for row in errors.values for value in row} == {1.0}


def test_a_missing_conjugate_is_mapped_once_for_each_number() -> None:
    """A complex number is one cell, by the larger error of its parts."""
    errors = errors_of(torch.tensor([1 + 2j, 3 + 0j]), torch.tensor([1 - 2j, 3 + 0j]))
    assert (errors.shape, errors.values) == ((2,), ((4.0, 0.0),))


def test_none_is_mapped_as_zeros_are_and_a_wrong_shape_not_at_all() -> None:
    """None stands for zeros on either side; of tensors of two shapes no element can be compared."""
    assert errors_of(torch.tensor([0.0, 2.0]), None).values == ((0.0, 2.0),)
    assert errors_of(None, torch.tensor([0.0, 2.0])).values == ((0.0, 2.0),)
    found = compare(torch.ones(3), torch.ones(1), LOOSE)
    assert found is not None
    assert "error_map" not in found.evidence
