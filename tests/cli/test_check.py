"""``pullback check``: exit codes, formats, choices of probes and rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.report.json import from_json
from tests.cli.conftest import BAD, GOOD, Pullback

WARNS = "class Warns:\n    probes = {'first': lambda: ['PB304']}\n"
HINTS = "class Hints:\n    probes = {'first': lambda: ['PB601']}\n"


def test_clean_exits_0(pullback: Pullback) -> None:
    """A Function without findings ends with exit code 0, and the report says what ran."""
    ran = pullback("check", "ops.py", ops=GOOD)
    assert ran.code == 0
    assert "Good  ops.py:1: clean (probes: 5 passed, 0 skipped; " in ran.out
    assert ran.out.endswith("1 Function: 1 clean, 0 with findings; no findings.\n")
    assert ran.err == ""


def test_findings_exit_1(pullback: Pullback) -> None:
    """One finding among clean Functions ends with exit code 1, and names the Function, the rule and the remedy."""
    ran = pullback("check", "ops.py", ops=GOOD + BAD)
    assert ran.code == 1
    assert "PB203 error: The gradient isn't forward's derivative" in ran.out
    assert "Bad  ops.py:1" in ran.out
    assert "remedy:" in ran.out
    assert "2 Functions: 1 clean, 1 with findings; 1 error." in ran.out


def test_hints_never_fail(pullback: Pullback) -> None:
    """A hint is shown and the Function still counts as clean."""
    ran = pullback("check", "ops.py", ops=HINTS)
    assert ran.code == 0
    assert "PB601 hint" in ran.out
    assert "1 clean" in ran.out


def test_fail_on_error_lets_warnings_pass(pullback: Pullback) -> None:
    """Warnings fail a run unless only errors are asked to."""
    assert pullback("check", "ops.py", ops=WARNS).code == 1
    ran = pullback("check", "ops.py", "--fail-on", "error")
    assert ran.code == 0
    assert "PB304 warning" in ran.out


def test_no_target_is_a_usage_error(pullback: Pullback) -> None:
    """Without targets nothing could be checked, so the exit code is 2."""
    ran = pullback("check")
    assert ran.code == 2
    assert "name at least one target" in ran.err


def test_no_function_is_a_usage_error(pullback: Pullback) -> None:
    """A file without Functions must not look like a clean one."""
    ran = pullback("check", "ops.py", ops="x = 1\n")
    assert ran.code == 2
    assert "nothing to check: ops.py defines no Function" in ran.err


def test_only_abstract_classes_are_nothing_to_check(pullback: Pullback) -> None:
    """If every class was skipped, the run says so and ends with exit code 2."""
    ran = pullback("check", "ops.py", ops="class Base:\n    probes = None\n")
    assert ran.code == 2
    assert "Base has no forward" in ran.err


def test_abstract_classes_are_named_as_skipped(pullback: Pullback) -> None:
    """A skipped class beside a checked one is named, and counts in the summary as neither clean nor faulty."""
    ran = pullback("check", "ops.py", ops="class Base:\n    probes = None\n" + GOOD)
    assert ran.code == 0
    assert "skipped: Base has no forward" in ran.out
    assert "1 Function: 1 clean, 0 with findings; no findings; 1 skipped." in ran.out


def test_one_class_is_checked_by_name(pullback: Pullback) -> None:
    """``file.py:Class`` checks that class only."""
    ran = pullback("check", "ops.py:Good", ops=GOOD + BAD)
    assert ran.code == 0
    assert "Bad" not in ran.out


def test_an_unknown_class_is_a_usage_error(pullback: Pullback) -> None:
    """A class that isn't there is named, and nothing counts as checked."""
    ran = pullback("check", "ops.py:Nope", ops=GOOD)
    assert ran.code == 2
    assert "ops.py has no Nope" in ran.err


@pytest.mark.parametrize(
    "targets",
    [
        ("ops.py:Nope", "other.py"),
        ("ops.py:Nope", "ops.py"),
        ("ops.py", "ops.py:Nope"),
        ("ops.py:Good", "ops.py:Nope"),
        (".", "ops.py:Nope"),
    ],
)
def test_an_unknown_class_beside_others_is_an_error_after_their_report(
    targets: tuple[str, ...], pullback: Pullback
) -> None:
    """Whatever else was asked for is reported, and what isn't there is PB120 and exit code 2, in any order."""
    ran = pullback("check", *targets, ops=f"class Function: pass\nclass F(Function): pass\n{GOOD}", other=GOOD)
    assert ran.code == 2
    assert ran.err == "pullback: ops.py has no Nope\n"
    assert "PB120 error" in ran.out
    assert "1 clean, 0 with findings; 1 target that can't be loaded; 1 error." in ran.out


def test_a_missing_module_beside_a_file_is_an_error_after_its_report(pullback: Pullback) -> None:
    """A module that isn't there ends the run with 2, and the file has its report."""
    ran = pullback("check", "ops.py", "no_such_module:F", ops=GOOD)
    assert (ran.code, ran.err) == (2, "pullback: there is no module no_such_module\n")
    assert "1 clean" in ran.out


def test_a_class_that_is_named_beside_its_file_is_checked_once(pullback: Pullback) -> None:
    """Naming the whole and a part of it is no reason to check that part twice."""
    ran = pullback("check", "ops.py:Good", "ops.py", "./ops.py:Good", ops=GOOD + BAD)
    assert ran.code == 1
    assert "2 Functions: 1 clean, 1 with findings" in ran.out


def test_a_named_file_without_functions_beside_others_is_an_error(pullback: Pullback) -> None:
    """A named file that turns out to hold no Function ends the run with 2, after the report of the others."""
    ran = pullback("check", "ops.py", "empty.py", ops=GOOD, empty="x = 1\n")
    assert ran.code == 2
    assert "skipped: empty.py defines no Function" in ran.out
    assert "1 clean" in ran.out
    assert ran.err == (
        "pullback: empty.py defines no Function; files without any are passed over in a folder that is named\n"
    )


@pytest.mark.parametrize("target", ["base.py", "base.py:Base"])
def test_a_named_abstract_class_beside_others_is_an_error(target: str, pullback: Pullback) -> None:
    """What was named and has no verdict ends the run with 2, for what is abstract too."""
    ran = pullback("check", "ops.py", target, ops=GOOD, base="class Base:\n    probes = None\n")
    assert ran.code == 2
    assert ran.err.startswith("pullback: Base has no forward")
    assert "1 clean" in ran.out


def test_known_failures_are_not_rewritten_where_a_name_is_missing(pullback: Pullback, folder: Path) -> None:
    """A misspelt class is no failure to get used to."""
    options = ("--known-failures", "known.toml", "--update-known-failures")
    ran = pullback("check", "ops.py", "ops.py:Nope", *options, ops=BAD)
    assert ran.code == 2
    assert not (folder / "known.toml").exists()


def test_concise_is_one_line_a_finding(pullback: Pullback) -> None:
    """The concise format can be read by editors: location, code, severity, class, message, place."""
    ran = pullback("check", "ops.py", "--output-format", "concise", ops=GOOD + BAD)
    first, last = ran.out.splitlines()
    assert first == "ops.py:1: PB203 error Bad: wrong (second)"
    assert last == "2 Functions: 1 clean, 1 with findings; 1 error."


def test_json_is_the_only_thing_on_standard_output(pullback: Pullback) -> None:
    """What the checked code prints, in whatever way, doesn't get into the document."""
    source = (
        "import os\nprint('at import')\nos.write(1, b'raw')\n"
        "def loud():\n    print('in a probe', flush=True)\n    os.system('echo child')\n    return ()\n"
        "class Loud:\n    probes = {'first': loud}\n"
    )
    ran = pullback("check", "ops.py", "--output-format", "json", ops=source)
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["version"] == 1
    assert [report.function for report in from_json(ran.out)] == ["Loud"]


def test_only_and_skip_choose_probes(pullback: Pullback) -> None:
    """Probes can be chosen by name, several times or with commas."""
    ran = pullback("check", "ops.py", "--only", "first,third", "--only", "second", "--skip", "second", ops=BAD)
    assert ran.code == 0
    assert "probes: 2 passed" in ran.out


def test_unknown_probes_are_usage_errors(pullback: Pullback) -> None:
    """A misspelt probe would silently check nothing, so it ends the run."""
    for option in ("--only", "--skip"):
        ran = pullback("check", "ops.py", option, "frist", ops=GOOD)
        assert ran.code == 2
        assert "no probe is called frist" in ran.err


def test_select_and_ignore_choose_rules(pullback: Pullback) -> None:
    """Findings can be chosen by code or by the head of a code; what is left out is counted."""
    source = "class Both:\n    probes = {'first': lambda: ['PB203', 'PB304']}\n"
    ran = pullback("check", "ops.py", "--select", "PB3", ops=source)
    assert ran.code == 1
    assert "PB304" in ran.out
    assert "PB203" not in ran.out
    assert "1 finding left out" in ran.out
    assert pullback("check", "ops.py", "--ignore", "PB203,PB304").code == 0


def test_select_never_hides_what_could_not_be_checked(pullback: Pullback) -> None:
    """A file that can't be imported fails the run whichever rules were selected."""
    ran = pullback("check", "ops.py", "--select", "PB203", ops="raise ValueError\n")
    assert ran.code == 1
    assert "PB120" in ran.out


def test_findings_left_out_leave_no_function_clean(pullback: Pullback) -> None:
    """Where --ignore leaves out all that was found, the summary counts the Function apart and says so."""
    ran = pullback("check", "ops.py", "--ignore", "PB203", ops=BAD)
    assert ran.code == 0
    assert "1 Function: 0 clean, 0 with findings, 1 set aside; no findings; 1 finding left out" in ran.out


def test_ignored_failures_to_check_never_count_as_clean(pullback: Pullback) -> None:
    """A target whose PB120 is ignored on purpose is still counted as not checked."""
    ran = pullback("check", "ops.py", "good.py", "--ignore", "PB120", ops="raise ValueError\n", good=GOOD)
    assert ran.code == 0
    assert "1 clean, 0 with findings, 1 not checked" in ran.out


def test_unknown_rules_are_usage_errors(pullback: Pullback) -> None:
    """A misspelt rule would hide or show the wrong findings."""
    ran = pullback("check", "ops.py", "--ignore", "PB999", ops=GOOD)
    assert ran.code == 2
    assert "there is no rule 'PB999'" in ran.err


def test_orders_samples_and_seed_reach_the_engine(pullback: Pullback) -> None:
    """What is asked for on the command line is what the worker does."""
    options = ("--orders", "1", "--samples", "mine:SAMPLES", "--seed", "7")
    ran = pullback("check", "ops.py", *options, ops=GOOD)
    assert "samples:  mine:SAMPLES, orders 1" in ran.out
    assert "run it again with seed 7" in ran.out


def test_unusable_samples_mapping_is_a_usage_error(pullback: Pullback) -> None:
    """A mapping that can't be had ends the run, since every Function would lack its samples."""
    ran = pullback("check", "ops.py", "--samples", "nowhere:NOTHING", ops=GOOD)
    assert ran.code == 2
    assert "--samples nowhere:NOTHING: there is no module nowhere" in ran.err
    assert "module:mapping" in pullback("check", "ops.py", "--samples", "mapping").err


def test_list_names_every_probe(pullback: Pullback) -> None:
    """``--list`` prints the probes and what each proves, without any target."""
    ran = pullback("check", "--list")
    assert ran.code == 0
    assert ran.out.startswith("first\n    one\nsecond\n    two\n")


def test_argparse_errors_exit_2(pullback: Pullback) -> None:
    """An option that doesn't exist, and a value that can't be, are usage errors."""
    assert pullback("check", "--no-such-option").code == 2
    assert pullback("check", "ops.py", "--orders", "3", ops=GOOD).code == 2
    assert "timeout must be a positive number" in pullback("check", "ops.py", "--timeout", "0").err


def test_help_warns_that_code_runs(pullback: Pullback) -> None:
    """The help says that checking runs the code of the files."""
    ran = pullback("check", "--help")
    assert ran.code == 0
    assert "CHECKING RUNS CODE" in ran.out


def test_an_engine_that_cannot_be_imported_ends_the_run(pullback: Pullback) -> None:
    """If the worker can't import what it needs, the run says so and ends with exit code 2."""
    ran = pullback("check", "ops.py", engine="no_such_engine", ops=GOOD)
    assert ran.code == 2
    assert "No module named 'no_such_engine'" in ran.err


def test_without_torch_one_sentence_says_how_to_get_it(pullback: Pullback, folder: Path) -> None:
    """Without torch the run ends with one sentence and exit code 2, not with a traceback."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ["PYTHONPATH"])))
        ran = pullback("check", "ops.py", engine="pullback.battery.engine", ops=GOOD)
    assert ran.code == 2
    assert ran.err == "pullback: checking needs torch: install your own build, or pullback[torch]\n"


def test_show_output_lets_prints_through(folder: Path) -> None:
    """With ``--show-output`` the checked code's prints reach standard error, and never standard output."""
    (folder / "ops.py").write_text("print('hello from ops')\n" + GOOD)
    code = "import sys; from pullback.cli import main; sys.exit(main(sys.argv[1:], engine='tests.cli.fake_engine'))"
    command = [sys.executable, "-c", code, "check", "ops.py", "--show-output"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hello from ops" in done.stderr
    assert "hello" not in done.stdout


@pytest.mark.parametrize(
    "choice", [("--only", "second", "--skip", "second"), ("--skip", "first,second,third,fourth,fifth")]
)
def test_a_choice_of_no_probe_is_a_usage_error(choice: tuple[str, ...], pullback: Pullback) -> None:
    """It would report everything as clean."""
    ran = pullback("check", "ops.py", *choice, ops=BAD)
    assert ran.code == 2
    assert "no probe is left to run" in ran.err
