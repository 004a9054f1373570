"""Does a Function give what plain PyTorch gives, under the same transforms? Or is it refused, by a rule that may?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from pullback.errors import PullbackError
from tests.transforms.matrix.compositions import TORCHS_OWN, leaves
from tests.transforms.matrix.kind import Kind, Point, Program

SEED = int(os.environ.get("PULLBACK_SEED", "0"))
"""Where all arguments come from; it stands in the name of each test."""

TOLERANCES = {torch.float64: (1e-9, 1e-11), torch.float32: (1e-4, 1e-5)}
"""rtol and atol. In float32 third derivatives add up some dozens of roundings."""

each_seed = pytest.mark.parametrize("seed", [SEED], ids=lambda seed: f"seed={seed}")

Taken = Callable[[Program, Point], Any]
"""What is done with a program at a point: transforms and a call of the result."""


def assert_alike(got: Any, expected: Any) -> None:
    """Require the same tree of tensors: shapes, dtypes, values."""
    ours, theirs = list(leaves(got)), list(leaves(expected))
    assert len(ours) == len(theirs), f"{len(ours)} tensors came, and {len(theirs)} were due"
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        rtol, atol = TOLERANCES.get(other.dtype, (0, 0))
        torch.testing.assert_close(
            one, other, rtol=rtol, atol=atol, msg=lambda text, place=place: f"tensor {place} of the result: {text}"
        )


def taken_with(function: Callable[..., Any], kind: Kind, taken: Taken, seed: int) -> Any:
    """What comes of the function at the kind's point; random numbers start from the seed."""
    point = kind.point(seed)
    torch.manual_seed(seed)
    return taken(point.program(function), point)


def assert_agrees(kind: Kind, taken: Taken, seed: int, may: frozenset[str] = frozenset(), function: Any = None) -> None:
    """Require what plain PyTorch gives, or an error of pullback's by one of the rules that may refuse it."""
    function = kind.make() if function is None else function
    try:
        expected = taken_with(kind.plain, kind, taken, seed)
    except RuntimeError:
        # vmap refuses shapes that depend on values in plain PyTorch too, and forward mode a Function that is the truth.
        assert may, "the plain function fails where the Function is to be right"
        expected = None
    try:
        got = taken_with(function.apply, kind, taken, seed)
    except RuntimeError as error:
        if getattr(error, "rule", TORCHS_OWN) not in may:
            raise
        if isinstance(error, PullbackError) and function.__name__ not in str(error):
            raise
        return
    assert expected is not None, "it is neither refused nor known to be right"
    assert_alike(got, expected)


Case = tuple[Taken, frozenset[str]]
"""What is done, and the rules that may refuse it."""


def assert_each_agrees(kind: Kind, cases: Mapping[str, Case], seed: int) -> None:
    """Require it of all cases, and name each that fails."""
    failures: dict[str, Exception] = {}
    for name, (taken, may) in cases.items():
        try:
            assert_agrees(kind, taken, seed, may)
        except Exception as error:
            failures[name] = error
    if failures:
        told = (f"{name}: {type(error).__name__}: {str(error).strip()}" for name, error in failures.items())
        text = "\n".join([f"{kind.name}, seed {seed}: {len(failures)} of {len(cases)} fail", *told])
        raise AssertionError(text) from next(iter(failures.values()))
