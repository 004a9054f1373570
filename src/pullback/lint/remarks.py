"""Comments in which an author says why something stands there that a rule would speak of."""

from __future__ import annotations

import ast
import re

from pullback.lint.source import Source

_COMMENT = re.compile(r"#(?P<text>.*)$")
_REASON = re.compile(
    r"save_for_backward|saved[ _]tensor|\bhooks?\b|\bleak|\bcycle|\bidentity\b|\bsame object|reference|subclass"
    r"|\bdirectly\b|\bpurpose|\bintention|\bdeliberate|\bavoid|\bbypass|\bworkaround|\bbecause\b|\binstead\b|n't\b|\bnot\b|\bnoqa\b",
    re.IGNORECASE,
)
"""Words of somebody who knows what would be usual, and does something else."""


def explains(source: Source, node: ast.expr | ast.stmt) -> bool:
    """Whether a comment gives a reason for what stands at a node: on its line, or above it in the same paragraph.

    A paragraph ends at an empty line, and where the code is less indented.
    """
    lines = source.lines
    if node.lineno > len(lines):
        return False
    here = lines[node.lineno - 1]
    said = [here]
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip() or _indent(line) < _indent(here):
            break
        said.append(line)
    comments = (found["text"] for line in said if (found := _COMMENT.search(line)) is not None)
    return any(_REASON.search(text) is not None for text in comments)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
