"""Cross entropy of a linear layer's output: both forms, each reduction, with a bias, weighted and smoothed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.linear_cross_entropy import linear_cross_entropy
from tests.ops.kinds import Arguments, Kind, normal
from tests.ops.kinds.cross_entropy import classes, weights


def formula(input: Tensor, linear_weight: Tensor, target: Tensor, **options: Any) -> Tensor:
    """The linear layer and the cross entropy, as PyTorch has them."""
    bias = options.pop("linear_bias", None)
    logits = F.linear(input.flatten(0, -2), linear_weight, bias)
    result = F.cross_entropy(logits, target.flatten(), **options)
    return result.view(target.shape) if result.dim() else result


def gradient_bytes(input: Tensor, linear_weight: Tensor, target: Tensor, *rest: Tensor) -> int:
    """The gradients of what requires grad; in float16 4 bytes a token instead."""
    if input.dtype == torch.float16:
        return 4 * target.numel()
    every = (input, linear_weight, *(tensor for tensor in rest if tensor.requires_grad))
    return sum(tensor.nbytes for tensor in every)


def token_bytes(input: Tensor, linear_weight: Tensor, target: Tensor, *_: Tensor) -> int:
    """4 bytes a token; 8 in float64."""
    del linear_weight
    return target.numel() * max(4, input.element_size())


def tokens(generator: torch.Generator) -> Arguments:
    """Tokens, a weight, and a target with one that is ignored."""
    return normal(generator, 4, 3), normal(generator, 5, 3), classes(generator, 4, count=5)


def batch(generator: torch.Generator) -> Arguments:
    """A batch of texts, a weight, a target, a bias and class weights."""
    x, w = normal(generator, 2, 3, 3), normal(generator, 4, 3)
    return x, w, classes(generator, 2, 3, count=4), normal(generator, 4), weights(generator, 4)


def nothing() -> Arguments:
    """No tokens."""
    input, weight = torch.zeros(0, 3).double(), torch.ones(5, 3).double()
    return input.requires_grad_(), weight.requires_grad_(), torch.zeros(0).long()


def kept(input: Tensor, linear_weight: Tensor, target: Tensor) -> Tensor:
    """Gradients in forward."""
    return linear_cross_entropy(input, linear_weight, target)


def recomputed(input: Tensor, linear_weight: Tensor, target: Tensor) -> Tensor:
    """Logits made again in backward."""
    return linear_cross_entropy(input, linear_weight, target, form="recompute")


def smooth(input: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A weighted, smoothed sum, with a bias."""
    return linear_cross_entropy(
        input, linear_weight, target, linear_bias=bias, weight=weight, reduction="sum", label_smoothing=0.1
    )


def smooth_formula(input: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """The same as PyTorch has it."""
    return formula(input, linear_weight, target, linear_bias=bias, weight=weight, reduction="sum", label_smoothing=0.1)


def each_token(input: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A loss for each token, weighted and smoothed."""
    return linear_cross_entropy(
        input, linear_weight, target, linear_bias=bias, weight=weight, reduction="none", label_smoothing=0.1
    )


def each_formula(input: Tensor, linear_weight: Tensor, target: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """The same as PyTorch has it."""
    return formula(input, linear_weight, target, linear_bias=bias, weight=weight, reduction="none", label_smoothing=0.1)


KINDS = [
    Kind("linear_cross_entropy", kept, formula, tokens, beyond=gradient_bytes, empty=nothing),
    Kind("linear_cross_entropy, recomputed", recomputed, formula, tokens, beyond=token_bytes, empty=nothing),
    Kind("linear_cross_entropy, smooth sum with bias", smooth, smooth_formula, batch, beyond=gradient_bytes),
    Kind("linear_cross_entropy, each token", each_token, each_formula, batch, beyond=token_bytes),
]
