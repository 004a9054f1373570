"""The same values in another memory layout: transposed, sliced, offset, expanded, channels last."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_FILLER = 7.25
"""What lies between the elements of a sliced tensor: a value that shows when memory is read in order."""


def arrangements(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Pairs of equal tensors, (name of the layout, the contiguous one, the one in that layout), both detached.

    The values are the tensor's own but for `expanded`, where they repeat along the first dimension.
    """
    if tensor.layout is not torch.strided or tensor.numel() < 1:
        return
    plain = tensor.detach().contiguous().clone()
    if plain.dim() >= 2 and min(plain.shape[-2:]) > 1:
        yield "transposed", plain, plain.transpose(-1, -2).contiguous().transpose(-1, -2)
    if plain.dim() >= 1:
        wide = torch.full((*plain.shape[:-1], 2 * plain.shape[-1]), _FILLER, device=plain.device).to(plain.dtype)
        wide[..., ::2] = plain
        yield "sliced", plain, wide[..., ::2]
    longer = torch.full((plain.numel() + 3,), _FILLER, device=plain.device).to(plain.dtype)
    longer[3:] = plain.reshape(-1)
    yield "offset", plain, longer[3:].view(plain.shape)
    if plain.dim() == 4 and plain.shape[1] > 1 and plain.shape[2] * plain.shape[3] > 1:
        yield "channels last", plain, plain.contiguous(memory_format=torch.channels_last)
    if plain.dim() >= 1 and plain.numel() > 1:
        row = plain[:1] if plain.shape[0] > 1 else plain.reshape(-1)[:1].view([1] * plain.dim())
        yield "expanded", row.expand(plain.shape).contiguous(), row.expand(plain.shape)
        one = plain.reshape(-1)[:1].view([1] * plain.dim())
        yield "expanded from one element", one.expand(plain.shape).contiguous(), one.expand(plain.shape)
