"""Colours for the text of reports, on a terminal."""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text

_STYLES = (
    (r"^  PB\d{3} error: .*$", "bold red"),
    (r"^  PB\d{3} warning: .*$", "bold yellow"),
    (r"^  PB\d{3} hint: .*$", "bold cyan"),
    (r"^    (where|what|expected|got|remedy|to see it):", "dim"),
    (r"^unexpected pass:", "bold red"),
    (r"\bPB\d{3}\b", "bold"),
)


def write(text: str) -> None:
    """Writes text and a newline to standard output, with the words that matter coloured.

    Args:
        text: The plain text of a report or a rule.
    """
    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    Console(highlight=False).print(styled, soft_wrap=True)
