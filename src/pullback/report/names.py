"""The names of the formats, and which one the name of a file asks for; without the writers, for quick commands."""

from __future__ import annotations

from collections.abc import Mapping

FORMATS = ("full", "concise", "json", "junit", "github", "sarif", "html")
"""Every format that a report can be written in; `pullback.report.formats` writes them."""

SUFFIXES: Mapping[str, str] = {
    ".txt": "full",
    ".sarif.json": "sarif",
    ".json": "json",
    ".xml": "junit",
    ".sarif": "sarif",
    ".html": "html",
}
"""End of a file's name -> the format that it asks for; the first that fits counts."""


def format_of(path: str) -> str:
    """The format that a file's name asks for.

    Raises:
        ValueError: Its end says nothing.
    """
    for suffix, name in SUFFIXES.items():
        if path.lower().endswith(suffix):
            return name
    known = ", ".join(f"{suffix} ({name})" for suffix, name in SUFFIXES.items())
    raise ValueError(f"the name of {path} doesn't say its format; it has to end in one of {known}")
