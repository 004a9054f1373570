"""What the linter was asked to do: defaults, then ``[tool.pullback.lint]``, then the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pullback.cli import settings
from pullback.cli.failure import UsageError
from pullback.cli.parser import CONFIDENCES, FAIL_ON
from pullback.finding import Finding
from pullback.lint.files import matches
from pullback.report.names import FORMATS
from pullback.rules import Severity


@dataclass(frozen=True, kw_only=True)
class LintOptions:
    """The options of ``pullback lint``, after every source of them was read."""

    paths: tuple[str, ...] = ()
    output_format: str = "concise"
    output_file: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    confidence: str = "likely"
    fail_on: str = "warning"
    known_failures: str = ""
    folder: str = ""
    """Where the configuration lies, which per-file patterns are meant from."""

    def __post_init__(self) -> None:
        _validate(self)

    def wants(self, finding: Finding) -> bool:
        """Whether a finding is to be reported, by its rule and its file."""
        if not self.wants_rule(finding.rule):
            return False
        path = _from(self.folder, finding.location.rpartition(":")[0])
        return not any(
            finding.rule.startswith(codes) and matches(path, (pattern,))
            for pattern, codes in self.per_file_ignores.items()
        )

    def wants_rule(self, rule: str) -> bool:
        """Whether findings of a rule are to be reported anywhere."""
        return not rule.startswith(self.ignore) and (not self.select or rule.startswith(self.select))

    def shows(self, finding: Finding) -> bool:
        """Whether a finding is sure enough."""
        confidence = str(finding.evidence.get("confidence", CONFIDENCES[0]))
        return CONFIDENCES.index(confidence) <= CONFIDENCES.index(self.confidence)

    def fails(self, severity: Severity) -> bool:
        """Whether a finding of this severity makes the run fail."""
        return severity is Severity.ERROR or (severity is Severity.WARNING and self.fail_on == "warning")


_TABLE = "[tool.pullback.lint]"
_LISTS = ("paths", "output_file", "select", "ignore", "exclude")
_WHOLE = ("paths", "output_file", "exclude")  # lists of paths, which may hold commas
_PATHS = ("paths", "output_file", "known_failures")


def _from(folder: str, path: str) -> str:
    """A path as it is seen from the folder that has the configuration."""
    try:
        return os.path.relpath(path, folder or ".")
    except ValueError:  # on another drive
        return path


def resolve(arguments: argparse.Namespace, *, start: str) -> LintOptions:
    """Merges the configuration file nearest to a folder with the command line.

    Args:
        arguments: What argparse made of the command line.
        start: The folder from which ``pyproject.toml`` is searched upwards.

    Returns:
        The options, all valid.

    Raises:
        UsageError: A key, a value or a rule's code is unknown.
    """
    path, table = settings.table(start, "lint")
    names = {item.name.replace("_", "-"): item.name for item in fields(LintOptions) if item.name != "folder"}
    configured: dict[str, Any] = {
        names[key]: _value(names[key], table[key], path) for key in settings.known(table, names, path, "lint")
    }
    try:
        options = LintOptions(**configured, folder=os.path.dirname(path) or start)
    except UsageError as error:
        raise UsageError(f"{path}: {_TABLE}: {error}") from None
    given = {name: getattr(arguments, name, None) for name in names.values()}
    if arguments.hints:
        given["confidence"] = "possible"
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, [])}
    for name, value in chosen.items():
        settings.demand_text(value, f"--{name.replace('_', '-')}" if name != "paths" else "a path", path=name in _PATHS)
        if name in _LISTS:
            chosen[name] = tuple(value) if name in _WHOLE else settings.split(value)
    return replace(options, **chosen)


def _value(name: str, value: object, path: str) -> object:
    key = name.replace("_", "-")
    if name == "per_file_ignores":
        return _per_file(value, path)
    if name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise UsageError(f"{path}: {key} in {_TABLE} must be a list of strings, got {value!r}")
        settings.demand_text(value, f"{path}: an entry of {key} in {_TABLE}", path=name in _PATHS)
        if name in ("paths", "output_file"):
            return tuple(_beside(path, entry) for entry in value)
        return tuple(value) if name in _WHOLE else settings.split(value)
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key} in {_TABLE} must be of type str, got {value!r}")
    settings.demand_text(value, f"{path}: {key} in {_TABLE}", path=name in _PATHS)
    return _beside(path, value) if name == "known_failures" else value


def _beside(path: str, entry: str) -> str:
    """A path in the configuration file is meant from that file's folder."""
    from pathlib import Path  # here, since most runs have no such file, or none that names a path

    return str(Path(path).parent / entry)


def _per_file(value: object, path: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: per-file-ignores in {_TABLE} must be a table, got {value!r}")
    for pattern, codes in value.items():
        if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            got = f"{pattern!r} = {codes!r}"
            raise UsageError(f"{path}: per-file-ignores in {_TABLE} must give a pattern a list of codes, got {got}")
    return {pattern: settings.split(codes) for pattern, codes in value.items()}


def _validate(options: LintOptions) -> None:
    choices = (("output_format", FORMATS), ("fail_on", FAIL_ON), ("confidence", CONFIDENCES))
    for name, allowed in choices:
        value = getattr(options, name)
        if value not in allowed:
            raise UsageError(f"{name.replace('_', '-')} must be one of {', '.join(allowed)}; got {value!r}")
    for name in ("select", "ignore"):
        settings.demand_codes(getattr(options, name), f"--{name}")
    for pattern, codes in options.per_file_ignores.items():
        settings.demand_codes(codes, f"per-file-ignores of {pattern!r}")
    for file in options.output_file:
        settings.demand_writable(file)
        if options.known_failures and os.path.realpath(file) == os.path.realpath(options.known_failures):
            raise UsageError(f"output-file: {file} is the file of known failures, which a report would replace")
