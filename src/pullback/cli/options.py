"""What a check was asked to do: defaults, then ``[tool.pullback.check]``, then the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pullback.cli import settings
from pullback.cli.failure import UsageError
from pullback.cli.parser import FAIL_ON
from pullback.finding import LARGEST_SEED
from pullback.report.names import FORMATS
from pullback.report.remarks import NOT_CHECKED
from pullback.rules import Severity


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of ``pullback check``, after every source of them was read."""

    targets: tuple[str, ...] = ()
    output_format: str = "full"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "warning"
    orders: int = 2
    samples: str = ""
    seed: int = 0
    timeout: float = 120.0
    known_failures: str = ""
    show_output: bool = False
    output_file: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    def wants(self, rule: str) -> bool:
        """Whether findings of a rule are to be reported."""
        if any(rule.startswith(prefix) for prefix in self.ignore):
            return False
        return not self.select or rule in NOT_CHECKED or any(rule.startswith(prefix) for prefix in self.select)

    def fails(self, severity: Severity) -> bool:
        """Whether a finding of this severity makes the run fail."""
        return severity is Severity.ERROR or (severity is Severity.WARNING and self.fail_on == "warning")

    @property
    def whole_battery(self) -> bool:
        """Whether nothing keeps a probe from running, so that a fault that isn't found isn't there any more."""
        return not self.only and not self.skip and self.orders == 2


_NAMING = ("targets", "only", "skip", "samples", "known_failures")
_LISTS = ("targets", "only", "skip", "select", "ignore", "output_file")
_WHOLE = ("targets", "output_file")  # lists of paths, which may hold commas
_PATHS = ("targets", "output_file", "known_failures")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "output_format": (str,),
    "fail_on": (str,),
    "orders": (int,),
    "samples": (str,),
    "seed": (int,),
    "timeout": (int, float),
    "known_failures": (str,),
    "show_output": (bool,),
}


def resolve(arguments: argparse.Namespace, *, start: str) -> CheckOptions:
    """Merges the configuration file nearest to a folder with the command line.

    Args:
        arguments: What argparse made of the command line.
        start: The folder from which ``pyproject.toml`` is searched upwards.

    Returns:
        The options, all valid.

    Raises:
        UsageError: A key, a value or a rule's code is unknown.
    """
    configured = _configured(start)
    try:
        options = CheckOptions(**configured)
    except UsageError as error:
        raise UsageError(f"{settings.file(start)}: [tool.pullback.check]: {error}") from None
    chosen = _given(arguments)
    for name, value in chosen.items():
        settings.demand_text(
            value, f"--{name.replace('_', '-')}" if name != "targets" else "a target", path=name in _PATHS
        )
    for name in set(_LISTS) & chosen.keys():
        chosen[name] = tuple(chosen[name]) if name in _WHOLE else settings.split(chosen[name])
    return replace(options, **chosen)


def origin(arguments: argparse.Namespace, *, start: str) -> str:
    """Which options that name something come from the configuration file, in words; empty if there are none.

    What they name may turn out not to exist, and whoever reads that should know where to look.
    """
    used = _configured(start).keys() - _given(arguments).keys()
    keys = [name.replace("_", "-") for name in _NAMING if name in used]
    if not keys:
        return ""
    verb = "is" if len(keys) == 1 else "are"
    return f"{', '.join(keys)} {verb} set in [tool.pullback.check] of {settings.file(start)}"


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {item.name: getattr(arguments, item.name) for item in fields(CheckOptions)}
    return {name: value for name, value in given.items() if value not in (None, [])}


def _configured(start: str) -> dict[str, Any]:
    path, table = settings.table(start, "check")
    names = {item.name.replace("_", "-"): item.name for item in fields(CheckOptions)}
    return {names[key]: _value(names[key], table[key], path) for key in settings.known(table, names, path, "check")}


def _value(name: str, value: object, path: str) -> object:
    key = name.replace("_", "-")
    if name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise UsageError(f"{path}: {key} in [tool.pullback.check] must be a list of strings, got {value!r}")
        settings.demand_text(value, f"{path}: an entry of {key} in [tool.pullback.check]", path=name in _PATHS)
        if name == "targets":
            return tuple(_beside(path, entry) for entry in value)
        if name == "output_file":
            return tuple(str(Path(path).parent / entry) for entry in value)
        return settings.split(value)
    if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name]):
        expected = " or ".join(kind.__name__ for kind in _TYPES[name])
        raise UsageError(f"{path}: {key} in [tool.pullback.check] must be of type {expected}, got {value!r}")
    settings.demand_text(value, f"{path}: {key} in [tool.pullback.check]", path=name in _PATHS)
    return _beside(path, value) if name == "known_failures" and isinstance(value, str) else value


def _beside(path: str, entry: str) -> str:
    """A path in the configuration file is meant from that file's folder; anything else is left as it is."""
    folder = Path(path).parent
    whole = folder / entry
    if os.path.exists(whole):
        return str(whole)
    name, colon, member = entry.rpartition(":") if ":" in entry else (entry, "", "")
    beside = folder / name
    if not name.endswith((".py", ".toml")) and not os.path.exists(beside):
        return entry
    return f"{beside}{colon}{member}"


def _validate(options: CheckOptions) -> None:
    for name, allowed in (("output_format", FORMATS), ("fail_on", FAIL_ON), ("orders", (1, 2))):
        value = getattr(options, name)
        if value not in allowed:
            choices = ", ".join(map(str, allowed))
            raise UsageError(f"{name.replace('_', '-')} must be one of {choices}; got {value!r}")
    if not 0 <= options.seed <= LARGEST_SEED:
        raise UsageError(f"seed must be a number from 0 to {LARGEST_SEED}; got {options.seed}")
    if not options.timeout > 0:
        raise UsageError(f"timeout must be a positive number of seconds; got {options.timeout}")
    for name in ("select", "ignore"):
        settings.demand_codes(getattr(options, name), f"--{name}")
    for file in options.output_file:
        settings.demand_writable(file)
        if options.known_failures and os.path.realpath(file) == os.path.realpath(options.known_failures):
            raise UsageError(f"output-file: {file} is the file of known failures, which a report would replace")
    if options.samples and not all(options.samples.rpartition(":")[::2]):
        raise UsageError(f"samples must be module:mapping or file.py:mapping; got {options.samples!r}")
