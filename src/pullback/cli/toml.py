"""Reading and writing the little TOML that the command line needs, on every supported Python."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pullback.cli.failure import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: The file.

    Returns:
        Its tables.

    Raises:
        UsageError: The file can't be read, or isn't TOML.
    """
    try:
        with open(path, encoding="utf-8") as text:
            return tomllib.loads(text.read())
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} isn't valid TOML: {error}") from error


def quoted(text: str) -> str:
    """Text as a basic TOML string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
