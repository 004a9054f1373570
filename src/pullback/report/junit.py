"""Reports as JUnit's XML, which every service for continuous integration reads.

A suite is a Function and a case a probe of it. What keeps a thing from being checked (an import that raises, a probe
that hangs) is an error; what a probe found is a failure; known failures and probes without anything to try are skipped,
each with its reason. Hints, and warnings where only errors make the run fail, are output of a case that passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.etree import ElementTree

from pullback.finding import Finding, Outcome, Report, Status
from pullback.report.characters import flat, visible
from pullback.report.places import Place, read
from pullback.report.remarks import NO_REMARKS, NOT_CHECKED, Remarks, unloadable
from pullback.report.text import finding_lines, summary
from pullback.rules import Severity

_WIDTH = 100


@dataclass(frozen=True)
class _Case:
    """One test case.

    Attributes:
        name: The probe, or what stands for it.
        kind: ``passed``, ``failure``, ``error`` or ``skipped``.
        rule: The rule of the first finding.
        message: Why it did not pass.
        text: The findings in full.
        seconds: How long it took.
    """

    name: str
    kind: str = "passed"
    rule: str = ""
    message: str = ""
    text: str = ""
    seconds: float = 0.0


def document(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """The document, indented, without a newline at its end.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.
    """
    suites = [_suite(report, list(_cases(report, remarks))) for report in reports]
    beside = list(_beside(remarks))
    if beside:
        suites.append(_filled(ElementTree.Element("testsuite", {"name": "pullback"}), "pullback", beside, ""))
    root = ElementTree.Element("testsuites", {"name": f"pullback: {visible(summary(reports, remarks=remarks))}"})
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _suite(report: Report, cases: Sequence[_Case]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": flat(report.function)})
    place = read(report.location)
    file = visible(place.path) if place is not None else ""
    properties = ElementTree.SubElement(suite, "properties")
    known = {"location": report.location, "samples": report.samples, "seed": str(report.seed)}
    for name, value in known.items():
        if value:
            ElementTree.SubElement(properties, "property", {"name": name, "value": visible(value)})
    _filled(suite, _class_name(report, place), cases, file)
    if report.untested:
        lines = "\n".join(f"not tested: {flat(sentence)}" for sentence in report.untested)
        ElementTree.SubElement(suite, "system-out").text = lines
    return suite


def _class_name(report: Report, place: Place | None) -> str:
    """The Function with its file in front, as a test's class has it: two files may have Functions of one name."""
    if place is None or unloadable(report):
        return flat(report.function)
    path = PurePosixPath(place.path)
    folders = path.parent.parts if place.inside else ()
    return flat(".".join(part for part in (*folders, path.stem, report.function) if part))


def _filled(suite: ElementTree.Element, class_name: str, cases: Sequence[_Case], file: str) -> ElementTree.Element:
    kinds = [case.kind for case in cases]
    suite.set("tests", str(len(cases)))
    for key, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(kinds.count(kind)))
    suite.set("time", f"{sum(case.seconds for case in cases):.3f}")
    for case in cases:
        named = {"classname": class_name, "name": flat(case.name), "time": f"{case.seconds:.3f}"}
        element = ElementTree.SubElement(suite, "testcase", {**named, "file": file} if file else named)
        if case.kind == "passed":
            if case.text:
                ElementTree.SubElement(element, "system-out").text = visible(case.text)
            continue
        outcome = ElementTree.SubElement(element, case.kind, {"message": flat(case.message)})
        if case.rule:
            outcome.set("type", case.rule)
        if case.text:
            outcome.text = visible(case.text)
    return suite


def _cases(report: Report, remarks: Remarks) -> Iterator[_Case]:
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        found.setdefault(finding.probe, []).append(finding)
    for name, outcome in report.outcomes.items():
        yield _of_probe(name, outcome, found.pop(name, []), report, remarks)
    for name, findings in found.items():  # what ended before the first probe: an import, the making of samples
        yield _of_findings(name or ("import" if unloadable(report) else "check"), findings, remarks, 0.0)
    if not report.outcomes and not report.findings:
        about = [reason for finding, reason in remarks.known if _is_of(finding, finding.probe, report)]
        yield _Case("check", "skipped", message="; ".join(["no probe ran", *about]))


def _of_probe(name: str, outcome: Outcome, findings: list[Finding], report: Report, remarks: Remarks) -> _Case:
    notes = "\n".join(outcome.notes)
    if outcome.status is Status.SKIPPED and not findings:
        return _Case(name, "skipped", message=outcome.reason or "no reason given", text=notes, seconds=outcome.seconds)
    if findings or outcome.status is Status.PASSED:
        return _of_findings(name, findings, remarks, outcome.seconds, notes)
    about = [(finding, reason) for finding, reason in remarks.known if _is_of(finding, name, report)]
    if about:
        message = "; ".join(f"known failure {finding.rule}: {reason}" for finding, reason in about)
        return _Case(name, "skipped", message=message, text=notes, seconds=outcome.seconds)
    if _fails(report.findings, remarks):
        others = ", ".join(dict.fromkeys(f"{finding.rule} ({finding.probe})" for finding in report.findings))
        message = f"what it found follows from {others}, or was left out by a selection of rules"
        return _Case(name, "failure", message=message, text=notes, seconds=outcome.seconds)
    message = "what it found is known, was left out by a selection of rules, or follows from such a finding"
    return _Case(name, "skipped", message=message, text=notes, seconds=outcome.seconds)


def _of_findings(name: str, findings: list[Finding], remarks: Remarks, seconds: float, notes: str = "") -> _Case:
    text = "\n\n".join("\n".join(finding_lines(finding, _WIDTH)) for finding in findings)
    text = "\n\n".join(filter(None, (text, notes)))
    bad = [finding for finding in findings if _fails([finding], remarks)]
    if not bad:
        return _Case(name, text=text, seconds=seconds)
    first = next((finding for finding in bad if finding.rule in NOT_CHECKED), bad[0])
    kind = "error" if first.rule in NOT_CHECKED else "failure"
    message = "; ".join(f"{finding.rule} {finding.message}" for finding in bad)
    return _Case(name, kind, first.rule, message, text, seconds)


def _beside(remarks: Remarks) -> Iterator[_Case]:
    for sentence in remarks.unexpected:
        yield _Case(sentence, "failure", message=f"unexpected pass: {sentence}")
    for sentence in remarks.skipped:
        yield _Case(sentence, "skipped", message=sentence)


def _is_of(finding: Finding, probe: str, report: Report) -> bool:
    return (finding.function, finding.location, finding.probe) == (report.function, report.location, probe)


def _fails(findings: Sequence[Finding], remarks: Remarks) -> bool:
    order = list(Severity)  # worst first
    return any(order.index(finding.severity) <= order.index(remarks.fail_on) for finding in findings)
