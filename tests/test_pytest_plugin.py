"""The plugin for pytest: what a test sees of a check, what a run says of them all, and what others see of it: nothing.

Most tests put a stand-in for `pullback.check`, so that runs of pytest within these tests take no battery, and no torch.
The real one is run by the documents: `docs/prove.md` and `docs/tutorial.md`.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pullback.errors import SampleError
from pullback.finding import LARGEST_SEED, Report
from tests.plugin_stand_in import CONFTEST, HINT, ONE, OUTCOMES, WRONG, Checks, put_stand_in, run

pytest_plugins = "pytester"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """What stands in for `pullback.check`, and keeps its calls."""
    return put_stand_in(monkeypatch)


def test_right_function_passes(pytester: pytest.Pytester, checks: Checks) -> None:
    """The test passes with the report at hand, and the run says how many probes ran, and how many were skipped."""
    source = "def test_square(check_function):\n    assert check_function('Square', (1,), reference=abs).ok\n"
    result = run(pytester, source)
    result.assert_outcomes(passed=1)
    assert checks.calls == [{"function": "Square", "samples": ((1,),), "reference": abs, "seed": 0}]
    result.stdout.fnmatch_lines(
        ["=* pullback =*", "1 check with seed 0; probes: 2 passed, 2 skipped (-v says why)", "=* 1 passed in *"],
        consecutive=True,
    )


def test_reasons_of_skipped_probes_are_listed(pytester: pytest.Pytester, checks: Checks) -> None:
    """With -v the run says which probes were skipped, how often, and why."""
    result = run(pytester, ONE + ONE.replace("test_square", "test_again"), "-v")
    result.stdout.fnmatch_lines(
        [
            "2 checks with seed 0; probes: 4 passed, 4 skipped",
            "  2 x batching skipped: there is no jvp",
            "  2 x forward_mode skipped: there is no jvp",
        ],
        consecutive=True,
    )


def test_wrong_function_fails_with_its_report(pytester: pytest.Pytester, checks: Checks) -> None:
    """The test fails with a line for each finding and the command to repeat it; the report is a section, in full."""
    checks.findings = (WRONG, HINT)
    result = run(pytester, ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "_* test_square _*",
            "Square is not right: PB203, PB601 (1 error, 1 hint)",
            "  PB203 error: the gradient of x differs from finite differences (argument x, sample 0)",
            "  PB601 hint: it could be faster",
            "repeat it: pytest test_ops.py::test_square --pullback-seed 0",
            "-* pullback: Square -*",
            "Square",
        ],
        consecutive=True,
    )
    report = str(Report(function="Square", findings=checks.findings, outcomes=OUTCOMES))
    assert report in result.stdout.str()
    result.stdout.fnmatch_lines(["FAILED test_ops.py::test_square - Failed: Square is not right: PB203, PB601*"])


def test_several_findings_of_one_rule(pytester: pytest.Pytester, checks: Checks) -> None:
    """Each rule is named once, first of all, since pytest cuts the lines of its short summary off."""
    checks.findings = (WRONG, WRONG, HINT)
    summary = "FAILED test_ops.py::test_square - Failed: Square is not right: PB203, PB601*"
    run(pytester, ONE).stdout.fnmatch_lines([summary])


ASKS = "def test_square(check_function):\n    "
NEVER = (
    "*PytestWarning: the test asks for check_function and never calls it, so nothing was checked: call it with the *"
)


@pytest.mark.parametrize(
    "source",
    [f"{ASKS}pass\n", "import pytest\n@pytest.mark.usefixtures('check_function')\ndef test_square():\n    pass\n"],
    ids=["argument", "usefixtures"],
)
def test_a_fixture_that_is_never_called(pytester: pytest.Pytester, checks: Checks, source: str) -> None:
    """A test that asks for the fixture and passes without a check is named in the warnings of the run."""
    result = run(pytester, source, "-W", "default")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["=* warnings summary *=", "test_ops.py::test_square", NEVER])
    assert checks.calls == []
    run(pytester, source, "-W", "error::pytest.PytestWarning").assert_outcomes(passed=1, errors=1)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (ONE, "passed"),
        (f"import pytest\n{ASKS}pytest.skip('no device')\n", "skipped"),
        (f"{ASKS}raise AssertionError\n", "failed"),
        (
            "import pytest\n@pytest.fixture\ndef checked(check_function):\n    return check_function\n"
            "def test_square(checked):\n    pass\n",
            "passed",
        ),
    ],
    ids=["called", "skipped", "failed", "handed on"],
)
def test_no_warning_without_need(pytester: pytest.Pytester, checks: Checks, source: str, outcome: str) -> None:
    """A call, another end of the test, or a fixture that hands this one on is nothing to warn of."""
    run(pytester, source).assert_outcomes(**{outcome: 1}, warnings=0)


def test_failure_has_no_traceback(pytester: pytest.Pytester, checks: Checks) -> None:
    """Not a line of the test, of the plugin or of pullback is shown: the fault is in none of them."""
    checks.findings = (WRONG,)
    shown = run(pytester, ONE).stdout.str()
    assert "check_function" not in shown
    assert "pytest_plugin" not in shown
    assert "Traceback" not in shown


def test_report_is_a_section_of_pytests_report(pytester: pytest.Pytester, checks: Checks) -> None:
    """What other plugins get is `report.sections`, one for each check of the test, and none for what ran before it."""
    source = "def test_two(check_function):\n    check_function('Square')\n    check_function('Cube')\n"
    pytester.makepyfile(test_ops=source)
    reports = pytester.inline_run("-p", "no:cacheprovider").getreports("pytest_runtest_logreport")
    sections = {report.when: [title for title, _ in report.sections] for report in reports}
    assert sections == {"setup": [], "call": ["pullback: Square", "pullback: Cube"], "teardown": []}


def test_check_in_a_fixture_is_reported_there(pytester: pytest.Pytester, checks: Checks) -> None:
    """A check that fails while a fixture is set up is an error of the test, with its section."""
    checks.findings = (WRONG,)
    fixture = "import pytest\n\n@pytest.fixture\ndef square(check_function):\n    return check_function('Square')\n\n"
    result = run(pytester, fixture + "def test_square(square):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["_* ERROR at setup of test_square _*", "Square is not right: PB203 (1 error)", "*", "*"]
    )
    result.stdout.fnmatch_lines(["-* pullback: Square -*"])


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest before 9 has no subtests")
def test_each_subtest_has_its_own_section(pytester: pytest.Pytester, checks: Checks) -> None:
    """In subtests each check stands with the subtest that made it, and the others go on."""
    checks.findings = (WRONG,)
    source = (
        "def test_all(subtests, check_function):\n"
        "    for name in ('Square', 'Cube'):\n"
        "        with subtests.test(name):\n"
        "            check_function(name)\n"
    )
    result = run(pytester, source)
    for name in ("Square", "Cube"):
        result.stdout.fnmatch_lines([f"_* test_all [[]{name}] _*", f"{name} is not right: PB203 (1 error)"])
        assert result.stdout.str().count(f" pullback: {name} ") == 1
    result.stdout.fnmatch_lines(["2 checks with seed 0; *"])


def test_hints_are_counted_and_shown_on_demand(pytester: pytest.Pytester, checks: Checks) -> None:
    """A hint fails nothing; the run counts it, and -rP shows the report that has it."""
    checks.findings = (HINT,)
    result = run(pytester, ONE, "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 check with seed 0; *; 1 hint (-rP shows them) (-v says why)"])
    result.stdout.fnmatch_lines(["-* pullback: Square -*", "*PB601 hint: *"])


def test_marker_says_how_functions_are_checked(pytester: pytest.Pytester, checks: Checks) -> None:
    """The marker's options hold for each call in a test, the nearest marker goes first, and the call before all."""
    source = (
        "import pytest\n"
        "pytestmark = pytest.mark.pullback(skip='compiled', orders=1)\n"
        "@pytest.mark.pullback(orders=2, device='cpu')\n"
        "def test_square(check_function):\n"
        "    check_function('Square')\n"
        "    check_function('Cube', skip=())\n"
        "def test_other(check_function):\n"
        "    check_function('Other')\n"
    )
    run(pytester, source, "--strict-markers").assert_outcomes(passed=2)
    options = {call.pop("function"): {**call, "samples": None} for call in checks.calls}
    common = {"samples": None, "seed": 0}
    assert options == {
        "Square": {"skip": "compiled", "orders": 2, "device": "cpu", **common},
        "Cube": {"skip": (), "orders": 2, "device": "cpu", **common},
        "Other": {"skip": "compiled", "orders": 1, **common},
    }


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("order=1", "there is no 'order': did you mean 'orders'?"),
        ("reference=abs", "there is no 'reference'"),
        ("'compiled'", "it takes no argument by position, and 'compiled' came"),
    ],
)
def test_misused_marker_is_an_error(pytester: pytest.Pytester, checks: Checks, arguments: str, fault: str) -> None:
    """A marker that can't be understood isn't passed over: the test says what it takes, without a traceback."""
    result = run(pytester, f"import pytest\npytestmark = pytest.mark.pullback({arguments})\n{ONE}")
    result.assert_outcomes(errors=1)
    lines = result.stdout.str().splitlines()
    place = lines.index(f"@pytest.mark.pullback can't be used so: {fault}")
    assert lines[place + 1] == "  expected: some of only=…, skip=…, orders=…, device=…"
    assert "ERROR at setup" in lines[place - 1]
    assert checks.calls == []


def test_marker_selects_tests(pytester: pytest.Pytester, checks: Checks) -> None:
    """`pytest -m pullback` runs the tests that have the marker, and it is described among the markers."""
    source = f"import pytest\n@pytest.mark.pullback\n{ONE}\ndef test_other():\n    pass\n"
    run(pytester, source, "-m", "pullback").assert_outcomes(passed=1, deselected=1)
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.pullback(only=…, skip=…, orders=…, device=…): a test that checks *"])


def test_the_seed_is_said_and_repeats_the_run(pytester: pytest.Pytester, checks: Checks) -> None:
    """--pullback-seed reaches each check, and stands at the head of the run, in the count and in the repeat command."""
    checks.findings = (WRONG,)
    result = run(pytester, ONE, "--pullback-seed", "7")
    assert [call["seed"] for call in checks.calls] == [7]
    result.stdout.fnmatch_lines(["pullback: seed 7", "repeat it: pytest * --pullback-seed 7", "1 check with seed 7; *"])


def test_a_drawn_seed_is_said(pytester: pytest.Pytester, checks: Checks) -> None:
    """--pullback-seed random draws one seed for the whole run, another one in the next, and says it like any other."""
    checks.findings = (WRONG,)
    drawn = []
    for _ in range(2):
        result = run(pytester, ONE + ONE.replace("test_square", "test_again"), "--pullback-seed", "random")
        (said,) = re.findall(r"^pullback: seed (\d+)$", result.stdout.str(), re.MULTILINE)
        assert [call["seed"] for call in checks.calls[-2:]] == [int(said)] * 2
        result.stdout.fnmatch_lines([f"repeat it: pytest * --pullback-seed {said}"])
        drawn.append(int(said))
    assert drawn[0] != drawn[1]
    assert max(drawn) <= LARGEST_SEED


def test_a_call_may_have_its_own_seed(pytester: pytest.Pytester, checks: Checks) -> None:
    """A seed that stands in the call goes first, and the command that repeats the test needs none."""
    checks.findings = (WRONG,)
    result = run(pytester, ONE.replace("'Square'", "'Square', seed=3"), "--pullback-seed", "7")
    assert [call["seed"] for call in checks.calls] == [3]
    assert "repeat it: pytest test_ops.py::test_square" in result.stdout.str().splitlines()


@pytest.mark.parametrize("given", ["-1", "1.5", "some", "", str(LARGEST_SEED + 1), "9" * 5000])
def test_what_is_no_seed_is_refused(pytester: pytest.Pytester, given: str) -> None:
    """Anything but a number in range, or `random`, is a usage error that says what is taken."""
    result = run(pytester, ONE, f"--pullback-seed={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"argument --pullback-seed: '{given}' is neither a number from 0 to {LARGEST_SEED} nor 'random'"
    assert said in result.stderr.str()


def test_nothing_tried_is_not_passed(pytester: pytest.Pytester, checks: Checks) -> None:
    """Where each probe that `only` names is skipped the test is skipped, with the reason; one that ran is enough."""
    source = (
        "def test_none(check_function):\n    check_function('Square', only='forward_mode')\n"
        "def test_some(check_function):\n    check_function('Square', only=('forward_mode', 'first_order'))\n"
    )
    result = run(pytester, source, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * Square: forward_mode skipped: there is no jvp"])


def test_what_cannot_be_checked_is_said_plainly(pytester: pytest.Pytester, checks: Checks) -> None:
    """An error of pullback's own fails the test with its message, code and remedy, and without a traceback."""
    checks.error = SampleError(
        "PB121", "no sample can be found for Square", expected="a tuple", remedy="Declare samples()."
    )
    checks.error.__cause__ = ValueError("what samples() raised")
    result = run(pytester, ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "_* test_square _*",
            "PB121 no sample can be found for Square",
            "  expected: a tuple",
            "  remedy: Declare samples().",
            "=*",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("error", [ModuleNotFoundError("not there", name="theirs"), ValueError("not there")])
def test_other_errors_keep_their_traceback(pytester: pytest.Pytester, checks: Checks, error: Exception) -> None:
    """What isn't pullback's to explain, such as a module that can't be imported, comes out as pytest shows errors."""
    checks.error = error
    result = run(pytester, ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*check_function('Square')", f"E * {type(error).__name__}: not there"])


def test_missing_torch_is_one_sentence(pytester: pytest.Pytester) -> None:
    """Without torch the test fails with what to install, in a sentence, and nothing of an import."""
    pytester.makeconftest("import sys\nsys.modules['torch'] = None\n")
    pytester.makepyfile(test_ops=ONE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "_* test_square _*",
            "pullback.check needs PyTorch, which isn't installed: install your own build of torch, or pullback with "
            "its extra: pullback[[]torch].",
            "=*",
        ],
        consecutive=True,
    )


def test_xdist_hands_reports_and_numbers_on(pytester: pytest.Pytester) -> None:
    """Under pytest-xdist sections and counts reach the run, and all workers have the one seed that was drawn."""
    pytester.makeconftest(CONFTEST)
    names = ("Square", "Cube", "Sine")
    pytester.makepyfile(
        test_ops="import pytest\n"
        f"@pytest.mark.parametrize('name', {names!r})\n"
        "def test_one(name, check_function):\n    check_function(name)\n",
        test_square=ONE,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--pullback-seed", "random")
    result.assert_outcomes(failed=2, passed=2)
    shown = result.stdout.str()
    (seed,) = re.findall(r"^pullback: seed (\d+)$", shown, re.MULTILINE)
    assert set(re.findall(r"error: wrong with (\d+) ", shown)) == {seed}
    assert len(re.findall(r"^-+ pullback: Square -+$", shown, re.MULTILINE)) == 2
    assert f"4 checks with seed {seed}; probes: 4 passed, 4 skipped (-v says why)" in shown
    assert f"repeat it: pytest 'test_ops.py::test_one[Square]' --pullback-seed {seed}" in shown


UNUSED = """
import sys

def test_nothing_was_loaded():
    ours = {name for name in sys.modules if name.partition(".")[0] in ("pullback", "torch")}
    assert ours == {"pullback", "pullback.pytest_plugin"}, ours
"""


def test_unused_plugin_leaves_no_trace(pytester: pytest.Pytester) -> None:
    """A strict project that doesn't use it loads neither torch nor the rest of pullback, and prints no word of it."""
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config -W error\nxfail_strict = true\n")
    pytester.makepyfile(test_ops=UNUSED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    lines = [line for line in result.stdout.lines if not line.startswith("plugins: ")]
    assert "pullback" not in "\n".join(lines)


def test_import_of_the_plugin_leaves_torch_alone() -> None:
    """Importing the plugin imports no torch, by whatever path it would come."""
    code = "import sys, pullback.pytest_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_plugin_can_be_turned_off(pytester: pytest.Pytester) -> None:
    """With -p no:pullback there is no fixture, no option and no marker."""
    result = run(pytester, ONE, "-p", "no:pullback")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'check_function' not found"])
    assert "pullback" not in pytester.runpytest_inprocess("-p", "no:pullback", "--help").stdout.str()
