"""Checks one target by workers: when one dies or hangs, that is reported, and a fresh one goes on with the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pullback.cli.failure import UsageError
from pullback.cli.process import Worker, WorkerEndedError, frames, last_words
from pullback.cli.protocol import Job, Message
from pullback.finding import Finding, Outcome, Report, Status
from pullback.report.json import decode_finding, decode_report

START_SECONDS = 300.0
"""The limit for starting a worker, which imports torch; it has nothing to do with the checked code."""

MOST_BREAKS = 3
"""How many probes of one Function may break their process before its remaining ones are left out."""

_SAMPLES = "samples"

Watch = Callable[[str, Message], None]


@dataclass(kw_only=True)
class Result:
    """What became of one target.

    Attributes:
        reports: One for each Function, and one for the target itself if it can't be loaded.
        skipped: Sentences about what was left unchecked on purpose.
        missing: Why what was asked for is taken as not there, or can't be checked; empty otherwise.
        interrupted: What was being done when the user stopped the run, and what was left; empty otherwise.
        functions: How many Functions were found.
        probes: Every probe of the battery, and what it proves.
    """

    reports: list[Report] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    missing: str = ""
    interrupted: str = ""
    functions: int = 0
    probes: dict[str, str] = field(default_factory=dict)


def supervise(job: Job, *, limit: float, watch: Watch, show_output: bool = False) -> Result:
    """Runs workers until every Function of a target is reported.

    Args:
        job: The target and how to check it.
        limit: The seconds that an import, the making of samples or one probe may take.
        watch: Called with the target's source and each message, for progress.
        show_output: Whether what the checked code prints goes to standard error.

    Returns:
        What was found out; nothing that didn't run counts as passed. After Ctrl-C it is what was found out until then.

    Raises:
        UsageError: The job can't be done at all: torch is missing, or a probe is unknown.
    """
    supervisor = _Supervisor(job, limit, watch, show_output)
    try:
        while not supervisor.done:
            supervisor.run_worker()
    except KeyboardInterrupt:
        supervisor.result.interrupted = supervisor.left()
    return supervisor.result


class _Supervisor:
    """One target's state across its workers."""

    def __init__(self, job: Job, limit: float, watch: Watch, show_output: bool) -> None:
        self.job, self.limit, self.watch, self.show_output = job, limit, watch, show_output
        self.result = Result()
        self.done = False
        self._breaks: dict[str, list[Finding]] = {}
        self._phase = "start"  # start, import, between, samples or a probe's name
        self._function = ""
        self._location = ""
        self._names: list[str] = []
        self._known = False
        self._between_breaks: set[tuple[str, ...]] = set()

    def run_worker(self) -> None:
        """Hears one worker to its end."""
        self._phase = "start"
        with Worker(self.job, show_output=self.show_output) as worker:
            try:
                while not self.done:
                    message = worker.receive(START_SECONDS if self._phase == "start" else self.limit)
                    self.watch(self.job.source, message)
                    self._hear(message)
                worker.finish()
            except WorkerEndedError as end:
                self._broke(end)

    def left(self) -> str:
        """Where the user stopped the run, and which Functions have no report."""
        source = self.job.source
        if not self._names:
            return f"interrupted before {source} was loaded: nothing in it was checked"
        names = [name for name in self._names if name not in self.job.finished]
        if not names:
            return f"interrupted when all of {source} was checked"
        where = f" in the probe {self._phase} of {self._function}" if self._phase in self.result.probes else ""
        return f"interrupted{where}: {', '.join(names)} of {source} {'was' if len(names) == 1 else 'were'} not checked"

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "ready":
            self.result.probes = dict(message["probes"])
            self._know_probes()
            self._phase = "import"
        elif kind == "fatal":
            raise UsageError(message["message"])
        elif kind == "unloadable":
            finding = decode_finding(message["finding"])
            self.result.missing = finding.message if message["missing"] else ""
            self._unloadable(finding, self.job.source)
            self.done = True
        elif kind == "loaded":
            self._loaded(message)
        elif kind == "function":
            self._function, self._location = message["name"], message["location"]
            self._phase = _SAMPLES
        elif kind == "probe":
            self._phase = message["name"]
        elif kind == "report":
            self._finished(decode_report(message["report"]))
        elif kind == "done":
            self.done = True

    def _loaded(self, message: Message) -> None:
        self._names = message["functions"]
        self.result.functions = len(self._names)
        self.result.skipped = message["skipped"]
        self._phase = "between"
        if self._known:  # a worker after the first one says the same again
            return
        self._known = True
        for entry in message["lacking"]:
            finding = decode_finding(entry["finding"])
            self._unloadable(finding, finding.function)
        absent = [entry["finding"]["message"] for entry in message["lacking"] if entry["missing"]]
        self.result.missing = "; ".join([*absent, *message["unmet"]])

    def _know_probes(self) -> None:
        unknown = [name for name in (*self.job.only, *self.job.skip) if name not in self.result.probes]
        if unknown:
            raise UsageError(f"no probe is called {', '.join(unknown)}; pullback check --list shows them all")

    def _unloadable(self, finding: Finding, name: str) -> None:
        report = Report(function=name, findings=(finding,), location=finding.location, seed=self.job.seed)
        self.result.reports.append(report)

    def _broke(self, end: WorkerEndedError) -> None:
        if self._phase == "start":
            raise UsageError(f"the worker process {end.how} before it was ready\n{end.printed.strip()}")
        if self._phase == "import":
            doing = f"importing {self.job.source} {end.how}"
            self._unloadable(self._finding("PB120", self.job.source, doing, end), self.job.source)
            self.done = True
        elif (
            self._phase == "between"
        ):  # no probe was running and every report is in hand: just go on, unless it repeats
            if self.job.finished in self._between_breaks:
                raise UsageError(f"the worker process {end.how} between two Functions\n{end.printed.strip()}")
            self._between_breaks.add(self.job.finished)
        else:
            self._broke_probe(end)

    def _broke_probe(self, end: WorkerEndedError) -> None:
        name, probe = self._function, self._phase
        what = "making samples" if probe == _SAMPLES else f"the probe {probe}"
        finding = self._finding("PB124" if end.hung else "PB123", name, f"{what} {end.how}", end)
        broken = self._breaks.setdefault(name, [])
        again = probe in self.job.left_out.get(name, ())
        broken.append(replace(finding, probe=probe, location=self._location))
        order = list(self.result.probes)
        # The first probe runs the samples: where that breaks, so does every other one.
        if probe == _SAMPLES or again or probe == order[0] or len(broken) > MOST_BREAKS:
            self._finished(Report(function=name, location=self._location, seed=self.job.seed))
            return
        left_out = {*self.job.left_out.get(name, ()), probe}
        if len(broken) == MOST_BREAKS:
            left_out.update(order[order.index(probe) :])
        if not {*(self.job.only or order)} - {*self.job.skip} - left_out:
            self._finished(Report(function=name, location=self._location, seed=self.job.seed))
            return
        self.job = replace(self.job, left_out={**self.job.left_out, name: tuple(sorted(left_out))})

    def _finding(self, rule: str, function: str, message: str, end: WorkerEndedError) -> Finding:
        file = self._location.rpartition(":")[0] or self.job.source
        place = frames(end.printed, file)
        words = "" if place else last_words(end.printed)
        return Finding(rule=rule, function=function, where=place, message=message, got=words)

    def _finished(self, report: Report) -> None:
        broken = self._breaks.pop(report.function, [])
        if broken:
            outcomes = self._outcomes(report, [finding.probe for finding in broken])
            report = replace(report, findings=(*broken, *report.findings), outcomes=outcomes)
        self.result.reports.append(report)
        self.job = replace(self.job, finished=(*self.job.finished, report.function))
        self._phase = "between"

    def _outcomes(self, report: Report, broken: list[str]) -> dict[str, Outcome]:
        outcomes = dict(report.outcomes)
        left_out = self.job.left_out.get(report.function, ())
        for name in self.result.probes:
            if name in broken:
                outcomes[name] = Outcome(status=Status.FAILED)
            elif (name in left_out or not report.outcomes) and name not in self.job.skip:
                outcomes[name] = Outcome(status=Status.SKIPPED, reason="not run: a probe before it broke the process")
        wanted = self.job.only or (*self.result.probes,)
        return {name: outcomes[name] for name in self.result.probes if name in outcomes and name in (*wanted, *broken)}
