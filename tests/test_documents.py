"""Each piece of Python in the documents runs, and each Function in it that has samples is found right."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pullback

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HOW_TO = ROOT / "docs" / "how-to.md"


def blocks(path: Path) -> list[tuple[int, str]]:
    """Return the blocks of Python in a document, each with its line."""
    text = path.read_text("utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found]


def each_block() -> Iterator[object]:
    """Give each block of each document as a parameter, named by its place."""
    for path in DOCUMENTS:
        for line, source in blocks(path):
            yield pytest.param(source, id=f"{path.relative_to(ROOT)}:{line}")


def imported(path: Path) -> ModuleType:
    """Import a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
@pytest.mark.parametrize("source", [*each_block()])
def test_code_in_the_documents_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block runs as a file by itself; what it proves with an assert holds, and a test in it passes."""
    path = tmp_path / "ops.py"
    path.write_text(source, "utf-8")
    monkeypatch.setitem(sys.modules, "ops", ModuleType("ops"))  # so that it is put back afterwards
    module = imported(path)
    functions = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, "samples")]
    for function in functions:
        assert issubclass(function, torch.autograd.Function)
        report = pullback.check(function)
        assert not report.findings, str(report)
    for name, value in list(vars(module).items()):
        if name.startswith("test_"):
            value()


def test_each_declaration_has_an_example() -> None:
    """What a class can declare is shown in the how-to."""
    shown = "\n".join(source for _, source in blocks(HOW_TO))
    declared = ["samples", "reference", "surrogate", "double_backward", "expected_backward"]
    assert [name for name in declared if f"def {name}(" not in shown] == []
    flags = ["nonlinear_backward", "contiguous_grads", "nondiff_argnames"]
    assert [name for name in flags if f"    {name} = " not in shown] == []
    assert "constants=(" in shown


def test_each_way_to_vary_a_sample_is_explained() -> None:
    """The table in the how-to has the entries of Sample.vary, no more and no less."""
    section = HOW_TO.read_text("utf-8").partition("what it may vary:")[2].partition("\n## ")[0]
    assert tuple(re.findall(r'^\| `"(\w+)"`', section, re.MULTILINE)) == pullback.Sample(()).vary


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_hold(path: Path) -> None:
    """A link to a part of the same page leads to a heading."""
    text = path.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {anchor for anchor in re.findall(r"\]\(#([^)]+)\)", text)} <= anchors
