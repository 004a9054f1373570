"""The process that runs other people's code, so that the command line survives whatever that code does.

It says what it is about to do before it does it, as JSON lines on what was its standard output. Standard output itself
then leads to standard error, so nothing that the checked code prints, in Python or in C, gets into the stream.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
from types import ModuleType
from typing import BinaryIO

from pullback.cli.protocol import Job, encode
from pullback.report.json import encode_finding, encode_report

ORPHANED = 70
"""The exit code of a worker whose command line is gone."""


def main() -> None:
    """Does the job in ``sys.argv[1]`` and streams messages to what was standard output."""
    stream = _take_stdout()
    faulthandler.enable(file=sys.__stderr__ or 2)
    if hasattr(signal, "SIGUSR1"):  # how the command line asks where a probe hangs, before it ends it
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or 2, all_threads=True)
    job = Job.from_json(sys.argv[1])
    sys.argv[:] = [job.source]
    try:
        _work(job, stream)
    except BrokenPipeError:
        os._exit(ORPHANED)


def _take_stdout() -> BinaryIO:
    stream = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return stream


def _work(job: Job, stream: BinaryIO) -> None:
    try:
        engine = importlib.import_module(job.engine)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        text = "checking needs torch: install your own build, or pullback[torch]" if missing == "torch" else error
        stream.write(encode("fatal", message=str(text)))
        return
    stream.write(encode("ready", probes=engine.probes()))
    if job.source:
        try:
            engine.demand(job.only, job.skip, job.orders)
        except ValueError as error:
            stream.write(encode("fatal", message=str(error)))
            return
        sys.path.insert(0, os.getcwd())  # after the engine's own imports, which no file here may shadow
        _check_all(job, engine, stream)
    stream.write(encode("done"))


def _check_all(job: Job, engine: ModuleType, stream: BinaryIO) -> None:
    try:
        module = engine.load(job.source, is_file=job.is_file)
        members = engine.find(module, job.source, job.names, whole=job.whole)
    except engine.UnloadableError as error:
        finding = encode_finding(error.finding)
        stream.write(encode("unloadable", finding=finding, missing=error.missing))
        return
    try:
        given = engine.samples(job.samples) if job.samples else {}
    except Exception as error:
        stream.write(encode("fatal", message=f"--samples {job.samples}: {error}"))
        return
    names = [entry.name for entry in members.found]
    lacking = [{"finding": encode_finding(error.finding), "missing": error.missing} for error in members.lacking]
    stream.write(encode("loaded", functions=names, skipped=members.skipped, unmet=members.unmet, lacking=lacking))
    for entry in members.found:
        if entry.name in job.finished:
            continue
        stream.write(encode("function", name=entry.name, location=entry.location))
        report = engine.check(
            entry,
            given,
            only=job.only,
            skip=(*job.skip, *job.left_out.get(entry.name, ())),
            orders=job.orders,
            seed=job.seed,
            progress=lambda probe: stream.write(encode("probe", name=probe)),
        )
        stream.write(encode("report", report=encode_report(report)))
