"""An engine without torch: it finds classes with a ``probes`` attribute and runs what they say.

A probe of a class returns rule codes, one finding each; it may raise, hang, or end the process. So the command line is
tried against everything that can go wrong, at the price of starting Python alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pullback.finding import Finding, Outcome, Report, Status

_PROVES = {"first": "one", "second": "two", "third": "three", "fourth": "four", "fifth": "five"}


class UnloadableError(Exception):
    """A target that can't be imported."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        """Makes the finding that the command line reports."""
        super().__init__(message)
        self.finding = Finding(rule="PB120", function="target", where="line 1", message=message, location="target.py:1")
        self.missing = missing


def probes() -> list[tuple[str, str]]:
    """The probes, in order."""
    return list(_PROVES.items())


def demand(only: Iterable[str], skip: Iterable[str], orders: int) -> None:
    """Some probe has to be left."""
    chosen = {*(only or _PROVES)} - {*skip}
    if not chosen:
        raise ValueError("no probe is left to run")


def load(source: str, *, is_file: bool) -> SimpleNamespace:
    """Runs a file; a module is never there."""
    if not is_file:
        raise UnloadableError(f"there is no module {source}", missing=True)
    try:
        namespace: dict[str, Any] = {}
        exec(compile(Path(source).read_bytes(), source, "exec"), namespace)
        return SimpleNamespace(**namespace)
    except BaseException as error:
        raise UnloadableError(f"importing {source} raised {type(error).__name__}: {error}") from error


def find(module: SimpleNamespace, source: str, names: Sequence[str], *, whole: bool) -> SimpleNamespace:
    """The classes with probes; one whose probes are None counts as abstract."""
    classes = {name: value for name, value in vars(module).items() if hasattr(value, "probes")}
    chosen = dict.fromkeys((*(classes if whole else ()), *(name for name in names if name in classes)))
    entries = [SimpleNamespace(name=name, location=f"{source}:1", cls=classes[name]) for name in chosen]
    abstract = [entry.name for entry in entries if entry.cls.probes is None]
    return SimpleNamespace(
        found=[entry for entry in entries if entry.cls.probes is not None],
        skipped=[f"{name} has no forward" for name in abstract],
        unmet=[f"{name} has no forward" for name in abstract if name in names],
        lacking=[UnloadableError(f"{source} has no {name}", missing=True) for name in names if name not in classes],
    )


def samples(specification: str) -> Mapping[str, Any]:
    """A mapping that only has to be asked for."""
    if specification == "nowhere:NOTHING":
        raise ValueError("there is no module nowhere")
    return {"from": specification}


def check(
    found: SimpleNamespace,
    given: Mapping[str, Any],
    *,
    only: Iterable[str],
    skip: Iterable[str],
    orders: int,
    seed: int,
    progress: Callable[[str], None],
) -> Report:
    """Runs the probes that the class names; all others pass."""
    if hasattr(found.cls, "make_samples"):
        found.cls.make_samples()
    outcomes: dict[str, Outcome] = {}
    findings: list[Finding] = []
    for name in _PROVES:
        if (only and name not in only) or name in skip:
            continue
        progress(name)
        codes = found.cls.probes.get(name, tuple)()
        told = {"function": found.name, "where": name, "message": "wrong", "location": found.location, "probe": name}
        findings += [Finding(rule=code, **told) for code in codes]
        outcomes[name] = Outcome(status=Status.FAILED if codes else Status.PASSED)
    source = given.get("from", "declared")
    return Report(
        function=found.name,
        location=found.location,
        findings=tuple(findings),
        outcomes=outcomes,
        samples=f"{source}, orders {orders}",
        seed=seed,
    )
