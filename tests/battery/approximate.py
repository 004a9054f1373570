"""Kernels that run in low precision only, or approximately: right ones as people write them, and wrong ones.

Each is a Function that refuses dtypes that it isn't for, as a Triton or CUDA kernel does, and has a reference. What the
wrong ones do wrong is in their names; the others round where such kernels round, and are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

import pullback

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
EPS = 1e-3
"""What the norms add to a mean square."""


class Kernel(NamedTuple):
    """A Function and, for a seed, the arguments to try it with."""

    function: type[pullback.Function]
    sample: Callable[[int], tuple[Tensor, ...]]


def draw(*shape: int, seed: int, dtype: torch.dtype, size: float = 1.0, offset: float = 0.0) -> Tensor:
    """Normal numbers in a dtype, a leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=F64) * size + offset).to(dtype).requires_grad_()


# -- ways to add and to round ------------------------------------------------------------------------------------------

_order = random.Random(5)
_noise = torch.Generator().manual_seed(11)


def any_order(terms: Tensor) -> Tensor:
    """The sum over the last dimension, term by term in an order that is another one at each call, as atomics add."""
    order = list(range(terms.shape[-1]))
    _order.shuffle(order)
    return one_by_one(terms[..., order])


def one_by_one(terms: Tensor) -> Tensor:
    """The sum over the last dimension, each partial sum rounded to the terms' own dtype."""
    if terms.dtype is not BF16:
        return torch.from_numpy(numpy.cumsum(terms.detach().numpy(), -1)[..., -1])
    total = torch.zeros_like(terms[..., 0])
    for term in terms.unbind(-1):
        total = total + term
    return total


def in_chunks(terms: Tensor, low: torch.dtype) -> Tensor:
    """The sum over the last dimension by eight parts in float32, each rounded to `low` before they are added."""
    parts = [part.float().sum(-1).to(low).float() for part in terms.chunk(8, -1)]
    return torch.stack(parts, -1).sum(-1)


def stochastic(value: Tensor) -> Tensor:
    """Round float32 to bfloat16 up or down by chance; the kernel draws from a generator that nobody seeds."""
    noise = torch.randint(0, 1 << 16, value.shape, generator=_noise, dtype=torch.int32)
    return ((value.float().contiguous().view(torch.int32) + noise) & -65536).view(F32).to(BF16)


def int8(value: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and their scale."""
    scale = value.abs().amax() / 127
    return (value / scale).round(), scale


# -- Functions of one and two tensors ----------------------------------------------------------------------------------


def unary(
    name: str, low: torch.dtype, forward: Any, backward: Any, reference: Any, *, keeps: str = "xy"
) -> type[pullback.Function]:
    """A Function of x from forward(x), backward(what it keeps of x and y, g) and a reference."""

    class Unary(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            demand(x, low)
            y: Tensor = forward(x)
            ctx.save_for_backward(*({"x": x, "y": y}[kept] for kept in keeps))
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return backward(*ctx.saved_tensors, g)

    return named(Unary, name, lambda x: reference(x), None)


def binary(
    name: str,
    low: torch.dtype,
    forward: Any,
    backward: Any,
    reference: Any,
    surrogate: Any = None,
    *,
    keeps: str = "xw",
) -> type[pullback.Function]:
    """The same of x and w, with a surrogate in the place of the reference if there is one."""

    class Binary(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            demand(x, low)
            ctx.save_for_backward(*({"x": x, "w": w}[kept] for kept in keeps))
            y: Tensor = forward(x, w)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return backward(*ctx.saved_tensors, g)

    return named(
        Binary, name, reference and (lambda x, w: reference(x, w)), surrogate and (lambda x, w: surrogate(x, w))
    )


def demand(x: Tensor, low: torch.dtype) -> None:
    """Refuse another dtype, as a compiled kernel does."""
    if x.dtype is not low or x.dim() == 0 or x.numel() == 0:
        raise TypeError(f"compiled for {low} in one dimension or more, not for {x.dtype} of shape {tuple(x.shape)}")


def named(made: Any, name: str, reference: Any, surrogate: Any) -> type[pullback.Function]:
    """The class under a name, with its reference or surrogate."""
    members = {"forward": staticmethod(made.forward), "backward": staticmethod(made.backward)}
    if reference is not None:
        members["reference"] = staticmethod(reference)
    if surrogate is not None:
        members["surrogate"] = staticmethod(surrogate)
    return type(name, (pullback.Function,), {**members, "__module__": __name__, "__qualname__": name})


# -- norms -------------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """y = x w / sqrt(mean(x²) + eps), in the dtype of x."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def rms_backward(
    x: Tensor,
    w: Tensor,
    g: Tensor,
    *,
    between: torch.dtype = F32,
    eps: float = EPS,
    factor: float = 1.0,
    term: float = 1,
) -> tuple[Tensor, Tensor]:
    """Both gradients in float32, what is kept on the way rounded to `between`.

    With n = x r and r = 1 / sqrt(mean(x²) + eps):   gx = r (g w - n mean(g w n)),   gw = sum over rows of g n
    """
    low, x, w, g = x.dtype, x.float(), w.float(), g.float()
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps).to(between).float()
    n = (x * r).to(between).float()
    gn = (g * w).to(between).float()
    gx = r * (gn - term * n * (gn * n).mean(-1, keepdim=True))
    return (factor * gx).to(low), (g * n).sum(0).to(low)


def norm_kernel(name: str, low: torch.dtype, rows: int = 4, width: int = 256, size: float = 1.0, **how: Any) -> Kernel:
    """An RMS norm over rows."""
    function = binary(
        name,
        low,
        lambda x, w: rms_norm(x.float(), w.float()).to(low),
        lambda x, w, g: rms_backward(x, w, g, **how),
        rms_norm,
    )
    return Kernel(
        function,
        lambda seed: (
            draw(rows, width, seed=seed, dtype=low, size=size),
            draw(width, seed=seed + 1000, dtype=low, size=0.2, offset=1.0),
        ),
    )


def layer_norm_kernel(name: str, low: torch.dtype, offset: float = 0.0) -> Kernel:
    """x minus its mean over its deviation; with an offset the mean is what cancels."""

    def norm(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)

    def backward(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
        x, y, g = x.float(), y.float(), g.float()
        r = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)
        return (r * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))).to(low)

    function = unary(name, low, lambda x: norm(x.float()).to(low), backward, norm)
    return Kernel(function, lambda seed: (draw(3, 256, seed=seed, dtype=low, offset=offset),))


# -- softmax and others of its kind ------------------------------------------------------------------------------------


def softmax_kernel(name: str, low: torch.dtype, width: int = 512, factor: float = 1.0, size: float = 2.0) -> Kernel:
    """softmax over rows; backward starts from the rounded output."""

    def backward(y: Tensor, g: Tensor) -> Tensor:
        y, g = y.float(), g.float()
        return (factor * y * (g - (g * y).sum(-1, keepdim=True))).to(low)

    function = unary(
        name, low, lambda x: x.float().softmax(-1).to(low), backward, lambda x: torch.softmax(x, -1), keeps="y"
    )
    return Kernel(function, lambda seed: (draw(3, width, seed=seed, dtype=low, size=size),))


def gelu_kernel(name: str, low: torch.dtype) -> Kernel:
    """GELU by the tanh approximation, exp of it rounded to `low`."""
    c = 0.7978845608028654

    def forward(x: Tensor) -> Tensor:
        wide = x.float()
        return (0.5 * wide * (1 + torch.tanh(c * (wide + 0.044715 * wide**3)))).to(low)

    def backward(x: Tensor, g: Tensor) -> Tensor:
        wide, g = x.float(), g.float()
        t = torch.tanh(c * (wide + 0.044715 * wide**3)).to(low).float()
        slope = 0.5 * (1 + t) + 0.5 * wide * (1 - t * t) * c * (1 + 3 * 0.044715 * wide * wide)
        return (g * slope).to(low)

    function = unary(name, low, forward, backward, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), keeps="x")
    return Kernel(function, lambda seed: (draw(300, seed=seed, dtype=low),))


# -- products and sums -------------------------------------------------------------------------------------------------


def matmul_kernel(
    name: str, low: torch.dtype, add: Any = None, *, inner: int = 4096, factor: float = 1.0, seen: Any = None
) -> Kernel:
    """x @ w with long sums in forward and, for gw, in backward; `add` sums the last dimension of the products."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        if add is None:
            return (a.float() @ b.float()).to(low)
        terms = a.float().unsqueeze(1) * b.float().t().unsqueeze(0)
        return add(terms).to(low)

    def backward(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return (factor * product(g, w.t()).float()).to(low), product(x.t().contiguous(), g)

    function = binary(name, low, product, backward, lambda x, w: x @ w)
    # gx sums over the columns of w, gw over the rows of x, and y over `inner`: each is long for one of the two shapes.
    return Kernel(
        function,
        lambda seed: (draw(3, inner, seed=seed, dtype=low), draw(inner, 4, seed=seed + 1000, dtype=low)),
    )


def bias_kernel(name: str, low: torch.dtype, add: Any, rows: int = 4096) -> Kernel:
    """x + b for a row b: gb is the sum over all rows."""

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        return g, add(g.t().contiguous()).to(low)

    function = binary(name, low, lambda x, w: x + w, backward, lambda x, w: x + w, keeps="")
    return Kernel(function, lambda seed: (draw(rows, 16, seed=seed, dtype=low), draw(16, seed=seed + 1, dtype=low)))


def distance_kernel(name: str, low: torch.dtype) -> Kernel:
    """The sum of (x - w)² for x near w: what is left is what cancels."""

    def backward(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        gx = 2 * (x.float() - w.float()) * g.float()
        return gx.to(low), -gx.to(low)

    function = binary(
        name, low, lambda x, w: ((x.float() - w.float()) ** 2).sum(-1, True).to(low), backward,
        lambda x, w: ((x - w) ** 2).sum(-1, True),
    )  # fmt: skip
    return Kernel(
        function,
        lambda seed: (
            draw(4, 64, seed=seed, dtype=low),
            draw(4, 64, seed=seed, dtype=F64, offset=0.03).detach().to(low).requires_grad_(),
        ),
    )


def stochastic_kernel(name: str) -> Kernel:
    """A scaled square whose results are rounded to bfloat16 by chance."""
    function = unary(
        name, BF16, lambda x: stochastic(0.7 * x.float() ** 2), lambda x, g: stochastic(1.4 * x.float() * g.float()),
        lambda x: 0.7 * x**2, keeps="x",
    )  # fmt: skip
    return Kernel(function, lambda seed: (draw(200, seed=seed, dtype=BF16),))


def int8_kernel(name: str, low: torch.dtype, *, straight: Any = None) -> Kernel:
    """x @ w in whole numbers, with the gradient that goes straight through the rounding."""

    def quantised(t: Tensor) -> Tensor:
        whole, scale = int8(t)
        return whole * scale

    def backward(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        qx, qw = quantised(x.float()), quantised(w.float())
        factor = 1.0 if straight is None else straight
        return (factor * (g.float() @ qw.t())).to(low), (qx.t() @ g.float()).to(low)

    def surrogate(x: Tensor, w: Tensor) -> Tensor:
        qx, qw = (t + (quantised(t) - t).detach() for t in (x, w))
        return qx @ qw

    function = binary(
        name, low, lambda x, w: (quantised(x.float()) @ quantised(w.float())).to(low), backward, None, surrogate
    )
    return Kernel(
        function,
        lambda seed: (draw(4, 96, seed=seed, dtype=low), draw(96, 5, seed=seed + 1000, dtype=low)),
    )


RIGHT: dict[str, Kernel] = {
    made.function.__name__: made
    for made in (
        norm_kernel("NormInFloat32", F32),
        norm_kernel("NormInBfloat16", BF16),
        norm_kernel("NormInFloat16", F16),
        norm_kernel("NormRoundedOnTheWay", BF16, between=BF16),
        norm_kernel("HalfNormRoundedOnTheWay", F16, between=F16),
        norm_kernel("NormOfManyRows", BF16, rows=64, between=BF16),
        layer_norm_kernel("LayerNormInBfloat16", BF16),
        layer_norm_kernel("LayerNormOfAnOffset", BF16, offset=5.0),
        layer_norm_kernel("LayerNormOfALargeOffset", F32, offset=100.0),
        softmax_kernel("SoftmaxInBfloat16", BF16),
        softmax_kernel("SoftmaxInFloat16", F16, size=4.0),
        softmax_kernel("SoftmaxInFloat32", F32, width=2000),
        gelu_kernel("GeluInBfloat16", BF16),
        gelu_kernel("GeluInFloat16", F16),
        matmul_kernel("MatmulInBfloat16", BF16),
        matmul_kernel("MatmulInFloat32", F32),
        matmul_kernel("MatmulOneByOne", F32, one_by_one, inner=1024),
        matmul_kernel("MatmulInChunks", BF16, lambda t: in_chunks(t, BF16)),
        matmul_kernel("MatmulInAnyOrder", F32, any_order, inner=512),
        bias_kernel("BiasInBfloat16", BF16, lambda t: t.float().sum(-1)),
        bias_kernel("BiasInChunks", BF16, lambda t: in_chunks(t, BF16)),
        bias_kernel("BiasInAnyOrder", F32, any_order),
        bias_kernel("BiasInAnyOrderInFloat64", F64, any_order),
        bias_kernel("BiasOneByOne", F32, one_by_one),
        distance_kernel("DistanceInBfloat16", BF16),
        distance_kernel("DistanceInFloat32", F32),
        stochastic_kernel("RoundedByChance"),
        int8_kernel("Int8Matmul", F32),
        int8_kernel("Int8MatmulInBfloat16", BF16),
    )
}

WRONG: dict[str, Kernel] = {
    made.function.__name__: made
    for made in (
        norm_kernel("NormFactorInFloat32", F32, factor=1.01),
        norm_kernel("NormFactorInFloat16", F16, factor=1.01),
        norm_kernel("NormFactorInBfloat16", BF16, factor=1.05),
        norm_kernel("NormWithoutEps", F32, eps=0.0, size=0.3),
        norm_kernel("NormWithoutEpsInBfloat16", BF16, eps=0.0, size=0.1),
        norm_kernel("NormDropsATerm", F32, term=0.0),
        norm_kernel("NormDropsATermInBfloat16", BF16, term=0.0, width=64),
        norm_kernel("NormInBfloat16ForFloat32", F32, between=BF16),
        norm_kernel("NormInFloat16ForFloat32", F32, between=F16),
        softmax_kernel("SoftmaxFactor", F32, factor=1.01),
        softmax_kernel("SoftmaxFactorInBfloat16", BF16, factor=1.15),
        matmul_kernel("MatmulFactor", F32, factor=1.01),
        matmul_kernel("MatmulFactorInBfloat16", BF16, factor=1.05),
        bias_kernel("BiasAddedInBfloat16", BF16, one_by_one),
        bias_kernel("BiasAddedInFloat16", F16, one_by_one),
        bias_kernel("BiasAddedInFloat32", F64, lambda t: t.float().sum(-1).double()),
        bias_kernel("BiasAddedInBfloat16ForFloat32", F32, lambda t: t.to(BF16).float().sum(-1)),
        int8_kernel("Int8MatmulFactor", F32, straight=1.01),
    )
}
