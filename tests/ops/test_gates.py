"""swiglu and geglu: PyTorch's values, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops import geglu, swiglu

GATES = pytest.mark.parametrize("gate", [swiglu, geglu], ids=["swiglu", "geglu"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_are_pytorchs_bit_for_bit(dtype: torch.dtype) -> None:
    """Each gate gives what the two operations of PyTorch give, in each dtype."""
    a, u = torch.randn(5, 7).to(dtype), torch.randn(5, 7).to(dtype)
    assert torch.equal(swiglu(a, u), F.silu(a) * u)
    assert torch.equal(geglu(a, u), F.gelu(a, approximate="tanh") * u)
    assert torch.equal(geglu(a, u, "none"), F.gelu(a) * u)


@GATES
def test_special_values(gate: Callable[..., Any]) -> None:
    """At infinity and NaN values and gradients are the formula's."""
    formula = (lambda a, u: F.silu(a) * u) if gate is swiglu else (lambda a, u: F.gelu(a, approximate="tanh") * u)
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 88.0, -88.0, 1e30], dtype=torch.float64)
    results = []
    for call in (gate, formula):
        a, u = special.clone().requires_grad_(), torch.full((8,), 2.0, dtype=torch.float64, requires_grad=True)
        y = call(a, u)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), (a, u))))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


@GATES
def test_mixed_dtypes_promote(gate: Callable[..., Any]) -> None:
    """As in PyTorch the result has the wider dtype, and each gradient its argument's."""
    a, u = torch.randn(3).bfloat16().requires_grad_(), torch.randn(3, requires_grad=True)
    y = gate(a, u)
    assert y.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(y.sum(), (a, u))] == [torch.bfloat16, torch.float32]


def text(call: Callable[[], Tensor]) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(OperationError) as caught:
        call()
    return str(caught.value)


@GATES
def test_shapes_that_do_not_broadcast(gate: Callable[..., Any]) -> None:
    """PB130 names both shapes."""
    said = text(lambda: gate(torch.ones(2, 3), torch.ones(2, 4)))
    assert said.startswith(f"PB130 {gate.__name__}: gate and up can't be broadcast together.")
    assert "got: gate (2, 3), up (2, 4)" in said


@GATES
def test_integers_have_no_gate(gate: Callable[..., Any]) -> None:
    """PB130 names both dtypes."""
    assert "got: gate of torch.int64, up of torch.float32" in text(lambda: gate(torch.ones(2).long(), torch.ones(2)))


def test_an_unknown_approximation() -> None:
    """PB130 lists the two that there are."""
    said = text(lambda: geglu(torch.ones(2), torch.ones(2), "sigmoid"))
    assert "expected: approximate is 'none' or 'tanh'" in said
    assert "got: 'sigmoid'" in said


@GATES
def test_a_batch_of_cotangents(gate: Callable[..., Any]) -> None:
    """With is_grads_batched, where the cotangent alone has the axis of the batch, each gets its own gradients."""
    a, u, g = torch.randn(3, 4).requires_grad_(), torch.randn(3, 4).requires_grad_(), torch.randn(5, 3, 4)
    y = gate(a, u)
    got = torch.autograd.grad(y, (a, u), g, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(y, (a, u), one, retain_graph=True) for one in g]
    torch.testing.assert_close(got, tuple(map(torch.stack, zip(*each, strict=True))))


@GATES
def test_memory_that_is_used_again_is_its_own(gate: Callable[..., Any]) -> None:
    """No argument, cotangent or result is written to, and a second backward gives the same."""
    a, u, g = torch.randn(3, 4).requires_grad_(), torch.randn(3, 4).requires_grad_(), torch.randn(3, 4)
    y = gate(a, u)
    before = [tensor.detach().clone() for tensor in (a, u, g, y)]
    first = torch.autograd.grad(y, (a, u), g, retain_graph=True)
    kept = [tensor.clone() for tensor in first]
    assert all(map(torch.equal, torch.autograd.grad(y, (a, u), g), kept))
    assert all(map(torch.equal, (*first, a, u, g, y), (*kept, *before)))


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("approximate", ["silu", "none", "tanh"])
@pytest.mark.parametrize("which", [0, 1], ids=["gate", "up"])
def test_two_dtypes(low: torch.dtype, approximate: str, which: int) -> None:
    """One argument lower than the other gives the dtypes of the formula, and gradients as near to float64."""
    exact = [torch.randn(3, 40, dtype=torch.float64) for _ in range(2)]
    exact[which] = exact[which].to(low).double()

    def found(arguments: list[Tensor], gate: Callable[..., Any] | None) -> list[Tensor]:
        a, u = (argument.clone().requires_grad_() for argument in arguments)
        if gate is None:
            y = (F.silu(a) if approximate == "silu" else F.gelu(a, approximate=approximate)) * u
        else:
            y = gate(a, u) if approximate == "silu" else gate(a, u, approximate)
        return [y.detach(), *torch.autograd.grad(y.sum(), (a, u))]

    due = found(exact, None)
    mixed = [argument.to(low) if index == which else argument for index, argument in enumerate(exact)]
    for got, plain, expected in zip(
        found(mixed, swiglu if approximate == "silu" else geglu), found(mixed, None), due, strict=True
    ):
        assert got.dtype == plain.dtype
        room = 2 * torch.finfo(low).eps * float(expected.abs().max())
        assert (got.double() - expected).abs().max() <= room
