"""F8, F10: random Functions that keep what they compute anywhere are exact to third order, call after call.

PULLBACK_PROGRAMS=20000 PULLBACK_SEED=1 pytest tests/transforms/test_random_programs.py      (make fuzz)
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transforms.derivatives import Draw, assert_exact
from tests.transforms.programs import Program, drawn_plans, function_of

PROGRAMS = int(os.environ.get("PULLBACK_PROGRAMS", "60"))
FIRST = int(os.environ.get("PULLBACK_SEED", "0"))
SHAPES = ((3,), (3,), (2, 3), (1,), (0, 3))


def compare(program: Program, function: Any, choose: random.Random, draw: Draw) -> None:
    """Compare one call with the formula: leaves and inner tensors, some of them frozen."""
    flag, shape, order = choose.randrange(2), choose.choice(SHAPES), choose.choice((2, 2, 3))
    leaves = [draw.leaf(*shape, low=-1.3) for _ in range(program.arguments)]
    frozen = [choose.random() < 0.2 for _ in leaves]
    inner = [choose.random() < 0.5 for _ in leaves]

    def arguments(given: tuple[Tensor, ...]) -> list[Tensor]:
        passed = [x * 1.5 - 0.1 if deep else x for x, deep in zip(given, inner, strict=True)]
        return [x.detach() if stopped else x for x, stopped in zip(passed, frozen, strict=True)]

    # A Function's outputs all require grad if one argument does; a formula's, only those that depend on it.
    live = [k for k, output in enumerate(program.formula(*arguments(tuple(leaves)))) if output.requires_grad]

    def chosen(outputs: Any) -> tuple[Tensor, ...]:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(outputs[k] for k in live)

    if live:
        assert_exact(
            lambda *given: chosen(function.apply(flag, *arguments(given))),
            lambda *given: chosen(program.formula(*arguments(given))),
            leaves,
            order,
        )


def test_random_programs_are_exact_to_every_order() -> None:
    """Calls of one class may keep things in other places than the first one did."""
    for seed in range(FIRST, FIRST + PROGRAMS):
        choose, draw = random.Random(seed), Draw(seed)
        program = Program.drawn(choose)
        function = function_of(program, drawn_plans(program, choose, count=2))
        for _ in range(choose.randint(1, 3)):
            try:
                compare(program, function, choose, draw)
            except Exception as error:
                pytest.fail(f"seed {seed}: {program}: {error}")


def test_a_wrong_adjoint_would_be_noticed() -> None:
    """The comparison can fail: with the adjoint of another step, first gradients differ."""
    program = Program(1, (("tanh", (0,)),), (1,))
    wrong = Program(1, (("exp", (0,)),), (1,))
    function = function_of(program, [{0: "saved", 1: "saved"}])
    leaf = Draw(0).leaf(3)
    with pytest.raises(AssertionError, match="order 1, leaf 0"):
        assert_exact(lambda x: function.apply(0, x), lambda x: wrong.formula(x), [leaf], 2)
    torch.testing.assert_close(function.apply(0, leaf), leaf.tanh())
