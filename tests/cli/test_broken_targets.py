"""Code that raises, hangs or ends its process: it is reported by name, and everything else is still checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pullback.report.json import from_json
from tests.cli.conftest import BAD, GOOD, Pullback

HANGS = """
import time
def wait_for_ever():
    time.sleep(600)
class Hangs:
    probes = {"third": wait_for_ever, "fourth": lambda: ["PB204"]}
"""
DIES = """
import os, signal
def die():
    os.{how}
class Dies:
    probes = {{"first": lambda: [], "third": die, "fifth": lambda: ["PB204"]}}
"""


def test_a_file_that_raises_is_reported_and_the_next_is_checked(pullback: Pullback) -> None:
    """An import error is a PB120 finding that names the file; the other file is checked all the same."""
    ran = pullback("check", "broken.py", "ops.py", broken="import no_such_module\n", ops=GOOD)
    assert ran.code == 1
    assert "PB120 error: The target can't be loaded" in ran.out
    assert "importing broken.py raised ModuleNotFoundError: No module named 'no_such_module'" in ran.out
    assert "Good" in ran.out
    assert "1 Function: 1 clean, 0 with findings; 1 target that can't be loaded; 1 error." in ran.out


@pytest.mark.parametrize("source", ["def f(:\n", "raise SystemExit(0)\n", "raise KeyboardInterrupt\n"])
def test_whatever_an_import_raises_is_a_finding(pullback: Pullback, source: str) -> None:
    """A syntax error, and exceptions that would end a program, are PB120 like any other."""
    ran = pullback("check", "broken.py", broken=source)
    assert ran.code == 1
    assert "PB120" in ran.out


def test_an_import_that_ends_the_process_is_a_finding(pullback: Pullback) -> None:
    """A file that calls ``os._exit`` with success is not taken for a clean one."""
    ran = pullback("check", "broken.py", "ops.py", broken="import os\nos._exit(0)\n", ops=GOOD)
    assert ran.code == 1
    assert "importing broken.py ended the process with exit code 0" in ran.out
    assert "1 clean" in ran.out


def test_an_import_that_hangs_is_ended(pullback: Pullback) -> None:
    """The time limit holds for imports too, and the finding says on which line it hung."""
    ran = pullback("check", "broken.py", "--timeout", "1", broken="import time\ntime.sleep(600)\n")
    assert ran.code == 1
    assert "importing broken.py did not end within 1 s" in ran.out
    assert "broken.py:2 in <module>" in ran.out


def test_a_probe_that_hangs_is_ended_and_the_rest_goes_on(pullback: Pullback) -> None:
    """A hung probe is PB124 with its place; later probes of the class and later classes run in a fresh process."""
    ran = pullback("check", "ops.py", "--timeout", "1", ops=HANGS + GOOD)
    assert ran.code == 1
    assert "PB124 error: A probe ran out of time" in ran.out
    assert "the probe third did not end within 1 s" in ran.out
    assert "ops.py:4 in wait_for_ever" in ran.out
    assert "PB204" in ran.out
    assert "3 passed, 2 failed (third, fourth)" in ran.out
    assert "2 Functions: 1 clean, 1 with findings" in ran.out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("_exit(3)", "ended the process with exit code 3"),
        ("kill(os.getpid(), signal.SIGSEGV)", "ended the process with SIGSEGV"),
        ("abort()", "ended the process with SIGABRT"),
    ],
)
def test_a_probe_that_ends_the_process_is_named(pullback: Pullback, how: str, said: str) -> None:
    """A crash in native code is a PB123 finding that names the probe; the probes after it still run."""
    ran = pullback("check", "ops.py", "--output-format", "json", ops=DIES.format(how=how) + GOOD)
    assert ran.code == 1
    dies, good = from_json(ran.out)
    assert [finding.rule for finding in dies.findings] == ["PB123", "PB204"]
    assert dies.findings[0].message == f"the probe third {said}"
    assert dies.findings[0].probe == "third"
    assert [str(outcome.status) for outcome in dies.outcomes.values()] == [
        "passed",
        "passed",
        "failed",
        "passed",
        "failed",
    ]
    assert good.ok


def test_a_crash_in_native_code_says_where(pullback: Pullback) -> None:
    """The line of the checked file at which the process died is in the finding."""
    source = DIES.format(how="kill(os.getpid(), signal.SIGSEGV)")
    ran = pullback("check", "ops.py", "--output-format", "json", ops=source)
    assert from_json(ran.out)[0].findings[0].where.startswith("ops.py:4 in die")


def test_what_was_printed_before_the_end_is_kept(pullback: Pullback) -> None:
    """If no line is known, the last of what the process printed is in the finding."""
    source = "import os\nprint('out of cheese', flush=True)\nos._exit(4)\n"
    ran = pullback("check", "broken.py", "--output-format", "json", broken=source)
    assert from_json(ran.out)[0].findings[0].got == "out of cheese"


def test_after_three_broken_probes_the_others_are_left_out(pullback: Pullback) -> None:
    """Three processes are enough: what ran before is kept, what is left is skipped with the reason, never passed."""
    source = (
        "import os\nclass Dies:\n    probes = {'first': lambda: ['PB203'], **dict.fromkeys(\n"
        "        ['second', 'third', 'fourth', 'fifth'], lambda: os._exit(1))}\n"
    )
    ran = pullback("check", "ops.py", "--output-format", "json", ops=source)
    (report,) = from_json(ran.out)
    assert [finding.rule for finding in report.findings] == ["PB123", "PB123", "PB123", "PB203"]
    assert [str(outcome.status) for outcome in report.outcomes.values()] == ["failed"] * 4 + ["skipped"]
    assert report.outcomes["fifth"].reason == "not run: a probe before it broke the process"


def test_when_the_first_probe_breaks_nothing_else_is_tried(pullback: Pullback) -> None:
    """The first probe runs the samples, so where it breaks the process no other can be tried."""
    ran = pullback(
        "check",
        "ops.py",
        "--output-format",
        "json",
        ops="import os\nclass Dies:\n    probes = {'first': lambda: os._exit(1)}\n" + GOOD,
    )
    dies, good = from_json(ran.out)
    assert [finding.probe for finding in dies.findings] == ["first"]
    assert {str(outcome.status) for name, outcome in dies.outcomes.items() if name != "first"} == {"skipped"}
    assert good.ok


def test_samples_that_end_the_process_are_reported(pullback: Pullback) -> None:
    """A crash before the first probe is said to be in the making of samples, and the next class is checked."""
    source = "import os\nclass Dies:\n    probes = {}\n    def make_samples():\n        os._exit(1)\n" + GOOD
    ran = pullback("check", "ops.py", ops=source)
    assert ran.code == 1
    assert "making samples ended the process with exit code 1" in ran.out
    assert "1 clean" in ran.out


def test_processes_that_the_code_started_end_with_it(pullback: Pullback, folder: Path) -> None:
    """Ending a hung worker ends what it started too."""
    source = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    pullback("check", "ops.py", "--timeout", "1", ops=source)
    assert _has_ended(int((folder / "pid").read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_worker(folder: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C ends a run with exit code 130, without a traceback, and its worker with it; so does SIGTERM with 143."""
    (folder / "ops.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    start = "import sys; from pullback.cli import main; sys.exit(main(sys.argv[1:], engine='tests.cli.fake_engine'))"
    run = subprocess.Popen([sys.executable, "-c", start, "check", "ops.py"], stderr=subprocess.PIPE, text=True)
    pid = folder / "pid"
    _wait_until(lambda: pid.exists() and pid.read_text() != "")
    run.send_signal(number)
    _, printed = run.communicate(timeout=20)
    assert run.returncode == code
    assert "Traceback" not in printed
    assert _has_ended(int(pid.read_text()))


def test_ctrl_c_keeps_what_is_done(folder: Path) -> None:
    """The report on what was checked is written, and says what was not; nothing is taken for a failure that is gone."""
    hangs = "class Hangs:\n    probes = {'second': lambda: (open('there', 'w'), __import__('time').sleep(600))}\n"
    (folder / "ops.py").write_text(f"{BAD}{hangs}{GOOD}")
    (folder / "more.py").write_text(GOOD)
    known = '[[known]]\nfunction = "Other"\nrule = "PB203"\nreason = "as ever"\n'
    (folder / "known.toml").write_text(known)
    start = "import sys; from pullback.cli import main; sys.exit(main(sys.argv[1:], engine='tests.cli.fake_engine'))"
    options = ["--output-file", "out.json", "--known-failures", "known.toml", "--update-known-failures"]
    run = subprocess.Popen(
        [sys.executable, "-c", start, "check", "ops.py", "more.py", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_until(lambda: (folder / "there").exists())
    run.send_signal(signal.SIGINT)
    shown, printed = run.communicate(timeout=20)
    told = "interrupted in the probe second of Hangs: Hangs, Good of ops.py were not checked"
    assert (run.returncode, printed) == (130, f"pullback: {told}\n")
    assert told in shown
    assert "more.py was not checked" in shown
    assert [report.function for report in from_json((folder / "out.json").read_text("utf-8"))] == ["Bad"]
    assert (folder / "known.toml").read_text() == known


def test_bad_findings_survive_a_broken_neighbour(pullback: Pullback) -> None:
    """A class reported before another one broke the process isn't checked again, and its findings are kept."""
    ran = pullback("check", "ops.py", "--output-format", "json", ops=BAD + DIES.format(how="_exit(1)"))
    assert [report.function for report in from_json(ran.out)] == ["Bad", "Dies"]
    assert [finding.rule for finding in from_json(ran.out)[0].findings] == ["PB203"]


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or will be within a moment."""
    return _wait_until(lambda: not _is_running(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # A process that ended, whose parent is gone and whom nobody has asked about yet, is no longer running.
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def _wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        (["ops.py"], 0),
        (["syntax.py"], 1),
        (["missing.py", "ops.py"], 1),
        (["ops.py:NoSuchClass", "syntax.py"], 2),
        (["ops.py:NoSuchClass", "ops.py"], 2),
        (["ops.py", "empty.py"], 2),
        (["ops.py:NoSuchClass"], 2),
        (["no_such_file.py", "ops.py"], 2),
        (["empty.py"], 2),
        (["ops.py", "--only", "no_such_probe"], 2),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_exit_codes(pullback: Pullback, targets: list[str], code: int) -> None:
    """A target that can't be loaded is a finding, 1; what can't be asked, or isn't there, ends with 2."""
    ran = pullback("check", *targets, ops=GOOD, syntax="def f(:\n", missing="import no_such_module\n", empty="x = 1\n")
    assert ran.code == code
    assert bool(ran.err) == (code == 2)
