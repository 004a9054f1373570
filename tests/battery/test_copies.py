"""Copies of a sample's arguments: what they keep of the originals, and what they never share with them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.check import make_subject
from pullback.battery.subject import Inputs, Subject
from tests.battery.running import leaf


def subject_of(*args: object) -> Subject:
    """A function of anything, with one sample."""
    return make_subject(lambda *given: next(one for one in given if isinstance(one, Tensor)).sin(), args)


def copied(*args: object, **options: Any) -> Inputs:
    """Copies of some arguments."""
    subject = subject_of(*args)
    return subject.fresh(subject.all_cases[0], **options)


def laid_out(kind: str) -> Tensor:
    """A tensor in a layout of memory."""
    tensor = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    made = {
        "whole": tensor,
        "transposed": tensor.t(),
        "sliced": tensor[1:3, ::2],
        "expanded": tensor[:1].expand(4, 6),
        "one row": torch.ones(1, 6, dtype=torch.float64).as_strided((1, 6), (9, 1)),
        "empty": tensor[:0],
        "0-d": tensor.sum(),
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["whole", "transposed", "sliced", "expanded", "one row", "empty", "0-d"])
def test_a_copy_has_the_strides_of_the_original_and_memory_of_its_own(kind: str) -> None:
    """In every layout, with the values too; it is a leaf without a graph."""
    original = laid_out(kind).requires_grad_()
    (copy,) = copied(original).args
    assert (copy.shape, copy.stride(), copy.storage_offset()) == (
        original.shape,
        original.stride(),
        original.storage_offset(),
    )
    assert torch.equal(copy, original)
    assert copy.is_leaf
    assert copy.requires_grad
    if original.numel():
        assert copy.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()


def test_views_of_one_storage_share_one_again() -> None:
    """A write through one copy is seen through the other, as it is with the originals, which stay as they were."""
    base = torch.zeros(6, dtype=torch.float64)
    whole, part = copied(base, base[2:4]).args
    with torch.no_grad():
        whole.fill_(7.0)
    assert part.tolist() == [7.0, 7.0]
    assert not bool(base.any())


def test_a_tensor_that_is_passed_twice_is_one_tensor_again() -> None:
    """In an argument and in a nest; the leaf knows its other place."""
    x = leaf(3)
    inputs = copied(x, [x, leaf(2)])
    first, (second, _) = inputs.args
    assert first is second
    assert inputs.leaves[0].also != ()
    assert len(inputs.leaves) == 2


def test_a_change_is_made_of_the_copy() -> None:
    """By the name of the argument; what it gives is detached, and requires grad as the copy would have."""
    x = leaf(3)
    seen: list[str] = []

    def doubled(name: str, tensor: Tensor) -> Tensor:
        seen.append(name)
        return tensor.mul_(2)

    inputs = copied(x, change=doubled)
    assert len(seen) == 1
    assert torch.equal(inputs.args[0], 2 * x.detach())
    assert inputs.args[0].requires_grad


def test_a_function_that_writes_to_its_argument_gets_no_leaf() -> None:
    """Non-leaves are passed, in the strides of the leaves that are differentiated by."""
    subject = subject_of(leaf(3, 4))
    subject.in_place = True
    inputs = subject.fresh(subject.all_cases[0])
    assert not inputs.args[0].is_leaf
    assert inputs.varying[0].tensor.is_leaf
    assert subject.fresh(subject.all_cases[0], leaf=True).args[0].is_leaf


def test_arguments_without_tensors_are_passed_on() -> None:
    """Numbers, names, None and objects are the caller's own."""
    thing = object()
    inputs = copied(leaf(2), 3, "mean", None, thing)
    assert inputs.args[1:4] == (3, "mean", None)
    assert inputs.args[4] is thing
