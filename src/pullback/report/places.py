"""From ``file.py:12`` to a file and a line, and to an identity that the next run has too."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pullback.finding import Finding, Report

_FRAME = re.compile(r"([^:,]+\.py):(\d{1,9}) in ")  # nine digits, since Python refuses to read thousands
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_IDENTITY = ("argument", "output", "tensor", "leaf")


@dataclass(frozen=True)
class Place:
    """A line of a file.

    Attributes:
        path: The file, from the working directory if it is in it, with slashes.
        line: The line, from 1 on; None if it isn't known.
        inside: Whether the file is in the working directory, so that `path` means the same on other machines.
    """

    path: str
    line: int | None = None
    inside: bool = True


def place_of(finding: Finding, report: Report | None = None) -> Place | None:
    """Where to point a reader: at the line on which a probe died, else at the definition.

    Args:
        finding: The finding.
        report: The report that it is in, whose location counts where the finding has none.
    """
    place = read(finding.location or (report.location if report is not None else ""))
    died = _FRAME.match(finding.where)
    if place is not None and died is not None and os.path.basename(place.path) == os.path.basename(died[1]):
        return Place(place.path, int(died[2]), place.inside)
    return place


def read(location: str) -> Place | None:
    """The place that ``file.py:12`` names; None for what is no file, such as ``<string>:1``."""
    path, colon, line = location.rpartition(":")
    if not colon or not line.isdecimal() or len(line) > 9:
        path, line = location, ""
    if not path or path.startswith("<"):
        return None
    inside, shown = _from_here(path)
    return Place(shown.replace(os.sep, "/"), max(int(line), 1) if line else None, inside)


def _from_here(path: str) -> tuple[bool, str]:
    """Whether a file is in the working directory, and its path from there if it is."""
    if os.sep == "/" and _WINDOWS.match(path):  # in a report that was written on Windows
        return False, path.replace("\\", "/")
    try:
        here, whole = os.path.realpath(os.curdir), os.path.realpath(path)
    except ValueError:  # NUL, or half of a surrogate pair: no file has such a name
        return not os.path.isabs(path), path
    try:
        inside = os.path.commonpath([here, whole]) == here
    except ValueError:  # on another drive
        inside = False
    return inside, os.path.relpath(whole, here) if inside else whole


def fingerprints(findings: Iterable[tuple[Finding, Place | None]]) -> Iterator[str]:
    """An identity for each finding that stays the same while the fault does.

    It is made of the rule, the file, the Function and what of it is at fault; not of lines, seeds, samples and numbers,
    which change while nothing is mended. Findings that would share one are numbered.
    """
    seen: dict[str, int] = {}
    for finding, place in findings:
        parts = [finding.rule, _file(place), finding.function, *_at_fault(finding)]
        # Each with its length in front, so that no two lists of parts read alike.
        text = "".join(f"{len(part)}:{part}" for part in parts)
        number = seen[text] = seen.get(text, 0) + 1
        yield hashlib.sha256(f"{text}#{number}".encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _file(place: Place | None) -> str:
    """The file as other machines know it, too: of one that lies elsewhere, such as an installed package, the name."""
    if place is None:
        return ""
    return place.path if place.inside else place.path.rpartition("/")[2]


def _at_fault(finding: Finding) -> list[str]:
    named = [f"{key} {finding.evidence[key]}" for key in _IDENTITY if key in finding.evidence]
    return named or [re.sub(r"\d+", "0", finding.where)]
