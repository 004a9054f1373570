"""A run as a whole: reports in order, each fault once, and a fault of the linter's own that costs one Function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pullback.finding import Finding, Status
from pullback.lint import lint_paths, rules, run
from pullback.lint.analysis import Analysis
from pullback.lint.run import lint_text
from pullback.lint.uses import Use

TEXT = """\
from torch.autograd import Function
class B(Function):
    @staticmethod
    def forward(ctx, x): return 3 * x
    @staticmethod
    def backward(ctx, g): return g.mul_(3)
class A(B):
    pass
class C(B):
    @staticmethod
    def forward(ctx, x): return x.mul_(3)
"""


def test_reports_are_in_the_order_of_lines() -> None:
    """One for each Function; what is wrong in a base is said of the base alone."""
    reports = lint_text(TEXT).reports
    assert [report.function for report in reports] == ["B", "A", "C"]
    assert [[finding.rule for finding in report.findings] for report in reports] == [["PB403"], [], ["PB401"]]
    assert [report.location for report in reports] == ["text.py:2", "text.py:7", "text.py:9"]
    assert [report.outcomes["lint"].status for report in reports] == [Status.FAILED, Status.PASSED, Status.FAILED]


def test_files_are_in_the_order_in_which_they_are_found(tmp_path: Path) -> None:
    """Whatever the order in which they had to be read."""
    (tmp_path / "a.py").write_text("from b import B  # autograd\nclass A(B): pass\n")
    (tmp_path / "b.py").write_text(TEXT.replace("class A", "class Z"))
    found = lint_paths([str(tmp_path)])
    assert [Path(path).name for path in found.files] == ["a.py", "b.py"]
    assert [report.function for report in found.reports] == ["A", "B", "Z", "C"]


def twice(analysis: Analysis) -> Iterator[Finding]:
    """A rule that says everything twice, and backwards."""
    for _ in range(2):
        yield analysis.finding("PB402", analysis.function.node.body[0], "Second.")
        yield analysis.finding("PB401", analysis.function.node, "First.")


def broken(analysis: Analysis) -> Iterator[Finding]:
    """A rule that fails for one Function."""
    if analysis.function.name == "B":
        raise KeyError("x")
    yield analysis.finding("PB401", analysis.function.node, "Found.")


def endless(analysis: Analysis) -> Iterator[Finding]:
    """A rule that never ends."""
    yield from endless(analysis)


def test_a_fault_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of lines."""
    monkeypatch.setattr(rules, "CHECKS", (twice,))
    first = lint_text(TEXT).reports[0]
    assert [finding.message for finding in first.findings] == ["First.", "Second."]


@pytest.mark.parametrize(
    ("rule", "sentence", "left"),
    [
        (broken, "B can't be judged: internal error, please report it (KeyError: 'x')", 2),
        (endless, "B can't be judged: it is nested too deeply", 0),
    ],
)
def test_a_rule_that_fails_costs_one_function(
    monkeypatch: pytest.MonkeyPatch, rule: object, sentence: str, left: int
) -> None:
    """The note names it, its report says that nothing was proved, and the others are judged."""
    monkeypatch.setattr(rules, "CHECKS", (rule,))
    linted = lint_text(TEXT)
    assert linted.notes[0].sentence == sentence
    assert linted.reports[0].outcomes["lint"].status is Status.SKIPPED
    assert sum(len(report.findings) for report in linted.reports) == left


def test_calls_that_cant_be_read_cost_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the linter stumbles over in a file's calls is a note, and its Functions are judged as if without any."""
    expected = lint_text(TEXT).reports

    def stumbling(*given: object) -> list[Use]:
        raise KeyError("x")

    monkeypatch.setattr(run, "uses", stumbling)
    linted = lint_text(TEXT)
    assert [one.sentence for one in linted.notes] == [
        "its calls can't be read: internal error, please report it (KeyError: 'x')"
    ]
    assert linted.reports == expected


def test_a_finding_has_all_that_a_writer_asks_for() -> None:
    """Rule, place, column, confidence, probe and remedy."""
    (one,) = lint_text(TEXT).reports[0].findings
    assert (one.rule, one.function, one.location, one.probe) == ("PB403", "B", "text.py:6", "lint")
    assert one.evidence == {"confidence": "certain", "column": 34}
    assert one.remedy
