"""Errors that nobody meant, told apart from refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pullback.battery.probes import precision
from pullback.battery.slips import is_slip
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


def _by_hand() -> None:
    raise RuntimeError("the shape of x must be even")


@pytest.mark.parametrize(
    ("call", "slip"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(2, 3), True),
        (lambda: torch.layer_norm(torch.ones(2, 3), [3], torch.ones(2)), True),
        (_by_hand, False),
        (lambda: torch.ones(2, 2) @ torch.ones(2, 2).double(), False),
        (lambda: torch.nn.functional.gelu(torch.ones(2, dtype=torch.complex64)), False),
        (lambda: [][0], False),
    ],
)
def test_an_operator_that_gets_the_wrong_shapes_is_a_slip(call: Callable[[], object], slip: bool) -> None:
    """Whoever refuses something raises by hand, and what an operator can't do has to do with dtypes."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # any: their kinds are what is told apart
        call()
    assert is_slip(caught.value) is slip


def test_an_error_without_a_traceback_is_none() -> None:
    """Nobody knows where it came from."""
    assert not is_slip(RuntimeError("the shapes don't fit"))


def _scaled(x: Tensor, size: int) -> Tensor:
    return x * (torch.ones(size, dtype=x.dtype) if x.dtype is torch.bfloat16 else 1.0)


def test_a_branch_for_a_dtype_that_mixes_up_shapes_is_found() -> None:
    """In bfloat16 alone forward fails, in an operator, and its reference doesn't."""

    def mixed(x: Tensor) -> Tensor:
        return _scaled(x, x.shape[0])

    def right(x: Tensor) -> Tensor:
        return _scaled(x, x.shape[1])

    def refuses(x: Tensor) -> Tensor:
        if x.dtype is torch.bfloat16:
            raise RuntimeError("in bfloat16 there is no kernel for this shape")
        return x * 1.0

    _, (finding,) = run_probe(precision.PROBE, mixed, (leaf(2, 3),), reference=right)
    assert finding.rule == "PB219"
    assert finding.message.startswith("in bfloat16 forward raises, in an operator that gets the wrong shapes")
    assert shows_the_fault(finding, mixed=mixed, right=right)
    for function, reference in ((right, right), (refuses, right), (mixed, None), (mixed, mixed)):
        assert run_probe(precision.PROBE, function, (leaf(2, 3),), reference=reference)[1] == ()
