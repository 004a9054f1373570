"""Larger samples: which sizes they have, and which stay."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.check import make_subject
from pullback.battery.grown import BLOCK, LARGE, LONG, LONGEST, grown, with_a_long_axis
from pullback.battery.samples import Sample
from tests.battery.running import leaf


def shapes(*args: object) -> list[list[tuple[int, ...]]]:
    """The shapes of the tensors in each larger sample."""
    subject = make_subject(lambda *args: None, args)
    return [
        [tuple(tensor.shape) for _, _, tensor in subject.named_tensors(case.sample)]
        for _, case in grown(subject, subject.all_cases[0])
    ]


def test_a_size_grows_wherever_it_occurs() -> None:
    """A product of matrices stays one; no two sizes become alike, and a broadcast axis stays one."""
    assert shapes(leaf(2, 3), leaf(3, 4), leaf(4, 1))[0] == [(7, 11), (11, 15), (15, 1)]


@pytest.mark.parametrize("shape", [(2,), (3,), (7,), (3, 4), (2, 1, 2)])
def test_the_first_has_more_elements_than_a_block_and_a_tail(shape: tuple[int, ...]) -> None:
    """Four elements at a time leave three over, which all have to be zero by chance to hide a tail without gradient."""
    ((larger,), *_) = shapes(leaf(*shape))
    assert torch.Size(larger).numel() > BLOCK
    assert all(size % 4 == 3 for size in larger if size > 1)


def test_rows_are_longer_than_the_largest_block_where_that_stays_small() -> None:
    """Each size is made long in turn, and the rows of the first argument longer yet; not all axes of a cube."""

    def long(*sample: Tensor) -> list[tuple[int, ...]]:
        subject = make_subject(lambda *args: None, sample)
        variants = with_a_long_axis(subject, subject.all_cases[0])
        return [tuple(subject.named_tensors(case.sample)[0][2].shape) for _, case in variants]

    assert long(leaf(2, 3), leaf(2)) == [(LONG, 3), (2, LONG), (2, LONGEST)]
    assert long(leaf(2, 2, 3)) == [(2, 2, LONG)]


def test_where_halves_are_taken_even_sizes_and_multiples_follow() -> None:
    """And at last each size alone, where one of them is a constant of the function's own."""
    assert [larger[0] for larger in shapes(leaf(3, 4))] == [(7, 11), (8, 10), (6, 8), (7, 4), (3, 11)]


@pytest.mark.parametrize(
    "kept",
    [2, (2,), [2], torch.tensor([0, 2]), torch.tensor([[9], [9]]), torch.eye(2).to_sparse()],
    ids=["number", "tuple", "list", "bounds", "indices", "sparse"],
)
def test_sizes_that_integers_speak_of_stay(kept: object) -> None:
    """A number of heads, the bounds of segments: another size could lead a kernel out of bounds."""
    assert shapes(leaf(2, 3), kept)[0][0] == (2, 19)


def test_indices_into_an_axis_let_it_grow() -> None:
    """They stay within it."""
    assert shapes(leaf(7, 3), torch.tensor([5, 0]))[0] == [(15, 7), (2,)]


def test_a_large_sample_is_large_already() -> None:
    """Nothing is made of it."""
    assert shapes(leaf(LARGE + 1)) == []
    assert shapes(leaf(1, 1)) == []


@pytest.mark.parametrize(("vary", "alike"), [(("shape",), True), (("shape", "values"), False)])
def test_numbers_are_moved_apart_where_they_may_be(vary: tuple[str, ...], alike: bool) -> None:
    """Repeated as they are, they would tie; masks of zeros and ones stay masks."""
    mask = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)

    def product(x: Tensor, mask: Tensor) -> Tensor:
        return x * mask

    subject = make_subject(product, Sample((leaf(3), mask), vary=vary))
    _, case = next(grown(subject, subject.all_cases[0]))
    x, weights = (tensor for tensor in case.sample.args if isinstance(tensor, Tensor))
    assert (x.unique().numel() == 3) is alike
    assert set(weights.tolist()) == {0.0, 1.0}


def test_the_same_seed_gives_the_same_numbers() -> None:
    """They come from the subject's generator."""

    def first(seed: int) -> Any:
        subject = make_subject(torch.sin, (torch.full((3,), 2.0, dtype=torch.float64),))
        subject.random.manual_seed(seed)
        return next(grown(subject, subject.all_cases[0]))[1].sample.args[0].tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)
