"""Nine operations with derivatives of their own, each in the form in which it is best written.

``python examples/chapter.py`` prints a line for each; ``pullback check examples/chapter.py`` proves all of them.

In the derivations, g is the cotangent that comes back for the output y (``grad_output``), and gx, gw, … are the
gradients that backward owes. (u, v) is the sum over all elements of u * v.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import library as operators

import pullback
from pullback import Context


def leaf(*shape: int, seed: int = 0) -> Tensor:
    """Draw a float64 leaf that requires grad, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


# -- 1. Square: save the argument, not what was made of it -------------------------------------------------------------


class Square(pullback.Function):
    """y = x²."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        # Save the argument, which stays connected to the graph: every order of derivative follows.
        ctx.save_for_backward(x)
        return x * x

    # dy = 2 x dx, elementwise, so (g, dy) = (2 x g, dx):   gx = 2 x g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3, 4),)


# -- 2. ClippedReLU: an argument without a gradient, and a dead zone ---------------------------------------------------


class ClippedReLU(pullback.Function):
    """y = min(max(x, 0), max_val)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, max_val: float) -> Tensor:
        # Save x; max_val is a number, so it may stay on ctx.
        ctx.save_for_backward(x)
        ctx.max_val = max_val
        return x.clamp(0, max_val)

    # y = x inside (0, max_val), and constant outside:   gx = g inside, 0 outside.
    # Both edges count as outside. The gradient keeps g's dtype, which is x's: where takes it from the tensor branch.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        inside = (x > 0) & (x < ctx.max_val)
        return torch.where(inside, g, 0), None

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Yield arguments on both sides of the two edges."""
        yield torch.tensor([-1.0, 0.5, 3.0, 1.7], dtype=torch.float64, requires_grad=True), 2.0


# -- 3. Matmul: every shape that torch.matmul takes --------------------------------------------------------------------


class Matmul(pullback.Function):
    """y = a @ b, for vectors, matrices, and batches that broadcast."""

    # Under autocast the products of backward are cast as that of forward was; else they would meet two dtypes.
    keep_autocast = True

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        # Save both, since each one's gradient needs the other.
        ctx.save_for_backward(a, b)
        return a @ b

    # For matrices y_ij = Σ_k a_ik b_kj, so dy = da b + a db, and with (u, v w) = (u wᴴ, v) = (vᴴ u, w):
    #     ga = g bᴴ        gb = aᴴ g
    # A vector on the left is a row, on the right a column, and y lacks the dimension of length 1: put them all back.
    # Batches that were broadcast against each other were used many times: their gradients are summed (sum_to_size).
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        g = g.unsqueeze(-1) if b.dim() == 1 else g
        g = g.unsqueeze(-2) if a.dim() == 1 else g
        rows = a.unsqueeze(0) if a.dim() == 1 else a
        columns = b.unsqueeze(1) if b.dim() == 1 else b
        ga = gb = None
        if ctx.needs_input_grad[0]:
            ga = (g @ columns.mH).sum_to_size(rows.shape).view_as(a)
        if ctx.needs_input_grad[1]:
            gb = (rows.mH @ g).sum_to_size(columns.shape).view_as(b)
        return ga, gb

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        """Yield two matrices, and then every other kind of pair."""
        for a, b in MATMUL_SHAPES:
            yield leaf(*a, seed=1), leaf(*b, seed=2)


MATMUL_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3), (3, 4)),  # two matrices
    ((3,), (3,)),  # two vectors
    ((3,), (3, 4)),  # a row
    ((2, 3), (3,)),  # a column
    ((5, 2, 3), (5, 3, 4)),  # batches
    ((5, 2, 3), (3, 4)),  # one matrix for a batch, on the right
    ((2, 3), (5, 3, 4)),  # and on the left
    ((3,), (5, 3, 4)),  # a row for a batch
    ((5, 2, 3), (3,)),  # a column for a batch
    ((5, 1, 2, 3), (6, 3, 4)),  # batches broadcast on both sides
    ((1, 2, 3), (5, 3, 4)),  # a batch of one
    ((5, 2, 3), (1, 3, 4)),
)


# -- 4. Cube: its second derivative by hand ----------------------------------------------------------------------------


class Cube(pullback.Function):
    """y = x³."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    # dy = 3 x² dx, elementwise:   gx = 3 x² g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    # gx depends on x and g. Its differential is 6 x g dx + 3 x² dg, so a cotangent gg of gx gives 6 x g gg for x and
    # 3 x² gg for g. For an elementwise function the factor f''(x) gg = 6 x gg says it all: pullback does the rest.
    @staticmethod
    def double_backward(ctx: Context, gg: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 6 * x * gg

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3, 2),)


# -- 5. Chained: a saved intermediate ----------------------------------------------------------------------------------


class Chained(pullback.Function):
    """y = sin(u) with u = x * w."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, w: Tensor) -> Tensor:
        # Save u as well: it is neither argument nor output, which PyTorch's Function would lose at second order.
        u = x * w
        ctx.save_for_backward(x, w, u)
        return u.sin()

    # dy = cos(u) du and du = w dx + x dw:   gu = cos(u) g,   gx = w gu,   gw = x gu
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w, u = ctx.saved_tensors
        gu = g * u.cos()
        gx = w * gu if ctx.needs_input_grad[0] else None
        gw = x * gu if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        yield leaf(3, 2, seed=1), leaf(3, 2, seed=2)


# -- 6. Round: a gradient that is not forward's, on purpose ------------------------------------------------------------


class Round(pullback.Function):
    """y = x, rounded to integers, with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        # Round; backward needs nothing of it.
        return x.round()

    # round's own derivative is 0 almost everywhere, which trains nothing: go through as if y were x:   gx = g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        """Say whose derivative backward implements, so that it can be proved."""
        return x

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3, 2),)


# -- 7. ClipGradient: a backward that isn't linear, on purpose ---------------------------------------------------------


class ClipGradient(pullback.Function):
    """y = x; the gradient on its way back is clipped to [-limit, limit]."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Context, x: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return x.view_as(x)

    # The identity's gradient is g; what goes on is   gx = min(max(g, -limit), limit),   no vector-Jacobian product.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        return g.clamp(-ctx.limit, ctx.limit), None

    @staticmethod
    def expected_backward(
        inputs: tuple[Tensor, float], outputs: tuple[Tensor], grad_outputs: tuple[Tensor]
    ) -> tuple[Tensor, None]:
        """Say the same in other words: keep g's sign, and let its size be limit at most."""
        _, limit = inputs
        (g,) = grad_outputs
        return torch.where(g.abs() > limit, limit * g.sign(), g), None

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Yield a limit that random cotangents do exceed."""
        yield leaf(3, 4), 0.5


# -- 8. GeluMLP: recompute rather than save ----------------------------------------------------------------------------


class GeluMLP(pullback.Function):
    """y = gelu(x w1ᵀ + b1) w2ᵀ + b2, as two linear layers hold their weights; saves nothing but its arguments.

    x is (…, n), w1 (m, n), b1 (m), w2 (k, m), b2 (k). The two hidden tensors of shape (…, m), the large ones, live in
    forward and in backward only.
    """

    keep_autocast = True  # as in Matmul

    @staticmethod
    def forward(ctx: Context, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        # Save the arguments, without b2, whose value no gradient depends on.
        ctx.save_for_backward(x, w1, b1, w2)
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)

    # With z = x w1ᵀ + b1 and h = gelu(z) = z Φ(z), Φ the normal distribution function and φ its density:
    #     y = h w2ᵀ + b2        gb2 = Σ g        gw2 = Σ gᵀ h        gh = g w2
    #     dh = (Φ(z) + z φ(z)) dz                gz = gh (Φ(z) + z φ(z))
    #     z = x w1ᵀ + b1        gb1 = Σ gz       gw1 = Σ gzᵀ x       gx = gz w1
    # each Σ over the batch. So b2 needs no z at all, w2 needs h, and only the first three need gz.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the five gradients, those that are asked for; run forward again as far as they need it."""
        x, w1, b1, w2 = ctx.saved_tensors
        need_x, need_w1, need_b1, need_w2, need_b2 = ctx.needs_input_grad
        gx = gw1 = gb1 = gw2 = gb2 = None
        if need_b2:
            gb2 = g.sum_to_size(g.shape[-1:])
        if need_x or need_w1 or need_b1 or need_w2:
            z = F.linear(x, w1, b1)
        if need_w2:
            gw2 = _rows(g).mT @ _rows(F.gelu(z))
        if need_x or need_w1 or need_b1:
            cdf = 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))
            density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            gz = (g @ w2) * (cdf + z * density)
            gx = gz @ w1 if need_x else None
            gw1 = _rows(gz).mT @ _rows(x) if need_w1 else None
            gb1 = gz.sum_to_size(b1.shape) if need_b1 else None
        return gx, gw1, gb1, gw2, gb2

    @staticmethod
    def reference(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        """Compute it in plain PyTorch, saving what autograd saves."""
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, ...]]:
        """Yield a batch of two dimensions, and a single vector."""
        for batch in ((2, 3), ()):
            yield leaf(*batch, 2, seed=1), leaf(4, 2, seed=2), leaf(4, seed=3), leaf(3, 4, seed=4), leaf(3, seed=5)


def _rows(x: Tensor) -> Tensor:
    """Flatten all dimensions but the last; also where there are no elements, which reshape(-1, n) can't take."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


# -- 9. Snake: forward and backward in C++ -----------------------------------------------------------------------------


def missing_tool() -> str:
    """Name what building C++ takes and this machine lacks; empty when all is there."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler}"
    if shutil.which("ninja", path=path_with_scripts()) is None:
        return "ninja"
    return "" if find_spec("setuptools") else "setuptools"


def path_with_scripts() -> str:
    """Return PATH with this environment's scripts, where pip puts ninja, whether or not it is activated."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])


@functools.cache
def snake_operators() -> Any:
    """Load the C++ operators, built on first use and then kept in the build folder of this checkout."""
    source = Path(__file__).resolve().with_name("chapter_elementwise.cpp")
    key = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = source.parents[1] / "build" / "chapter" / f"elementwise-{key}.so"
    if library.exists():
        torch.ops.load_library(str(library))
    else:
        build(source, library)
    # What torch.compile needs to know: the result is as large as the argument, and contiguous.
    operators.register_fake("pullback_chapter::snake", lambda x: x.new_empty(x.shape))
    operators.register_fake("pullback_chapter::snake_backward", lambda g, x: x.new_empty(x.shape))
    return torch.ops.pullback_chapter


def build(source: Path, library: Path) -> None:
    """Build and load it, in a folder of its own: of several processes at once, none can meet half a library."""
    from torch.utils import cpp_extension  # late, since it takes a while and needs setuptools

    library.parent.mkdir(parents=True, exist_ok=True)
    path = os.environ.get("PATH", os.defpath)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        os.environ["PATH"] = path_with_scripts()
        try:
            cpp_extension.load("elementwise", [str(source)], build_directory=folder, is_python_module=False)
        finally:
            os.environ["PATH"] = path
        os.replace(Path(folder) / "elementwise.so", library)


if missing_tool():  # then it is abstract, and a check says that it was left out

    class Snake(pullback.Function): ...
else:

    class Snake(pullback.Function):
        """y = x + sin(x)²; forward and backward are C++, which autograd can't see into."""

        @staticmethod
        def forward(ctx: Context, x: Tensor) -> Tensor:
            # Save x itself: a contiguous copy would be an intermediate, cut off from the graph.
            ctx.save_for_backward(x)
            return cast(Tensor, snake_operators().snake(x))

        # dy = (1 + 2 sin(x) cos(x)) dx, elementwise:   gx = (1 + sin(2 x)) g
        @staticmethod
        def backward(ctx: Context, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            # Under create_graph x and g require grad, and the operator has no derivative of its own to record.
            with torch.no_grad():
                return cast(Tensor, snake_operators().snake_backward(g, x))

        # The same in plain PyTorch: what forward is held against, and what higher orders are taken from.
        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x + x.sin() ** 2

        @staticmethod
        def samples() -> Iterator[tuple[Tensor]]:
            snake_operators()  # built here, so that no probe's time limit has to wait for the compiler
            yield (leaf(3, 4),)


if __name__ == "__main__":
    from chapter_numbers import main

    main()
