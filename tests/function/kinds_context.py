"""Kinds of Function by what they do with ctx: what they save, mark and declare."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tests.function.kinds import Kinds, leaf, two_leaves
from tests.torch_features import needs_boxes

CONTEXT = Kinds()


@CONTEXT.add()
def attributes_on_ctx(base: type) -> Any:
    """Numbers, shapes and text kept as attributes."""

    class Mean(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape, ctx.count = x.shape, x.numel()
            return x.mean()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return (g / ctx.count).expand(ctx.shape)

    return Mean


@CONTEXT.add(arguments=lambda: (leaf(3), None))
def saved_none(base: type) -> Any:
    """None among what is saved."""

    class Affine(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, shift: Tensor | None) -> Tensor:
            ctx.save_for_backward(x, shift)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, shift = ctx.saved_tensors
            return 2 * x * g, g if shift is not None else None

    return Affine


@CONTEXT.add()
def saved_output(base: type) -> Any:
    """The output saved, in place of the argument."""

    class Exp(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Exp


@CONTEXT.add()
def saved_mask(base: type) -> Any:
    """A bool intermediate saved."""

    class Relu(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = x > 0.6
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Relu


@CONTEXT.add()
def saved_intermediate(base: type) -> Any:
    """A float intermediate saved, which first order may do."""

    class Tanh(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.tanh()
            ctx.save_for_backward(1 - y * y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Tanh


@CONTEXT.add(arguments=two_leaves)
def guarded_gradients(base: type) -> Any:
    """needs_input_grad guards each gradient."""

    class Product(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            gx = g * y if ctx.needs_input_grad[0] else None
            gy = g * x if ctx.needs_input_grad[1] else None
            return gx, gy

    return Product


@CONTEXT.add(arguments=lambda: (leaf(3, seed=1), leaf(3, seed=2).detach()))
def one_argument_without_grad(base: type) -> Any:
    """A gradient returned for an argument that doesn't require one."""
    return guarded_gradients(base)


@CONTEXT.add(arguments=lambda: (leaf(2, 3), leaf(3)))
def broadcast_left_to_the_engine(base: type) -> Any:
    """A gradient larger than its argument, which the engine sums."""

    class Sum(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g

    return Sum


@CONTEXT.add()
def more_nones_than_arguments(base: type) -> Any:
    """Two Nones too many at the end."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 3, None, None

    return Triple


@CONTEXT.add()
def none_for_the_only_argument(base: type) -> Any:
    """No gradient at all."""

    class Cut(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

    return Cut


@CONTEXT.add()
def tuple_of_one_gradient(base: type) -> Any:
    """A tuple, though there is one gradient only."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g * 3,)

    return Triple


@CONTEXT.add(call=lambda function, x: function.apply(x * 1))
def marked_dirty(base: type) -> Any:
    """An argument changed in place and returned."""

    class Double(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    return Double


@CONTEXT.add(call=lambda function, x: function.apply(x * 1))
def marked_dirty_with_setup_context(base: type) -> Any:
    """The same, marked in setup_context, with the changed tensor saved."""

    class ExpInPlace(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp_()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.mark_dirty(*inputs)
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return ExpInPlace


@CONTEXT.add()
def indices_marked_non_differentiable(base: type) -> Any:
    """An integer output beside a float one."""

    class Sort(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            values, indices = x.sort()
            ctx.mark_non_differentiable(indices)
            ctx.save_for_backward(indices)
            return values, indices

        @staticmethod
        def backward(ctx: Any, g: Tensor, unused: Tensor) -> Tensor:
            return torch.zeros_like(g).index_add_(0, ctx.saved_tensors[0], g)

    return Sort


@CONTEXT.add()
def float_marked_non_differentiable(base: type) -> Any:
    """A float output that gets no gradient."""

    class Norm(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            y, statistic = x * 3, x.sum()
            ctx.mark_non_differentiable(statistic)
            return y, statistic

        @staticmethod
        def backward(ctx: Any, g: Tensor, unused: Tensor) -> Tensor:
            return g * 3 + unused.sum()

    return Norm


@CONTEXT.add()
def unmaterialized_gradients(base: type) -> Any:
    """None in place of zeros for an unused output."""

    class Both(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
            if first is None:
                return None if second is None else second * 3
            return first * 2 if second is None else first * 2 + second * 3

    return Both


@CONTEXT.add()
def materialized_gradients(base: type) -> Any:
    """Zeros for an unused output."""

    class Both(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 2, x.sum()

        @staticmethod
        def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
            return first * 2 + second

    return Both


@CONTEXT.add()
def declared_once_differentiable(base: type) -> Any:
    """torch's once_differentiable around backward."""

    class Square(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Square


@CONTEXT.add(arguments=two_leaves, needs=(needs_boxes,))
def boxed_gradients(base: type) -> Any:
    """backward takes its gradients as one list, and empties it."""

    class Both(base):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor]) -> Any:
            x, y = ctx.saved_tensors
            product, total = grads
            grads.clear()
            return product * y + total, product * x + total

    return Both


@CONTEXT.add()
def cleared_on_access(base: type) -> Any:
    """Saved tensors that are let go when they are first read."""

    class Square(base):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


@CONTEXT.add(arguments=two_leaves, needs=(needs_boxes,))
def boxed_and_cleared(base: type) -> Any:
    """Both flags at once."""

    class Product(base):
        boxed_grads_call = True
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor]) -> Any:
            x, y = ctx.saved_tensors
            g = grads.pop()
            return g * y, g * x

    return Product
