"""Which parts of the kernel ran on this machine, and whether they are right: what the examples beside this file print.

A part that could not run is said to be 'not run', with the reason. It never counts as passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kernel_build
import torch
from torch import Tensor

import pullback

FOLDER = Path(__file__).resolve().parent
CAP = 2.3  # a number that float32 doesn't hold exactly, so that a kernel which narrows it is found


class Part(NamedTuple):
    """One line of the report."""

    name: str
    result: str  # passed, failed or not run
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.result}" + (f" ({self.detail})" if self.detail else "")


def main(function: Any) -> int:
    """Print a line for each part; return 1 where one failed, or the C++ that each machine should run did not."""
    parts = []
    for part in (cpp, cuda, triton):
        parts.append(part(function))
        print(parts[-1], flush=True)
    failed = any(part.result == "failed" for part in parts)
    return 1 if failed or parts[0].result != "passed" else 0


def cpp(function: Any) -> Part:
    """Compile the C++, and prove the Function on the CPU."""
    missing = kernel_build.missing_tool()
    if missing:
        return Part("cpp", "not run", missing)
    try:
        return proved("cpp", "", wrong(function, "cpu"))
    except kernel_build.BuildError as error:
        return Part("cpp", "failed", str(error))


def cuda(function: Any) -> Part:
    """Compile the CUDA source wherever nvcc is, and prove the Function where a GPU is too."""
    if kernel_build.find_nvcc() is None:
        return Part("cuda", "not run", "no nvcc")
    try:
        kernel_build.build_cuda("softcap.cu", ("elementwise.h", "softcap.h"))
    except kernel_build.BuildError as error:
        return Part("cuda", "failed", str(error))
    if not torch.cuda.is_available():
        return Part("cuda", "not run", "it compiles, and there is no GPU that this PyTorch can use")
    return proved("cuda", torch.cuda.get_device_name(), wrong(function, "cuda"))


def triton(function: Any) -> Part:
    """Prove the Triton twin, in a process of its own: compiled where a GPU is, through the interpreter elsewhere."""
    del function
    import softcap_triton

    on_gpu = torch.cuda.is_available()
    missing = softcap_triton.missing(interpreted=not on_gpu)
    if missing:
        return Part("triton", "not run", missing)
    variables = {**os.environ, "TRITON_INTERPRET": "0" if on_gpu else "1"}
    command = [sys.executable, str(FOLDER / "softcap_triton.py")]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    detail = torch.cuda.get_device_name() if on_gpu else "interpreter"
    return proved("triton", detail, result.stdout + result.stderr if result.returncode else "")


def proved(name: str, detail: str, found: str) -> Part:
    """Make a line of what was found."""
    return Part(name, "failed", found) if found else Part(name, "passed", detail)


def wrong(function: Any, device: str, skip: tuple[str, ...] = ()) -> str:
    """Compare a Function with its reference, then check it; return what is wrong, or nothing."""
    for name, x in arguments(device):
        try:
            compare(function, x)
        except kernel_build.BuildError:
            raise
        except (AssertionError, RuntimeError) as error:  # another value, or a refusal
            return f"{name}: {error}"
    report = pullback.check(function, device=device, skip=skip)
    return str(report) if report.findings else ""


def arguments(device: str) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of each dtype and each layout, with a name; on the slope, the bend and the plateau, and beyond."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        base = torch.linspace(-12, 12, 63, dtype=dtype, device=device).view(7, 9)
        layouts = {
            "in order": base,
            "transposed": base.t(),
            "sliced": base[::2, 1::3],
            "expanded": base[:1].expand(5, 9),
            "tiny": base * 1e-3,
            "infinite": torch.tensor([torch.inf, -torch.inf, torch.nan, 0], dtype=dtype, device=device),
            "one number": base[0, 0],
            "empty": base[:0],
            "long": torch.linspace(-3, 3, 40_000, dtype=dtype, device=device),  # more than one thread or block
        }
        for name, x in layouts.items():
            yield f"{dtype}, {name}", x


def compare(function: Any, x: Tensor) -> None:
    """Hold values and gradients against the formula in float64, to the digits that x's dtype has."""
    exact = x.detach().double().requires_grad_()
    leaf = x.detach().requires_grad_()
    expected = function.reference(exact, CAP)
    y = function.apply(leaf, CAP)
    # A cotangent that is expanded, as that of sum() is, and one in order.
    for g in (torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape), torch.ones_like(x)):
        (gx,) = torch.autograd.grad(y, leaf, g, retain_graph=True)
        (expected_gx,) = torch.autograd.grad(expected, exact, g.double(), retain_graph=True)
        same(gx, expected_gx)
    same(y.detach(), expected.detach())


def same(got: Tensor, expected: Tensor) -> None:
    """Require equal tensors, but for the last digits of the dtype they are computed in and of the one they have."""
    wide = torch.promote_types(got.dtype, torch.float32)
    tolerance = max(16 * torch.finfo(wide).eps, torch.finfo(got.dtype).eps)
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)
