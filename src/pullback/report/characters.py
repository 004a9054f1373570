"""Characters that must not reach a reader as they are: what comes from checked code may hold anything.

A name, a message or a path may hold NUL, the codes that colour a terminal, halves of surrogate pairs (which no encoding
has), or marks that make text run from right to left, so that a line reads as other code than it is.
"""

from __future__ import annotations

import re

# The controls but tab and line feed, surrogates, the direction marks, the byte order mark and noncharacters.
_UNFIT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: str) -> str:
    r"""The text with each unfit character written as an escape, such as ``\x1b``; ends of lines become line feeds."""
    return _UNFIT.sub(_escape, text.replace("\r\n", "\n"))


def flat(text: str) -> str:
    """The text on one line."""
    return " ".join(visible(text).split())


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
