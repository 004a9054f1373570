"""F3, F8: what save_for_backward is given as constants is a tuple of tensors, or the error says what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.call.stand_in import ForwardStandIn
from pullback.errors import CallError
from tests.function.kinds import leaf
from tests.tracebacks import files, is_pullbacks, last_function


def masked(**keywords: Any) -> Any:
    """Make x², which saves x and passes `keywords` to save_for_backward."""

    class Masked(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, **keywords)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Masked


WRONG: dict[str, tuple[Any, str, str]] = {
    "a tensor": (torch.ones(3), "a Tensor", "Write constants=(mask,)."),
    "a 0-d tensor": (torch.tensor(2.0), "a Tensor", "Write constants=(mask,)."),
    "a tensor that is False": (torch.zeros(1), "a Tensor", "Write constants=(mask,)."),
    "an empty tensor": (torch.ones(0), "a Tensor", "Write constants=(mask,)."),
    "a number": (3, "an int", "Write constants=(mask,). Keep what isn't a tensor as an attribute of ctx."),
    "nothing": (None, "a NoneType", "Write constants=(mask,). Keep what isn't a tensor as an attribute of ctx."),
    "a number in it": (
        (torch.ones(3), 3.0),
        "a float among them",
        "Keep what isn't a tensor as an attribute of ctx: ctx.scale = scale.",
    ),
    "an array in it": (
        [np.ones(3)],
        "a ndarray among them",
        "Keep what isn't a tensor as an attribute of ctx: ctx.scale = scale.",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_constants_that_are_no_tuple_of_tensors(case: tuple[Any, str, str]) -> None:
    """F3: PB110 names the class and says what to write, on the author's own line."""
    constants, got, remedy = case
    with pytest.raises(CallError) as caught:
        masked(constants=constants).apply(leaf(3))
    assert str(caught.value).splitlines() == [
        "PB110 Masked: ctx.save_for_backward was given constants that aren't a tuple of tensors.",
        "  expected: a tuple of tensors",
        f"  got: {got}",
        f"  remedy: {remedy}",
    ]
    assert isinstance(caught.value, TypeError)
    assert last_function(caught.value) == "forward"
    assert not any(map(is_pullbacks, files(caught.value)))


@pytest.mark.parametrize("constants", [(), [], (torch.ones(3),), [torch.ones(3), None]], ids=str)
def test_constants_in_a_tuple_or_list(constants: Any) -> None:
    """F8: a list does as well, an empty one declares nothing, and None is saved as torch saves it."""
    x = leaf(3)
    output = masked(constants=constants).apply(x)
    assert len(output.grad_fn.saved_tensors) == 1 + len(constants)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())


def test_a_misspelt_keyword() -> None:
    """F3: Python's own error names save_for_backward, which the author called."""
    with pytest.raises(TypeError, match=r"^ctx\.save_for_backward\(\) got an unexpected keyword argument 'constant'"):
        masked(constant=(torch.ones(3),)).apply(leaf(3))


def test_a_replay_of_forward_is_as_strict() -> None:
    """F3: a branch that only a replay takes gets the same error."""
    with pytest.raises(CallError, match=r"PB110 forward: ctx\.save_for_backward was given constants"):
        ForwardStandIn((True,)).save_for_backward(torch.ones(2), constants=torch.ones(2))
