"""Reports as one page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pullback.finding import Outcome, Report, Status
from pullback.report.html import page
from pullback.report.style import STYLE
from pullback.rules import RULES, Severity
from tests.report.examples import CLEAN, FAULTY, HOSTILE, HOSTILE_REMARKS, KNOWN, NASTY, REMARKS, REPORTS, WRONG

_VOID = {"meta", "rect"}


class Page(HTMLParser):
    """A page as a reader gets it: elements, text, and whether what is opened is closed in order."""

    def __init__(self, text: str) -> None:
        """Reads the page."""
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Closes the element that was opened last."""
        if tag not in _VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collects text, but for the style sheet."""
        if "style" not in self._open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("reports", [(), (CLEAN,), REPORTS, (Report(function="F"),), (HOSTILE,)])
def test_the_page_is_well_formed(reports: tuple[Report, ...]) -> None:
    """Everything opened is closed, ids are unique, and every link within the page leads somewhere."""
    read = Page(page(reports, remarks=REMARKS))
    ids = [str(attributes["id"]) for _, attributes in read.elements if "id" in attributes]
    assert len({*ids}) == len(ids)
    assert {str(link["href"]).removeprefix("#") for link in read.all("a")} <= {*ids}


def test_the_page_asks_for_nothing() -> None:
    """No script, no outer file, no address; and a policy that forbids them."""
    text = page(REPORTS, remarks=REMARKS)
    read = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in read.elements}
    assert not re.search(r"https?:|@import|url\(|\bon\w+=|src=", text)
    policies = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_is_light_or_dark_and_can_be_printed() -> None:
    """Both schemes and paper set every colour that the page has."""
    schemes = re.findall(r":root \{([^}]*)\}", STYLE)
    assert len(schemes) == 3
    names = [set(re.findall(r"(--[a-z]+):", scheme)) for scheme in schemes]
    assert names[0] == names[1] == names[2] == set(re.findall(r"var\((--[a-z]+)\)", STYLE))
    assert "prefers-color-scheme: dark" in STYLE
    assert "@media print" in STYLE


def test_everything_of_a_finding_is_there() -> None:
    """Code, severity, title, place, message, both values, remedy, reason and the lines that show it."""
    text = Page(page([FAULTY])).text
    rule = RULES["PB203"]
    for part in (f"PB203 error: {rule.title}", rule.reason, WRONG.where, WRONG.message, WRONG.expected, WRONG.got):
        assert part in text
    assert WRONG.remedy in text
    assert WRONG.repro in text
    assert "first_order" in text


def test_a_gradient_that_was_compared_is_pictured() -> None:
    """A finding with an error map has a picture, another has none."""
    assert len(Page(page([FAULTY])).all("svg")) == 1
    assert Page(page([replace(FAULTY, findings=FAULTY.findings[1:])])).all("svg") == []


def table(reports: list[Report]) -> list[list[tuple[str, str]]]:
    """The table of probes: for each Function the class and the title of each cell."""
    body = page(reports).partition("<tbody>")[2].partition("</tbody>")[0]
    rows = body.split("</tr>")[:-1]
    return [re.findall(r'<td(?: class="(\w+)" title="([^"]*)")?>', row) for row in rows]


def test_the_table_has_a_cell_for_each_function_and_probe() -> None:
    """Passed, failed, hints alone, set aside, skipped with its reason, and blank where a probe was not chosen."""
    faulty, clean, known = table([FAULTY, CLEAN, KNOWN])
    assert [kind for kind, _ in faulty] == ["skipped", "failed", "skipped", "skipped", "passed", "hint", "", ""]
    assert faulty[0][1] == "Scale, values: no reference"
    assert [kind for kind, _ in clean] == ["skipped", "passed", "skipped", "", "", "", "passed", ""]
    assert known[-1] == ("aside", "Cube, second_order: failed, and what it found is known or was left out")


def test_what_was_skipped_can_be_read_on_paper() -> None:
    """Reasons, notes and what was not tested are text of the page, not only of the pointer's hover."""
    text = Page(page([FAULTY])).text
    assert "values, precision: no reference" in text
    assert "layouts: refused: expanded x (RuntimeError)" in text
    assert "CUDA tensors: the samples are on the CPU" in text


def test_a_failed_cell_leads_to_its_finding() -> None:
    """A click on the cross shows why."""
    read = Page(page([FAULTY]))
    links = [str(link["href"]) for link in read.all("a")]
    assert links == ["#f0", "#f0-0", "#f0-1"]


def test_the_summary_is_the_one_of_the_text() -> None:
    """The page and the terminal say the same numbers."""
    text = Page(page(REPORTS, remarks=REMARKS)).text
    assert "3 Functions: 1 clean, 1 with findings, 1 set aside; 1 target that can't be loaded; 2 errors, 1 hint" in text


def test_the_counts_that_matter_stand_at_the_head() -> None:
    """Functions, clean and faulty ones always; the others where there are any."""
    found = re.findall(r"<li><b>(\d+)</b> ([^<]+)</li>", page([CLEAN]))
    assert found == [("1", "Function"), ("1", "clean"), ("0", "with findings")]
    found = re.findall(r"<li><b>(\d+)</b> ([^<]+)</li>", page(REPORTS, remarks=REMARKS))
    assert ("1", "unexpected pass") in found
    assert ("2", "errors") in found


def test_known_failures_and_unexpected_passes_are_shown() -> None:
    """With their reasons, apart from the findings that count; so is what was left unchecked."""
    text = Page(page(REPORTS, remarks=REMARKS)).text
    for part in (*REMARKS.unexpected, *REMARKS.skipped, "waits for the second kernel", "Known failures"):
        assert part in text


def test_only_a_function_without_findings_is_called_clean() -> None:
    """Nothing that did not run, failed or was set aside is."""
    assert "Clean; probes: 2 passed" in Page(page([CLEAN])).text
    skipped = Report(function="F", outcomes={"values": Outcome(status=Status.SKIPPED, reason="none")})
    for report in (FAULTY, KNOWN, skipped, Report(function="F")):
        assert "Clean;" not in Page(page([report])).text
    assert "No probe ran." in Page(page([Report(function="F")])).text


def test_severities_have_their_colours() -> None:
    """By class, beside the word itself, for those who see no colours."""
    mild = replace(FAULTY, findings=(replace(WRONG, severity=Severity.WARNING),))
    assert [article["class"] for article in Page(page([mild])).all("article")] == ["finding warning"]
    assert "PB203 warning:" in Page(page([mild])).text


def test_any_name_stays_text() -> None:
    """Markup in names, messages, paths and reasons is shown, and never becomes part of the page."""
    read = Page(page([HOSTILE], remarks=HOSTILE_REMARKS))
    plain = Page(page([CLEAN], remarks=REMARKS))
    assert {tag for tag, _ in read.elements} <= {tag for tag, _ in plain.elements} | {
        "article",
        "h3",
        "dl",
        "dt",
        "dd",
        "pre",
    }
    assert read.text.count("<script>alert('a')</script>") > 10
    shown = "<script>alert('a')</script>]]>\\x00\\x1b[31m\n::error::%25,\\ud800\\u202e&\"--><!-- ##[error]"
    assert shown in read.text
    assert NASTY not in read.text
