"""Every format that a report can be written in, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pullback.finding import Report
from pullback.report import text
from pullback.report.names import FORMATS
from pullback.report.remarks import NO_REMARKS, Remarks

_Writer = Callable[[Sequence[Report], Remarks, int], str]

# Each writer is imported when it is used, so that a line for each finding doesn't wait for the others' imports.


def _json(reports: Sequence[Report], remarks: Remarks, width: int) -> str:
    from pullback.report import json

    return json.dumps(reports, remarks=remarks)


def _junit(reports: Sequence[Report], remarks: Remarks, width: int) -> str:
    from pullback.report import junit

    return junit.document(reports, remarks=remarks)


def _github(reports: Sequence[Report], remarks: Remarks, width: int) -> str:
    from pullback.report import github

    return github.commands(reports, remarks=remarks)


def _sarif(reports: Sequence[Report], remarks: Remarks, width: int) -> str:
    from pullback.report import sarif

    return sarif.log(reports, remarks=remarks)


def _html(reports: Sequence[Report], remarks: Remarks, width: int) -> str:
    from pullback.report import html

    return html.page(reports, remarks=remarks)


_WRITERS: Mapping[str, _Writer] = {
    "full": lambda reports, remarks, width: text.full(reports, remarks=remarks, width=width),
    "concise": lambda reports, remarks, _: text.concise(reports, remarks=remarks),
    "json": _json,
    "junit": _junit,
    "github": _github,
    "sarif": _sarif,
    "html": _html,
}


def write(reports: Sequence[Report], name: str, *, remarks: Remarks = NO_REMARKS, width: int = text.WIDTH) -> str:
    """Writes reports in one of the formats.

    Args:
        reports: What to write, in this order.
        name: The format, one of `FORMATS`.
        remarks: What the run has to say beside the reports.
        width: Where prose of the format ``full`` is wrapped.

    Returns:
        The text, without a newline at its end.

    Raises:
        ValueError: There is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"there is no report format {name!r}; the formats are {', '.join(FORMATS)}")
    return _WRITERS[name](reports, remarks, width)
