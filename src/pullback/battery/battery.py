"""The battery: one ordered table of probes, and the loop that runs them.

The contract of a probe
=======================
A `Probe` has a name, one sentence on what it proves, and ``run(subject)``, which yields a `Finding` for each fault and
a `Note` for each thing that it left out (`LeftOut` where the time was up), or raises `Skip(reason)`
(`NotApplicable(reason)` if there is nothing to try).

* It never changes the sample's tensors nor the global random state. It works on ``subject.fresh(case)`` alone, and
  draws from ``subject.random``, which is seeded from (seed, name of the probe) before it starts; what is left of the
  global state is forked around it.
* Its outcome is passed, failed (it yielded findings, hints included) or skipped with a reason. When unsure it is
  silent with a note, or it skips: never a guess, never a silent pass of what it did not try. A probe for which
  ``subject.cases`` is empty is skipped by the loop.
* ``subject.cases`` holds the samples on which forward and backward run at all; the first probe, `runs`, reports the
  others (PB122, PB125 and what it can tell apart). A variant that the author did not give and that forward refuses by
  raising (`ForwardRaised`) is yielded as ``Note("refused: …")``. `BackwardRaised` that leaves a probe becomes PB125.
* An error of pullback's own that comes out of a call, and is no refusal, is a finding with its own code, whatever the
  probe makes of it: a note or a skip can't hide it (`Subject.note`, `said.left_over`).
* Any other exception that leaves a probe is the probe's own crash: PB123, and the next probe runs.
* It keeps to what ``case.may_vary`` allows.

A fault is often seen by several probes; each reports what it sees, and `causes.merge` keeps one finding for one cause.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from pullback.battery.probe import LeftOut, NotApplicable, Note, Probe, Skip
from pullback.battery.probes import TABLE
from pullback.battery.raised import shows_fault
from pullback.battery.randomness import own_seed, preserved, reseed
from pullback.battery.said import left_over
from pullback.battery.subject import BackwardRaised, ForwardRaised, Subject, one_line
from pullback.battery.surroundings import neutral
from pullback.finding import Finding, Outcome, Status

PROBES: Mapping[str, Probe] = MappingProxyType({probe.name: probe for probe in TABLE})
"""Every probe by its name, in the order in which they run."""

FIRST = "runs"
"""The probe that reports samples which don't run; it is never left out, since the others pass over such samples."""


_SMALL = 1000
"""Samples with so few numbers in all take no time by their size."""


def select(only: Iterable[str] = (), skip: Iterable[str] = (), *, orders: int = 2) -> tuple[Probe, ...]:
    """The probes to run, in order.

    Args:
        only: The names to keep, or a single name; all if empty.
        skip: The names to leave out, or a single name.
        orders: The highest derivative order to try.

    Raises:
        ValueError: If a name isn't in the table, or no probe is left.
    """
    only, skip = ((names,) if isinstance(names, str) else tuple(names) for names in (only, skip))
    unknown = [name for name in (*only, *skip) if name not in PROBES]
    if unknown:
        raise ValueError(f"no probe is called {', '.join(unknown)}; there are {', '.join(PROBES)}")
    kept = (probe for probe in PROBES.values() if (not only or probe.name in only) and probe.name not in skip)
    chosen = {probe.name: probe for probe in kept if probe.order <= orders}
    if not chosen:
        raise ValueError(f"no probe is left to run, of {', '.join(only or PROBES)}")
    return tuple({FIRST: PROBES[FIRST], **chosen}.values())


def run(
    subject: Subject, probes: Iterable[Probe], *, seed: int = 0
) -> Iterator[tuple[str, Outcome, tuple[Finding, ...]]]:
    """Run `probes` one by one, and yield the name, the outcome and the findings of each as soon as it ends."""
    for probe in probes:
        started = time.perf_counter()
        findings: list[Finding] = []
        notes: list[str] = []
        reason = ""
        try:
            with _undisturbed(subject, seed, probe.name):
                _collect(subject, probe, findings, notes)
        except Skip as skipped:
            reason = str(skipped)
            if isinstance(skipped, NotApplicable):
                subject.inapplicable.add(probe.name)
        except ForwardRaised as refused:
            reason = f"forward raised: {refused}"
        except BackwardRaised as raised:
            if shows_fault(raised.error):
                subject.note(raised.error)
            else:
                message = f"backward raised during the probe {probe.name}: {raised}"
                findings.append(subject.finding("PB125", None, message))
        except Exception as crash:
            findings.append(_crash(subject, probe, crash))
        subject.found.update(finding.rule for finding in findings)
        with _undisturbed(subject, seed, probe.name):
            findings += left_over(subject)
        seconds = time.perf_counter() - started
        if seconds > probe.patience:
            notes.append(f"took {seconds:.1f} s{_why_so_long(subject)}")
        status = Status.FAILED if findings else Status.SKIPPED if reason else Status.PASSED
        outcome = Outcome(status=status, reason=reason, seconds=seconds, notes=tuple(dict.fromkeys(notes)))
        yield probe.name, outcome, tuple(_signed(finding, probe.name) for finding in findings)


def _collect(subject: Subject, probe: Probe, findings: list[Finding], notes: list[str]) -> None:
    if probe.name != FIRST and not subject.cases:
        raise Skip("no sample on which forward and backward run")
    for result in probe.run(subject):
        if isinstance(result, Note):
            notes.append(result.text)
            if isinstance(result, LeftOut):
                subject.left_out.append(f"{probe.name}: {result.text}")
        else:
            findings.append(result)


def _why_so_long(subject: Subject) -> str:
    """What to do about it: samples can be blamed only where they are large."""
    sizes = [tensor.numel() for sample in subject.samples.samples for _, _, tensor in subject.named_tensors(sample)]
    if sum(sizes) > _SMALL:
        return ": smaller samples would prove the same"
    return ", which is no matter of the samples: they are small"


@contextmanager
def _undisturbed(subject: Subject, seed: int, name: str) -> Iterator[None]:
    """Global random state forked, modes and warnings set, the subject's generator seeded from (seed, probe name)."""
    with preserved(subject.runs_on), neutral():
        subject.random.manual_seed(own_seed(seed, name))
        reseed(own_seed(seed, name), subject.runs_on)
        yield


def _crash(subject: Subject, probe: Probe, crash: Exception) -> Finding:
    trace = crash.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    message = f"the probe {probe.name} crashed: {one_line(crash)}"
    return subject.finding("PB123", None, message, what=f"probe {probe.name}", evidence={"raised_at": place})


def _signed(finding: Finding, name: str) -> Finding:
    return finding if finding.probe else replace(finding, probe=name)
