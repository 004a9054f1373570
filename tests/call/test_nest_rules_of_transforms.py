"""F12: a jvp or vmap that doesn't return the nest that is due is an error that says what is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError, TransformError


def doubling(**methods: Any) -> Any:
    """Define {"y": 2 x} of [x], with more methods."""
    body = {
        "forward": staticmethod(lambda ctx, n: {"y": n[0] * 2}),
        "backward": staticmethod(lambda ctx, g: ([g["y"] * 2],)),
    }
    more = {name: staticmethod(method) for name, method in methods.items()}
    return type("Doubling", (pullback.Function,), {**body, **more})


TANGENTS: dict[str, tuple[Any, list[str]]] = {
    "a number": (
        3,
        ["PB202 Doubling.jvp returned int where tangent is due.", "  expected: a dict with the keys 'y'", "  got: int"],
    ),
    "another key": (
        {"z": torch.ones(3)},
        [
            "PB202 Doubling.jvp returned a dict with the keys 'z' where tangent['z'] is due.",
            "  expected: keys among 'y'",
            "  got: a dict with the keys 'z'",
        ],
    ),
    "a number in it": (
        {"y": 2.0},
        [
            "PB202 Doubling.jvp returned float where tangent['y'] is due.",
            "  expected: a tensor or None",
            "  got: float",
        ],
    ),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_tangents_unlike_the_outputs(name: str) -> None:
    """PB202 says which entry of the tangent it is, what is due there and what came."""
    returned, text = TANGENTS[name]
    made = doubling(jvp=lambda ctx, t: returned)
    with pytest.raises(GradientError) as caught:
        torch.func.jvp(lambda x: made.apply([x])["y"], (torch.ones(3),), (torch.ones(3),))
    assert str(caught.value).splitlines()[:3] == text


def test_tangents_like_the_outputs() -> None:
    """The nest that is due is taken."""
    made = doubling(jvp=lambda ctx, t: {"y": t[0] * 2})
    _, tangent = torch.func.jvp(lambda x: made.apply([x])["y"], (torch.ones(3),), (torch.ones(3),))
    assert tangent.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dims", [{"z": 0}, [0], {"y": [0]}, "y", (0,), {}], ids=str)
def test_batch_dimensions_unlike_the_outputs(dims: Any) -> None:
    """PB509 says what a vmap's out_dims are to look like."""
    made = doubling(vmap=lambda info, in_dims, n: ({"y": n[0] * 2}, dims))
    with pytest.raises(TransformError) as caught:
        torch.func.vmap(lambda x: made.apply([x])["y"])(torch.ones(2, 3))
    assert str(caught.value).splitlines()[:3] == [
        "PB509 Doubling.vmap returned batch dimensions that aren't like its outputs.",
        "  expected: a dict with the keys 'y', each entry an int or None, or one int for all",
        f"  got: {dims!r}",
    ]


@pytest.mark.parametrize(("dims", "shape"), [(0, (2, 3)), ({"y": 0}, (2, 3)), ({"y": 1}, (3, 2))], ids=str)
def test_batch_dimensions_like_the_outputs(dims: Any, shape: tuple[int, ...]) -> None:
    """One dimension stands for all leaves, or each has its own."""

    def vmap(info: Any, in_dims: Any, n: list[Tensor]) -> Any:
        assert in_dims == ([0],)
        y = n[0] * 2
        return {"y": y if shape == (2, 3) else y.T}, dims

    made = doubling(vmap=vmap)
    result = torch.func.vmap(lambda x: made.apply([x])["y"])(torch.arange(6.0).view(2, 3))
    assert torch.equal(result, torch.arange(6.0).view(2, 3) * 2)
