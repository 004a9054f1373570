"""Watching a call from outside: snapshots, what hangs on a node, what a function refers to."""

import functools
from typing import Any

import torch

from pullback.battery.observe import (
    SavedTensors,
    Snapshot,
    difference,
    held,
    identical,
    references,
    same_memory,
    saved_name,
    storage_of,
    storage_refs,
)

ELSEWHERE = torch.ones(2)
NAN = float("nan")


def _helper() -> torch.Tensor:
    """Uses a global; for `references`."""
    return ELSEWHERE


def test_a_snapshot_sees_values_and_versions_apart() -> None:
    """A raw write changes the values and no version, a rewrite of the same values the version alone."""
    tensors = {"raw": torch.ones(2), "same": torch.ones(2), "quiet": torch.ones(2)}
    before = Snapshot(tensors)
    tensors["raw"].numpy()[0] = 5
    tensors["same"].fill_(1)
    assert list(before.changed()) == ["raw"]
    assert [before.bumped(name) for name in tensors] == [False, True, False]


def test_identical_takes_nan_for_a_value_and_minds_the_dtype() -> None:
    """NaN equals NaN; float32 isn't float64; shapes count."""
    assert identical(torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]))
    assert not identical(torch.tensor([1.0]), torch.tensor([NAN]))
    assert not identical(torch.ones(1), torch.ones(1, dtype=torch.float64))
    assert not identical(torch.ones(1), torch.ones(1, 1))


def test_difference_knows_the_rounding_of_low_dtypes() -> None:
    """What is noise in float32 is a difference in float64."""
    one, other = torch.ones(1, dtype=torch.float64), torch.full((1,), 1 + 1e-6, dtype=torch.float64)
    assert difference(one, other) is not None
    assert difference(one.float(), other.float()) is None
    assert difference(None, None) is None


def test_what_is_saved_is_recorded_and_can_be_exchanged() -> None:
    """The hooks see each saved tensor, and decide what is read back."""
    x = torch.tensor([3.0], requires_grad=True)
    saved = SavedTensors(lambda position, tensor: tensor * 10)
    with saved:
        y = x.exp()
    (gradient,) = torch.autograd.grad(y, x)
    assert len(saved.tensors) == 1
    torch.testing.assert_close(gradient, 10 * y.detach())


def test_saved_tensors_are_named_after_what_they_are() -> None:
    """By the position, and by the argument that has the same memory; a slice of it is something else."""
    x = torch.ones(3)
    assert saved_name(0, x.detach(), {"x": x}) == "saved tensor 0 (x)"
    assert saved_name(1, x[:2], {"x": x}) == "saved tensor 1"
    assert not same_memory(torch.empty(0), torch.empty(0))


def test_tensors_are_found_wherever_an_attribute_holds_them() -> None:
    """In nests, closures, partial functions and objects; not in modules, which hold constants."""
    inner = torch.ones(1)

    class Box:
        def __init__(self) -> None:
            self.content = inner

    def closure() -> torch.Tensor:
        return inner

    for value in ([inner], {"a": (inner,)}, closure, functools.partial(print, inner), Box(), [Box().content]):
        assert [found for _, found in held(value, "ctx.v")] == [inner]
    assert list(held(torch.nn.Linear(1, 1), "ctx.layer")) == []
    assert list(held(3, "ctx.n")) == []


def test_held_comes_to_an_end_in_a_cycle() -> None:
    """An object that holds itself is followed a few steps and no further."""

    class Loop:
        def __init__(self) -> None:
            self.me = self

    assert list(held(Loop(), "ctx.loop")) == []


def test_references_are_closures_globals_defaults_and_those_of_helpers() -> None:
    """By name: what a function can reach outside itself."""
    captured = object()

    def function(x: Any, scale: float = 2.5, *, shift: float = 1.5) -> Any:
        return captured, _helper(), [NAN for _ in range(3)], x * scale + shift

    found = references(function)
    assert found["captured"] is captured
    assert found["ELSEWHERE"] is ELSEWHERE
    assert found["default 0"] == 2.5
    assert found["shift"] == 1.5
    assert "NAN" in found
    assert references(print) == {}


def test_storages_are_told_apart_and_their_end_is_seen() -> None:
    """Views share a storage; a weak reference expires with the last of them."""
    base = torch.ones(4)
    view = base[1:]
    assert storage_of(base) == storage_of(view)
    (reference,) = storage_refs([base])
    del base
    assert not reference.expired()
    del view
    assert reference.expired()
