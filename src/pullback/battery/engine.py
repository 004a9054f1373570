"""What a worker process of the command line drives: it lists probes, finds Functions and checks them, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pullback.battery.battery import PROBES, select
from pullback.battery.check import check as check_function
from pullback.battery.raised import one_line
from pullback.battery.targets import Found, UnloadableError, find, load, user_line
from pullback.errors import PullbackError, SampleError
from pullback.finding import Finding, Report

__all__ = ["UnloadableError", "check", "demand", "find", "load", "probes", "samples"]


def probes() -> list[tuple[str, str]]:
    """Every probe by its name, and what it proves, in the order in which they run."""
    return [(name, probe.proves) for name, probe in PROBES.items()]


def demand(only: Iterable[str], skip: Iterable[str], orders: int) -> None:
    """Refuses a choice of probes of which nothing is left.

    Raises:
        ValueError: A probe isn't known, or none is left to run.
    """
    select(only, skip, orders=orders)


def samples(specification: str) -> Mapping[Any, Iterable[Any]]:
    """The mapping that ``module:mapping`` or ``file.py:mapping`` names.

    Args:
        specification: Where it is.

    Returns:
        A mapping of a class, or its name, to samples.

    Raises:
        UnloadableError: It can't be imported.
        SampleError: What is there isn't a mapping.
    """
    source, _, name = specification.rpartition(":")
    module = load(source, is_file=source.endswith(".py"))
    value = getattr(module, name, None)
    if not isinstance(value, Mapping):
        got = type(value).__name__ if hasattr(module, name) else "nothing"
        raise SampleError("PB121", f"{specification} must be a mapping of classes to samples", got=got)
    return value


def check(
    found: Found,
    given: Mapping[Any, Any],
    *,
    only: Iterable[str],
    skip: Iterable[str],
    orders: int,
    seed: int,
    progress: Callable[[str], None],
) -> Report:
    """Checks one Function; what goes wrong on the way becomes a finding too.

    Args:
        found: The Function.
        given: Samples by class or name; those of other Functions are passed over.
        only: The probes to run; empty for all.
        skip: The probes to leave out.
        orders: The highest order of derivatives to prove.
        seed: The seed of everything random.
        progress: Called with each probe's name before it begins.

    Returns:
        The report, under the name and location by which the Function was found.
    """
    begun: list[str] = []

    def note(probe: str) -> None:
        begun.append(probe)
        progress(probe)

    try:
        chosen = _samples_of(found, given)
        report = check_function(
            found.function, *chosen, only=tuple(only), skip=tuple(skip), orders=orders, seed=seed, progress=note
        )
    except BaseException as error:  # a forward may raise SystemExit too, and the next Function must still be checked
        report = Report(function=found.name, findings=(_crash(error, found, begun),), seed=seed)
    findings = (replace(finding, function=found.name, location=found.location) for finding in report.findings)
    return replace(report, function=found.name, location=found.location, findings=tuple(findings))


def _samples_of(found: Found, given: Mapping[Any, Any]) -> tuple[Any, ...]:
    keys = (found.function, found.name, getattr(found.function, "__name__", found.name))
    value = next((given[key] for key in keys if key in given), ())
    return tuple(value() if callable(value) else value)


def _crash(error: BaseException, found: Found, begun: list[str]) -> Finding:
    place, line = user_line(error, found.location.rpartition(":")[0])
    where = f"{place}: {line}" if line else place
    if begun:
        message = f"probe {begun[-1]} raised {one_line(error)}"
        return Finding(rule="PB123", function=found.name, where=where, message=message, probe=begun[-1])
    if isinstance(error, PullbackError):
        message, expected, got, remedy = error.message, error.expected, error.got, error.remedy
        return Finding(
            rule=error.rule, function=found.name, where=where, message=message, expected=expected, got=got,
            remedy=remedy,
        )  # fmt: skip
    message = f"making samples raised {one_line(error)}"
    return Finding(rule="PB121", function=found.name, where=where, message=message)
