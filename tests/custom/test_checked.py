"""F16: pullback check takes decorated functions: found in files, named, right ones clean, wrong ones not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.targets import find, load
from pullback.errors import MissingMethodError
from tests.custom.rules import MADE, by_jvp, drawn
from tests.custom.test_nests import MADE as NESTED
from tests.custom.test_nests import Point

OPS = """
import torch
import pullback

@pullback.custom_vjp
def cube(x):
    return x**3

cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))

@pullback.custom_jvp
def wrong(x):
    return torch.sin(x)

wrong.defjvps(lambda x_dot, result, x: -torch.cos(x) * x_dot)

@pullback.custom_vjp
def unfinished(x):
    return x

again = cube

@pullback.samples_for(cube)
def samples():
    yield (torch.rand(2, dtype=torch.float64),)
"""


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with decorated functions, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "decorated_ops.py"
    path.write_text(OPS)
    monkeypatch.delitem(sys.modules, "decorated_ops", raising=False)
    return path


@pytest.mark.parametrize("kind", MADE)
def test_right_ones_are_clean(kind: str) -> None:
    """A right rule has no finding, not even a hint, and goes by the function's name."""
    report = pullback.check(MADE[kind](), (drawn(3, seed=1), drawn(3, seed=2)))
    assert not report.findings, str(report)
    assert report.function == "product"
    assert report.location.partition(":")[0].endswith("rules.py")


@pytest.mark.parametrize("kind", NESTED)
def test_nests_are_checked_leaf_by_leaf(kind: str) -> None:
    """A function of a named tuple to a dict is clean."""
    report = pullback.check(NESTED[kind](), (Point(drawn(2, seed=1), drawn(2, seed=2)),), skip="compiled")
    assert not report.findings, str(report)


def test_a_wrong_cotangent_is_found() -> None:
    """PB203 names the argument whose gradient is wrong."""

    @pullback.custom_vjp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    product.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, g: (kept[1] * g, 2 * kept[0] * g))
    report = pullback.check(product, (drawn(3, seed=1), drawn(3, seed=2)), skip="compiled")
    assert {(finding.rule, finding.evidence["argument"]) for finding in report.findings} == {("PB203", "y")}
    assert "output = product(x, y)" in report.findings[0].repro


def test_a_wrong_tangent_is_found() -> None:
    """PB203 for a rule whose tangent isn't the derivative."""

    @pullback.custom_jvp
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)

    sine.defjvps(lambda x_dot, result, x: torch.sin(x) * x_dot)
    report = pullback.check(sine, (drawn(3),), skip="compiled")
    assert "PB203" in {finding.rule for finding in report.findings}


def test_a_rule_that_returns_another_value_is_found() -> None:
    """PB219: what fwd returns must be what the function returns."""

    @pullback.custom_vjp
    def square(x: Tensor) -> Tensor:
        return x * x

    square.defvjp(lambda x: (x * x + 1, x), lambda x, g: (2 * x * g,))
    report = pullback.check(square, (drawn(3),))
    (finding,) = report.findings
    assert finding.rule == "PB219"
    assert finding.message.startswith("output is another where something is differentiated")
    assert "with torch.no_grad():\n    expected = " in finding.repro


def test_declarations_are_proved() -> None:
    """A surrogate and a nonlinear bwd are declared on the decorator."""

    @pullback.custom_vjp(surrogate=lambda x: x * 1)
    def straight_through(x: Tensor) -> Tensor:
        return torch.round(x)

    straight_through.defvjp(lambda x: (torch.round(x), None), lambda _, g: (g,))

    @pullback.custom_vjp(nonlinear_backward=True)
    def clip(x: Tensor) -> Tensor:
        return x * 1

    clip.defvjp(lambda x: (x * 1, None), lambda _, g: (g.clamp(-1, 1),))
    for function in (straight_through, clip):
        report = pullback.check(function, (drawn(3),), skip="compiled")
        assert not report.findings, str(report)


def test_without_a_derivative_there_is_nothing_to_check() -> None:
    """PB112: a decorated function without a rule is refused."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return x

    with pytest.raises(MissingMethodError, match="PB112"):
        pullback.check(f, (drawn(2),))


def test_samples_stay_when_the_rule_is_given_again() -> None:
    """Samples are registered for the function, whichever rule it has."""
    function = by_jvp()

    @pullback.samples_for(function)
    def samples() -> Any:
        yield drawn(2, seed=1), drawn(2, seed=2)

    assert pullback.check(function, only="runs").samples == "1 registered"
    function.defjvps(None, None)
    assert pullback.check(function, only="runs").samples == "1 registered"


def test_they_are_found_in_a_file(ops: Path) -> None:
    """Decorated functions of a module are listed once; those without a rule are skipped with a reason."""
    members = find(load(str(ops), is_file=True), str(ops))
    assert [(entry.name, entry.location) for entry in members.found] == [
        ("cube", "decorated_ops.py:5"),
        ("wrong", "decorated_ops.py:11"),
    ]
    assert members.skipped == ["unfinished (decorated_ops.py:17) was given no derivative, and was not checked"]


def test_on_the_command_line(ops: Path) -> None:
    """pullback check runs the battery on them, and the lines that show a fault run."""
    command = [sys.executable, "-m", "pullback", "check", ops.name, "--seed", "0"]
    result = subprocess.run(command, cwd=ops.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "cube  decorated_ops.py:5: clean" in result.stdout
    assert "PB203 error: The gradient isn't forward's derivative" in result.stdout
    assert "from decorated_ops import wrong" in result.stdout


def test_a_module_among_the_residuals_is_no_waste() -> None:
    """PB304: who leaves a module for bwd can't help that each of its parameters is kept; other tensors are told."""

    def made(more: Any) -> Any:
        f: Any = pullback.custom_vjp(lambda m, x: m(x))

        def bwd(kept: Any, g: Tensor) -> Any:
            m, x = kept[:2]
            return {"weight": g.T @ x, "bias": g.sum(0)}, g @ m.weight

        f.defvjp(lambda m, x: (m(x), (m, x, *more(x))), bwd)
        return f

    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    assert pullback.check(made(lambda x: ()), (layer, drawn(4, 3)), only=("saved",)).ok
    report = pullback.check(made(lambda x: (x.exp(),)), (layer, drawn(4, 3)), only=("saved",))
    assert [finding.rule for finding in report.findings] == ["PB304"]
