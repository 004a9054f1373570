"""Errors that nobody meant: an operator of PyTorch's that doesn't get what it needs, told apart from a refusal."""

from __future__ import annotations

import dis
import re
from types import TracebackType

from pullback.battery.raised import text_of

_SHAPES = re.compile(r"\b(shapes?|sizes?|dimensions?)\b", re.IGNORECASE)
_DTYPES = re.compile(r"dtype|scalar type|implement|support|half|float|double|divisible|multiple of", re.IGNORECASE)


def is_slip(error: BaseException) -> bool:
    """Whether an operator complains of shapes alone, and no line of Python raised that.

    Asked of arguments of which another dtype alone is new, so that their shapes can't be what is wrong.
    """
    text = text_of(error)
    plain = isinstance(error, RuntimeError) and bool(_SHAPES.search(text)) and not _DTYPES.search(text)
    return plain and not _is_raised_by_hand(error.__traceback__)


def _is_raised_by_hand(trace: TracebackType | None) -> bool:
    """Whether the innermost line of Python is a ``raise``."""
    if trace is None:
        return True  # nobody knows
    while trace.tb_next is not None:
        trace = trace.tb_next
    instructions = dis.get_instructions(trace.tb_frame.f_code)
    return any(one.offset == trace.tb_lasti and one.opname in ("RAISE_VARARGS", "RERAISE") for one in instructions)
