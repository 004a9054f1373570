"""Options: defaults, then ``[tool.pullback.check]``, then the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pullback.cli.failure import UsageError
from pullback.cli.options import CheckOptions, resolve
from pullback.cli.parser import build
from pullback.rules import Severity
from tests.cli.conftest import BAD, GOOD, Pullback


def options(folder: Path, table: str, *arguments: str) -> CheckOptions:
    """What a configuration table and a command line make together."""
    (folder / "pyproject.toml").write_text(f"[tool.pullback.check]\n{table}", encoding="utf-8")
    return resolve(build().parse_args(["check", *arguments]), start=folder)


def test_every_option_can_be_configured(tmp_path: Path) -> None:
    """Each key of the table is an option's long name, with the option's meaning."""
    table = """
        targets = ["package.ops:Square"]
        output-format = "json"
        only = ["values"]
        skip = ["leaks"]
        select = ["PB2"]
        ignore = ["PB601"]
        fail-on = "error"
        orders = 1
        samples = "mine:SAMPLES"
        seed = 3
        timeout = 9
        known-failures = "known.toml"
        show-output = true
        output-file = ["out/report.sarif", "a,b.xml"]
    """
    assert options(tmp_path, table) == CheckOptions(
        targets=("package.ops:Square",),
        output_format="json",
        only=("values",),
        skip=("leaks",),
        select=("PB2",),
        ignore=("PB601",),
        fail_on="error",
        orders=1,
        samples="mine:SAMPLES",
        seed=3,
        timeout=9,
        known_failures=str(tmp_path / "known.toml"),
        show_output=True,
        output_file=(str(tmp_path / "out" / "report.sarif"), str(tmp_path / "a,b.xml")),
    )


def test_the_command_line_replaces_the_configuration(tmp_path: Path) -> None:
    """An option that is given wins, lists included; the others stay as configured."""
    chosen = options(tmp_path, 'only = ["values"]\nseed = 3\norders = 1\n', "ops.py", "--only", "leaks", "--seed", "0")
    assert (chosen.targets, chosen.only, chosen.seed, chosen.orders) == (("ops.py",), ("leaks",), 0, 1)


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    """The configuration is searched upwards from the working directory, and paths in it are meant from its folder."""
    (tmp_path / "pyproject.toml").write_text('[tool.pullback.check]\ntargets = ["ops.py:Square", "package.ops"]\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    found = resolve(build().parse_args(["check"]), start=inner).targets
    assert found == (f"{tmp_path / 'ops.py'}:Square", "package.ops")


def test_other_tables_are_left_alone(tmp_path: Path) -> None:
    """A project file without the table means defaults."""
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert resolve(build().parse_args(["check"]), start=tmp_path) == CheckOptions()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("ordres = 1", r"unknown key 'ordres' in \[tool.pullback.check\]; did you mean 'orders'\?"),
        ("zzzzz = 1", r"unknown key 'zzzzz'.*the keys are targets, output-format, only"),
        ('orders = "2"', r"orders in \[tool.pullback.check\] must be of type int, got '2'"),
        ("seed = true", r"seed in .* must be of type int, got True"),
        ('timeout = "1"', r"timeout in .* must be of type int or float"),
        ('only = "values"', r"only in .* must be a list of strings, got 'values'"),
        ("orders = 3", r"orders must be one of 1, 2; got 3"),
        ('fail-on = "hint"', r"fail-on must be one of error, warning; got 'hint'"),
        ("timeout = nan", r"timeout must be a positive number of seconds"),
        ('select = ["P"]', r"there is no rule 'P'"),
        ('samples = "mapping"', r"samples must be module:mapping or file.py:mapping"),
        ("orders =", r"isn't valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, table: str, message: str) -> None:
    """An unknown key, a wrong type and an impossible value each end the run and say what would be right."""
    with pytest.raises(UsageError, match=message):
        options(tmp_path, table)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("orders = 3", "orders must be"),
        ("ordres = 1", "unknown key 'ordres'"),
        ('orders = "2"', "orders in"),
        ('select = ["P"]', "select: there is no rule 'P'"),
        ("timeout = 0", "timeout must be"),
    ],
)
def test_mistakes_say_where_they_stand(tmp_path: Path, table: str, key: str) -> None:
    """What is wrong in the configuration file is said with the path of that file, and the key."""
    with pytest.raises(UsageError) as caught:
        options(tmp_path, table)
    assert str(caught.value).startswith(f"{tmp_path / 'pyproject.toml'}: ")
    assert "[tool.pullback.check]" in str(caught.value)
    assert key in str(caught.value)


def test_what_the_configuration_names_is_traced_back_to_it(pullback: Pullback, folder: Path) -> None:
    """A file or probe that doesn't exist is said to come from the configuration, where it does."""
    path = folder / "pyproject.toml"
    path.write_text('[tool.pullback.check]\ntargets = ["gone.py"]\nonly = ["nope"]\nseed = 1\n')
    set_in = f"set in [tool.pullback.check] of {path})\n"
    assert pullback("check").err.endswith(f"gone.py: no such file (targets, only are {set_in}")
    given = pullback("check", "ops.py", ops=BAD).err
    assert "no probe is called nope" in given
    assert given.endswith(f" (only is {set_in}")
    assert pullback("check", "gone.py", "--only", "first").err == "pullback: gone.py: no such file\n"


def test_the_table_must_be_a_table(tmp_path: Path) -> None:
    """A value where the table should be is a mistake, not an empty table."""
    (tmp_path / "pyproject.toml").write_text("[tool.pullback]\ncheck = 1\n")
    with pytest.raises(UsageError, match="must be a table"):
        resolve(build().parse_args(["check"]), start=tmp_path)


def test_a_wrong_configuration_exits_2(pullback: Pullback, folder: Path) -> None:
    """On the command line a mistake in the table is a usage error."""
    (folder / "pyproject.toml").write_text("[tool.pullback.check]\nno-such-key = 1\n")
    ran = pullback("check", "ops.py", ops=BAD)
    assert ran.code == 2
    assert "unknown key 'no-such-key'" in ran.err


def test_configured_targets_are_checked(pullback: Pullback, folder: Path) -> None:
    """``pullback check`` without arguments checks what the project names."""
    (folder / "pyproject.toml").write_text('[tool.pullback.check]\ntargets = ["ops.py"]\noutput-format = "concise"\n')
    ran = pullback("check", ops=BAD)
    assert ran.code == 1
    assert "PB203 error Bad" in ran.out


def test_which_severities_fail() -> None:
    """Errors always fail, warnings unless only errors are asked to, hints never."""
    strict, lax = CheckOptions(), CheckOptions(fail_on="error")
    assert [strict.fails(severity) for severity in Severity] == [True, True, False]
    assert [lax.fails(severity) for severity in Severity] == [True, False, False]


@pytest.mark.parametrize("seed", ["-1", "4294967296", "99999999999999999999999"])
def test_a_seed_out_of_range_is_a_usage_error(seed: str, pullback: Pullback) -> None:
    """No generator takes it."""
    ran = pullback("check", "ops.py", "--seed", seed, ops=GOOD)
    assert ran.code == 2
    assert "seed must be a number from 0 to 4294967295" in ran.err


@pytest.mark.parametrize("option", ["--select", "--ignore", "--only", "--skip", "--samples", "--known-failures"])
def test_an_empty_text_is_a_usage_error(option: str, pullback: Pullback) -> None:
    """A variable that isn't set must not mean everything."""
    ran = pullback("check", "ops.py", option, "", ops=GOOD)
    assert ran.code == 2
    assert f"{option} is empty" in ran.err


def test_an_empty_target_is_a_usage_error(pullback: Pullback) -> None:
    """It is not the whole working directory."""
    ran = pullback("check", "", ops=GOOD)
    assert ran.code == 2
    assert "a target is empty" in ran.err


def test_an_empty_entry_of_the_table_is_a_usage_error(tmp_path: Path) -> None:
    """As on the command line."""
    (tmp_path / "pyproject.toml").write_text('[tool.pullback.check]\nselect = [""]\n')
    with pytest.raises(UsageError, match="an entry of select"):
        resolve(build().parse_args(["check"]), start=tmp_path)


def test_a_configured_target_may_hold_a_colon(tmp_path: Path) -> None:
    """In the file's own name, and before a class."""
    (tmp_path / "a:b.py").write_text("")
    (tmp_path / "pyproject.toml").write_text('[tool.pullback.check]\ntargets = ["a:b.py", "a:b.py:F"]\n')
    options = resolve(build().parse_args(["check"]), start=tmp_path)
    assert options.targets == (str(tmp_path / "a:b.py"), f"{tmp_path / 'a:b.py'}:F")


@pytest.mark.parametrize("key", ["samples", "known-failures"])
def test_an_empty_value_of_the_table_is_a_usage_error(key: str, tmp_path: Path) -> None:
    """A single text as well as an entry of a list."""
    with pytest.raises(UsageError, match=rf"{key} in \[tool.pullback.check\] is empty: ''"):
        options(tmp_path, f'{key} = ""')


NO_PATHS = [("a\0.json", "null byte"), ("a" * 300 + ".json", "too long"), ("a\ud800.json", "surrogates")]


@pytest.mark.parametrize(("text", "fault"), NO_PATHS)
@pytest.mark.parametrize("option", ["--output-file", "--known-failures", "a target"])
def test_what_no_file_can_be_called_is_a_usage_error(option: str, text: str, fault: str, pullback: Pullback) -> None:
    """It is said in a line, and without any traceback, before anything is checked."""
    arguments = (text,) if option == "a target" else ("ops.py", option, text)
    ran = pullback("check", *arguments, ops="raise SystemExit('was imported')\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"pullback: {option} can't be a path: ")
    assert fault in ran.err
    assert len(ran.err.splitlines()) == 1
    assert len(ran.err) < 250


@pytest.mark.parametrize("key", ["targets", "output-file", "known-failures"])
def test_the_table_names_only_what_a_file_can_be_called(key: str, tmp_path: Path) -> None:
    """As on the command line, with the key."""
    value = '"a\\u0000.json"' if key == "known-failures" else '["a\\u0000.json"]'
    with pytest.raises(UsageError, match=rf"{key} in \[tool.pullback.check\] can't be a path: 'a\\x00.json'"):
        options(tmp_path, f"{key} = {value}")


def test_a_table_nested_beyond_reading_is_a_usage_error(tmp_path: Path) -> None:
    """As anything else that is no TOML."""
    with pytest.raises(UsageError, match="isn't valid TOML"):
        options(tmp_path, f"only = {'[' * 5000}{']' * 5000}")
