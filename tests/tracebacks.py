"""Where an error's traceback leads: to the user's own code, and never through pullback's."""

from __future__ import annotations

import traceback
from pathlib import Path

import pullback
from pullback.call.frames import GENERATED

PACKAGE = Path(pullback.__file__).parent


def files(error: BaseException) -> list[str]:
    """Return the file of each frame in the traceback of `error`, outermost first."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def last_function(error: BaseException) -> str:
    """Return the name of the function that the traceback ends in."""
    return traceback.extract_tb(error.__traceback__)[-1].name


def is_pullbacks(file: str) -> bool:
    """Tell whether a frame's file is pullback's, or code that it generated."""
    return file.startswith(GENERATED) or PACKAGE in Path(file).parents
