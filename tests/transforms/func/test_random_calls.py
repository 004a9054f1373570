"""F12: a forward that draws random numbers, under vmap where no tensor of its own has the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import TransformError
from tests.transforms.derivatives import Draw

ENTRIES = 4


class Drop(pullback.Function):
    """Multiplies by random numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Draw them."""
        mask = torch.rand_like(x)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Multiply by the same."""
        return g * ctx.saved_tensors[0]


class Noise(pullback.Function):
    """Random numbers, out of no tensor at all."""

    @staticmethod
    def forward(ctx: Any, count: int) -> Tensor:
        """Draw them."""
        return torch.randn(count, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        """No gradient."""
        return None


def masks(x: Tensor, randomness: str) -> Tensor:
    """The masks of all entries of a batch that the argument isn't part of."""
    scales = torch.ones(ENTRIES, dtype=torch.float64)
    return torch.func.vmap(lambda scale: Drop.apply(x) * scale, randomness=randomness)(scales) / x


def test_different(draw: Draw) -> None:
    """With 'different' each entry draws a mask of its own."""
    found = masks(draw.constant(3), "different")
    assert len(found.unique(dim=0)) == ENTRIES


def test_same(draw: Draw) -> None:
    """With 'same' all entries share one mask."""
    found = masks(draw.constant(3), "same")
    assert len(found.unique(dim=0)) == 1
    assert len(found[0].unique()) == 3


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_the_numbers_are_those_of_plain_pytorch(randomness: str, draw: Draw) -> None:
    """From the same seed the draws are the ones that vmap makes without a Function."""
    x = draw.constant(3)
    scales = torch.ones(ENTRIES, dtype=torch.float64)
    torch.manual_seed(draw.seed)
    found = masks(x, randomness)
    torch.manual_seed(draw.seed)
    expected = torch.func.vmap(lambda scale: torch.rand_like(x) * scale, randomness=randomness)(scales)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("call", ["Drop", "Noise"])
@pytest.mark.parametrize("nested", [False, True])
def test_error(call: str, nested: bool, draw: Draw) -> None:
    """With 'error', the default, it is refused as PyTorch's random operations are: PB514 names class and way out."""
    x = draw.constant(3)
    run = (lambda: Drop.apply(x)) if call == "Drop" else (lambda: Noise.apply(3))
    level = torch.func.grad if nested else lambda function: function
    with pytest.raises(TransformError) as caught:
        torch.func.vmap(level(lambda scale: (run() * scale).sum()))(torch.ones(ENTRIES, dtype=torch.float64))
    assert caught.value.rule == "PB514"
    assert call in str(caught.value)
    assert "randomness='different'" in caught.value.remedy


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_without_tensor_arguments(randomness: str) -> None:
    """A Function of no tensor draws once for each entry, or once for all."""
    scales = torch.ones(ENTRIES, dtype=torch.float64)
    found = torch.func.vmap(lambda scale: Noise.apply(3) * scale, randomness=randomness)(scales)
    assert found.shape == (ENTRIES, 3)
    assert len(found.unique(dim=0)) == (ENTRIES if randomness == "different" else 1)


def test_gradients_have_the_masks_of_their_entries(draw: Draw) -> None:
    """The gradient of each entry is by the mask that this entry drew, and they add up for the shared argument."""
    x, scales = draw.constant(3), draw.constant(ENTRIES)

    def outputs(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda scale: Drop.apply(x) * scale, randomness="different")(scales)

    found, pull = torch.func.vjp(outputs, x)
    assert len((found / (x * scales[:, None])).unique(dim=0)) == ENTRIES
    torch.testing.assert_close(pull(torch.ones_like(found))[0], found.sum(0) / x)


def test_gradients_inside_of_vmap(draw: Draw) -> None:
    """So is the gradient that is taken inside of vmap, by an argument that has no batch."""
    x, scales = draw.constant(3), draw.constant(ENTRIES)

    def entry(scale: Tensor) -> tuple[Tensor, Tensor]:
        gradient, output = torch.func.grad(lambda x: (lambda y: (y.sum(), y))(Drop.apply(x) * scale), has_aux=True)(x)
        return gradient, output

    gradients, found = torch.func.vmap(entry, randomness="different")(scales)
    assert len((found / scales[:, None]).unique(dim=0)) == ENTRIES
    torch.testing.assert_close(gradients, found / x)


def test_nothing_is_refused_without_random_numbers(draw: Draw) -> None:
    """A Function that draws nothing is called under the default, whatever has the batch."""

    class Double(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    x, scales = draw.constant(3), draw.constant(ENTRIES)
    found = torch.func.vmap(lambda scale: Double.apply(x) * scale)(scales)
    torch.testing.assert_close(found, 2 * x * scales[:, None])
