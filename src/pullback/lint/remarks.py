"""Comments in which an author says why something stands there that a rule would speak of."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from pullback.lint.record import Guard
from pullback.lint.source import Source

_COMMENT = re.compile(r"#(?P<text>.*)$")
_REASON = re.compile(
    r"save_for_backward|saved[ _]tensor|\bhooks?\b|\bleak|\bcycle|\bidentity\b|\bsame object|reference|subclass"
    r"|\bdirectly\b|\bpurpose|\bintention|\bdeliberate|\bavoid|\bbypass|\bworkaround|\bbecause\b|\binstead\b|n't\b|\bnot\b|\bnoqa\b",
    re.IGNORECASE,
)
"""Words of somebody who knows what would be usual, and does something else."""

_SPARED = re.compile(
    r"\bmemory\b|\breus(e|es|ed|ing)\b|\boverwrit|\bpurpose|\bintention|\bdeliberate|\bbecause\b|\bsafe\b|\bno longer\b"
    r"|\bnot (needed|used|read) any ?more\b|\bscratch\b",
    re.IGNORECASE,
)
"""Words of somebody who knows that memory is written to which others hold, and why."""

_FLAG = re.compile(r"in_?place|overwrit|reuse|donate", re.IGNORECASE)
"""Names of arguments by which a caller gives leave to write into what he holds."""


def explains(source: Source, node: ast.expr | ast.stmt) -> bool:
    """Whether a comment gives a reason for what stands at a node: on its line, or above it in the same paragraph.

    A paragraph ends at an empty line, and where the code is less indented.
    """
    return any(_REASON.search(text) is not None for text in _comments(source, node))


def explains_write(source: Source, node: ast.expr | ast.stmt) -> bool:
    """Whether a comment on a node's line, or above it in the same paragraph, says why memory is written to there."""
    return any(_SPARED.search(text) is not None for text in _comments(source, node))


def asked_for(guards: Iterable[Guard], arguments: Collection[str]) -> bool:
    """Whether something runs only where the caller asks for it by an argument such as ``inplace``.

    Args:
        guards: What it stands under.
        arguments: The names of forward's arguments; ``ctx.inplace`` is taken for the one called ``inplace``.
    """
    return any(
        guard.kind == "if" and guard.holds and guard.test is not None and _asks(guard.test, arguments)
        for guard in guards
    )


def _asks(test: ast.expr, arguments: Collection[str]) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks(part, arguments) for part in test.values)
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name in arguments and _FLAG.search(name) is not None


def _comments(source: Source, node: ast.expr | ast.stmt) -> list[str]:
    lines = source.lines
    if node.lineno > len(lines):
        return []
    here = lines[node.lineno - 1]
    said = [here]
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip() or _indent(line) < _indent(here):
            break
        said.append(line)
    return [found["text"] for line in said if (found := _COMMENT.search(line)) is not None]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
