"""Modules of torch.nn that run on pullback.ops: the same names, constructors, parameters and state dicts.

    from pullback import nn      in the place of      from torch import nn

for these modules alone. A checkpoint of one loads into the other, both ways.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pullback.ops.cross_entropy import cross_entropy
from pullback.ops.layer_norm import layer_norm
from pullback.ops.linear_cross_entropy import Form, linear_cross_entropy
from pullback.ops.rms_norm import rms_norm

__all__ = ["CrossEntropyLoss", "LayerNorm", "LinearCrossEntropyLoss", "RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` that keeps its input and 4 bytes a row: see `pullback.ops.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, whose shape ends in normalized_shape."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` that keeps its input and 8 bytes a row: see `pullback.ops.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise input, whose shape ends in normalized_shape."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` that keeps the logits and 4 bytes a token: see `pullback.ops.cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits (B, V, …) for target classes (B, …)."""
        return cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class LinearCrossEntropyLoss(torch.nn.Module):
    """`torch.nn.LinearCrossEntropyLoss`, a last layer with its loss, that never holds the logits.

    It has that module's parameters, buffers and state dict, on a PyTorch without that module too; in the place of its
    ``options`` it has the ``form`` of `pullback.ops.linear_cross_entropy`.

    Args:
        in_features: H, the features of a token.
        num_classes: V.
        out_features: Further axes (d1, …) of the logits (B, V, d1, …); with any, the plain formula is computed.
        bias: Whether the layer adds a bias.
        device: Where its parameters are.
        dtype: Of what dtype they are.
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        weight: A factor for each class, of shape (V,); a buffer.
        ignore_index: The target of tokens that don't count; None is -100.
        label_smoothing: The share of the probability that is spread over all classes, from 0 to 1.
        form: ``"gradients"`` or ``"recompute"``.
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        form: Form = "gradients",
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.form: Form = form
        # A linear layer's weight has two axes; forward gives it out_features back.
        classes = math.prod(self.out_features, start=num_classes)
        self.linear = torch.nn.Linear(in_features, classes, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of tokens (…, H) for target classes (…), or (B, d1, …) with out_features."""
        shape = self.num_classes, *self.out_features
        bias: Tensor | None = self.linear.bias  # Linear's annotation knows no layer without one
        return linear_cross_entropy(
            input,
            self.linear.weight.reshape(*shape, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            form=self.form,
        )

    def extra_repr(self) -> str:
        """What torch.nn's says, with form in the place of options."""
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, reduction={self.reduction}, "
            f"ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}, form={self.form}"
        )
