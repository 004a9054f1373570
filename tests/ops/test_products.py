"""In which dtype matrices are multiplied, and how work is cut into pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pullback.ops import chunks, products
from pullback.ops.chunks import spans

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, frozenset()),
        ({"avx512_bf16": True}, {torch.bfloat16}),
        ({"amx_bf16": True}, {torch.bfloat16}),
        ({"neon": True, "bf16": True}, {torch.bfloat16}),
    ],
)
def test_what_the_cpu_is_told_to_multiply(
    told: dict[str, Any], expected: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 is multiplied as it is where torch tells of instructions for it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert products._multiplied_by_cpu() == expected


def test_where_torch_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that tells nothing, or is built without the library that would use them, has no such instructions."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert products._multiplied_by_cpu() == frozenset()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert products._multiplied_by_cpu() == frozenset()


def test_low_precision_is_upcast_on_a_cpu_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU lower dtypes go through float32, but for those it multiplies; other devices and dtypes stay."""
    monkeypatch.setattr(products, "MULTIPLIED_BY_CPU", frozenset({torch.bfloat16}))
    assert products.multiplied_in(torch.bfloat16, CPU) == torch.bfloat16
    assert products.multiplied_in(torch.float16, CPU) == torch.float32
    assert products.multiplied_in(torch.float16, CUDA) == torch.float16
    assert products.multiplied_in(torch.float64, CPU) == torch.float64
    monkeypatch.setattr(products, "MULTIPLIED_BY_CPU", frozenset())
    assert products.multiplied_in(torch.bfloat16, CPU) == torch.float32
    assert products.multiplied_in(torch.bfloat16, CUDA) == torch.bfloat16


@pytest.mark.parametrize(
    ("length", "step", "expected"),
    [(5, 2, [(0, 2), (2, 2), (4, 1)]), (4, 2, [(0, 2), (2, 2)]), (3, 9, [(0, 3)]), (2, 0, [(0, 1), (1, 1)])],
)
def test_spans(length: int, step: int, expected: list[tuple[int, int]]) -> None:
    """An axis is covered once, in steps of at least one; an empty axis has one empty piece."""
    assert spans(length, step) == expected
    assert spans(0, step) == [(0, 0)]


def test_a_block_grows_with_the_threads_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a block's worth of work, as far as eight of them."""
    for threads, blocks in ((1, 1), (2, 2), (8, 8), (64, 8)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert chunks.block_bytes() == blocks * chunks.BLOCK_BYTES
