"""What works where: small experiments with each way to write a derivative by hand, and the table of their outcomes.

    python benchmarks/what_works_where.py               run them, and print the tables
    python benchmarks/what_works_where.py --write       put the tables into docs/what-works-where.md
    python benchmarks/what_works_where.py --check       compare with what stands there; exit with 1 if it differs
    python benchmarks/what_works_where.py --quick       without the rows that compile, which take most of the time
    python benchmarks/what_works_where.py --errors      print what was raised too

An experiment asks one thing of one operation that is written in one way. What it returns is compared with what the same
question gets from the formula in plain PyTorch, in float64.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead import provenance
from benchmarks.where import autocast, calls, compiled, mistakes, nests, orders, surroundings, training, transforms
from benchmarks.where.want import WAYS, Section, Want

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "what-works-where.md"
JAX = Path(__file__).parent / "where" / "jax.json"

SECTIONS: Sequence[Section] = (
    training.SECTION,
    orders.SECTION,
    transforms.TRANSFORMS,
    transforms.FORWARD,
    nests.SECTION,
    calls.SECTION,
    compiled.SECTION,
    autocast.SECTION,
    surroundings.SECTION,
    mistakes.SECTION,
)

RIGHT = "right"
NAMED = "named error"
WRONG = "**wrong in silence**"
REFUSED = "refused"
NOWHERE = "n/a"
UNSAID = "not said"
VERDICTS = (RIGHT, NAMED, REFUSED, WRONG, NOWHERE)

REMEDIES = ("please", "must", "instead", "should", "use ", "call ", "pass ", "write ", "return ", "give ")
"""A message that has one of these words says what to do, or at least gets the benefit of the doubt."""


@dataclass(frozen=True)
class Cell:
    """The outcome of one experiment, and what was raised, if anything was."""

    verdict: str
    raised: str = ""


def same(truth: Any, got: Any) -> bool:
    """Whether two results are the same, tensor by tensor; for float64 this asks for seven digits."""
    if isinstance(truth, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return False
        try:
            torch.testing.assert_close(got, truth)
        except AssertionError:
            return False
        return True
    if isinstance(truth, Mapping):
        return isinstance(got, Mapping) and truth.keys() == got.keys() and all(same(truth[k], got[k]) for k in truth)
    if isinstance(truth, (tuple, list)):
        return isinstance(got, (tuple, list)) and len(truth) == len(got) and all(map(same, truth, got))
    return bool(truth == got)


def names(error: Exception, want: Want) -> bool:
    """Whether an error says what it is about, what of it, and what to do."""
    text = str(error).lower()
    about = (want.operation.name, *want.error)
    remedy = bool(getattr(error, "remedy", "")) or any(word in text for word in REMEDIES)
    return remedy and all(word.lower() in text for word in about)


def judged(want: Want, way: str) -> Cell:
    """Make the experiment."""
    make = want.operation.written.get(way)
    if make is None:
        return Cell(NOWHERE)
    truth = None if want.error else want.measure(want.operation.plain)
    try:
        got = want.measure(make())
    except Exception as error:
        return Cell(NAMED if names(error, want) else REFUSED, f"{type(error).__name__}: {error}")
    return Cell(RIGHT if not want.error and same(truth, got) else WRONG)


def outcomes(wants: Sequence[Want]) -> Iterator[tuple[Want, dict[str, Cell]]]:
    """Make the experiments of some rows, each from the same seed."""
    for want in wants:
        cells = {}
        for way in WAYS:
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cells[way] = judged(want, way)
        yield want, cells


def stated() -> tuple[dict[str, str], dict[str, list[str]]]:
    """What JAX's documentation says: its pages, and for each row a verdict and the letter of the page."""
    data = json.loads(JAX.read_text("utf-8"))
    return data["pages"], data["cells"]


def by_jax(want: Want, cells: Mapping[str, list[str]]) -> str:
    """JAX's cell: a verdict with its page, or that the documentation doesn't say."""
    verdict, *pages = cells.get(want.title, [UNSAID])
    return " ".join([verdict, *(f"[{page}]" for page in pages)])


def table(section: Section, rows: Sequence[tuple[Want, dict[str, Cell]]]) -> list[str]:
    """A section with its rows."""
    _, cells = stated()
    lines = [f"## {section.heading}", "", section.text, "", f"| | {' | '.join(WAYS)} | JAX custom_vjp, not run |"]
    lines.append("| --- |" + " --- |" * (len(WAYS) + 1))
    for want, said in rows:
        verdicts = [*(said[way].verdict for way in WAYS), by_jax(want, cells)]
        lines.append(f"| {want.title} | {' | '.join(verdicts)} |")
    return [*lines, ""]


def counts(rows: Sequence[dict[str, Cell]]) -> list[str]:
    """How often each verdict fell, for each way that was run."""
    lines = [f"Of {len(rows)} rows:", ""]
    for way in WAYS:
        fell = Counter(cells[way].verdict for cells in rows)
        lines.append(
            f"* {way}: " + ", ".join(f"{fell[verdict]} {verdict}" for verdict in VERDICTS if fell[verdict]) + "."
        )
    return [*lines, ""]


def facts() -> str:
    """What the table was made with."""
    known = provenance(1, [])
    return f"torch {known['torch']}, python {known['python']}, {known['date']}, python benchmarks/what_works_where.py."


def rows_of(text: str) -> dict[str, str]:
    """The rows of every table in a text, by what they want."""
    found = re.findall(r"^\| ([^|]+?) \| (.*) \|$", text, re.MULTILINE)
    return {title: cells for title, cells in found if not title.startswith("---")}


def between(text: str) -> tuple[str, str, str]:
    """A document in three parts: until the first marker, the tables, from the second marker on."""
    before, opening, rest = text.partition("<!-- table -->\n")
    inside, closing, after = rest.partition("<!-- /table -->")
    if not opening or not closing:
        raise ValueError("the document has lost its markers, <!-- table --> and <!-- /table -->")
    return before + opening, inside, closing + after


def differences(made: str, stands: str, skipped: Sequence[str] = ()) -> list[str]:
    """What a document has otherwise than it was found just now, row by row; `skipped` weren't run."""
    now, then = rows_of(made), rows_of(stands)
    lines = [f"{title}\n  is:     {now[title]}\n  stands: {then.get(title, 'nothing')}" for title in now]
    changed = [line for line, title in zip(lines, now, strict=True) if now[title] != then.get(title)]
    return changed + [f"{title}\n  stands, and is no row" for title in then if title not in {*now, *skipped}]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What works where: each way to write a derivative, tried.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the tables into the document")
    what.add_argument("--check", action="store_true", help="compare with the document, and exit with 1 if it differs")
    parser.add_argument("--quick", action="store_true", help="without the rows that compile")
    parser.add_argument("--errors", action="store_true", help="print what was raised")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose title has this text")
    options = parser.parse_args(arguments)
    if options.write and (options.quick or options.only):
        parser.error("--write takes all rows")
    return options


def run(options: argparse.Namespace, report: Callable[[str], object]) -> tuple[str, list[str]]:
    """Make the experiments; return the tables, and the titles of the rows that were left out."""
    lines, skipped, all_cells = [], [], []
    for section in SECTIONS:
        chosen = [w for w in section.wants if options.only in w.title and not (options.quick and w.compiled)]
        skipped += [want.title for want in section.wants if want not in chosen]
        rows = list(outcomes(chosen))
        lines += table(section, rows) if rows else []
        all_cells += [cells for _, cells in rows]
        for want, cells in rows:
            for way, cell in cells.items():
                if options.errors and cell.raised:
                    report(f"{want.title} — {way}: {cell.verdict}\n    {cell.raised}")
    pages, _ = stated()
    lines += [f"* [{letter}] {page}" for letter, page in pages.items()]
    return "\n".join([*counts(all_cells), *lines, "", facts(), ""]), skipped


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the experiments, and print, write or compare the tables."""
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    made, skipped = run(options, lambda text: print(text, file=sys.stderr))
    if not (options.check or options.write):
        print(made)
        return 0
    before, stands, after = between(DOCUMENT.read_text("utf-8"))
    if options.write:
        DOCUMENT.write_text(before + made + after, "utf-8")
        return 0
    changed = differences(made, stands, skipped)
    print("\n".join(changed) or "The document says what was found.")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
