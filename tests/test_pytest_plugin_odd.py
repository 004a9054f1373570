"""The plugin for pytest, used as nobody planned: wrong options, odd names, other folders, unittest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pullback.errors import SampleError
from tests.plugin_stand_in import CONFTEST, NO_JVP, ONE, PASSED, WRONG, Checks, put_stand_in, run

pytest_plugins = "pytester"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """What stands in for `pullback.check`, and keeps its calls."""
    return put_stand_in(monkeypatch)


NASTY = "\x1b[31m]]>\x00\ud800\u202e\r\n::error::"
"""What a name or a message may hold: codes for a terminal, and what neither an encoding nor pytest-xdist has."""

SEEN = "\\x1b[31m]]>\\x00\\ud800\\u202e ::error::"
"""How it is shown."""


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("only=3", "only is a probe's name or several of them, and 3 came"),
        ("skip=None", "skip is a probe's name or several of them, and None came"),
        ("skip=['compiled', 1]", "skip is a probe's name or several of them, and ['compiled', 1] came"),
        ("orders=3", "orders is 1 or 2, and 3 came"),
        ("orders='2'", "orders is 1 or 2, and '2' came"),
    ],
)
def test_options_of_a_wrong_type_are_errors(pytester: pytest.Pytester, checks: Checks, option: str, fault: str) -> None:
    """In the marker and in the call: a line says what is taken, in place of a traceback through pullback."""
    result = run(pytester, f"import pytest\npytestmark = pytest.mark.pullback({option})\n{ONE}")
    result.assert_outcomes(errors=1)
    assert f"@pytest.mark.pullback can't be used so: {fault}" in result.stdout.lines
    result = run(pytester, ONE.replace("'Square'", f"'Square', {option}"))
    result.assert_outcomes(failed=1)
    assert f"check_function can't be used so: {fault}" in result.stdout.lines
    assert checks.calls == []


def test_what_the_check_refuses_is_said_without_a_traceback(pytester: pytest.Pytester) -> None:
    """An unknown probe, a seed out of range: in the words of `pullback.check`, since the fault is in the arguments."""
    source = (
        "def test_probe(check_function):\n    check_function(abs, only='nope')\n"
        "def test_seed(check_function):\n    check_function(abs, seed=-1)\n"
    )
    result = run(pytester, source)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["_* test_probe _*", "pullback.check can't be called so: no probe is called nope; *"])
    result.stdout.fnmatch_lines(["_* test_seed _*", "pullback.check can't be called so: seed is a number from 0 to *"])
    assert "def select" not in result.stdout.str()


def test_names_that_can_be_read_once_are_kept(pytester: pytest.Pytester, checks: Checks) -> None:
    """From a generator, too, each probe that `only` names reaches the check and the question whether one ran."""
    result = run(pytester, ONE.replace("'Square'", "'Square', only=(name for name in ['forward_mode'])"))
    assert [call["only"] for call in checks.calls] == [("forward_mode",)]
    result.assert_outcomes(skipped=1)


def test_control_characters_are_seen_and_not_obeyed(pytester: pytest.Pytester, checks: Checks) -> None:
    """In each line of the test, in its section, in the summary and in the report for other services."""
    checks.findings = (replace(WRONG, function=NASTY, message=NASTY, where=NASTY, got=NASTY),)
    checks.outcomes = {"runs": PASSED, "jvp": replace(NO_JVP, reason=NASTY)}
    result = run(pytester, ONE.replace("'Square'", ascii(NASTY)), "-v", "--junitxml=out.xml")
    result.assert_outcomes(failed=1)
    written = result.stdout.str() + (pytester.path / "out.xml").read_text("utf-8")
    assert not set(written) & set("\x00\x1b\r\ud800\u202e")
    finding = f"{SEEN} is not right: PB203 (1 error)", f"  PB203 error: {SEEN} ({SEEN})"
    for line in (*finding, f"  1 x jvp skipped: {SEEN}"):
        assert line in result.stdout.lines
    assert f" pullback: {SEEN} -" in result.stdout.str()
    checks.error = SampleError("PB121", "\x1b[31m")
    assert "PB121 \\x1b[31m" in run(pytester, ONE).stdout.lines


def test_xdist_takes_whatever_the_checked_code_says(pytester: pytest.Pytester) -> None:
    """Half of a surrogate pair in a name, a message or a reason ends no worker."""
    conftest = CONFTEST.replace('"there is no jvp"', "NASTY").replace('f"wrong with {seed}"', "NASTY")
    pytester.makeconftest(f"NASTY = {NASTY!a}\n{conftest}")
    skipped = f"\ndef test_skipped(check_function):\n    check_function({NASTY!a}, only='forward_mode')\n"
    pytester.makepyfile(test_ops=ONE + skipped)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "1", "-rs", "-v")
    result.assert_outcomes(failed=1, skipped=1)
    assert f"  PB203 error: {SEEN} (argument x)" in result.stdout.lines
    assert f"  2 x forward_mode skipped: {SEEN}" in result.stdout.lines


def test_the_command_that_repeats_a_test_is_meant_from_here(pytester: pytest.Pytester, checks: Checks) -> None:
    """Started in a folder of the project, pytest takes paths from that folder."""
    checks.findings = (WRONG,)
    pytester.makeini("[pytest]\n")
    pytester.mkdir("inner").joinpath("test_inner.py").write_text(ONE)
    pytester.mkdir("other")
    for folder, path in (("inner", "test_inner.py"), ("other", "../inner/test_inner.py"), (".", "inner/test_inner.py")):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(pytester.path / folder)
            result = pytester.runpytest_inprocess("-p", "no:cacheprovider", path)
        assert f"repeat it: pytest {path}::test_square --pullback-seed 0" in result.stdout.lines


def test_classes_of_unittest_can_use_it(pytester: pytest.Pytester, checks: Checks) -> None:
    """By a fixture that hands it over; a failing check stands with its test, as elsewhere."""
    checks.findings = (WRONG,)
    source = (
        "import pytest, unittest\n"
        "class SquareTest(unittest.TestCase):\n"
        "    @pytest.fixture(autouse=True)\n"
        "    def keep(self, check_function):\n"
        "        self.check = check_function\n"
        "    def test_square(self):\n"
        "        self.check('Square')\n"
    )
    result = run(pytester, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["_* SquareTest.test_square _*", "Square is not right: PB203 (1 error)"])
    result.stdout.fnmatch_lines(["-* pullback: Square -*"])


def test_expected_failures_are_pytests_own(pytester: pytest.Pytester, checks: Checks) -> None:
    """xfail and `pytest.raises` take a failing check as any other failure, under -W error, and it is counted."""
    checks.findings = (WRONG,)
    source = (
        "import pytest\n"
        "@pytest.mark.xfail(raises=pytest.fail.Exception, strict=True)\n"
        f"{ONE}"
        "def test_raises(check_function):\n"
        "    with pytest.raises(pytest.fail.Exception, match='Cube is not right: PB203 .1 error'):\n"
        "        check_function('Cube')\n"
    )
    result = run(pytester, source, "-W", "error")
    result.assert_outcomes(xfailed=1, passed=1)
    result.stdout.fnmatch_lines(["2 checks with seed 0; *"])
