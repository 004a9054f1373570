"""What no operation takes is refused by name, with PB130, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pullback import ops
from pullback.errors import OperationError

X = torch.randn(3, 4)
W = torch.randn(5, 4)
CLASSES = torch.tensor([0, 1, 2])
SHARES = torch.full((3, 4), 0.25)

NO_TENSOR: dict[str, Callable[[], Any]] = {
    "swiglu: `up`": lambda: ops.swiglu(X, 1.0),
    "geglu: `gate`": lambda: ops.geglu(None, X),
    "rms_norm: `input`": lambda: ops.rms_norm([1.0, 2.0], 2),
    "rms_norm: `weight`": lambda: ops.rms_norm(X, 4, 1.0),
    "layer_norm: `bias`": lambda: ops.layer_norm(X, 4, None, [0.0] * 4),
    "add_rms_norm: `residual`": lambda: ops.add_rms_norm(X, None, 4),
    "rope: `cos`": lambda: ops.rope(X, 1.0, 0.0),
    "cross_entropy: `target`": lambda: ops.cross_entropy(X, [0, 1, 2]),
    "cross_entropy: `weight`": lambda: ops.cross_entropy(X, CLASSES, [1.0] * 4),
    "linear_cross_entropy: `linear_weight`": lambda: ops.linear_cross_entropy(X, None, CLASSES),
    "linear_cross_entropy: `linear_bias`": lambda: ops.linear_cross_entropy(X, W, CLASSES, linear_bias=0.0),
    "dropout_add: `residual`": lambda: ops.dropout_add(X, 0.0),
    "clipped_relu: `input`": lambda: ops.clipped_relu(1.0, 6.0),
    "straight_through: `surrogate`": lambda: ops.straight_through(X, None),
    "straight_through_round: `input`": lambda: ops.straight_through_round(1.5),
    "reverse_gradient: `input`": lambda: ops.reverse_gradient(1.5),
    "scale_gradient: `input`": lambda: ops.scale_gradient([1.5], 1.0),
    "clip_gradient: `input`": lambda: ops.clip_gradient([1.5], 1.0),
}


@pytest.mark.parametrize("argument", NO_TENSOR)
def test_what_is_no_tensor(argument: str) -> None:
    """The message names the argument and what came in its place."""
    with pytest.raises(OperationError, match=rf"PB130 {argument} is no tensor(.|\n)*expected: a torch.Tensor"):
        NO_TENSOR[argument]()


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "rms_norm: `eps` is no number": lambda value: ops.rms_norm(X, 4, None, "small" if value is None else value),
    "layer_norm: `eps` is no number": lambda value: ops.layer_norm(X, 4, None, None, value),
    "cross_entropy: `label_smoothing`": lambda value: ops.cross_entropy(X, CLASSES, label_smoothing=value),
    "cross_entropy: `ignore_index`": lambda value: ops.cross_entropy(X, CLASSES, ignore_index=value),
    "linear_cross_entropy: `label_smoothing`": lambda value: ops.linear_cross_entropy(
        X, W, CLASSES, label_smoothing=value
    ),
    "dropout_add: p is no probability": lambda value: ops.dropout_add(X, X, value),
    "clipped_relu: max_val is no ceiling": lambda value: ops.clipped_relu(X, value),
    "reverse_gradient: scale is no factor": lambda value: ops.reverse_gradient(X, value),
    "scale_gradient: scale is no factor": lambda value: ops.scale_gradient(X, value),
    "clip_gradient: max_norm is no limit": lambda value: ops.clip_gradient(X, "1" if value is None else value),
    "clip_gradient: max_value is no limit": lambda value: ops.clip_gradient(
        X, max_value="1" if value is None else value
    ),
}


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [None, "a", 1j, math.nan, torch.tensor(0.5), np.ones(2)],
    ids=["None", "str", "complex", "nan", "0-d", "array"],
)
def test_what_is_no_number(text: str, value: Any) -> None:
    """None, text, complex numbers, NaN, tensors and arrays are none; the message names the argument."""
    with pytest.raises(OperationError, match=f"PB130 {text}(.|\n)*got: "):
        NUMBERS[text](value)


def test_numbers_of_numpy_are_numbers() -> None:
    """They are taken wherever Python's are."""
    plain = ops.cross_entropy(X, CLASSES, ignore_index=1, label_smoothing=0.5)
    assert torch.equal(plain, ops.cross_entropy(X, CLASSES, ignore_index=np.int64(1), label_smoothing=np.float64(0.5)))
    assert torch.equal(ops.clipped_relu(X, np.float32(0.5)), ops.clipped_relu(X, 0.5))


@pytest.mark.parametrize("index", [1.5, 10**30, True + 0.0], ids=["fraction", "long", "float"])
def test_what_is_no_index(index: Any) -> None:
    """A class to ignore is an integer of 64 bits."""
    for call in (
        lambda: ops.cross_entropy(X, CLASSES, ignore_index=index),
        lambda: ops.linear_cross_entropy(X, W, CLASSES, ignore_index=index),
    ):
        with pytest.raises(OperationError, match=r"`ignore_index` is no class index(.|\n)*an integer of 64 bits"):
            call()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "reduction of probabilities": (lambda: ops.cross_entropy(X, SHARES, reduction="all"), "cross_entropy: `reduction`"),
    "smoothing of probabilities": (
        lambda: ops.cross_entropy(X, SHARES, label_smoothing=2),
        "cross_entropy: `label_smoothing`",
    ),
    "weight of probabilities": (lambda: ops.cross_entropy(X, SHARES, torch.ones(3)), "cross_entropy: `weight`"),
    "ignored probabilities": (
        lambda: ops.cross_entropy(X, SHARES, ignore_index=1),
        "cross_entropy: `ignore_index` has",
    ),
    "integer logits": (lambda: ops.cross_entropy(X.long(), SHARES), "cross_entropy: `input` has the logits"),
    "dtypes with probabilities": (
        lambda: ops.linear_cross_entropy(X, W[:4].double(), SHARES),
        "linear_cross_entropy: `input`, `linear_weight`",
    ),
    "form with probabilities": (
        lambda: ops.linear_cross_entropy(X, W[:4], SHARES, form="other"),
        "linear_cross_entropy: `form`",
    ),
    "target of other axes": (
        lambda: ops.linear_cross_entropy(X, torch.randn(5, 2, 4), torch.zeros(2, 3).long()),
        r"linear_cross_entropy: `target`(.|\n)*shape \(3, 2\)(.|\n)*got: torch.int64 of shape \(2, 3\)",
    ),
    "target out of bounds, of further axes": (
        lambda: ops.linear_cross_entropy(X, torch.randn(5, 2, 4), torch.full((3, 2), 7)),
        "linear_cross_entropy: Target 7 is out of bounds",
    ),
    "tables for other positions": (
        lambda: ops.rope(torch.randn(2, 3, 4), torch.randn(7, 4), torch.randn(7, 4)),
        r"rope broadcasts(.|\n)*input of shape \[2, 3, 4\], cos and sin of shape \[7, 4\]",
    ),
    "complex gradient by value": (
        lambda: ops.clip_gradient(X + 0j, max_value=1.0),
        r"clip_gradient(.|\n)*got: input of torch.complex64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    """What PyTorch would refuse somewhere inside, or not at all, is refused by its name."""
    call, text = REFUSED[case]
    with pytest.raises(OperationError, match=f"PB130 {text}"):
        call()


@pytest.mark.parametrize(
    "cast", [torch.Tensor.double, torch.Tensor.long, lambda t: t + 0j], ids=["f64", "int", "complex"]
)
def test_autocast_casts_no_other_dtypes(cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Under autocast float64 beside float32, integers and complex numbers are refused, and not cast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(OperationError, match=r"one floating-point dtype"):
        ops.linear_cross_entropy(cast(X), W, CLASSES)
