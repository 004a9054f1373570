"""Tracebacks that end where the user's code is, not inside pullback."""

from __future__ import annotations

import os
from types import CodeType, TracebackType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

GENERATED = "<pullback: "
"""How the file name of generated code begins."""


def is_own(code: CodeType) -> bool:
    """Whether `code` is pullback's."""
    return code.co_filename.startswith((_HERE, GENERATED))


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """`traceback` without the frames that run pullback's code.

    The frame that handles the error must be left by a bare ``raise``, which adds no entry of its own.
    """
    kept = []
    while traceback is not None:
        if not is_own(traceback.tb_frame.f_code):
            kept.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
