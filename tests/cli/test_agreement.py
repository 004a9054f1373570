"""However a run ends, every format of its report says the same as its exit code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from pullback.cli import check, known_failures
from pullback.cli.options import CheckOptions
from pullback.finding import Finding, Outcome, Report, Status
from pullback.report.json import dumps, from_json

RULES = ("PB120", "PB121", "PB123", "PB124", "PB203", "PB205", "PB304", "PB601")


def some_findings(draw: random.Random, function: str, probe: str) -> Iterator[Finding]:
    """None to two findings of a probe."""
    told = {"function": function, "where": "x", "message": "wrong", "probe": probe, "location": "ops.py:1"}
    for _ in range(draw.randint(0, 2)):
        yield Finding(rule=draw.choice(RULES), **told)


def some_reports(draw: random.Random) -> list[Report]:
    """Up to three reports: on Functions with probes that ended in each way, and on a file that can't be loaded."""
    reports = []
    for number in range(draw.randint(0, 3)):
        name = f"F{number}"
        outcomes, findings = {}, []
        for probe in ("first", "second", "third"):
            status = draw.choice([*Status, None])
            if status is not None:
                outcomes[probe] = Outcome(status=status, reason="no object" if status is Status.SKIPPED else "")
            if status is Status.FAILED:
                findings += some_findings(draw, name, probe)
        if draw.random() < 0.2:
            outcomes = {}
            findings = [Finding(rule="PB120", function="x.py", where="x", message="raised", location="x.py:1")]
        reports.append(Report(function=name, findings=tuple(findings), outcomes=outcomes, location="ops.py:1"))
    return reports


@pytest.mark.parametrize("fail_on", ["error", "warning"])
@pytest.mark.parametrize("seed", range(100))
def test_every_format_agrees_with_the_exit_code(seed: int, fail_on: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With known failures, selections of rules, hints, and what could not be checked, in any mixture."""
    draw = random.Random(seed)
    reports = some_reports(draw)
    names = {(f"F{draw.randint(0, 3)}", draw.choice(RULES)): None for _ in range(draw.randint(0, 3))}
    entries = [known_failures.KnownFailure(function=name, rule=rule, reason="waits") for name, rule in names]
    chosen = {
        "select": tuple(draw.sample(["PB1", "PB2", "PB203", "PB6"], draw.randint(0, 2))),
        "ignore": tuple(draw.sample(["PB2", "PB205", "PB6"], draw.randint(0, 1))),
        "fail_on": fail_on,
    }

    def conclude(name: str) -> tuple[int, str]:
        options = CheckOptions(output_format=name, **chosen)
        code = check._conclude(reports, (), entries, (), options, update=False)
        return code, capsys.readouterr().out

    code, text = conclude("junit")
    suites = ElementTree.fromstring(text)
    assert (code == 1) == any(int(str(suites.get(key))) for key in ("failures", "errors"))

    levels = ("error",) if fail_on == "error" else ("error", "warning")
    code, text = conclude("github")
    assert (code == 1) == any(line.removeprefix("::").startswith(levels) for line in text.splitlines())

    code, text = conclude("sarif")
    (run,) = json.loads(text)["runs"]
    counted = [result for result in run["results"] if result["level"] in levels and not result.get("suppressions")]
    assert (code == 1) == bool(counted or run["invocations"][0]["toolConfigurationNotifications"])

    code, text = conclude("json")
    document = json.loads(text)
    if fail_on == "warning":  # `ok` doesn't ask what makes a run fail
        assert (code == 0) == document["ok"]
    assert all(number >= 0 for number in document["summary"].values())
    assert from_json(dumps(from_json(text))) == from_json(text)
