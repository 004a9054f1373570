"""From a location to a file, a line and an identity."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pullback.report.places import Place, fingerprints, place_of, read
from tests.report.examples import FAULTY, WRONG


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("ops.py:12", Place("ops.py", 12)),
        ("package/../ops.py:12", Place("ops.py", 12)),
        ("a:b.py:12", Place("a:b.py", 12)),
        ("ops.py", Place("ops.py")),
        ("ops.py:0", Place("ops.py", 1)),
        ("nul\x00.py:3", Place("nul\x00.py", 3)),
        ("half\ud800.py:3", Place("half\ud800.py", 3)),
        ("", None),
        ("<string>:1", None),
        ("C:\\a b\\ops.py:12", Place("C:/a b/ops.py", 12, inside=False)),
        ("\\\\server\\share\\ops.py:12", Place("//server/share/ops.py", 12, inside=False)),
        (f"ops.py:{'9' * 5000}", Place(f"ops.py:{'9' * 5000}")),
    ],
)
def test_a_location_is_a_file_and_a_line(location: str, place: Place | None) -> None:
    """The line is what follows the last colon; what is no file is no place. Paths of Windows are read everywhere."""
    assert read(location) == place


def test_a_number_too_long_for_python_is_no_line() -> None:
    """Whatever stands in a report, a place comes out."""
    assert place_of(replace(WRONG, where=f"ops.py:{'9' * 5000} in forward")) == Place("ops.py", 12)


def test_paths_are_written_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in it has a path that means the same elsewhere; any other keeps its whole path."""
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert read(f"{inner / 'sub' / 'ops.py'}:3") == Place("sub/ops.py", 3)
    outside = os.path.realpath(tmp_path / "ops.py")
    assert read(f"{tmp_path / 'ops.py'}:3") == Place(outside.replace(os.sep, "/"), 3, inside=False)


def test_a_finding_without_a_location_has_its_reports() -> None:
    """So nothing is left without a line that has one."""
    assert place_of(replace(WRONG, location=""), FAULTY) == Place("ops.py", 12)
    assert place_of(replace(WRONG, location="")) is None


def test_fingerprints_stay_while_the_fault_does() -> None:
    """Another line, seed, sample or number is the same fault; another rule, argument, Function or file isn't."""
    place = Place("ops.py", 12)
    base = replace(WRONG, evidence={"argument": "x", "max_error": 1.5})
    again = replace(base, where="argument x, sample 3", message="other", got="other", evidence={"argument": "x"})
    same = [(base, place), (again, Place("ops.py", 99))]
    assert len({*(next(fingerprints([pair])) for pair in same)}) == 1
    others = [
        (base, place),
        (replace(base, rule="PB205"), place),
        (replace(base, function="Other"), place),
        (replace(base, evidence={"argument": "y"}), place),
        (base, Place("other.py", 12)),
        (base, None),
    ]
    assert len({next(fingerprints([pair])) for pair in others}) == len(others)


def test_fingerprints_are_the_same_on_another_machine() -> None:
    """Where a package is installed plays no part."""
    one, two = (Place(f"/home/{name}/site-packages/ops.py", 12, inside=False) for name in ("a", "b"))
    assert next(fingerprints([(WRONG, one)])) == next(fingerprints([(WRONG, two)]))


def test_fingerprints_without_a_named_part_leave_numbers_out() -> None:
    """The words of `where` count then, and the line and the sample in them don't."""
    one, two = (replace(WRONG, evidence={}, where=f"line {n}, sample {n}") for n in (1, 2))
    assert next(fingerprints([(one, None)])) == next(fingerprints([(two, None)]))
    other = replace(WRONG, evidence={}, where="probe leaks")
    assert next(fingerprints([(one, None)])) != next(fingerprints([(other, None)]))


def test_no_two_findings_share_a_fingerprint() -> None:
    """The same fault twice in a run is numbered."""
    assert len({*fingerprints([(WRONG, None), (WRONG, None)])}) == 2
