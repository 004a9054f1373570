"""The same values in another memory layout: strides, offsets, repeated numbers, and ones still to be conjugated."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_FILLER = 7.25
"""What lies between the elements of a sliced tensor: a value that shows when memory is read in order."""

IN_EACH_ROW, CONJUGATED, NEGATED = "expanded in each row", "lazily conjugated", "lazily negated"

OF_GRADIENTS = (IN_EACH_ROW, NEGATED)
"""Layouts that gradients come in, from a sum over the last axis or from the imaginary part of a conjugate. Arguments
hardly do, and there a mean of equal numbers has no variance, and PyTorch's own slogdet another gradient."""

LAZY = (CONJUGATED, NEGATED)
"""The layouts in which memory holds other numbers: a bit of the tensor says what is still to be done with them, which
PyTorch's operators see to, and a kernel that is handed an address does not."""


def arrangements(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Pairs of equal tensors, (name of the layout, the contiguous one, the one in that layout), both detached.

    The values are the tensor's own but for `expanded`, where they repeat along the first dimension or the last.
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
    if plain.dim() >= 2 and plain.shape[:-1].numel() > 1:  # as the parts of q, k and v in one tensor lie
        yield "padded", plain, torch.cat([plain, torch.full_like(plain, _FILLER)], -1)[..., : plain.shape[-1]]
    if plain.dim() >= 3 and min(plain.shape[:2]) > 1:  # as (T, B, H) lies where (B, T, H) is meant
        yield "permuted", plain, plain.transpose(0, 1).contiguous().transpose(0, 1)
    longer = torch.full((plain.numel() + 3,), _FILLER, device=plain.device).to(plain.dtype)
    longer[3:] = plain.reshape(-1)
    yield "offset", plain, longer[3:].view(plain.shape)
    if plain.dim() == 4 and plain.shape[1] > 1 and plain.shape[2] * plain.shape[3] > 1:
        yield "channels last", plain, plain.contiguous(memory_format=torch.channels_last)
    if plain.is_complex():
        yield CONJUGATED, plain, plain.conj().resolve_conj().conj()
    elif plain.dtype in (torch.float32, torch.float64):
        yield NEGATED, plain, torch.complex(torch.full_like(plain, _FILLER), -plain).conj().imag
    if plain.dim() >= 1 and plain.numel() > 1:
        row = plain[:1] if plain.shape[0] > 1 else plain.reshape(-1)[:1].view([1] * plain.dim())
        yield "expanded", row.expand(plain.shape).contiguous(), row.expand(plain.shape)
        if plain.dim() >= 2 and min(plain.shape[-1], plain.shape[:-1].numel()) > 1:  # as a sum over the last axis does
            each = plain[..., :1].expand(plain.shape)
            yield IN_EACH_ROW, each.contiguous(), each
        one = plain.reshape(-1)[:1].view([1] * plain.dim())
        yield "expanded from one element", one.expand(plain.shape).contiguous(), one.expand(plain.shape)
