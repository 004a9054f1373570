"""Which parts of a kernel ran on this machine, and whether they are right: what the examples beside this file print.

Nothing here knows about softcap: the example says what there is. A part that could not run is said to be 'not run',
with the reason. It never counts as passed.
"""

from __future__ import annotations

import importlib
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


class Part(NamedTuple):
    """One line of the report."""

    name: str
    result: str  # passed, failed or not run
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.result}" + (f" ({self.detail})" if self.detail else "")


def main(
    function: Any, *, numbers: tuple[float, ...] = (), cuda: Path | None = None, triton: Path | None = None
) -> int:
    """Print a line for each part; return 1 where one failed, or the C++ that each machine should run did not.

    Args:
        function: The Function, whose first call on the CPU compiles the C++.
        numbers: Its arguments after the tensor. One that float32 doesn't hold exactly shows a kernel that narrows it.
        cuda: The CUDA source, if there is one.
        triton: The twin's script, if there is one: it has a function ``missing``, and fails where the twin is wrong.
    """
    each = (
        lambda: cpp_part(function, numbers),
        lambda: cuda_part(function, numbers, cuda),
        lambda: triton_part(triton),
    )
    parts = []
    for part in each:
        parts.append(part())
        print(parts[-1], flush=True)
    failed = any(part.result == "failed" for part in parts)
    return 1 if failed or parts[0].result != "passed" else 0


def cpp_part(function: Any, numbers: tuple[float, ...]) -> Part:
    """Compile the C++, and prove the Function on the CPU."""
    missing = kernel_build.missing_tool()
    if missing:
        return Part("cpp", "not run", missing)
    try:
        return proved("cpp", "", wrong(function, numbers, "cpu"))
    except kernel_build.BuildError as error:
        return Part("cpp", "failed", str(error))


def cuda_part(function: Any, numbers: tuple[float, ...], source: Path | None) -> Part:
    """Compile the CUDA source wherever nvcc is, and prove the Function where a GPU is too."""
    if source is None or not source.exists():
        return Part("cuda", "not run", f"no {source.name if source else 'CUDA source'}")
    if kernel_build.find_nvcc() is None:
        return Part("cuda", "not run", "no nvcc")
    try:
        kernel_build.build_cuda(source)
        if not torch.cuda.is_available():
            return Part("cuda", "not run", "it compiles, and there is no GPU that this PyTorch can use")
        return proved("cuda", torch.cuda.get_device_name(), wrong(function, numbers, "cuda"))
    except kernel_build.BuildError as error:
        return Part("cuda", "failed", str(error))


def triton_part(script: Path | None) -> Part:
    """Prove the Triton twin, in a process of its own: compiled where a GPU is, through the interpreter elsewhere."""
    if script is None or not script.exists():
        return Part("triton", "not run", f"no {script.name if script else 'Triton twin'}")
    on_gpu = torch.cuda.is_available()
    try:
        missing = importlib.import_module(script.stem).missing(interpreted=not on_gpu)
    except ImportError as error:  # Triton is there, and doesn't work
        return Part("triton", "failed", str(error))
    if missing:
        return Part("triton", "not run", missing)
    variables = {**os.environ, "TRITON_INTERPRET": "0" if on_gpu else "1"}
    command = [sys.executable, str(script)]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, errors="replace", check=False)
    detail = torch.cuda.get_device_name() if on_gpu else "interpreter"
    return proved("triton", detail, result.stdout + result.stderr if result.returncode else "")


def proved(name: str, detail: str, found: str) -> Part:
    """Make a line of what was found."""
    return Part(name, "failed", found) if found else Part(name, "passed", detail)


def wrong(function: Any, numbers: tuple[float, ...], device: str, skip: tuple[str, ...] = ()) -> str:
    """Compare a Function with its reference, then check it; return what is wrong, or nothing."""
    for name, x in arguments(device):
        try:
            compare(function, x, numbers)
        except kernel_build.BuildError:
            raise
        except Exception as error:  # another value, a refusal, or arguments that aren't the operation's
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


def compare(function: Any, x: Tensor, numbers: tuple[float, ...]) -> None:
    """Hold values and gradients against the formula in float64, to the digits that x's dtype has."""
    exact = x.detach().double().requires_grad_()
    leaf = x.detach().requires_grad_()
    expected = function.reference(exact, *numbers)
    y = function.apply(leaf, *numbers)
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
