"""Running the command line in this process, with a fake engine in its workers, in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pullback.cli import main

ROOT = Path(__file__).parents[2]
FAKE_ENGINE = "tests.cli.fake_engine"

GOOD = "class Good:\n    probes = {}\n"
BAD = "class Bad:\n    probes = {'second': lambda: ['PB203']}\n"
"""Sources for the fake engine: a class that passes everything, and one with an error."""


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Pullback = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, from which workers can import the fake engine."""
    monkeypatch.chdir(tmp_path)
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return tmp_path


@pytest.fixture
def pullback(folder: Path, capsys: pytest.CaptureFixture[str]) -> Pullback:
    """Runs ``pullback ARGUMENTS`` with the fake engine; `sources` are files to write first."""

    def run(*arguments: str, engine: str = FAKE_ENGINE, **sources: str) -> Ran:
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        try:
            code = main(arguments, engine=engine)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
