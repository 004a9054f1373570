"""Tensors in nests, and copies that keep layout and sharing."""

from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.battery.leaves import copy_of, replace, tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Box:
    """A nest that is a dataclass."""

    content: Tensor


def test_tensors_are_found_with_readable_paths() -> None:
    """Lists, tuples, dicts, dataclasses and modules, each in its own notation."""
    x = torch.rand(1)
    nest = {"a": [x, 3], "b": Box(x), "c": torch.nn.Linear(1, 1, bias=False)}
    assert [path for path, _ in tensors(nest, "n")] == ["n['a'][0]", "n['b'].content", "n['c'].weight"]


def test_replace_keeps_the_kind_of_every_nest() -> None:
    """Named tuples stay named tuples, dataclasses dataclasses."""
    x = torch.ones(1)
    made = replace([Pair(x, 1), (x,), Box(x), {"k": x}], lambda tensor: tensor * 5)
    assert isinstance(made[0], Pair)
    assert made[0].right == 1
    assert isinstance(made[2], Box)
    assert [float(tensor) for _, tensor in tensors(made, "")] == [5.0] * 4


def test_other_containers_stay_what_they_are() -> None:
    """A dict with a default keeps it, an ordered one its order; a deque is in PyTorch's registry and no list."""
    x = torch.ones(1)
    nests = (defaultdict(list, k=x), OrderedDict(b=x, a=x), deque([x, 2]))
    assert [path for path, _ in tensors(nests, "n")] == ["n[0]['k']", "n[1]['b']", "n[1]['a']", "n[2][0]"]
    made = replace(nests, lambda tensor: tensor * 5)
    assert [type(nest) for nest in made] == [defaultdict, OrderedDict, deque]
    assert made[0].default_factory is list
    assert list(made[1]) == ["b", "a"]
    assert [float(tensor) for _, tensor in tensors(made, "")] == [5.0] * 4


def test_a_module_is_copied_with_other_parameters() -> None:
    """The module that was given isn't touched, and what isn't a parameter is shared."""
    layer = torch.nn.BatchNorm1d(2)
    copy = replace([layer], lambda tensor: tensor.detach() * 3)[0]
    assert type(copy) is torch.nn.BatchNorm1d
    assert layer.weight.tolist() == [1.0, 1.0]
    assert copy.weight.tolist() == [3.0, 3.0]
    assert copy.running_mean is layer.running_mean


def test_nests_without_tensors_are_the_same_object() -> None:
    """A side channel that forward writes to must not be copied."""
    channel: list[int] = []
    assert replace((channel, torch.ones(1)), lambda tensor: tensor)[0] is channel


def test_copies_keep_strides_offset_and_values() -> None:
    """A slice of a transposed tensor is copied as one."""
    original = torch.rand(4, 6).t()[1:4, ::2]
    copy = copy_of(original)
    assert (copy.stride(), copy.storage_offset()) == (original.stride(), original.storage_offset())
    assert torch.equal(copy, original)
    assert copy.data_ptr() != original.data_ptr()


def test_copies_of_views_of_one_storage_share_a_storage_again() -> None:
    """What aliases in the sample aliases in the copy."""
    base = torch.rand(4)
    known: dict[int, torch.UntypedStorage] = {}
    first, second = copy_of(base[:3], known), copy_of(base[1:], known)
    first.zero_()
    assert second.tolist()[:2] == [0.0, 0.0]
    assert bool(base.all())


def test_conjugate_and_sparse_tensors_are_copied_by_value() -> None:
    """A lazy conjugate and a sparse tensor have no plain storage to copy."""
    z = torch.randn(3, dtype=torch.complex64).conj()
    assert torch.equal(copy_of(z), z)
    sparse = torch.eye(2).to_sparse()
    assert torch.equal(copy_of(sparse).to_dense(), sparse.to_dense())
