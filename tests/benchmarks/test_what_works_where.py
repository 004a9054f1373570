"""What works where: the document says what the experiments find, and the judge can tell verdicts apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import what_works_where as where
from benchmarks.where import compiled
from benchmarks.where.want import CUSTOM_OP, FUNCTION, WAYS, Call, Operation, Want, direction
from pullback.errors import GradientError

ROOT = Path(__file__).parents[2]
WANTS = [want for section in where.SECTIONS for want in section.wants]

TOLD_OF = "2.13."
"""The document's cells are those of this release of PyTorch."""


def wanted(make: Call, *error: str) -> Want:
    """A row about doubling three numbers, written as `make` gives it, in one of the ways."""
    operation = Operation("Doubling", lambda x: x * 2, {FUNCTION: make})
    return Want("doubled", operation, lambda f: f(torch.ones(3, dtype=torch.float64)), error)


def raising(error: Exception) -> Call:
    """An operation that raises."""

    def call(x: Tensor) -> Tensor:
        raise error

    return lambda: call


def verdict(make: Call, *error: str) -> str:
    """What the judge says of it."""
    return where.judged(wanted(make, *error), FUNCTION).verdict


@pytest.mark.skipif(not torch.__version__.startswith(TOLD_OF), reason=f"the document tells of torch {TOLD_OF}*")
def test_document_says_what_is_found() -> None:
    """Every row that needs no compiler is tried anew, and the document has the same cells."""
    command = [sys.executable, "benchmarks/what_works_where.py", "--check", "--quick"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "title",
    [
        "compiled, a keyword-only tensor",
        "torch.func.grad inside, Reweighted",
        "torch.func.jvp inside, without fullgraph, Reweighted",
        "autocast in compiled code, aot_eager",
    ],
)
def test_document_says_what_is_found_in_compiled_code(title: str) -> None:
    """Some of the rows that need a compiler are tried anew, those that generate no code, and have the same cells.

    On another torch that holds for pullback's own.
    """
    (want,) = (want for want in WANTS if want.title == title)
    ((_, cells),) = where.outcomes([want])
    _, tables, _ = where.between(where.DOCUMENT.read_text("utf-8"))
    stands = where.rows_of(tables)[title].split(" | ")[: len(WAYS)]
    found = [cells[way].verdict for way in WAYS]
    if torch.__version__.startswith(TOLD_OF):
        assert found == stands
    assert found[WAYS.index(FUNCTION)] == stands[WAYS.index(FUNCTION)]


def test_compiled_formulas_are_the_truth() -> None:
    """Reweighted has twice its gradient, also where the formula was compiled, transforms and all."""
    twice = 2 * direction()
    for measure in (compiled.transform_whole, compiled.transform, compiled.tangent, compiled.transform_outside):
        torch.testing.assert_close(measure(compiled.REWEIGHTED.plain), twice)


def test_readme_has_the_counts() -> None:
    """The README's table says what the document counts, and of how many rows."""
    _, tables, _ = where.between(where.DOCUMENT.read_text("utf-8"))
    (rows,) = re.findall(r"^Of (\d+) rows:$", tables, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"tries {rows} things" in readme
    for way in WAYS:
        (said,) = re.findall(rf"^\* {re.escape(way)}: (.*)\.$", tables, re.MULTILINE)
        fell = {verdict: count for count, verdict in re.findall(r"(\d+) ([^,]+)", said)}
        counts = " | ".join(fell.get(verdict, "0") for verdict in where.VERDICTS)
        assert f"| {counts} |" in readme, way


def test_same_numbers_are_right_and_others_are_wrong() -> None:
    """A result counts as right only if it is that of the formula; a missing one is wrong, too."""
    assert verdict(lambda: lambda x: x + x) == where.RIGHT
    assert verdict(lambda: lambda x: x * 2.000001) == where.WRONG
    assert verdict(lambda: lambda x: x.new_zeros(3)) == where.WRONG
    assert verdict(lambda: lambda x: None) == where.WRONG


def test_errors_are_named_only_if_they_name_and_advise() -> None:
    """An error has to name the operation and say what to do; pullback's have a remedy of their own."""
    assert verdict(raising(RuntimeError("Doubling must be written otherwise"))) == where.NAMED
    assert verdict(raising(RuntimeError("Doubling failed"))) == where.REFUSED
    assert verdict(raising(RuntimeError("the class must be written otherwise"))) == where.REFUSED
    assert verdict(raising(GradientError("PB201", "Doubling returned too few gradients."))) == where.NAMED


def test_mistakes_have_to_raise() -> None:
    """Where the right answer is an error, numbers are wrong whatever they are, and the argument has to be named."""
    assert verdict(lambda: lambda x: x * 2, "weight") == where.WRONG
    assert verdict(raising(RuntimeError("Doubling must return a gradient for weight")), "weight") == where.NAMED
    assert verdict(raising(RuntimeError("Doubling must return a gradient")), "weight") == where.REFUSED


def test_a_library_may_refuse_at_the_definition() -> None:
    """What raises while the operation is made counts like what raises when it is called."""

    def make() -> Call:
        raise TypeError("no such type")

    assert verdict(make) == where.REFUSED
    assert where.judged(wanted(make), CUSTOM_OP).verdict == where.NOWHERE


@pytest.mark.parametrize(
    ("truth", "got", "same"),
    [
        ((torch.ones(2), "list"), (torch.ones(2), "list"), True),
        ((torch.ones(2), "list"), (torch.ones(2), "tuple"), False),
        ((torch.ones(2),), (None,), False),
        ((torch.ones(2),), (torch.ones(2), torch.ones(2)), False),
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, True),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
    ],
)
def test_results_are_compared_with_their_structure(truth: Any, got: Any, same: bool) -> None:
    """Containers, counts, names and dtypes count, not only numbers."""
    assert where.same(truth, got) is same


def test_titles_are_unique() -> None:
    """A row is found by its title."""
    titles = [want.title for want in WANTS]
    assert len(set(titles)) == len(titles)


def test_statements_about_jax_belong_to_rows_and_pages() -> None:
    """Whatever is said of JAX is about a row of the table, and has its page unless it says that there is nothing."""
    data = json.loads(where.JAX.read_text("utf-8"))
    assert data["cells"].keys() <= {want.title for want in WANTS}
    for title, (said, *pages) in data["cells"].items():
        assert said in {where.RIGHT, where.NAMED, where.REFUSED, where.NOWHERE}, title
        assert set(pages) <= data["pages"].keys(), title
        assert bool(pages) != (said == where.NOWHERE), title
    assert all(re.search(r": https://docs\.jax\.dev/\S+$", page) for page in data["pages"].values())


def test_document_has_every_row_with_every_column() -> None:
    """The rows that the quick comparison leaves out stand there as well."""
    _, tables, _ = where.between(where.DOCUMENT.read_text("utf-8"))
    rows = where.rows_of(tables)
    assert [title for title in rows if title] == [want.title for want in WANTS]
    assert {cells.count("|") for cells in rows.values()} == {len(WAYS)}


def test_differences_are_shown_row_by_row() -> None:
    """A changed cell, a missing row and a row that is no more are differences; a row that wasn't run is none."""
    made = "| one | right | n/a |\n| two | right | n/a |\n"
    assert where.differences(made, made) == []
    (changed,) = where.differences(made, made.replace("one | right", "one | refused"))
    assert changed == "one\n  is:     right | n/a\n  stands: refused | n/a"
    (missing,) = where.differences(made, "| one | right | n/a |\n")
    assert missing.endswith("stands: nothing")
    (stale,) = where.differences(made, made + "| three | right | n/a |\n")
    assert stale == "three\n  stands, and is no row"
    assert where.differences(made, made + "| three | right | n/a |\n", ["three"]) == []


def test_tables_are_written_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the rows can't be written over all of them."""
    with pytest.raises(SystemExit, match="2"):
        where.main(["--write", "--quick"])
    assert "--write takes all rows" in capsys.readouterr().err


def test_lost_markers_are_named() -> None:
    """A document without the place for the tables isn't written to."""
    with pytest.raises(ValueError, match="<!-- table -->"):
        where.between("# What works where\n")
