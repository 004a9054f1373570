"""The command line with the real battery: one file with everything that can be wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pullback.finding import Report
from pullback.report.json import from_json
from tests.cli.conftest import Pullback

OPS = """
import os
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def samples():
        yield (torch.rand(3, dtype=torch.float64, requires_grad=True),)

class Cube(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

class NoSamples(Square):
    samples = None

    @staticmethod
    def forward(ctx, x, config):
        ctx.save_for_backward(x)
        return x * config.scale

class BadSamples(Square):
    @staticmethod
    def samples():
        raise LookupError("no data")

class Refuses(Square):
    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError("only on Tuesdays")

class Exits(Square):
    @staticmethod
    def forward(ctx, x):
        raise SystemExit(0)

class Dies(Square):
    @staticmethod
    def forward(ctx, x):
        os.abort()

class Abstract(torch.autograd.Function):
    pass

class Last(Square):
    pass
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """What one run over the file reports, by the Function's name."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("real")
    (folder / "ops.py").write_text(OPS, encoding="utf-8")
    command = [sys.executable, "-m", "pullback", "check", "ops.py", "--output-format", "json"]
    command += ["--only", "runs,first_order", "--orders", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return {report.function: report for report in from_json(done.stdout)}


def test_every_function_has_a_report(reports: dict[str, Report]) -> None:
    """Each class that can be applied is reported, those after a broken one too, in the order of the file."""
    names = ["Square", "Cube", "NoSamples", "BadSamples", "Refuses", "Exits", "Dies", "Last"]
    assert list(reports) == names


def test_right_functions_are_clean(reports: dict[str, Report]) -> None:
    """What is right passes, with the location of its class relative to the working directory."""
    for name in ("Square", "Last"):
        assert reports[name].findings == ()
        assert {str(outcome.status) for outcome in reports[name].outcomes.values()} == {"passed"}
    assert reports["Square"].location == "ops.py:5"


@pytest.mark.parametrize(
    ("name", "rule", "message"),
    [
        ("Cube", "PB203", ""),
        ("BadSamples", "PB121", "LookupError: no data"),
        ("NoSamples", "PB121", ""),
        ("Refuses", "PB122", "only on Tuesdays"),
        ("Exits", "PB12", "SystemExit"),
        ("Dies", "PB123", "the probe runs ended the process with SIGABRT"),
    ],
)
def test_what_is_wrong_is_named(reports: dict[str, Report], name: str, rule: str, message: str) -> None:
    """A wrong gradient, no samples, samples that raise, a forward that raises or ends the process: each by its rule."""
    (finding,) = reports[name].findings
    assert finding.rule.startswith(rule)
    assert message in finding.message
    assert finding.function == name
    assert finding.location == reports[name].location != ""
    assert not reports[name].ok


def test_samples_can_be_given_from_outside(pullback: Pullback, folder: Path) -> None:
    """A mapping of classes to samples, here in a file beside it, serves classes that have none of their own."""
    given = "import torch\nfrom ops import NoSamples\nfrom types import SimpleNamespace as Config\n"
    given += "SAMPLES = {NoSamples: [(torch.rand(3, dtype=torch.float64, requires_grad=True), Config(scale=2))]}\n"
    options = ("--samples", "given.py:SAMPLES", "--only", "first_order", "--output-format", "json")
    ran = pullback("check", "ops.py:NoSamples", *options, engine="pullback.battery.engine", ops=OPS, given=given)
    (report,) = from_json(ran.out)
    assert "given" in report.samples
    assert [finding.rule for finding in report.findings] == ["PB201"]


def test_a_mapping_that_is_none_is_a_usage_error(pullback: Pullback) -> None:
    """Samples that can't be had end the run with exit code 2 and say what was expected."""
    options = ("--samples", "ops:Square", "--only", "first_order")
    ran = pullback("check", "ops.py:Square", *options, engine="pullback.battery.engine", ops=OPS)
    assert ran.code == 2
    assert "must be a mapping of classes to samples" in ran.err


def test_the_probes_are_listed(pullback: Pullback) -> None:
    """``--list`` names the probes of the battery and what each proves."""
    from pullback.battery.battery import PROBES

    ran = pullback("check", "--list", engine="pullback.battery.engine")
    assert ran.code == 0
    assert [line for line in ran.out.splitlines() if not line.startswith(" ")] == list(PROBES)
