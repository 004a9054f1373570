"""The file of known failures: expected findings pass, unexpected passes fail, every entry has a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pullback.cli.known_failures import KnownFailure, read, rewrite
from pullback.finding import Finding, Report
from pullback.report.json import from_json
from tests.cli.conftest import BAD, GOOD, Pullback

ENTRY = '[[known]]\nfunction = "{function}"\nrule = "PB203"\nreason = "waits for the new kernel"\n'


def listed(folder: Path, function: str = "Bad") -> None:
    """Writes a file with one entry."""
    (folder / "known.toml").write_text(ENTRY.format(function=function), encoding="utf-8")


def test_a_listed_finding_does_not_fail(pullback: Pullback, folder: Path) -> None:
    """A finding that is found and listed is shown with its reason, and the run is clean."""
    listed(folder)
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops=BAD)
    assert ran.code == 0
    assert "known failure: Bad PB203 (waits for the new kernel)" in ran.out
    assert "1 known failure" in ran.out


def test_a_finding_that_is_not_listed_fails(pullback: Pullback, folder: Path) -> None:
    """Another rule, or another Function, is not covered by the entry."""
    listed(folder)
    source = BAD + "class Worse:\n    probes = {'first': lambda: ['PB203'], 'third': lambda: ['PB204']}\n"
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", "--output-format", "json", ops=source)
    assert ran.code == 1
    found = [(finding.function, finding.rule) for report in from_json(ran.out) for finding in report.findings]
    assert found == [("Worse", "PB203"), ("Worse", "PB204")]


def test_a_listed_finding_that_is_gone_fails(pullback: Pullback, folder: Path) -> None:
    """An unexpected pass fails the run, so the file never keeps what is no longer true."""
    listed(folder, "Good")
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops=GOOD)
    assert ran.code == 1
    assert "unexpected pass: Good PB203 was not found (waits for the new kernel)" in ran.out
    assert "1 unexpected pass" in ran.out


def test_no_finding_and_no_entry_is_clean(pullback: Pullback, folder: Path) -> None:
    """Entries for Functions that aren't part of the run mean nothing to it."""
    listed(folder)
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops=GOOD)
    assert ran.code == 0
    assert "Bad" not in ran.out


@pytest.mark.parametrize("options", [("--only", "first"), ("--skip", "second"), ("--orders", "1"), ("--select", "PB3")])
def test_a_partial_run_proves_no_pass(pullback: Pullback, folder: Path, options: tuple[str, str]) -> None:
    """If the probe or rule in question was left out, its silence is no unexpected pass."""
    listed(folder, "Good")
    assert pullback("check", "ops.py", "--known-failures", "known.toml", *options, ops=GOOD).code == 0


def test_a_broken_process_proves_no_pass(pullback: Pullback, folder: Path) -> None:
    """A Function whose probes could not all run may still have the fault."""
    listed(folder, "Dies")
    source = "import os\nclass Dies:\n    probes = {'second': lambda: os._exit(1)}\n"
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops=source)
    assert ran.code == 1
    assert "unexpected" not in ran.out


def test_a_file_tells_functions_of_one_name_apart(pullback: Pullback, folder: Path) -> None:
    """``file.py:Name`` covers that Function only."""
    listed(folder, "a.py:Bad")
    ran = pullback("check", "a.py", "b.py", "--known-failures", "known.toml", a=BAD, b=BAD)
    assert ran.code == 1
    assert "2 Functions: 0 clean, 1 with findings, 1 set aside; 1 error; 1 known failure." in ran.out
    assert "PB203" in ran.out.partition("Bad  b.py:1")[2]


@pytest.mark.parametrize("listed_as", ["part/ops.py:Bad", "ops.py:Bad", "Bad"])
@pytest.mark.parametrize("run_from", [".", "part", "elsewhere"])
def test_the_working_folder_plays_no_part(
    pullback: Pullback, folder: Path, monkeypatch: pytest.MonkeyPatch, run_from: str, listed_as: str
) -> None:
    """An entry covers its Function from wherever the check is run, whatever the report calls the file."""
    for name in ("part", "elsewhere"):
        (folder / name).mkdir()
    (folder / "part" / "ops.py").write_text(BAD, encoding="utf-8")
    listed(folder, listed_as)
    monkeypatch.chdir(folder / run_from)
    target = os.path.relpath(folder / "part" / "ops.py")
    ran = pullback("check", target, "--known-failures", os.path.relpath(folder / "known.toml"))
    assert ran.code == 0, ran.out + ran.err
    assert "1 known failure" in ran.out


def test_a_file_beside_the_list_is_the_one_that_is_meant(pullback: Pullback, folder: Path) -> None:
    """Where the entry's path leads to a file, another file whose path ends so isn't covered."""
    (folder / "part").mkdir()
    (folder / "part" / "ops.py").write_text(BAD, encoding="utf-8")
    listed(folder, "ops.py:Bad")
    assert pullback("check", "part/ops.py", "--known-failures", "known.toml").code == 0
    ran = pullback("check", "part/ops.py", "--known-failures", "known.toml", ops=GOOD)
    assert ran.code == 1
    assert "1 with findings" in ran.out


def test_an_entry_for_a_class_that_is_gone_fails(pullback: Pullback, folder: Path) -> None:
    """A file that was checked as a whole and has no such Function shows the entry up, even in a partial run."""
    listed(folder, "ops.py:Gone")
    for options in ((), ("--only", "first")):
        ran = pullback("check", "ops.py", "--known-failures", "known.toml", *options, ops=GOOD)
        assert ran.code == 1
        assert "unexpected pass: ops.py:Gone PB203: no such Function in ops.py to check" in " ".join(ran.out.split())
    update = ("--known-failures", "known.toml", "--update-known-failures")
    assert pullback("check", "ops.py", *update).code == 0
    assert read(folder / "known.toml") == []


@pytest.mark.parametrize("target", ["ops.py:Good", "other.py"])
def test_what_was_not_checked_as_a_whole_may_have_it(pullback: Pullback, folder: Path, target: str) -> None:
    """Of a file that was checked in part, or not at all, nothing is missed."""
    listed(folder, "ops.py:Gone")
    assert pullback("check", target, "--known-failures", "known.toml", ops=GOOD, other=GOOD).code == 0


def test_a_file_that_cant_be_loaded_may_have_it(pullback: Pullback, folder: Path) -> None:
    """An import that fails says nothing of the classes in the file."""
    listed(folder, "ops.py:Gone")
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops="import no_such_module\n")
    assert ran.code == 1
    assert "unexpected" not in ran.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[[known]]\nfunction = "Bad"\nrule = "PB203"\n', r"known failure 1 \(Bad PB203\) has no reason"),
        ('[[known]]\nfunction = "Bad"\nrule = "PB203"\nreason = "  "\n', "has no reason"),
        ('[[known]]\nfunction = "Bad"\nrule = "PB999"\nreason = "x"\n', "must name a function and one of the rules"),
        ('[[known]]\nrule = "PB203"\nreason = "x"\n', "must name a function"),
        ('[[known]]\nfunction = 1\nrule = "PB203"\nreason = "x"\n', "all strings"),
        ('[[known]]\nfunction = "Bad"\nrule = "PB203"\nreasons = "x"\n', "unknown key 'reasons'"),
        ("known = 1\n", r"expected \[\[known\]\] tables only"),
        ("[other]\n", r"expected \[\[known\]\] tables only"),
        ("known =\n", "isn't valid TOML"),
    ],
)
def test_mistakes_in_the_file_exit_2(pullback: Pullback, folder: Path, content: str, message: str) -> None:
    """A missing reason, like any other mistake in the file, is a usage error that names the entry."""
    (folder / "known.toml").write_text(content, encoding="utf-8")
    ran = pullback("check", "ops.py", "--known-failures", "known.toml", ops=BAD)
    assert ran.code == 2
    assert pytest.RaisesExc(AssertionError, match=message).matches(AssertionError(ran.err))


def test_a_missing_file_exits_2(pullback: Pullback) -> None:
    """A misspelt file name isn't taken for an empty file."""
    ran = pullback("check", "ops.py", "--known-failures", "nowhere.toml", ops=BAD)
    assert ran.code == 2
    expected = "nowhere.toml: no such file; --update-known-failures writes it, with the findings of a run"
    assert ran.err == f"pullback: {expected}\n"


def test_update_writes_what_a_person_must_complete(pullback: Pullback, folder: Path) -> None:
    """New findings are written with an empty reason; the file is refused until somebody has said why."""
    update = ("check", "ops.py", "--known-failures", "known.toml", "--update-known-failures")
    ran = pullback(*update, ops=BAD)
    assert ran.code == 1
    assert "write a reason for ops.py:Bad PB203" in ran.err
    path = folder / "known.toml"
    assert pullback("check", "ops.py", "--known-failures", "known.toml").code == 2
    path.write_text(path.read_text().replace('reason = ""', 'reason = "known"'), encoding="utf-8")
    assert pullback("check", "ops.py", "--known-failures", "known.toml").code == 0
    assert pullback(*update).code == 0
    assert read(path) == [KnownFailure(function="ops.py:Bad", rule="PB203", reason="known")]


def test_update_writes_paths_from_the_lists_own_folder(
    pullback: Pullback, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is found again from any folder."""
    (folder / "part").mkdir()
    monkeypatch.chdir(folder / "part")
    (folder / "part" / "ops.py").write_text(BAD, encoding="utf-8")
    pullback("check", "ops.py", "--known-failures", "../known.toml", "--update-known-failures")
    assert [entry.function for entry in read(folder / "known.toml", reasons_due=False)] == ["part/ops.py:Bad"]


def test_update_drops_what_is_gone(pullback: Pullback, folder: Path) -> None:
    """Entries that passed unexpectedly leave the file; those of Functions that were not checked stay."""
    path = folder / "known.toml"
    path.write_text(ENTRY.format(function="Good") + ENTRY.format(function="Elsewhere"), encoding="utf-8")
    assert pullback("check", "ops.py", "--known-failures", "known.toml", "--update-known-failures", ops=GOOD).code == 0
    assert [entry.function for entry in read(path)] == ["Elsewhere"]


def test_update_needs_a_file(pullback: Pullback) -> None:
    """Without a file there is nothing to rewrite."""
    ran = pullback("check", "ops.py", "--update-known-failures", ops=GOOD)
    assert ran.code == 2
    assert "--update-known-failures needs --known-failures FILE" in ran.err


def test_any_text_survives_the_file(tmp_path: Path) -> None:
    """Quotes, backslashes, control characters and other scripts are read as they were written."""
    path = tmp_path / "known.toml"
    entry = KnownFailure(function="A", rule="PB203", reason='"C:\\new"\n\x7f\x00 ½ 🙂')
    found = Finding(rule="PB204", function="B", where="", message="")
    rewrite(path, [entry], [], [Report(function="B", findings=(found,), outcomes={}, samples="", untested=(), seed=0)])
    assert read(path, reasons_due=False) == [entry, KnownFailure(function="B", rule="PB204")]
