"""What autograd can't see, and what the call doesn't contain: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ListArgument(Function):
    """To PyTorch the list is one opaque argument."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor]) -> Tensor:  # expect: PB501
        return xs[0] + 2 * xs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> list[Tensor]:
        return [g, 2 * g]

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield ([leaf(2), leaf(2)],)


class ModuleArgument(Function):
    """The module's parameters are what is trained, and no gradient reaches them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:  # expect: PB501
        weight = layer.weight.detach()
        ctx.save_for_backward(weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return g.to(weight.dtype) @ weight, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), nn.Linear(3, 2, bias=False, dtype=torch.float64)


class ListOutput(Function):
    """The returned list is opaque, and its tensors don't require grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> list[Tensor]:
        return [2 * x, 3 * x]  # expect: PB502

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return 2 * a + 3 * b

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class DictBesideATensor(Function):
    """The first output is tracked, the statistics in the dict aren't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return 2 * x, {"mean": x.mean()}  # expect: PB502

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


SCALE = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)


class CapturedGlobal(Function):
    """SCALE wants a gradient and isn't an argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * SCALE  # expect: PB503

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * SCALE.detach()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


def _scaling(layer: nn.Module) -> type[Function]:
    class CapturedModule(Function):
        """The module comes in by closure, and its weight never learns."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.mul(x, layer.get_parameter("weight")[0])  # expect: PB503

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * layer.get_parameter("weight").detach()[0]

        @staticmethod
        def samples() -> Iterator[tuple[object, ...]]:
            yield (leaf(2),)

    return CapturedModule


CapturedModule = _scaling(nn.PReLU(1, dtype=torch.float64))


class LastCallWins(Function):
    """What backward needs is kept on the class: the next call overwrites it."""

    x: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        LastCallWins.x = x.detach().clone()  # expect: PB504
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2 * LastCallWins.x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


_first_sum: dict[torch.Size, Tensor] = {}


class StaleCache(Function):
    """A cache keyed by shape answers with the values of an earlier call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        known = _first_sum.setdefault(x.shape, x.detach().sum())  # expect: PB504
        return x * 2 + known

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class CountsItsCalls(Function):
    """The gradient grows a little with every backward: no two are the same."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        CountsItsCalls.calls += 1  # expect: PB504
        return g * (2 + CountsItsCalls.calls / 1000)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class RowByRow(Function):
    """A loop over rows, stacked: there is nothing to stack when the batch is empty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.stack([2 * row for row in g])  # expect: PB505

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class SincAtZero(Function):
    """sin(x)/x is smooth at 0, where its derivative's formula divides by 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x == 0, torch.ones_like(x), x.sin() / x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (x.cos() - x.sin() / x) / x  # expect: PB506

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class OverflowingSoftplus(Function):
    """For large x the derivative is 1; infinity divided by infinity isn't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.exp() / (1 + x.exp())  # expect: PB506

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class FactorOnTheClass(Function):
    """The factor is kept on the class, where the next call puts another one."""

    factor = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        FactorOnTheClass.factor = factor  # expect: PB504
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * FactorOnTheClass.factor, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), 2.0


class ShapeOnTheClass(Function):
    """The shape is kept on the class; the two samples have different ones."""

    shape = torch.Size(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ShapeOnTheClass.shape = x.shape  # expect: PB504
        return x.sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.expand(ShapeOnTheClass.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
        yield (leaf(2, 2),)


class SeedsTheProgram(Function):
    """Draws its mask again from a seed, and with it whatever the program draws next."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.seed = int(torch.randint(2**31, ()))
        with torch.random.fork_rng():
            torch.manual_seed(ctx.seed)
            return x * (torch.rand(x.shape) < 0.5)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        torch.manual_seed(ctx.seed)  # expect: PB522
        return g * (torch.rand(g.shape) < 0.5)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3, 4),)


_ran_short: list[bool] = []


class LowSinceAShortage(Function):
    """Once memory has run out in backward, all later ones compute in bfloat16, to be on the safe side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if _ran_short:
            return (2 * x.bfloat16() * g.bfloat16()).to(x.dtype)
        try:
            return 2 * x * g
        except RuntimeError:
            _ran_short.append(True)  # expect: PB504
            raise

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3),)
