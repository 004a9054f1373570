"""Cross entropy of a linear layer's output, the head of a language model, without ever holding that output.

    z = x Wᵀ + b        loss = (1 - s) w_y (lse - z_y) + s/C Σ_c w_c (lse - z_c)        lse = log Σ_c exp z_c

for a token x with the target class y, class weights w and the label smoothing s. With B tokens and V classes the logits
z take B·V numbers, and PyTorch holds three tensors of that size at once. Here chunks of at most
`pullback.ops.chunks.CHUNK_BYTES` are made, used and overwritten.

Form ``"gradients"``: forward makes the gradients along with the loss, while a chunk is there, and keeps these; backward
only multiplies them by its cotangent. Form ``"recompute"``: forward keeps lse, backward makes each chunk once more.

Sources: E. Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024, arXiv:2411.09009, for chunks of
the vocabulary; P.-L. Hsu et al., Liger Kernel, 2024, arXiv:2410.10989, for gradients in forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.function import Function
from pullback.ops.arguments import autocasts
from pullback.ops.chunks import accumulated
from pullback.ops.linear_checks import NAME, check_fit, check_form, check_target, common_dtype, has_probabilities
from pullback.ops.plain import in_forward_mode
from pullback.ops.projected import (
    Gradients,
    Projection,
    Tiles,
    Weighing,
    at_once,
    by_rows,
    gradients,
    log_sums,
    whole_rows,
)
from pullback.ops.samples import leaf
from pullback.ops.scratch import shaped
from pullback.ops.targets import (
    Options,
    check_options,
    losses,
    out_of_bounds,
    owed,
    read_targets,
    reduced,
)
from pullback.torch_private import is_wrapped
from pullback.transforms.graph import is_batched

Form = Literal["gradients", "recompute"]


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    form: Form = "gradients",
) -> Tensor:
    """Compute ``F.cross_entropy(F.linear(input, linear_weight, linear_bias), target)`` in little memory.

    Names, order and defaults are those of `torch.nn.functional.linear_cross_entropy`, but for its ``options``.

    Args:
        input: Tokens of shape (H,), (B, H) or (B, T, H) with H features; any number of axes before the last.
        linear_weight: The layer's weight of shape (V, H), for V classes; or (V, d1, …, H), where input is (B, H). The
            latter is computed by the plain formula, which holds the logits.
        target: Class indices of input's shape without H (and with d1, …), of any integer dtype; or probabilities, of
            the logits' shape and a floating-point dtype, which are left to the plain formula too.
        linear_bias: The layer's bias, of linear_weight's shape without H.
        weight: A factor for each class, of shape (V,).
        reduction: ``"none"``, ``"sum"``, or ``"mean"``, which divides by the sum of the weights of all targets.
        ignore_index: The target of tokens that don't count; None is -100.
        label_smoothing: The share of the probability that is spread over all classes, from 0 to 1.
        form: ``"gradients"`` keeps the gradients of what requires grad, and takes three matrix products (four in low
            precision, or with more than 98,304 classes in float32). ``"recompute"`` keeps 4 bytes a token (8 in
            float64), and takes four. With ``reduction="none"`` no gradient is known before backward, and in float16 one
            that is made before the loss is scaled up is lost to underflow, so both are recomputed in either form.

    Returns:
        A scalar, or with ``"none"`` the loss of each token in target's shape. At most one chunk of logits is alive at a
        time. A cotangent other than 1 (a loss that is divided or scaled) makes a second copy of the gradients in
        backward; for 1 they are handed out as they were kept, so writing to what `torch.autograd.grad` gave for a graph
        that is retained makes its next backward raise. Second derivatives follow the plain formula, logits and all.

    Raises:
        OperationError: PB130, for shapes, dtypes, options or class indices that mean nothing.
    """
    check_fit(input, linear_weight, target, linear_bias, weight)
    options = Options(reduction, -100 if ignore_index is None else ignore_index, label_smoothing)
    probabilities = has_probabilities(input, linear_weight, target, ignore_index)
    if not probabilities:
        check_target(input, linear_weight, target)
    check_options(NAME, target, weight, linear_weight.shape[0], options, probabilities=probabilities)
    check_form(form)
    # Under autocast a linear layer runs in its lower dtype, and a cross entropy in float32.
    lower = torch.get_autocast_dtype(input.device.type) if autocasts(input.device) else None
    dtype = common_dtype(lower, input, linear_weight, linear_bias)
    if linear_weight.dim() > 2 or probabilities or in_forward_mode():
        return _applied(_plain, options, input, linear_weight, target, linear_bias, weight, options)
    kept = form == "gradients" and reduction != "none" and input.dtype != torch.float16 and torch.is_grad_enabled()
    call = LinearCrossEntropy.apply
    if lower is None:
        return _applied(call, options, input, linear_weight, target, linear_bias, weight, *options, kept, False)
    x, w, b = (t if t is None else t.to(dtype) for t in (input, linear_weight, linear_bias))
    with torch.autocast(input.device.type, enabled=False):
        return _applied(call, options, x, w, target, b, weight, *options, kept, True)


def _applied(
    call: Callable[..., Tensor], options: Options, input: Any, linear_weight: Any, target: Tensor, *others: Any
) -> Tensor:
    """Call with the arguments after options; where a target is out of bounds, the error names it."""
    if torch.compiler.is_compiling():
        return call(input, linear_weight, target, *others)
    try:
        return call(input, linear_weight, target, *others)
    except (RuntimeError, IndexError):
        wrong = out_of_bounds(NAME, target, options.ignore_index, linear_weight.shape[0])
        if wrong is None:
            raise
        raise wrong from None


class LinearCrossEntropy(Function):
    """The mean, the sum or each of -log softmax(x Wᵀ + b)[target], weighted and smoothed."""

    nondiff_argnames = ("target", "weight")
    keep_autocast = True

    @staticmethod
    def forward(
        ctx: Context,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        weight: Tensor | None,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
        kept: bool,
        widened: bool,
    ) -> Tensor:
        options = Options(reduction, ignore_index, label_smoothing)
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
        of, by = _read(input, linear_weight, target, linear_bias, weight, options)
        classes, made, lse = linear_weight.shape[0], Gradients(None, None, None), None
        one = torch.ones((), dtype=by.targets.weight.dtype, device=input.device)
        if kept and any(needs) and whole_rows(of):
            rows, made = by_rows(of, by, owed(by.targets, options, classes, weight, one), needs)
        else:
            tiles = Tiles(of)
            terms = log_sums(tiles, by)
            lse, rows = terms[0], losses(by.targets, options, classes, weight, terms)
            if kept and any(needs):
                made = gradients(tiles, by, owed(by.targets, options, classes, weight, one), lse, needs)
                lse = None
        if made.input is not None:
            made = made._replace(input=made.input.view(input.shape))
        ctx.save_for_backward(input, linear_weight, target, linear_bias, weight, lse, *made)
        ctx.options = options
        result = reduced(rows, by.targets, options)
        result = result if widened else result.to(input.dtype)
        return shaped(result, target.shape) if reduction == "none" else result

    # With the logits' gradient gz (see `targets.owed`), a matrix of B by V that is there a chunk at a time,
    #   gx = gz W        gW = gzᵀ x        gb = Σ over tokens of gz
    # All are linear in the cotangent, and for a scalar loss that is one factor.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, ...]:
        input, linear_weight, target, linear_bias, weight, lse, *kept = ctx.saved_tensors
        if lse is None:
            made = [gradient if gradient is None or _is_one(g) else gradient * g for gradient in kept]
        else:
            options: Options = ctx.options
            needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
            of, by = _read(input, linear_weight, target, linear_bias, weight, options)
            due = owed(by.targets, options, linear_weight.shape[0], weight, g.reshape(-1) if g.dim() else g)
            several = not torch.compiler.is_compiling() and is_batched(g)
            made = [*(at_once(of, by, due, lse, needs) if several else gradients(Tiles(of), by, due, lse, needs))]
            made[0] = None if made[0] is None else made[0].view(input.shape)
        return made[0], made[1], None, made[2], None, None, None, None, None, None

    @staticmethod
    def reference(
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        weight: Tensor | None,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
        kept: bool,
        widened: bool,
    ) -> Tensor:
        """The two operations as PyTorch has them."""
        del kept  # what is kept changes no value
        options = Options(reduction, ignore_index, label_smoothing)
        return _plain(input, linear_weight, target, linear_bias, weight, options, widened)

    @staticmethod
    def samples() -> Iterator[tuple[Any, ...]]:
        """Draw a mean with a token that is ignored, and a weighted, smoothed loss of each token."""
        target = torch.tensor([[2, -100], [0, 1]])
        yield leaf(2, 2, 4), leaf(3, 4, seed=1), target, leaf(3, seed=2), None, "mean", -100, 0.0, True, False
        weight = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
        yield leaf(2, 2, 4), leaf(3, 4, seed=1), target, None, weight, "none", -100, 0.1, False, False


def _read(
    input: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor | None, weight: Tensor | None, options: Options
) -> tuple[Projection, Weighing]:
    """The arguments, with all tokens on one axis."""
    tokens = _tokens(input)
    targets = read_targets(target.reshape(-1), weight, options.ignore_index, accumulated(input.dtype))
    return Projection(tokens, linear_weight, bias), Weighing(targets, options, weight)


def _tokens(input: Tensor) -> Tensor:
    """All tokens on one axis."""
    return input.flatten(0, -2) if input.dim() > 1 else input.unsqueeze(0)


def _is_one(g: Tensor) -> bool:
    """Whether a cotangent is 1, where that is known at no cost and nothing is to follow the product with it."""
    if torch.compiler.is_compiling() or g.device.type != "cpu" or g.requires_grad or is_wrapped(g):
        return False
    try:
        return g.item() == 1
    except RuntimeError:  # a batch of cotangents, and what is traced or has no values, can't be read
        return False


def _plain(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    options: Options,
    widened: bool = False,
) -> Tensor:
    """The formula in PyTorch's own operations, which hold the logits; these in float32 at least where `widened`."""
    tokens, positions = _tokens(input), linear_weight.shape[1:-1]
    logits = F.linear(tokens, linear_weight.flatten(0, -2), None if bias is None else bias.flatten())
    logits = logits.view(tokens.shape[0], linear_weight.shape[0], *positions)
    if widened:
        logits = logits.to(accumulated(logits.dtype))
    shape = (*input.shape[:-1], *positions)
    target = target.reshape(logits.shape) if target.is_floating_point() else target.long()
    target = target if target.is_floating_point() else target.reshape(tokens.shape[0], *positions)
    result = F.cross_entropy(
        logits,
        target,
        None if weight is None else weight.to(logits.dtype),
        ignore_index=options.ignore_index,
        reduction=options.reduction,
        label_smoothing=options.label_smoothing,
    )
    return result.view(shape) if options.reduction == "none" else result
