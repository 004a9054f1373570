"""benchmarks/zoo.py counts what each tool finds, on the Functions of the zoo."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import zoo
wrong = dict(zoo.verdicts([zoo.WRONG["WrongSign"], zoo.WRONG["SavedIntermediate"]]))
right = dict(zoo.verdicts([zoo.RIGHT["SavesItsOutput"]]))
zoo.print_rows(wrong, right)
zoo.print_summary(wrong, right)
"""


def test_the_tools_are_compared_on_the_zoo() -> None:
    """gradcheck finds the wrong sign alone, pullback the lost second derivative too; neither scolds the right one."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "| WrongSign | " in ran.stdout
    assert "| GradcheckError | GradcheckError | PB203 |" in ran.stdout
    assert "| nothing | GradcheckError | PB206 |" in ran.stdout
    assert "| gradcheck | 1 of 2 | 0 of 1 |" in ran.stdout
    assert "| pullback check | 2 of 2 | 0 of 1 |" in ran.stdout
