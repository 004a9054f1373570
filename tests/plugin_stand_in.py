"""A stand-in for `pullback.check`, for tests of the plugin for pytest: no battery, and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import pullback
from pullback.finding import Finding, Outcome, Report, Status

PASSED = Outcome(status=Status.PASSED)
NO_JVP = Outcome(status=Status.SKIPPED, reason="there is no jvp")
OUTCOMES = {"runs": PASSED, "first_order": PASSED, "forward_mode": NO_JVP, "batching": NO_JVP}
WRONG = Finding(
    rule="PB203",
    function="Square",
    where="argument x, sample 0",
    message="the gradient of x differs\nfrom finite differences",
    expected="2",
    got="3",
)
HINT = Finding(rule="PB601", function="Square", where="", message="it could be faster", severity=pullback.Severity.HINT)

# For runs in processes of their own, where no stand-in of this process is.
CONFTEST = """
import pullback
from pullback.finding import Finding, Outcome, Report, Status

def check(function, *samples, seed, **options):
    wrong = Finding(rule="PB203", function=function, where="argument x", message=f"wrong with {seed}")
    skipped = Outcome(status=Status.SKIPPED, reason="there is no jvp")
    return Report(
        function=function,
        findings=(wrong,) if function == "Square" else (),
        outcomes={"runs": Outcome(status=Status.PASSED), "forward_mode": skipped},
        seed=seed,
    )

pullback.check = check
"""


class Checks:
    """A stand-in for `pullback.check`, which gives one report, and keeps what it was called with."""

    def __init__(self) -> None:
        """Start without calls; a test may set what is found or raised."""
        self.calls: list[dict[str, Any]] = []
        self.findings: tuple[Finding, ...] = ()
        self.outcomes: Mapping[str, Outcome] = OUTCOMES
        self.error: Exception | None = None

    def __call__(self, function: str, *samples: object, **options: Any) -> Report:
        self.calls.append({"function": function, "samples": samples, **options})
        if self.error is not None:
            raise self.error
        return Report(function=function, findings=self.findings, outcomes=self.outcomes, seed=options["seed"])


def put_stand_in(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """Put a stand-in where the plugin looks for `pullback.check`."""
    stand_in = Checks()
    monkeypatch.setitem(vars(pullback), "check", stand_in)
    return stand_in


ONE = "def test_square(check_function):\n    check_function('Square')\n"


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """Run a file of tests, in this process."""
    pytester.makepyfile(test_ops=source)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
