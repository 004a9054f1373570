"""F13: compiled code is compiled again where PyTorch's own Functions are, and not more often; sizes may be dynamic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.compiled.running import assert_same, fully, results
from tests.function.kinds import leaf

BASES = (torch.autograd.Function, pullback.Function)


def power(base: type) -> Any:
    """Make x ↦ x^n."""

    class Power(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
            ctx.save_for_backward(x)
            ctx.n = n
            return x**n

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * ctx.n * x ** (ctx.n - 1), None

    return Power


def graphs(program: Callable[..., Any], calls: Iterable[tuple[Any, ...]], **options: Any) -> int:
    """Return how many graphs are made of a program over these calls, each of which must be right."""
    made = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal made
        made += 1
        return module

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=backend, fullgraph=True, **options)
    for arguments in calls:
        leaves = [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
        assert_same(results(compiled, leaves, *arguments), results(program, leaves, *arguments))
    return made


CALLS: dict[str, list[tuple[Any, ...]]] = {
    "the same again": [(leaf(3, seed=seed), 2) for seed in range(4)],
    "other sizes": [(leaf(size), 2) for size in (3, 4, 5, 6, 1, 0)],
    "other numbers": [(leaf(3), n) for n in (2, 3, 4, 5)],
    "with and without a gradient": [(leaf(3), 2), (leaf(3).detach(), 2), (leaf(3), 2), (leaf(3).detach(), 2)],
    "other dtypes": [(leaf(3), 2), (leaf(3).float().detach().requires_grad_(), 2), (leaf(3), 2)],
    "other layouts": [(leaf(3, 4), 2), (leaf(4, 3).detach().T.requires_grad_(), 2), (leaf(3, 4), 2)],
}


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("name", CALLS)
def test_no_more_graphs_than_torch(name: str, dynamic: bool | None) -> None:
    """F13: over the same calls as many graphs are made as of PyTorch's class, whether sizes are dynamic or not."""
    calls = [arguments for arguments in CALLS[name] if arguments[0].requires_grad or dynamic is not True]
    counts = []
    for base in BASES:
        made = power(base)
        counts.append(graphs(lambda x, n: made.apply(x.sin(), n) * 1.5, calls, dynamic=dynamic))  # noqa: B023  # called at once
    assert counts[1] <= counts[0]


def test_dynamic_sizes_in_containers() -> None:
    """F13: of a call with a list, one graph serves every size."""

    class Dot(pullback.Function):
        @staticmethod
        def forward(ctx: Any, pair: list[Tensor]) -> dict[str, Tensor]:
            ctx.save_for_backward(*pair)
            return {"y": (pair[0] * pair[1]).sum(0)}

        @staticmethod
        def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
            a, b = ctx.saved_tensors
            return ([g["y"] * b, g["y"] * a],)

    calls = [(leaf(size, 2), leaf(size, 2, seed=1)) for size in (3, 5, 8)]
    assert graphs(lambda a, b: Dot.apply([a, b])["y"] * 2, calls, dynamic=True) == 1


def test_another_backward_is_seen() -> None:
    """F13: a method that is replaced after a call was compiled is compiled anew, as with PyTorch's class."""
    gradients = []
    for base in BASES:
        made, x = power(base), leaf(3)
        program = fully(lambda x: made.apply(x, 2))  # noqa: B023  # called within the turn
        results(program, (x,), x)
        made.backward = staticmethod(lambda ctx, g: (g * 100, None))
        gradients.append(results(program, (x,), x)[1])
    assert_same(*gradients)


def test_calls_before_and_after() -> None:
    """F13: eager calls and compiled ones of one class don't disturb each other."""
    made, x = power(pullback.Function), leaf(3)
    program = fully(lambda x, n: made.apply(x, n).sin())
    for n in (2, 3):
        due = results(lambda x, n: (x**n).sin(), (x,), x, n)
        assert_same(results(lambda x, n: made.apply(x, n).sin(), (x,), x, n), due)
        assert_same(results(program, (x,), x, n), due)
        (first,) = torch.autograd.grad(made.apply(x, n).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, n * (n - 1) * x.detach() ** (n - 2))


def test_one_graph_for_calls_by_keyword_and_by_place() -> None:
    """F13: a call by keyword is compiled as one by place."""
    made, x = power(pullback.Function), leaf(3)

    def program(x: Tensor) -> Any:
        apply = made.apply
        return made.apply(x=x, n=2) + apply(x, n=3) + made.apply(n=2, x=x)

    assert_same(results(fully(program), (x,), x), results(lambda x: 2 * x**2 + x**3, (x,), x))
