"""F13: every kind of Function that the transforms are crossed with is compiled whole, with its formula's gradients."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compiled.running import BACKENDS, assert_same, fully, results
from tests.transforms.matrix.kind import Kind, Point
from tests.transforms.matrix.kinds import KINDS

# What torch 2.13 doesn't compile as a whole, of its own Functions neither. Nothing is promised of these.
REFUSED_BY_TORCH = {
    "autograd_in_backward": "trace_autograd_ops=False",
    "in_place_intermediate": "mark_dirty input not returned",
}

COMPILED = [kind for name, kind in KINDS.items() if name not in REFUSED_BY_TORCH]


def values(kind: Kind, point: Point, function: Any, backend: str = "") -> tuple[list[Tensor], list[Tensor | None]]:
    """Return outputs and gradients at a point, of the function as it is or compiled."""
    leaves = [tensor.clone().requires_grad_(k in point.wrt) for k, tensor in enumerate(point.tensors)]
    program = point.program(function)
    if backend:
        program = fully(program, backend)
    return results(program, [leaves[k] for k in point.wrt], *leaves)


def called(kind: Kind) -> Any:
    """Make the kind's Function; return what calls it."""
    made = kind.make()
    return getattr(made, "apply", made)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "kind", [kind for name, kind in KINDS.items() if name not in REFUSED_BY_TORCH], ids=lambda k: k.name
)
def test_compiled_whole(kind: Kind, backend: str) -> None:
    """F13: outputs and first gradients are eager's; which are those of the formula, as other tests hold."""
    point = kind.point(seed=3)
    assert_same(values(kind, point, called(kind), backend), values(kind, point, called(kind)))


@pytest.mark.parametrize("name", REFUSED_BY_TORCH)
def test_the_rest_is_refused_in_torch_s_words(name: str) -> None:
    """F13: what is left out above is refused by torch, loudly; another torch that takes it gives eager's values."""
    kind, point = KINDS[name], KINDS[name].point(seed=3)
    got, refusal = None, ""
    try:
        got = values(kind, point, called(kind), "eager")
    except Exception as error:  # whatever torch's tracer raises
        refusal = str(error)
    if got is not None and not torch.__version__.startswith("2.13."):
        assert_same(got, values(kind, point, called(kind)))
    else:
        assert re.search(REFUSED_BY_TORCH[name], refusal), refusal or "torch takes it: strike it off the list"
