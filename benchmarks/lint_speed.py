"""How fast `pullback lint` is: files a second over the installed torch, on one core, and its start.

    python benchmarks/lint_speed.py [FOLDER]

Each number is processor time of a process of its own, so that reading, parsing, judging and writing count, and other
work on the machine counts little; of several runs it is the best. The process has one thread, files are in the system's
cache after the first run, and pullback's own modules are compiled, as those of an installed package are: the first run
does that, into a folder that is thrown away, whatever the environment says. It ends with 1 where a target isn't met.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 5
FILES_A_SECOND = 2_000
START = 0.15

ONE = """\
from torch.autograd import Function


class Tripled(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
"""
COMMAND = [sys.executable, "-c", "import sys; from pullback.cli import main; sys.exit(main())", "lint"]


def spent() -> float:
    """Processor time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(bytecode: str) -> dict[str, str]:
    """The environment of a run, with a folder for the bytecode of what it imports."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": bytecode}


def seconds(env: dict[str, str], *arguments: str) -> tuple[float, str]:
    """How long the fastest of several runs took, and what it printed."""
    best, printed = float("inf"), ""
    for _ in range(RUNS):
        start = spent()
        ran = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, env=env)
        best = min(best, spent() - start)
        if ran.returncode not in (0, 1):
            raise SystemExit(ran.stderr)
        printed = ran.stdout
    return best, printed


def interpreter() -> float:
    """What Python itself takes to start, which no command can save."""
    runs = []
    for _ in range(RUNS):
        start = spent()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        runs.append(spent() - start)
    return min(runs)


def torch_folder() -> Path:
    """Where torch lies, found without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("torch isn't installed; name a folder: python benchmarks/lint_speed.py FOLDER")
    return Path(found.submodule_search_locations[0])


def main() -> int:
    """Print the numbers; 1 where one of them misses its target."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else torch_folder()
    files = sum(1 for _ in folder.rglob("*.py"))
    with tempfile.TemporaryDirectory() as bytecode, tempfile.TemporaryDirectory() as empty:
        env = environment(bytecode)
        whole, printed = seconds(env, str(folder))
        (Path(empty) / "module.py").write_text("import torch\n")
        without, _ = seconds(env, empty)
        (Path(empty) / "ops.py").write_text(ONE)
        start, _ = seconds(env, empty)
    functions = re.search(r"^(\d+) Function", printed, re.MULTILINE)
    rate = files / whole
    print(f"{files} files, {functions[1] if functions else 0} Functions: {whole:.2f} s, {rate:,.0f} files/s", end="")
    print(f" (at least {FILES_A_SECOND:,})")
    print(f"start, on one Function: {start:.3f} s (at most {START:.2f}); on a file without: {without:.3f} s", end="")
    print(f"; Python alone: {interpreter():.3f} s")
    return int(rate < FILES_A_SECOND or start > START)


if __name__ == "__main__":
    sys.exit(main())
