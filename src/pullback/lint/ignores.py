"""Comments that set findings aside: ``# pullback: ignore[PB203, PB311] reason``.

One stands on the line of the finding; on the line of a ``class`` or ``def`` it holds for all of that. It names codes
(``PB2`` stands for all of PB2xx) and has a reason: one without hides nothing, and one that hides nothing is told.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pullback.finding import Finding
from pullback.lint.files import Note
from pullback.rules import RULES

_MARK = re.compile(rb"pullback:\s*ignore")

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Delete)

_COMMENT = re.compile(r"#\s*pullback:\s*ignore\b(?:\[([^\]]*)\])?(.*)")


def is_in(content: bytes) -> bool:
    """Whether a file may have such a comment."""
    return b"pullback:" in content and _MARK.search(content) is not None  # most files are told by the first alone


class Ignore(NamedTuple):
    """One comment.

    Attributes:
        path: Its file.
        line: Where it stands.
        codes: The codes that it names, or beginnings of codes.
        reason: Why; empty if none is given.
        first: The first line that it holds for.
        last: The last one.
    """

    path: str
    line: int
    codes: tuple[str, ...]
    reason: str
    first: int
    last: int

    def covers(self, finding: Finding) -> bool:
        """Whether it sets a finding aside."""
        path, _, line = finding.location.rpartition(":")
        here = path == self.path and self.first <= int(line) <= self.last
        return here and bool(self.reason) and any(finding.rule.startswith(code) for code in self.codes)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: ignore[{', '.join(self.codes)}]"


def read(path: str, text: str, tree: ast.Module | None) -> tuple[list[Ignore], list[Note]]:
    """The comments of a file that set findings aside, and what is wrong with some of them.

    Args:
        path: The file.
        text: Its text.
        tree: Its tree; None if there is nothing in it to find.
    """
    blocks = dict(_blocks(tree)) if tree is not None else {}
    found: list[Ignore] = []
    notes: list[Note] = []
    for line, comment in _comments(text):
        match = _COMMENT.search(comment)
        if match is None:
            continue
        codes = tuple(code.strip() for code in (match[1] or "").split(",") if code.strip())
        reason = match[2].strip(" :-") if re.search(r"\w", match[2]) else ""
        unknown = [code for code in codes if not re.match(r"PB\d", code) or not any(c.startswith(code) for c in RULES)]
        if unknown or not codes:
            what = f"there is no rule {unknown[0]!r}" if unknown else "it names no code, such as ignore[PB203]"
            notes.append(Note(path, f"line {line}: an ignore hides nothing: {what}"))
        elif not reason:
            notes.append(Note(path, f"line {line}: ignore[{', '.join(codes)}] hides nothing: it gives no reason"))
        else:
            found.append(Ignore(path, line, codes, reason, *blocks.get(line, (line, line))))
    return found, notes


def _comments(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):  # what could be read up to there counts
        return


def _blocks(tree: ast.Module) -> Iterator[tuple[int, tuple[int, int]]]:
    """Line of a ``class`` or ``def``, its decorators and parameters, or the last of a statement -> the lines it has."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min((one.lineno for one in node.decorator_list), default=node.lineno)
            for line in range(first, max(node.body[0].lineno, node.lineno + 1)):
                yield line, (first, node.end_lineno or node.lineno)
        elif isinstance(node, _SIMPLE) and node.end_lineno and node.end_lineno > node.lineno:
            yield node.end_lineno, (node.lineno, node.end_lineno)  # behind the last bracket, where formatters put it


def apart(
    findings: Iterable[Finding], ignores: Sequence[Ignore]
) -> tuple[list[Finding], list[tuple[Finding, str]], set[int]]:
    """Findings that stay, those set aside with the reason, and which of the comments (by id) did that."""
    kept: list[Finding] = []
    aside: list[tuple[Finding, str]] = []
    used: set[int] = set()
    for finding in findings:
        covering = [one for one in ignores if one.covers(finding)]
        used |= {id(one) for one in covering}
        if covering:
            aside.append((finding, covering[0].reason))
        else:
            kept.append(finding)
    return kept, aside, used
