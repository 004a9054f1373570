"""Right numbers, wrongly kept: one defect a class."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class InputOnCtx(Function):
    """x goes round the version check: changed after the call, it gives the gradient at another point."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x  # expect: PB302
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2 * ctx.x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class InputInAClosure(Function):
    """The same, hidden in a function that waits for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        def pull(g: Tensor) -> Tensor:
            return g * 2 * x

        ctx.pull = pull  # expect: PB302
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        pull: Callable[[Tensor], Tensor] = ctx.pull
        return pull(g)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class OutputOnCtx(Function):
    """The output holds its node, the node holds the output: a cycle that only the collector frees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.y = y  # expect: PB302
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.y

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class MaskOnCtx(Function):
    """A mask of floats, constant almost everywhere, that no saved-tensor hook ever sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask = (x > 0.5).to(x.dtype)  # expect: PB303
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(4),)


class SavedForNothing(Function):
    """x is saved, unpacked, and never looked at."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)  # expect: PB304
        return (x * w.detach()).clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        _x, w = ctx.saved_tensors
        return (g * w if ctx.needs_input_grad[0] else None), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3).detach()


class SavedAndNeverUnpacked(Function):
    """Doubling needs nothing, and keeps its argument alive all the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # expect: PB304
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SliceOfAWorkspace(Function):
    """Three bytes are needed; the workspace they were cut from stays alive with them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        workspace = torch.zeros(4096, dtype=torch.bool)
        mask = workspace[: x.numel()].view(x.shape).copy_(x > 0.5)
        ctx.save_for_backward(mask)  # expect: PB305
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class HoldsItself(Function):
    """ctx keeps a function that keeps ctx: the node is never freed by counting."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.read = lambda: ctx.saved_tensors[0]  # expect: PB306
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x: Tensor = ctx.read()
        return 2 * x * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Hoards(Function):
    """Each call leaves its result in a list on the class."""

    seen: list[Tensor] = []  # noqa: RUF012  # the shared list is the defect

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = 3 * x
        Hoards.seen.append(y.clone())  # expect: PB306
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
