"""Reports in files, beside what goes to standard output."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pullback.finding import Report
from pullback.report.formats import write
from pullback.report.names import format_of
from pullback.report.remarks import Remarks


def unwritable(files: Sequence[str]) -> list[str]:
    """Why some of the files can't be written, found out before the work whose report they are to hold.

    Their folders are made, as they will be needed.
    """
    faults = []
    for file in files:
        path = Path(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                path.open("ab").close()
            else:
                tempfile.TemporaryFile(dir=path.parent).close()  # leaves nothing behind, whatever becomes of the run
        except (OSError, ValueError) as error:
            faults.append(_fault(path, error))
    return faults


def _fault(path: Path, error: OSError | ValueError) -> str:
    # A ValueError: the encoding of file names lacks a character.
    return f"can't write {path}: {getattr(error, 'strerror', None) or error}"


def write_files(reports: Sequence[Report], remarks: Remarks, files: Sequence[str]) -> list[str]:
    """Writes the report to each file; why some could not be written."""
    faults = []
    for file in files:
        path = Path(file)
        text = write(reports, format_of(path.name), remarks=remarks)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
        except (OSError, ValueError) as error:
            faults.append(_fault(path, error))
    return faults
