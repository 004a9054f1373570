"""What a user's type checker sees: typed Functions pass mypy --strict and pyright, and a wrong one doesn't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
USERS = sorted(path.name for path in HERE.glob("*.py") if not path.name.startswith("test_"))
CHECKERS = {
    "mypy": ("mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'typing'}"),
    # pyright brings its JavaScript and, by its extra `nodejs`, the program that runs it: nothing is fetched.
    "pyright": ("pyright", "--pythonpath", sys.executable),
}
PLANTED = {
    "square.py": {
        "ctx.save_for_backward(x)": "ctx.save_for_backward(3)",
        "(x,) = ctx.saved_tensors": "x: str = ctx.needs_input_grad",
        "(x: Tensor) -> Tensor:": "(x: Tensor) -> int:",
    },
    "decorated.py": {
        "scale(x, 3.0, shift=1.0)": 'scale(x, "3", shift=1.0)',
        'applied(torch.sin, first)["y"]': "applied(torch.sin, first)",
        "scale.defvjp(scale_fwd, scale_bwd)": "scale.defvjp(scale_bwd, scale_fwd)",
        "product(first, y=second)": "product(first)",
    },
}


def check(checker: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run one type checker on one file, as a user's project would."""
    command = [sys.executable, "-m", *CHECKERS[checker], str(path)]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    # Away from the repository's root, so that neither finds this project's settings or sources except as installed.
    return subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=170, check=False
    )


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("user", USERS)
def test_typed_functions_pass(checker: str, user: str) -> None:
    """A typed Function passes as it stands, without an ignore."""
    assert "ignore" not in (HERE / user).read_text("utf-8").partition('"""\n')[2]
    result = check(checker, HERE / user)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(("user", "right"), [(user, right) for user in PLANTED for right in PLANTED[user]])
def test_a_planted_error_is_reported(checker: str, user: str, right: str, tmp_path: Path) -> None:
    """A wrong type is reported on its line, so what pullback exports isn't just Any to the checkers."""
    text = (HERE / user).read_text("utf-8")
    assert text.count(right) == 1
    line = text[: text.index(right)].count("\n") + 1
    path = tmp_path / "planted.py"
    path.write_text(text.replace(right, PLANTED[user][right]), "utf-8")
    result = check(checker, path)
    assert result.returncode == 1, result.stdout + result.stderr
    # The last one is seen where the value is returned.
    assert any(f"planted.py:{at}:" in result.stdout for at in range(line, line + 5)), result.stdout
