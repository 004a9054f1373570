"""Random numbers that aren't kept: a key and the place of an element give them again, on any device.

Element i of a call, in logical order, stands in column j = i mod 2^16 of row r = ⌊i / 2^16⌋. From the four 32-bit
words k0 to k3 of the key come three more, and the element's number u, all in wrapping 32-bit arithmetic:

    c_j = mix(mix(j ⊕ k0) ⊕ k1)     a_r = mix(mix(r ⊕ k2) ⊕ k3)     m_r = mix(mix(r ⊕ k3) ⊕ k1) | 1
    u = last((c_j ⊕ a_r) m_r)

mix is a bijection of 32-bit words in which each bit of its argument flips each bit of the result half of the time;
last is its rounds without the first multiplication, which m_r stands for, and without the last shift, which only
changes low bits, where u is compared with a threshold. The rows have 63 bits to differ by, and the words of a row or
a column are made once. So an element costs ten of the cheapest passes over memory.

This is no cryptography: who sees enough numbers can find the key.

Source: J. K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, for random numbers by counter and
key; C. Wellons, Prospecting for Hash Functions, 2018, nullprogram.com/blog/2018/07/31, for mix (triple32 there).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.ops.scratch import may_write

COLUMNS = 1 << 16
"""How many elements stand in a row: few enough for a processor's cache."""

# The multipliers of triple32, as signed numbers.
_FIRST, _SECOND, _THIRD = 0xED5AD4BB - (1 << 32), 0xAC4C1B51 - (1 << 32), 0x31848BAB


def key(device: torch.device) -> Tensor:
    """Draw a key of 16 bytes, two int64 numbers, from the device's default generator.

    So ``torch.manual_seed`` repeats it, and under ``torch.func.vmap`` its ``randomness`` says whether each example
    has a key of its own.
    """
    return torch.randint(-(1 << 63), (1 << 63) - 1, (2,), dtype=torch.int64, device=device)


def kept(key: Tensor, count: int, p: float, dtype: torch.dtype) -> Tensor:
    """Draw for each of `count` elements 0 with probability p, and else 1; the same for the same key.

    Args:
        key: What `key` drew.
        count: How many elements.
        p: Between 0 and 1, to a resolution of 2⁻³².
        dtype: That of the result, which has the shape (count,).
    """
    # u is uniform in [−2³¹, 2³¹), so a share p of the numbers lies below this one.
    threshold = min(round(p * (1 << 32)), (1 << 32) - 1) - (1 << 31)
    rows = max((count + COLUMNS - 1) // COLUMNS, 1)
    columns, start, multiplier = _words(key, min(count, COLUMNS), rows)
    if torch.compiler.is_compiling() or key.device.type != "cpu":
        whole = _numbers(columns.unsqueeze(0), start.unsqueeze(1), multiplier.unsqueeze(1))
        return (whole >= threshold).reshape(-1)[:count].to(dtype)
    result = key.new_empty((count,), dtype=dtype)  # of the key, so that under vmap it has the key's examples
    place, spare = (torch.empty_like(columns), torch.empty_like(columns)) if may_write() else (None, None)
    for row, part in enumerate(result.split(COLUMNS)):
        length = part.shape[0]
        if length < COLUMNS:  # the last row, or the only one
            columns = columns[:length]
            place, spare = (None, None) if place is None or spare is None else (place[:length], spare[:length])
        numbers = _numbers(columns, start[row], multiplier[row], place, spare)
        part.copy_(numbers >= threshold)
    return result


def _words(key: Tensor, columns: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The words of each column, and the two of each row."""
    k0, k2 = key.to(torch.int32).unbind()
    k1, k3 = (key >> 32).to(torch.int32).unbind()
    j = torch.arange(columns, dtype=torch.int32, device=key.device)
    r = torch.arange(rows, dtype=torch.int32, device=key.device)
    return _mix(_mix(j ^ k0) ^ k1), _mix(_mix(r ^ k2) ^ k3), _mix(_mix(r ^ k3) ^ k1) | 1


def _numbers(
    columns: Tensor, start: Tensor, multiplier: Tensor, place: Tensor | None = None, spare: Tensor | None = None
) -> Tensor:
    """One number for each element, as int32; in `place`, with `spare` for the steps, where they are given."""
    return _last(torch.bitwise_xor(columns, start, out=place).mul_(multiplier), spare)


def _mix(x: Tensor) -> Tensor:
    """triple32; x is lost."""
    x = _last(_shifted_in(x, 17).mul_(_FIRST))
    return _shifted_in(x, 14)


def _last(x: Tensor, spare: Tensor | None = None) -> Tensor:
    """What triple32 does after its first multiplication and before its last shift; in place."""
    x = _shifted_in(x, 11, spare).mul_(_SECOND)
    return _shifted_in(x, 15, spare).mul_(_THIRD)


def _shifted_in(x: Tensor, by: int, spare: Tensor | None = None) -> Tensor:
    """x ⊕ x shifted right, in place; zeros come in, where PyTorch's shift repeats the sign."""
    shifted = torch.bitwise_right_shift(x, by, out=spare).bitwise_and_((1 << (32 - by)) - 1)
    return x.bitwise_xor_(shifted)
