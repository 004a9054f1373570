"""F16: gradients of custom_jvp are the transpose of its rule; a rule that has none is an error, and no zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError
from tests.custom.rules import drawn


def sine(tangent: Any) -> Any:
    """Decorate sin(x), with `tangent` of x and its tangent for the rule."""

    @pullback.custom_jvp
    def made(x: Tensor) -> Tensor:
        return torch.sin(x)

    made.defjvp(lambda p, t: (torch.sin(p[0]), tangent(p[0], t[0])))
    return made


WITHOUT_TRANSPOSE: dict[str, Any] = {
    "detached": lambda x, t: torch.cos(x) * t.detach(),
    "by NumPy": lambda x, t: torch.from_numpy(torch.cos(x).detach().numpy() * t.detach().numpy()),
    "half of it detached": lambda x, t: torch.cos(x) * (t + t.detach()),
    "a square": lambda x, t: torch.cos(x) * t**2,
    "a constant": lambda x, t: torch.cos(x) * t + 1,
}


@pytest.mark.parametrize("name", WITHOUT_TRANSPOSE)
def test_a_rule_without_a_transpose(name: str) -> None:
    """PB223, for a gradient, for one that is to be differentiated, and under transforms."""
    made, x = sine(WITHOUT_TRANSPOSE[name]), drawn(3)
    for create_graph in (False, True):
        with pytest.raises(GradientError) as caught:
            torch.autograd.grad(made(x).sum(), x, create_graph=create_graph)
        assert str(caught.value).splitlines()[:3] == [
            "PB223 the rule of made has no transpose: for tangents t and a cotangent u, ⟨u, J t⟩ isn't ⟨Jᵀu, t⟩.",
            "  expected: a tangent that is linear in the tangents, made from them by PyTorch operations",
            "  got: one that autograd can't follow, or that isn't linear",
        ]
    if name != "by NumPy":
        for transform in (torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f))):
            with pytest.raises(GradientError, match="PB223"):
                transform(lambda x: made(x).sum())(x.detach()[None])


LINEAR: dict[str, Any] = {
    "a rule": lambda x, t: torch.cos(x) * t,
    "zero": lambda x, t: torch.zeros_like(t),
    "None": lambda x, t: None,
    "solved for roughly": lambda x, t: torch.cos(x) * t * (1 + 1e-4 * t.detach().abs()),
    "not finite": lambda x, t: torch.cos(x) * t / 0.0,
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_rule_with_a_transpose(name: str) -> None:
    """Zero is linear, a solver's tolerance is allowed for, and NaN says nothing."""
    made = sine(LINEAR[name])
    for _ in range(2):
        x = drawn(3)
        torch.autograd.grad(made(x).sum(), x, allow_unused=True)
        torch.func.vmap(torch.func.grad(lambda x: made(x).sum()))(x.detach()[None])


def test_several_arguments_and_results() -> None:
    """The two sums run over all results and all arguments that a gradient is asked for, complex ones too."""

    @pullback.custom_jvp
    def products(x: Tensor, y: Tensor, k: int) -> Any:
        return {"product": x * y, "sum": x + k * y, "count": k}

    @products.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y, k), (dx, dy, _) = primals, tangents
        return products(x, y, k), {"product": x * dy + y * dx, "sum": dx + k * dy, "count": None}

    for dtype in (torch.float64, torch.complex128):
        x, y = (drawn(3, seed=seed).detach().to(dtype).requires_grad_() for seed in range(2))
        for wanted in ((x, y), (x,), (y,)):
            for tensor in (x, y):
                tensor.requires_grad_(any(tensor is other for other in wanted))
            result = products(x, y, 2)
            got = torch.autograd.grad((result["product"] + result["sum"]).abs().sum(), wanted)
            due = torch.autograd.grad((x * y + x + 2 * y).abs().sum(), wanted)
            for one, other in zip(got, due, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_the_gradient_is_linear_whatever_the_cotangent() -> None:
    """A cotangent that cancels in the sum, or that is zero, is no false alarm."""
    made, x = sine(lambda x, t: torch.cos(x) * t), drawn(4)
    for cotangent in ([1.0, -1.0, 1.0, -1.0], [0.0] * 4, [1e-30] * 4, [1e30, 1.0, -1.0, 1e-30]):
        u = torch.tensor(cotangent, dtype=torch.float64)
        torch.testing.assert_close(torch.autograd.grad(made(x), x, u)[0], torch.cos(x) * u, rtol=1e-12, atol=0)
