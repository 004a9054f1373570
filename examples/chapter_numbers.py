"""What ``python examples/chapter.py`` prints: for each operation of the chapter, the numbers that it is known by."""

from __future__ import annotations

import math
from collections.abc import Callable

import chapter
import torch
from chapter import (
    Chained,
    ClipGradient,
    ClippedReLU,
    Cube,
    GeluMLP,
    Matmul,
    Round,
    Square,
    leaf,
    missing_tool,
    snake_operators,
)
from torch import Tensor
from torch.autograd import grad
from torch.utils.flop_counter import FlopCounterMode


def numbers(tensor: Tensor) -> str:
    """Write a tensor as a plain list, in four digits."""
    values = [f"{value:.4g}" for value in tensor.detach().reshape(-1).tolist()]
    return values[0] if tensor.dim() == 0 else f"[{', '.join(values)}]"


def error(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference between two tensors of one shape."""
    assert got.shape == expected.shape, f"{got.shape} is not {expected.shape}"
    return (got - expected).abs().max().item() if got.numel() else 0.0


def show_square() -> str:
    """Differentiate it at [2, 3]."""
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    Square.apply(x).sum().backward()
    assert x.grad is not None
    return f"gradient at [2, 3]: {numbers(x.grad)}"


def show_clipped_relu() -> str:
    """Differentiate it inside, outside, and on the edges; and in half precision."""

    def gradient(points: list[float], dtype: torch.dtype) -> Tensor:
        x = torch.tensor(points, dtype=dtype, requires_grad=True)
        (gx,) = grad(ClippedReLU.apply(x, 2.0).sum(), x)
        return gx

    inner, edges = gradient([-1, 0.5, 3], torch.float32), gradient([0, 2], torch.float32)
    half = gradient([-1, 0.5, 3], torch.bfloat16).dtype
    return f"gradient at [-1, 0.5, 3], max 2: {numbers(inner)}; at 0 and at max: {numbers(edges)}; of bfloat16: {half}"


def show_matmul() -> str:
    """Compare it with torch.matmul's own gradients, for each kind of pair."""
    worst, pairs = 0.0, list(Matmul.samples())
    for a, b in pairs:
        expected = torch.matmul(a, b)
        g = leaf(*expected.shape, seed=3)
        gradients = zip(grad(Matmul.apply(a, b), (a, b), g), grad(expected, (a, b), g), strict=True)
        worst = max(worst, *(error(got, right) for got, right in gradients))
    return f"largest difference from torch.matmul's gradients, {len(pairs)} kinds of shapes: {worst:.1e}"


def show_cube() -> str:
    """Differentiate it twice at 2, and once more with another cotangent."""
    x = torch.tensor(2.0, requires_grad=True)
    (first,) = grad(Cube.apply(x), x, create_graph=True)
    (second,) = grad(first, x)
    (scaled,) = grad(Cube.apply(x), x, torch.tensor(0.5), create_graph=True)
    (half,) = grad(scaled, x)
    return (
        f"first and second derivative at 2: {numbers(first)} and {numbers(second)}; second for g = 0.5: {numbers(half)}"
    )


def show_chained() -> str:
    """Differentiate a gradient penalty through it, and through the plain formula."""

    def penalty_gradient(function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        x = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
        w = torch.tensor([2.0, 3.0], dtype=torch.float64)
        (gx,) = grad(function(x, w).sum(), x, create_graph=True)
        (result,) = grad((gx * gx).sum(), x)
        return result

    ours, autograd = penalty_gradient(Chained.apply), penalty_gradient(lambda x, w: (x * w).sin())
    return f"gradient of a gradient penalty: {numbers(ours)}; of the plain formula: {numbers(autograd)}"


def show_round() -> str:
    """Round and differentiate."""
    x = torch.tensor([0.2, 1.7], requires_grad=True)
    y = Round.apply(x)
    (gx,) = grad(y.sum(), x)
    return f"value at [0.2, 1.7]: {numbers(y)}; gradient: {numbers(gx)}"


def show_clip_gradient() -> str:
    """Send gradients on both sides of the limit."""
    x = torch.zeros(3, requires_grad=True)
    (gx,) = grad(ClipGradient.apply(x, 1.0), x, torch.tensor([-5.0, 0.5, 5.0]))
    return f"gradient [-5, 0.5, 5] clipped to 1: {numbers(gx)}"


def show_gelu_mlp() -> str:
    """Compare the gradients with autograd's, and count backward's matrix products for all and for b2 alone."""
    arguments = next(iter(GeluMLP.samples()))
    expected = grad(GeluMLP.reference(*arguments).sum(), arguments)
    got = grad(GeluMLP.apply(*arguments).sum(), arguments)
    worst = max(error(one, other) for one, other in zip(got, expected, strict=True))

    def flops(wanted: tuple[Tensor, ...]) -> int:
        y = GeluMLP.apply(*(a if any(a is w for w in wanted) else a.detach() for a in arguments)).sum()
        with FlopCounterMode(display=False) as counter:
            grad(y, wanted)
        return int(counter.get_total_flops())

    every, alone = flops(arguments), flops(arguments[-1:])
    return f"largest difference from autograd: {worst:.1e}; matrix FLOPs in backward: {every}, for b2 alone: {alone}"


def show_snake() -> str:
    """Differentiate it twice at π / 8, where the derivatives are 1 + 1/√2 and √2; say so if it can't be built."""
    if tool := missing_tool():
        return f"left out: {tool} is missing, which building C++ needs"
    try:
        snake_operators()
    except (ImportError, OSError, RuntimeError) as failure:
        return f"left out: the C++ didn't build ({str(failure).splitlines()[0]})"
    x = torch.tensor(math.pi / 8, dtype=torch.float64, requires_grad=True)
    (first,) = grad(chapter.Snake.apply(x), x, create_graph=True)
    (second,) = grad(first, x)
    return f"first and second derivative at pi/8: {numbers(first)} and {numbers(second)}"


LINES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("Square", show_square),
    ("ClippedReLU", show_clipped_relu),
    ("Matmul", show_matmul),
    ("Cube", show_cube),
    ("Chained", show_chained),
    ("Round", show_round),
    ("ClipGradient", show_clip_gradient),
    ("GeluMLP", show_gelu_mlp),
    ("Snake", show_snake),
)


def main() -> None:
    """Print one line for each operation."""
    for name, line in LINES:
        print(f"{name:<13} {line()}", flush=True)
