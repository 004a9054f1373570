"""Right Functions with unusual arguments and outputs: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class Gather(Function):
    """Integer indices are an argument that no gradient can reach."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).index_add(0, index, g), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4, 2), torch.tensor([0, 2, 2])


class SortedWithOrder(Function):
    """The order is an integer output, marked non-differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort()
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(0, order, g)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([0.7, 0.2, 0.9], dtype=torch.float64, requires_grad=True),)


class WithStatistics(Function):
    """The mean is returned for logging: a float, marked non-differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean()
        ctx.mark_non_differentiable(mean)
        return 2 * x, mean

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Transposed(Function):
    """The output is a view of the argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.t()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class Identity(Function):
    """The argument itself comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ByAModuleWithoutParameters(Function):
    """A module among the arguments that has nothing to train."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: nn.Module) -> Tensor:
        ctx.save_for_backward(x)
        result: Tensor = activation(x)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), nn.Tanh()


class ListOfConstants(Function):
    """A list of tensors, none of which requires grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, knots: list[Tensor]) -> Tensor:
        ctx.slope = float(knots[0] + knots[1])
        return x * ctx.slope

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.slope, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), [torch.tensor(0.5), torch.tensor(1.5)]


class SumOfMany(Function):
    """Any number of arguments."""

    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> Tensor:
        ctx.count = len(xs)
        return torch.stack(xs).sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        return (g,) * ctx.count

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2), leaf(2)


class WithSetupContext(Function):
    """The other style, with a default and a product."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, gain: float = 3.0) -> Tensor:
        return gain * x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.gain = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        gx = ctx.gain * g * w if ctx.needs_input_grad[0] else None
        gw = ctx.gain * g * x if ctx.needs_input_grad[1] else None
        return gx, gw, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2), 2.5


class MeanOfWhatThereIs(Function):
    """For an empty tensor the mean is NaN, in the formula as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (g / ctx.shape.numel()).expand(ctx.shape) if ctx.shape.numel() else g.new_zeros(ctx.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(4),)


class SparseTimesDense(Function):
    """A constant sparse matrix among the arguments."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (matrix,) = ctx.saved_tensors
        return None, torch.sparse.mm(matrix.t(), g.to(matrix.dtype))

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        matrix = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64).to_sparse()
        yield matrix, leaf(3, 2)


class RowsOfATable(Function):
    """The gradient of the table is sparse; it can be differentiated once only, and says so."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], g, ctx.shape), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4, 2), torch.tensor([0, 2, 2])
