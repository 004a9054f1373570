"""Every format that a report can be written in, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pullback.finding import Report
from pullback.report import github, html, json, junit, sarif, text
from pullback.report.names import FORMATS
from pullback.report.remarks import NO_REMARKS, Remarks

_Writer = Callable[[Sequence[Report], Remarks, int], str]

_WRITERS: Mapping[str, _Writer] = {
    "full": lambda reports, remarks, width: text.full(reports, remarks=remarks, width=width),
    "concise": lambda reports, remarks, _: text.concise(reports, remarks=remarks),
    "json": lambda reports, remarks, _: json.dumps(reports, remarks=remarks),
    "junit": lambda reports, remarks, _: junit.document(reports, remarks=remarks),
    "github": lambda reports, remarks, _: github.commands(reports, remarks=remarks),
    "sarif": lambda reports, remarks, _: sarif.log(reports, remarks=remarks),
    "html": lambda reports, remarks, _: html.page(reports, remarks=remarks),
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
