"""What a call gave at first, it gives at the end: after the calls of all other probes, and after some that failed.

By now there have been calls of all kinds: in other dtypes, sizes and layouts, under other modes and in other threads,
with errors and without a backward. Whatever one of them has left behind for good shows here. Then calls run out of
memory. That comes last, since a lock that such a call doesn't let go of is closed for all that follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pullback.battery.interleaving import in_thread
from pullback.battery.paths import telling
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_histories import check_lines, shortage_lines
from pullback.battery.setting import Setting
from pullback.battery.shortage import run_short
from pullback.battery.subject import Case, Subject
from pullback.battery.trials import Result, Trial, first_results
from pullback.finding import Finding
from pullback.rules import RULES, Severity

_LEAST_WAIT, _WAIT = 10.0, 100.0
"""A call after one that failed may take so many seconds, and so many times what it took before."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Call once more; then let calls fail, and call again."""
    if any(RULES[rule].severity is not Severity.HINT for rule in subject.found):
        raise NotApplicable("what the other probes found comes first")
    for case in telling(subject):
        trial = Trial(subject, case)
        started = time.perf_counter()
        now = trial.alone()
        finding = _unlike_the_first(subject, case, now) or _after_failing(
            subject, case, trial, now, _LEAST_WAIT + _WAIT * (time.perf_counter() - started)
        )
        if finding is not None:
            yield finding
            return


def _unlike_the_first(subject: Subject, case: Case, now: Result) -> Finding | None:
    first = first_results(subject).get(case)
    if first is None:
        return None
    where = "after all that the other probes called"

    def lines(_: int, values: bool) -> str:
        return check_lines(subject, case, values=values)

    return Setting(subject, case, "PB504", where, "at first", lines).fault(first, lambda: now)


def _after_failing(subject: Subject, case: Case, trial: Trial, now: Result, wait: float) -> Finding | None:
    """A call after some that ran out of memory, all in a thread of their own, as one may never end."""
    repro = shortage_lines(subject, case)  # made before, while calls still work

    def again() -> Result:
        run_short(subject, case)
        return trial.alone()

    where = "after calls that ran out of memory midway"
    setting = Setting(subject, case, "PB504", where, "before", lambda _, __: repro)
    return setting.fault(now, lambda: in_thread(again, wait))


PROBE = Probe("afterwards", "a call gives what it gave at first, whatever else was called, and whatever failed", run)
