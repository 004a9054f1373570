"""F12: each kind of Function under each transform, each two of them, and some threes: what plain PyTorch gives.

The threes are drawn by seed; this takes all of them, 216 for each kind:

PULLBACK_TRIPLES=216 PULLBACK_SEED=1 pytest tests/transforms/matrix
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from itertools import product

import pytest

from tests.transforms.matrix.agreement import Case, assert_each_agrees, each_seed
from tests.transforms.matrix.compositions import ALONE, TRANSFORMS, Composition, refusals, under
from tests.transforms.matrix.kind import Kind
from tests.transforms.matrix.kinds import KINDS

TRIPLES = int(os.environ.get("PULLBACK_TRIPLES", "8"))
"""How many compositions of three are tried for each kind."""

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def cases(kind: Kind, compositions: Iterable[Composition]) -> dict[str, Case]:
    """The program under each composition, by its name."""
    return {" of ".join(names): (under(names), refusals(kind, names)) for names in compositions}


@each_seed
@each_kind
def test_one_transform(kind: Kind, seed: int) -> None:
    """F12: values and derivatives of each kind under each transform are those of the plain function."""
    assert_each_agrees(kind, cases(kind, [(name,) for name in ALONE]), seed)


@each_seed
@pytest.mark.parametrize("outer", TRANSFORMS)
@each_kind
def test_two_transforms(kind: Kind, outer: str, seed: int) -> None:
    """F12: each transform of each transform."""
    assert_each_agrees(kind, cases(kind, [(outer, inner) for inner in TRANSFORMS]), seed)


@each_seed
@each_kind
def test_three_transforms(kind: Kind, seed: int) -> None:
    """F12: some compositions of three, others for each kind."""
    every = list(product(TRANSFORMS, repeat=3))
    some = sorted(random.Random(f"{seed} {kind.name}").sample(every, TRIPLES))
    assert_each_agrees(kind, cases(kind, some), seed)


@each_seed
@each_kind
def test_forward_mode_three_times(kind: Kind, seed: int) -> None:
    """F12: a third nested level of forward mode, where PyTorch's own Functions give 0, is as right as the others."""
    assert_each_agrees(kind, cases(kind, [("jvp", "jvp", "jvp"), ("jacfwd", "jvp", "jvp")]), seed)
