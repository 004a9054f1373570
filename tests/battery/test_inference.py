"""Arguments guessed from a signature."""

import pytest
import torch
from torch import Tensor

from pullback.battery.inference import inferred
from pullback.errors import SampleError


def shapes(arguments: tuple[object, ...]) -> list[object]:
    """The shapes of tensors, other values as they are."""
    return [tuple(value.shape) if isinstance(value, Tensor) else value for value in arguments]


def test_parameters_become_small_float64_tensors_that_require_grad() -> None:
    """Two shapes that work are enough."""
    guesses = inferred(lambda x: x * 2, None)
    assert [shapes(guess) for guess in guesses] == [[(2, 3)], [(3, 3)]]
    assert all(isinstance(x, Tensor) and x.requires_grad and x.dtype == torch.float64 for (x,) in guesses)


def test_shapes_that_do_not_fit_are_passed_over() -> None:
    """A matrix product takes the square ones."""
    assert shapes(inferred(lambda a, b: a @ b, None)[0]) == [(3, 3), (3, 3)]


def test_numbers_are_guessed_for_annotations_that_ask_for_them() -> None:
    """A float, an int and a bool by annotation; defaults are kept."""

    def scaled(x: Tensor, by: float, times: int, negate: bool, offset: float = 1.0) -> Tensor:
        return x * by * times + offset

    assert shapes(inferred(scaled, None)[0]) == [(2, 3), 0.5, 1, False]


def test_star_arguments_become_two_tensors() -> None:
    """*args stands for any number: two are tried."""
    assert shapes(inferred(lambda *xs: sum(xs), None)[0]) == [(2, 3), (2, 3)]


def test_no_fitting_guess_is_an_error_with_the_refusal() -> None:
    """The error names the parameters, and what forward said."""

    def picky(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        return x * table["w"]

    with pytest.raises(SampleError, match=r"PB121 no arguments could be guessed .*\(x, table\)"):
        inferred(picky, None)
