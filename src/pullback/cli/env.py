"""``pullback env``: what pullback runs on, for a bug report."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from types import ModuleType

from pullback import __version__
from pullback.cli import output
from pullback.cli.failure import CLEAN

_COMPILERS = ("c++", "g++", "clang++", "cl")


def run() -> int:
    """Prints what this machine has.

    Returns:
        The exit code: 0, also where something is missing, since nothing was asked of it.
    """
    output.write("\n".join(f"{label + ':':<17}{value}" for label, value in facts()))
    return CLEAN


def facts() -> Iterator[tuple[str, str]]:
    """Pairs of a label and what is there."""
    yield "pullback", __version__
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", platform.platform()
    yield "CPU", f"{_processor()}, {os.cpu_count()} cores"
    yield "C++ compiler", _compiler()
    yield from _torch_facts()


def _torch_facts() -> Iterator[tuple[str, str]]:
    try:
        import torch
    except ImportError as error:
        yield "torch", f"not found ({error}); install your own build, or pullback[torch]"
        return
    yield "torch", str(torch.__version__)
    yield "threads", f"{torch.get_num_threads()} within an operation, {torch.get_num_interop_threads()} between them"
    yield "CUDA", _cuda(torch)
    from pullback.torch_private import status

    names = status()
    wrong = [(name, detail) for name, works, detail in names if not works]
    yield "private names", f"{len(names) - len(wrong)} of {len(names)} as expected"
    for name, detail in wrong:
        yield "  otherwise", f"{name}: {detail}"


def _cuda(torch: ModuleType) -> str:
    if not torch.cuda.is_available():
        return "not available"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        name = ""
    return name or platform.processor() or platform.machine()


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    return f"not found (CXX={named})" if named else f"not found (looked for {', '.join(_COMPILERS)})"
