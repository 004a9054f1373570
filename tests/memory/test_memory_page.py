"""What docs/memory.md shows is what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import torch

from pullback.memory.advice import TABLE

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text("utf-8")


def test_the_report_on_the_page_is_what_the_code_prints() -> None:
    """The report under the first piece of code is its output."""
    code, shown = re.findall(r"^```(?:python|text)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "memory.md", "exec"), {"__name__": "page"})
    assert printed.getvalue() == shown


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    """The table of the three ways to keep a tensor has the numbers that the code above it asserts."""
    section = PAGE.partition("the same tensor three times\n\n")[2].partition("\n## ")[0]
    (asserted,) = re.findall(r"assert figures == (\{.*\})", section)
    rows = re.findall(r"^\| [^|]* \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", section, re.MULTILINE)
    table = [tuple(int(cell.replace(",", "")) for cell in row) for row in rows]
    figures = re.findall(r"\((\d+), (\d+), (\d+)\)", asserted)
    assert table == [tuple(map(int, figure)) for figure in figures]
    assert len(table) == 3


def test_the_table_of_what_to_use_is_the_ledgers_own() -> None:
    """Each row is one that the ledger knows, in its order, and the random state has the bytes that are told."""
    section = PAGE.partition("## What would free it\n\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| `([^`]+)` \|", section, re.MULTILINE)
    assert {tuple(names.split(", ")): use for names, use in rows} == dict(TABLE)
    assert f"keeps {torch.get_rng_state().nbytes:,} bytes of random state" in section
