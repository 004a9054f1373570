"""F15: a class may be applied for the first time by several threads at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.call.products import STYLES, gradients, product
from tests.function.kinds import leaf

THREADS = 8


def at_once(work: Any) -> list[Any]:
    """Run `work` in several threads that start together, and return what each of them returned."""
    barrier, results = threading.Barrier(THREADS), []

    def run() -> None:
        barrier.wait()
        results.append(work())

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("style", STYLES)
def test_first_calls_at_once(style: str) -> None:
    """F15: values and gradients of first and second order are right in every thread."""
    for seed in range(10):
        function = product(style=style)
        leaves = leaf(3, seed=seed), leaf(3, seed=seed + 100)

        def work(function: Any = function, leaves: tuple[Tensor, Tensor] = leaves) -> list[Tensor]:
            x, w = (tensor.detach().clone().requires_grad_() for tensor in leaves)
            y = function.apply(x, w, 2.0)
            first = gradients(y, x, w, create_graph=True)
            (second,) = torch.autograd.grad(first[0].sum(), w)
            return [y.detach(), *(gradient.detach() for gradient in first if gradient is not None), second]

        results = at_once(work)
        assert len(results) == THREADS
        x, w = (tensor.detach() for tensor in leaves)
        for y, gx, gw, second in results:
            assert torch.equal(y, x * w * 2)
            assert torch.allclose(gx, w * 2, rtol=1e-15, atol=0)
            assert torch.allclose(gw, x * 2, rtol=1e-15, atol=0)
            assert second.tolist() == [2, 2, 2]


def test_first_calls_that_fail_at_once() -> None:
    """F15: each thread gets the error of its own call."""
    abstract: Any = type("Abstract", (pullback.Function,), {})

    def work() -> str:
        try:
            abstract.apply(leaf(3))
        except pullback.errors.MissingMethodError as error:
            return error.rule
        return "no error"

    assert at_once(work) == ["PB107"] * THREADS
