"""The entry point: what every command shares."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback import __version__
from pullback.cli import check, main
from tests.cli.conftest import BAD, FAKE_ENGINE, Pullback

START = f"import sys; from pullback.cli import main; sys.exit(main(sys.argv[1:], engine={FAKE_ENGINE!r}))"


def test_version(pullback: Pullback) -> None:
    """``--version`` prints the version and ends with 0."""
    ran = pullback("--version")
    assert (ran.code, ran.out) == (0, f"pullback {__version__}\n")


def test_a_command_is_required(pullback: Pullback) -> None:
    """No command, or one that doesn't exist, is a usage error."""
    assert pullback().code == 2
    assert pullback("no-such-command").code == 2


def test_an_internal_error_exits_2(pullback: Pullback, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of pullback's own is never taken for a clean run or for findings."""

    def fails(*arguments: object, **options: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(check, "run", fails)
    ran = pullback("check", "ops.py")
    assert ran.code == 2
    assert "internal error" in ran.err
    assert "RuntimeError: a bug" in ran.err


def test_the_module_is_the_command() -> None:
    """``python -m pullback`` is the command line."""
    done = subprocess.run([sys.executable, "-m", "pullback", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pullback {__version__}\n"


def test_the_command_line_itself_imports_neither_torch_nor_the_file(folder: Path) -> None:
    """Only the worker runs the checked code, so nothing that it does can harm the run."""
    (folder / "ops.py").write_text(BAD + "import os\nopen('pids', 'a').write(f'{os.getpid()} ')\n", encoding="utf-8")
    code = (
        "import os, sys; from pullback.cli import main; main(['check', 'ops.py'], engine='tests.cli.fake_engine');"
        "print('torch' in sys.modules, str(os.getpid()) in open('pids').read().split())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_output_that_the_encoding_lacks_is_escaped(folder: Path) -> None:
    """A terminal of another encoding gets escapes in place of characters that it lacks, not an exception."""
    source = "class Bad:\n    probes = {'second': lambda: ['PB203']}\nclass Größe:\n    probes = {}\n"
    (folder / "ops.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", START, "check", "ops.py"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 1
    assert b"Gr\\xf6\\xdfe" in done.stdout
    assert done.stderr == b""


def test_a_reader_that_stops_early_causes_no_traceback() -> None:
    """``pullback explain --list | head`` ends in silence."""
    listing = subprocess.Popen(
        [sys.executable, "-c", START, "explain", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()
    with listing.stderr as errors:
        assert errors.read() == b""
    listing.wait()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize("columns", ["10", "200"])
def test_a_terminal_gets_colours_and_progress(folder: Path, columns: str) -> None:
    """On a terminal, however narrow, there are colours and a line of progress; in a pipe there is neither."""
    (folder / "ops.py").write_text(BAD, encoding="utf-8")
    leader, follower = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": columns}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-c", START, "check", "ops.py"]
    run = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    printed = _read_all(leader)
    assert run.wait() == 1
    assert b"\x1b[1;31m" in printed
    assert b"PB203" in printed


def _read_all(leader: int) -> bytes:
    parts = []
    with open(leader, "rb", buffering=0) as stream:
        while True:
            try:
                part = stream.read(4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


FULL = Path("/dev/full")
"""A device that has no space left, on Linux."""

_NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command", [["check", "ops.py"], ["lint", "ops.py"], ["explain", "PB203"], ["explain", "--list"], ["env"]]
)
def test_standard_output_that_is_full(folder: Path, command: list[str], unbuffered: str) -> None:
    """A full disk is one sentence and exit code 2, whether the text fails as it is written or at the end."""
    (folder / "ops.py").write_text(BAD, encoding="utf-8")
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", START, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (2, f"pullback: standard output can't be written to: {_NO_SPACE}\n")


def test_standard_output_that_is_closed(pullback: Pullback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a standard output a command ends with 2, and says so."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        code = main(["explain", "PB203"])
    ran = pullback("--version")
    assert code == 2
    assert ran.err == "pullback: standard output is closed, so there is nowhere to write to\n"
