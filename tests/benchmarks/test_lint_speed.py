"""benchmarks/lint_speed.py times the linter over a folder, and says whether it is fast enough."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_folder_is_timed() -> None:
    """Files, Functions, seconds and the start are told; whether targets are met is for a machine that is at rest."""
    script = "import lint_speed, sys; lint_speed.RUNS = 1; sys.argv[1:] = ['../examples']; lint_speed.main()"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert re.fullmatch(r"\d+ files, \d+ Functions: \d+\.\d\d s, [\d,]+ files/s \(at least 2,000\)", first)
    assert re.match(r"start, on one Function: \d+\.\d{3} s \(at most 0\.15\); on a file without: ", second)
