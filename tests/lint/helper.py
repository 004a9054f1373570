"""Lints a source text, for tests."""

from __future__ import annotations

import textwrap

from pullback.finding import Finding
from pullback.lint.run import lint_text

HEAD = "import torch\nfrom torch.autograd import Function\n"


def findings(text: str, *, hints: bool = False) -> list[Finding]:
    """What the linter finds in a text at its default level, or with every hint; each file of it must be judged."""
    linted = lint_text(textwrap.dedent(text))
    assert linted.notes == ()
    found = [finding for report in linted.reports for finding in report.findings]
    return [one for one in found if hints or one.evidence["confidence"] != "possible"]


def found(text: str, *, hints: bool = False) -> list[str]:
    """The same as ``12 PB403``, in order of lines."""
    several = sorted((int(one.location.rpartition(":")[2]), one.rule) for one in findings(text, hints=hints))
    return [f"{line} {rule}" for line, rule in several]


def expected(text: str) -> list[str]:
    """The lines of a text that end in a comment ``# PB403``, written as `found` writes findings."""
    lines = enumerate(textwrap.dedent(text).splitlines(), 1)
    marks = [(number, line.rpartition("# PB")[2]) for number, line in lines if "# PB" in line]
    return [f"{number} PB{code}" for number, codes in marks for code in codes.replace(" PB", " ").split()]
