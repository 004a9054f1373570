"""The probe `saved`: what is kept from forward to backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import saved
from pullback.finding import Status
from pullback.rules import Severity
from tests.battery.running import leaf, rules, run_probe

CONSTANT = torch.tensor([1.0, 2.0], dtype=torch.float64)


class Keeps(Function):
    """2x, for subclasses that keep something."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def test_one_of_two_saved_tensors_is_never_read() -> None:
    """PB304 names that one by its position and its argument, and not the other."""

    class Half(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            _, w = ctx.saved_tensors
            return g * w, None

    _, (finding,) = run_probe(saved.PROBE, Half, (leaf(2), leaf(2)))
    assert (finding.rule, finding.severity) == ("PB304", Severity.WARNING)
    assert "saved tensor 0 (x)" in finding.where


def test_a_tensor_that_only_one_argument_needs_is_read() -> None:
    """Guards by needs_input_grad: whichever subset reads it counts, in a sample that asks for one gradient only."""

    class Guarded(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            x, w = ctx.saved_tensors
            return (g * w if ctx.needs_input_grad[0] else None), (g * x if ctx.needs_input_grad[1] else None)

    _, findings = run_probe(saved.PROBE, Guarded, (leaf(2), leaf(2).detach()))
    assert findings == ()


def test_a_tensor_that_leaves_torch_is_read() -> None:
    """NumPy and raw pointers read a saved tensor as well as an operator does."""

    class Numpy(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * g * torch.from_numpy(x.detach().numpy())

    _, findings = run_probe(saved.PROBE, Numpy, (leaf(2),))
    assert findings == ()


def test_what_only_double_backward_reads_is_read() -> None:
    """pullback hands saved tensors to double_backward too."""

    class Twice(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
            ctx.save_for_backward(x, slope)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            x, _ = ctx.saved_tensors
            return 2 * x * g, None

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor, _: None) -> tuple[Tensor, Tensor, None]:
            x, slope = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            return 2 * x * gg, slope * g * gg, None

    sample = (leaf(2), torch.full((2,), 2.0, dtype=torch.float64))
    _, findings = run_probe(saved.PROBE, Twice, sample)
    assert findings == ()


def test_a_slice_of_a_workspace_pins_it() -> None:
    """PB305 counts the bytes that are needed and those that stay alive."""

    class Slice(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = torch.zeros(1000, dtype=torch.bool)[: len(x)]
            ctx.save_for_backward(mask)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g + ctx.saved_tensors[0]

    _, (finding,) = run_probe(saved.PROBE, Slice, (leaf(2),))
    assert finding.rule == "PB305"
    assert finding.evidence["bytes_used"] == 2
    assert finding.evidence["bytes_pinned"] == 1000


def test_slices_that_share_a_storage_between_them_pin_nothing() -> None:
    """Both halves are saved: the storage is used."""

    class Halves(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = torch.zeros(2 * len(x), dtype=torch.bool)
            ctx.save_for_backward(mask[: len(x)], mask[len(x) :])
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            first, second = ctx.saved_tensors
            return 2 * g + first + second

    _, findings = run_probe(saved.PROBE, Halves, (leaf(40),))
    assert findings == ()


def test_an_argument_that_is_itself_a_slice_is_the_callers() -> None:
    """A sample cut out of a large tensor pins it, and that isn't the Function's doing."""

    class Saves(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    large = torch.rand(500, dtype=torch.float64)
    _, findings = run_probe(saved.PROBE, Saves, (large[:2].requires_grad_(),))
    assert findings == ()


@pytest.mark.parametrize(
    ("keep", "severity"),
    [
        (lambda x: 3 * x.detach(), Severity.WARNING),
        (lambda x: {"inner": [3 * x.detach()]}, Severity.WARNING),
        (lambda x: x, Severity.WARNING),
        (lambda x: x > 0.5, Severity.HINT),
        (lambda x: x.detach().amax(), Severity.HINT),
    ],
    ids=["float", "nested", "argument", "mask", "scalar"],
)
def test_tensors_on_ctx_are_warnings_if_large_floats_and_hints_otherwise(keep: Any, severity: Severity) -> None:
    """PB303 finds them in containers too."""

    class OnCtx(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = keep(x)
            return 2 * x

    _, (finding,) = run_probe(saved.PROBE, OnCtx, (leaf(2),))
    assert (finding.rule, finding.severity) == ("PB303", severity)
    assert "ctx.kept" in finding.where


def test_constants_and_numbers_on_ctx_are_fine() -> None:
    """A constant that lives elsewhere anyway, a view of it, a shape and a number."""

    class OnCtx(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.constant, ctx.view, ctx.shape, ctx.gain = CONSTANT, CONSTANT[:1], x.shape, 2.0
            return 2 * x

    _, findings = run_probe(saved.PROBE, OnCtx, (leaf(2),))
    assert findings == ()


def test_a_forward_that_saves_by_other_ways_is_told_in_a_note() -> None:
    """A graph inside forward saves too: which of it backward reads isn't tried."""

    class Inner(Keeps):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                return (inner * inner).detach()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    outcome, findings = run_probe(saved.PROBE, Inner, (leaf(2),))
    assert rules(findings) == []
    assert any("saves by other ways" in note for note in outcome.notes)


def test_plain_code_is_skipped_with_a_reason() -> None:
    """PyTorch decides what plain code saves."""
    outcome, _ = run_probe(saved.PROBE, lambda x: x.exp(), (leaf(2),))
    assert outcome.status is Status.SKIPPED


def test_a_backward_that_raises_is_no_crash() -> None:
    """Which saved tensors are read is left open then, and said; the error itself is for others to find."""

    class Raises(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            if not all(ctx.needs_input_grad):
                raise RuntimeError("the kernel isn't there")
            return g * w, g * x

    outcome, findings = run_probe(saved.PROBE, Raises, (leaf(2), leaf(2)))
    assert not findings
    assert "which saved tensors are read was not tried: RuntimeError: the kernel isn't there" in str(outcome)
    assert not torch.overrides._get_current_function_mode_stack()
