"""The operations that one is told to start from pass the checker, each probe of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", ["chapter.py", "custom_rules.py", "deep_equilibrium.py"])
def test_examples_are_clean(file: str) -> None:
    """``make demo`` and its like end without a finding, a hint included."""
    command = [sys.executable, "-m", "pullback", "check", f"examples/{file}"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no findings" in result.stdout
