"""How much linear_cross_entropy holds at once: the gradients and one chunk of logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pullback.ops import chunks, linear_cross_entropy, products
from tests.ops.live_bytes import most_alive, normal

FORMS = ("gradients", "recompute")


@pytest.fixture(params=["upcast", "as it is"])
def multiplied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Multiply bfloat16 through float32, or as on a CPU that has instructions for it."""
    lower = frozenset({torch.bfloat16} if request.param == "as it is" else ())
    monkeypatch.setattr(products, "MULTIPLIED_BY_CPU", lower)
    return str(request.param)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and blocks that stand to 1,024 tokens and 8,000 classes as they are to many more."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 6 * 2**20)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 2**16)


def peak(dtype: torch.dtype, form: Any, scale: float | None = None) -> tuple[int, int]:
    """The most bytes that forward and backward hold at once, and those of the gradients."""
    x, w, target = normal(1024, 128, dtype=dtype), normal(8000, 128, dtype=dtype, seed=1), torch.arange(1024)

    def step() -> None:
        loss = linear_cross_entropy(x, w, target, form=form)
        (loss if scale is None else loss * scale).backward()

    return most_alive(step, [x, w, target]), x.nbytes + w.nbytes


@pytest.mark.parametrize("form", FORMS)
def test_the_peak_in_float32(form: str) -> None:
    """At most 1.10 of the gradients and one chunk; the logits alone would take three times that."""
    most, of_gradients = peak(torch.float32, form)
    assert of_gradients < most <= 1.10 * (of_gradients + chunks.CHUNK_BYTES)


@pytest.mark.usefixtures("multiplied")
@pytest.mark.parametrize("form", FORMS)
def test_the_peak_in_bfloat16(form: str) -> None:
    """The same in bfloat16, upcast or not: no gradient of the weight is ever whole in float32."""
    most, of_gradients = peak(torch.bfloat16, form)
    assert of_gradients < most <= 1.10 * (of_gradients + chunks.CHUNK_BYTES)


def test_a_cotangent_other_than_one_makes_a_second_copy_of_the_gradients() -> None:
    """A loss that is scaled holds the gradients twice in backward, unless they are recomputed."""
    most, of_gradients = peak(torch.float32, "gradients", scale=0.5)
    assert most <= 1.10 * max(2 * of_gradients, of_gradients + chunks.CHUNK_BYTES)
    most, of_gradients = peak(torch.float32, "recompute", scale=0.5)
    assert most <= 1.10 * (of_gradients + chunks.CHUNK_BYTES)


MEASURED = r"""
import re, sys, torch
from pullback.ops import linear_cross_entropy
torch.set_num_threads(1)
tokens, features, classes = 4096, 512, 32000
x = torch.randn(tokens, features, requires_grad=True)
w = (torch.randn(classes, features) * features**-0.5).requires_grad_()
target = torch.randint(classes, (tokens,))
small = torch.randn(64, features, requires_grad=True)
linear_cross_entropy(small, w[:64], target[:64] % 64).backward()  # what is made at the first call
w.grad = None
read = lambda name: int(re.search(name + r":\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
before = read("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark begins anew
linear_cross_entropy(x, w, target).backward()
print(read("VmHWM") - before, x.nbytes + w.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the high-water mark")
def test_the_resident_peak_of_a_language_models_head() -> None:
    """At 4,096 tokens, 512 features and 32,000 classes: 0.10 of what three tensors of the logits' size take."""
    ran = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    most, of_gradients = map(int, ran.stdout.split())
    assert of_gradients < most <= 0.10 * 3 * (4096 * 32000 * 4)
