"""The probe `compiled`: a call compiled by torch.compile gives what an eager one gives."""

import logging
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery import compiling
from pullback.battery.probes import compiled
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Approximates(Function):
    """Another formula for the compiler."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x - x**3 / 6 if torch.compiler.is_compiling() else x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos()


def test_another_value_is_found() -> None:
    """The finding names the output and shows both."""
    (finding,) = run_probe(compiled.PROBE, Approximates, (leaf(3),))[1]
    assert finding.rule == "PB515"
    assert finding.message == "compiled by torch.compile, the value is another one"
    assert finding.evidence["output"] == "output"
    assert shows_the_fault(finding, Approximates=Approximates)


class AsksItsName(Function):
    """While it is traced, ctx is of another class."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g if type(ctx).__name__ == "AsksItsNameBackward" else g


def test_another_gradient_is_found() -> None:
    """By the argument's name."""
    (finding,) = run_probe(compiled.PROBE, AsksItsName, (leaf(3),))[1]
    assert finding.message == "compiled by torch.compile, the gradient is another one"
    assert finding.evidence["argument"] == "x"
    assert shows_the_fault(finding, AsksItsName=AsksItsName)


class OnLeaves(Function):
    """Weights are scaled, activations aren't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 3.0 if x.is_leaf else 2.0
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        factor: float = ctx.factor
        return g * factor


def test_results_of_operations_are_tried_as_arguments() -> None:
    """Leaves are compiled right, what comes from an operation isn't."""
    (finding,) = run_probe(compiled.PROBE, OnLeaves, (leaf(3),))[1]
    assert "for arguments that are no leaves" in finding.message
    assert shows_the_fault(finding, OnLeaves=OnLeaves)


class Product(pullback.Function):
    """A right one of pullback's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return a * w + b if ctx.needs_input_grad[0] else None, a * x + b if ctx.needs_input_grad[1] else None


class InPlace(Function):
    """Writes to its argument and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@pullback.custom_vjp
def cube(x: Tensor) -> Tensor:
    """x³ by a rule."""
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * g * x**2,))


@pytest.mark.parametrize(("function", "count"), [(Product, 2), (InPlace, 1), (cube, 1), (torch.mul, 2)])
def test_right_functions_are_not_blamed(function: Any, count: int) -> None:
    """Pullback's, in place, decorated, and PyTorch's own."""
    _, findings = run_probe(compiled.PROBE, function, tuple(leaf(3) for _ in range(count)))
    assert findings == ()


class Branches(Function):
    """What a compiler can't follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.negative = bool(x.sum() < 0)
        return -x if ctx.negative else 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g if ctx.negative else 2 * g


def test_what_can_not_be_compiled_in_one_piece_is_noted() -> None:
    """It runs in pieces, and is right."""
    outcome, findings = run_probe(compiled.PROBE, Branches, (leaf(3),))
    assert findings == ()
    assert any(note.startswith("not compiled in one piece: ") for note in outcome.notes)


def test_numbers_drawn_otherwise_are_no_fault() -> None:
    """Compiled code may draw from NumPy's generator in its own way."""
    import numpy

    def noisy(x: Tensor) -> Tensor:
        return x * torch.from_numpy(numpy.random.rand(*x.shape))

    _, findings = run_probe(compiled.PROBE, noisy, (leaf(3),))
    assert findings == ()


def test_what_the_user_has_compiled_stays_compiled() -> None:
    """A check doesn't make the user's own code compile again, and leaves logging as it was."""
    compilations: list[object] = []

    def backend(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    function(torch.ones(3))
    level = logging.root.manager.disable
    run_probe(compiled.PROBE, Branches, (leaf(3),))
    function(torch.ones(3))
    assert len(compilations) == 1
    assert logging.root.manager.disable == level


def test_many_checks_leave_nothing_to_recompile() -> None:
    """More checks of one Function than Dynamo allows recompilations of one piece of code: each still compiles."""
    limit = 3
    with torch._dynamo.config.patch(recompile_limit=limit):
        for _ in range(limit + 2):
            outcome, findings = run_probe(compiled.PROBE, Branches, (leaf(3),))
            assert findings == ()
            assert not any("limit" in note for note in outcome.notes)


def test_where_dynamo_is_not_supported_the_probe_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason."""
    monkeypatch.setattr(compiled, "why_unsupported", lambda: "TorchDynamo doesn't support this Python")
    outcome, _ = run_probe(compiled.PROBE, Product, (leaf(3), leaf(3)))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "TorchDynamo doesn't support this Python")


def test_where_dynamo_is_switched_off_the_probe_is_skipped() -> None:
    """Nothing was compiled, so nothing is proved."""
    with torch.compiler.set_stance("force_eager"):
        outcome, _ = run_probe(compiled.PROBE, Product, (leaf(3), leaf(3)))
    assert outcome.status is Status.SKIPPED
    assert "nothing was compiled" in outcome.reason


def test_importing_the_battery_does_not_import_dynamo() -> None:
    """That takes seconds, and is paid by the probe alone."""
    code = (
        "import sys, pullback.function; before = 'torch._dynamo' in sys.modules; "
        "import pullback.battery.check; print(before == ('torch._dynamo' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"
    assert compiling.BACKEND == "aot_eager"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_long_loop(where: str) -> None:
    """Dynamo would unroll it, for minutes: it is skipped, and the reason says how long it is."""

    def times(x: Tensor, here: bool) -> Tensor:
        for _ in range(1500 if here else 1):
            x = x * 1.0
        return x

    class Loops(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return times(x, where == "forward")

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return times(g, where == "backward")

    outcome, findings = run_probe(compiled.PROBE, Loops, (leaf(3),))
    assert not findings
    assert outcome.status is Status.SKIPPED
    assert re.match(r"a call runs 15\d\d operators, and compiling more than 1000 would", outcome.reason)


class LargeOnes(Function):
    """Another formula for the compiler where there are many elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 4 if torch.compiler.is_compiling() and len(x) == 12 else x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def test_every_sample_is_compiled() -> None:
    """More shapes than Dynamo allows recompilations of one piece of code, of which the last is wrong."""
    outcome, (finding,) = run_probe(compiled.PROBE, LargeOnes, *((leaf(size),) for size in range(1, 13)))
    assert finding.evidence["sample"] == 11
    assert not any("compiled within" in note for note in outcome.notes)


def test_samples_for_which_the_time_was_up_are_listed_as_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the probe's notes, and in the report's last part."""
    monkeypatch.setattr(compiled, "_SECONDS", 0.0)
    report = pullback.check(LargeOnes, (leaf(3),), (leaf(4),), (leaf(12),), only="compiled")
    text = "only 1 of 3 samples were compiled within 0 s"
    assert report.findings == ()
    assert text in report.outcomes["compiled"].notes
    assert f"compiled: {text}" in report.untested


def test_ways_to_call_for_which_the_time_was_up_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each sample was compiled as it is."""
    monkeypatch.setattr(compiled, "_SECONDS", 0.0)
    outcome, _ = run_probe(compiled.PROBE, cube, (leaf(3),))
    expected = "sample 0 wasn't compiled, for lack of time, for other values, for arguments that are no leaves"
    assert outcome.notes == (expected,)
