"""A file that can't be parsed is a note, and never an exception."""

from __future__ import annotations

import time

import pytest

from pullback.lint.files import Note
from pullback.lint.run import lint_text
from pullback.lint.source import Source, parse

CLASS = b"from torch.autograd import Function\nclass F(Function):\n    pass\n"


def test_a_whole_file_is_parsed() -> None:
    """With its module's name, its names and its places."""
    source = parse("ops.py", CLASS)
    assert isinstance(source, Source)
    assert source.module == "ops"
    assert source.place(source.tree.body[1]) == "ops.py:2"


def test_columns_are_characters() -> None:
    """An editor counts those, and `ast` counts bytes."""
    body = 'y = x\n        s = "héé"; x.mul_(2)\n        return x\n'
    head = "from torch.autograd import Function\nclass Été(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    text = f"{head}        {body}"
    found = [finding for report in lint_text(text).reports for finding in report.findings]
    assert [finding.evidence["column"] for finding in found] == [20]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_python_has_it(end: str) -> None:
    """Places, calls and comments are found where lines end in CR, or in CR and LF, beside letters of two bytes."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        '        s = "héé"; x.mul_(2)\n        return x\n    @staticmethod\n    def backward(ctx, g):\n'
        "        g.mul_(2)  # pullback: ignore[PB403] g is ours\n        return g\n\n\ny = F.apply()\n"
    )
    linted = lint_text(text.replace("\n", end).encode())
    found = [finding for report in linted.reports for finding in report.findings]
    places = [(one.rule, one.location, one.evidence["column"]) for one in found]
    assert places == [("PB401", "text.py:5", 20), ("PB131", "text.py:13", 5)]
    assert [finding.rule for finding, _ in linted.ignored] == ["PB403"]
    assert linted.notes == linted.stale == ()


DOUBLED = [
    "h = (h, h)",
    "h = [h, h]",
    "h = h + h",
    "h += h",
    "h = (h, g) if q else (g, h)",
    "h = (h, h) if q else [h, h]",
    "h = [h for h in (h, h)]",
    "h, k = (h, k), (k, h)",
    "ctx.h = (ctx.h, ctx.h)",
]


@pytest.mark.parametrize("line", DOUBLED)
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_tuples_that_double_take_no_time(line: str, method: str) -> None:
    """Lines of which each doubles what a name holds: the last would have hundreds of millions of parts."""
    body = "\n        ".join(["h = k = ctx.h = (g,)", *[line] * 28, "return h"])
    text = f"from torch.autograd import Function\nclass F(Function):\n    @staticmethod\n    def {method}(ctx, g):\n"
    started = time.process_time()
    linted = lint_text(f"{text}        {body}\n")
    assert time.process_time() - started < 2
    assert linted.notes == ()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"class F(:\n", "line 1 can't be parsed"),
        (CLASS + b"x = (\n", "can't be parsed"),
        (CLASS + b"x = " + b"(" * 5000 + b")" * 5000, "can't be parsed"),
        (CLASS + b"x = " + b"[" * 150 + b"]" * 150 + b"\n" + b"x = " + b"-" * 50000 + b"1\n", "can't be parsed"),
        (CLASS + b"print 'old'\n", "line 4 can't be parsed"),
        (CLASS + b"x = '\0'\n", "can't be parsed"),
        (CLASS + b"\xff\xfe\n", "its encoding can't be read"),
    ],
)
def test_what_is_no_python_is_a_note(content: bytes, sentence: str) -> None:
    """Syntax errors, brackets and signs nested by the thousand, NUL, and bytes of no encoding."""
    note = parse("ops.py", content)
    assert isinstance(note, Note)
    assert note.path == "ops.py"
    assert sentence in note.sentence
    assert "\n" not in note.sentence


def test_a_line_of_ten_megabytes_is_read() -> None:
    """Its Function is found beside it."""
    linted = lint_text(CLASS + b"x = '" + b"a" * 10_000_000 + b"'\n")
    assert [report.function for report in linted.reports] == ["F"]


@pytest.mark.parametrize("depth", [200, 900, 3000])
def test_deep_code_is_read_or_noted(depth: int) -> None:
    """A sum of thousands in forward is judged, or the file's note says that it isn't."""
    body = "    @staticmethod\n    def forward(ctx, x):\n        return " + " + ".join(["x"] * depth) + "\n"
    linted = lint_text(CLASS.decode().replace("    pass\n", body))
    assert linted.notes or [report.function for report in linted.reports] == ["F"]


@pytest.mark.parametrize("depth", [20, 90])
def test_deep_blocks_are_read_or_noted(depth: int) -> None:
    """So are blocks within blocks, as many as Python takes."""
    lines = [f"{'    ' * level}if x:" for level in range(depth)]
    text = "\n".join(["from torch.autograd import Function", *lines, "    " * depth + "class F(Function): pass"])
    linted = lint_text(text)
    assert linted.notes or [report.function for report in linted.reports] == ["F"]


def test_a_bad_escape_warns_nobody() -> None:
    """Python's own warnings about a file are the file's affair; here they would be errors."""
    assert isinstance(parse("ops.py", CLASS + b"x = '\\d'\n"), Source)


def test_a_deep_annotation_is_read() -> None:
    """The Function is judged without it."""
    method = f"    @staticmethod\n    def forward(ctx, x: {' | '.join(['int'] * 4000)}): return x\n"
    linted = lint_text(CLASS.decode().replace("    pass\n", method))
    assert linted.notes or [report.function for report in linted.reports] == ["F"]
