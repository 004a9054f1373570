"""The whole of a run: files in, one report for each Function out."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pullback.finding import Finding, Outcome, Report, Status
from pullback.lint import files, ignores, source
from pullback.lint.candidates import Known, defines, imports
from pullback.lint.discover import Project
from pullback.lint.files import Note
from pullback.lint.functions import FunctionClass
from pullback.lint.ignores import Ignore
from pullback.lint.source import Source
from pullback.lint.uses import Use, uses

if TYPE_CHECKING:
    from pullback.lint.analysis import Analysis
    from pullback.lint.rules import Check


class Linted(NamedTuple):
    """What a run found.

    Attributes:
        reports: One for each Function, in the order of files and lines, with findings of every confidence.
        notes: What could not be judged.
        ignored: What comments set aside, each with the comment's reason.
        set_aside: The numbers of the reports in which nothing above a hint is left because of such a comment.
        stale: Comments that set nothing aside.
        files: Every file that was looked at.
    """

    reports: tuple[Report, ...] = ()
    notes: tuple[Note, ...] = ()
    ignored: tuple[tuple[Finding, str], ...] = ()
    set_aside: frozenset[int] = frozenset()
    stale: tuple[Ignore, ...] = ()
    files: tuple[str, ...] = ()


def lint_paths(paths: Sequence[str], *, exclude: Sequence[str] = ()) -> Linted:
    """Lints files and folders.

    Args:
        paths: Files and folders; a file that can't be read is a note.
        exclude: Patterns of files and folders to leave out.

    Returns:
        What was found.
    """
    contents: dict[str, bytes] = {}
    notes: list[Note] = []
    seen: list[str] = []
    for path in files.find(paths, exclude):
        seen.append(path)
        content = files.read(path)
        if isinstance(content, Note):
            notes.append(content)
        elif files.says_anything(content):
            contents[path] = content
    return _linted(contents, notes, seen)


def lint_text(text: str | bytes, *, path: str = "text.py") -> Linted:
    """Lints one source text, as if it were a file.

    Args:
        text: The source.
        path: What its file is called in findings.
    """
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _linted({path: content} if files.says_anything(content) else {}, [], [path])


def _linted(contents: Mapping[str, bytes], notes: list[Note], seen: Sequence[str]) -> Linted:
    with _without_collector():
        project = read(contents, notes)
        found = list(_reports(project, list(contents), notes))
        comments = list(_ignores(contents, project, notes))
    reports: list[Report] = []
    ignored: list[tuple[Finding, str]] = []
    used: set[int] = set()
    emptied: set[int] = set()
    for number, report in enumerate(found):
        kept, aside, by = ignores.apart(report.findings, comments)
        reports.append(replace(report, findings=tuple(_gathered(kept))))
        emptied |= {number} if reports[-1].ok and not report.ok else set()
        ignored += aside
        used |= by
    stale = tuple(one for one in comments if id(one) not in used)
    return Linted(tuple(reports), tuple(notes), tuple(ignored), frozenset(emptied), stale, tuple(seen))


def read(contents: Mapping[str, bytes], notes: list[Note]) -> Project:
    """Parses the files that can define or call a Function: those that derive from one, then those that name one.

    Args:
        contents: Path -> content of the files that say one of the words.
        notes: Gets what could not be read.
    """
    project, known = Project(), Known()
    waiting = {path: (content, imports(content)) for path, content in contents.items()}
    chosen = [path for path, content in contents.items() if defines(content)]
    while chosen:
        taken = {path: waiting.pop(path)[0] for path in chosen}
        parsed = [source.parse(path, content) for path, content in taken.items()]
        notes += [one for one in parsed if isinstance(one, Note)]
        sources = [one for one in parsed if isinstance(one, Source)]
        new = [known.add_function(function) for function in project.add(sources)]
        new += [known.add(name, one.module) for one in sources for name in known.passed_under(one.names.root)]
        chosen = [path for path, (content, found) in waiting.items() if any(new) and known.concern(content, found)]
    return project


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Trees have no cycles, and the collector would walk through all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _reports(project: Project, paths: Sequence[str], notes: list[Note]) -> Iterator[Report]:
    """One report for each Function of a project, in the order of files and lines."""
    called: dict[int, list[Use]] = {}
    for one in project.sources:
        try:
            for use in uses(project, one):
                called.setdefault(id(use.function), []).append(use)
        except RecursionError:
            notes.append(Note(one.path, "its calls can't be read: it is nested too deeply"))
        except Exception as error:  # a fault of the linter's own, which shall cost no more than the calls of this file
            notes.append(Note(one.path, f"its calls can't be read: {_internal(error)}"))
    order = {path: number for number, path in enumerate(paths)}
    if not project.functions:
        return
    # Here, since most runs before a commit find no Function at all, and the rules are most of what there is to import.
    from pullback.lint.analysis import Analysis
    from pullback.lint.rules import CHECKS

    functions = sorted(project.functions.values(), key=lambda f: (order[f.source.path], f.node.lineno))
    foreign = {one.path: one for one in project.sources if not one.text.isascii()}
    for function in functions:
        report = _report(Analysis(function, tuple(called.get(id(function), ()))), CHECKS, notes)
        yield replace(report, findings=tuple(_in_characters(one, foreign) for one in report.findings))


def _in_characters(finding: Finding, foreign: Mapping[str, Source]) -> Finding:
    """The finding with its column in characters: `ast` counts the bytes of UTF-8."""
    path, line, column = _place(finding)
    if path not in foreign or column < 1:
        return finding
    return replace(finding, evidence={**finding.evidence, "column": foreign[path].column(line, column - 1)})


def _report(analysis: Analysis, checks: Sequence[Check], notes: list[Note]) -> Report:
    function = analysis.function
    found: list[Finding] = []
    status = Outcome(status=Status.PASSED)
    try:
        for check in checks:
            found += check(analysis)
    except RecursionError:
        status = _unjudged(function, "it is nested too deeply", notes)
    except Exception as error:  # a fault of the linter's own, which shall cost no more than this one Function
        status = _unjudged(function, _internal(error), notes)
    if found:
        status = Outcome(status=Status.FAILED)
    return Report(
        function=function.name,
        findings=tuple(_once(found)),
        outcomes={"lint": status},
        location=function.source.place(function.node),
    )


def _internal(error: Exception) -> str:
    return f"internal error, please report it ({type(error).__name__}: {error})"


def _unjudged(function: FunctionClass, why: str, notes: list[Note]) -> Outcome:
    notes.append(Note(function.source.path, f"{function.name} can't be judged: {why}"))
    return Outcome(status=Status.SKIPPED, reason=why)


def _once(found: Sequence[Finding]) -> Iterator[Finding]:
    """Findings in the order of their lines, each once: two rules may see one fault."""
    seen: set[tuple[str, str, object]] = set()
    for finding in sorted(found, key=_place):
        key = (finding.rule, finding.location, finding.evidence.get("column"))
        if key not in seen:
            seen.add(key)
            yield finding


def _gathered(found: Sequence[Finding]) -> Iterator[Finding]:
    """Of findings that say the same of several places of a method, the first, which tells the others' lines.

    Calls of a Function are left apart: each has to be mended where it stands.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in found:
        said = one.message.partition(" (")[0]
        alone = one.location if one.where.startswith("call") else ""
        key = (one.rule, one.where, one.severity, one.evidence.get("confidence"), said, alone)
        groups.setdefault(key, []).append(one)
    for first, *others in groups.values():
        if others:
            lines = [*dict.fromkeys(_place(other)[1] for other in others)]
            places = f"{len(others)} more place{'s' * (len(others) > 1)}"
            shown = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
            evidence = {**first.evidence, "more_lines": lines}
            yield replace(first, message=f"{first.message} The same in {places} ({shown}).", evidence=evidence)
        else:
            yield first


def _place(finding: Finding) -> tuple[str, int, int]:
    path, _, line = finding.location.rpartition(":")
    column = finding.evidence.get("column")
    return path, int(line), column if isinstance(column, int) else 0


def _ignores(contents: Mapping[str, bytes], project: Project, notes: list[Note]) -> Iterator[Ignore]:
    parsed = {one.path: one for one in project.sources}
    broken = {note.path for note in notes}
    for path, content in contents.items():
        if not ignores.is_in(content) or (path in broken and path not in parsed):
            continue
        one = parsed.get(path)
        text = one.text if one is not None else files.decode(path, content)
        if isinstance(text, Note):
            notes.append(text)
            continue
        found, wrong = ignores.read(path, text, one.tree if one is not None else None)
        notes += wrong
        yield from found
