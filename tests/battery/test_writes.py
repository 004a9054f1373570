"""The probe `writes`: changes of other people's tensors, seen by their values."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import writes
from pullback.finding import Status
from pullback.rules import Severity
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Scaled(Function):
    """2x, with hooks for subclasses to misbehave in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return 2 * g, None


def sample() -> tuple[Tensor, Tensor]:
    """Something to differentiate, and a buffer."""
    return leaf(3), torch.ones(3, dtype=torch.float64)


def test_a_well_behaved_function_passes() -> None:
    """Nothing is written to: passed, without findings."""
    outcome, findings = run_probe(writes.PROBE, Scaled, sample())
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_a_write_to_an_argument_names_it_and_shows_both_values() -> None:
    """PB401 says which argument, what it was, and what it became."""

    class Doubles(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            x.fill_(7)
            return x.clone()

    _, (finding,) = run_probe(writes.PROBE, Doubles, sample())
    assert finding.rule == "PB401"
    assert finding.where == "argument x, sample 0"
    assert "as before" in finding.expected
    assert finding.got == "[7.0, 7.0, 7.0]"
    assert finding.severity is Severity.ERROR


def test_a_write_to_a_buffer_is_a_hint_unless_a_result_depends_on_it() -> None:
    """Running statistics are updated on purpose; a call that reads what it overwrites gives something else again."""

    class Counts(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            buffer.add_(1)
            return 2 * x

    class Reads(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            return 2 * x + buffer.add_(1)

    _, (finding,) = run_probe(writes.PROBE, Counts, sample())
    assert (finding.rule, finding.severity) == ("PB401", Severity.HINT)
    _, (finding,) = run_probe(writes.PROBE, Reads, sample())
    assert (finding.rule, finding.severity) == ("PB401", Severity.WARNING)


def test_a_write_behind_the_version_counter_is_told_apart() -> None:
    """PB402 where the values changed and the counter did not."""

    class Raw(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            buffer.numpy()[:] = 9
            return 2 * x

    _, (finding,) = run_probe(writes.PROBE, Raw, sample())
    assert finding.rule == "PB402"
    assert "version counter did not move" in finding.message
    assert finding.evidence["argument"] == "buffer"


def test_a_write_of_what_was_there_already_is_none() -> None:
    """Bumping a version without changing a value harms nobody's numbers."""

    class Rewrites(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            buffer.copy_(buffer.clone())
            return 2 * x

    _, findings = run_probe(writes.PROBE, Rewrites, sample())
    assert findings == ()


def test_marking_dirty_is_respected_for_leaves_and_for_buffers() -> None:
    """A declared change is no finding, whether the tensor requires grad or not."""

    class Declared(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
            x.mul_(2)
            buffer.mul_(2)
            ctx.mark_dirty(x, buffer)
            return x, buffer

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return 2 * g, 2 * h

    outcome, findings = run_probe(writes.PROBE, Declared, sample())
    assert findings == ()
    assert outcome.status is Status.PASSED


def test_writes_of_backward_are_named_by_their_victim() -> None:
    """grad_output is PB403; a saved tensor is PB404, and named with the argument that it is."""

    class Spoils(Scaled):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            x.data.zero_()
            return g.mul_(2), None

    _, findings = run_probe(writes.PROBE, Spoils, sample())
    assert sorted(rules(findings)) == ["PB403", "PB404"]
    by_rule = {finding.rule: finding for finding in findings}
    assert "grad_output" in by_rule["PB403"].where
    assert "saved tensor 0 (x)" in by_rule["PB404"].message


def test_nan_is_a_value_like_others() -> None:
    """A NaN that stays a NaN has not changed."""
    with_nan = torch.tensor([float("nan"), 1.0], dtype=torch.float64, requires_grad=True)
    _, findings = run_probe(writes.PROBE, Scaled, (with_nan, torch.ones(2, dtype=torch.float64)))
    assert findings == ()


def test_plain_in_place_code_on_a_copy_is_left_alone() -> None:
    """A callable of plain PyTorch may write to what it made."""
    _, findings = run_probe(writes.PROBE, lambda x: x.clone().mul_(2), (leaf(2),))
    assert findings == ()


def test_an_argument_that_is_changed_and_changed_back_is_found() -> None:
    """It holds the same values, and whoever saved it before can't differentiate any more: PB401."""

    class Scales(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            made = x.mul_(2).clone()
            x.div_(2)
            return made

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    _, (finding,) = run_probe(writes.PROBE, Scales, (leaf(2),))
    assert finding.rule == "PB401"
    assert "holds the same values in the end" in finding.message
    assert shows_the_fault(finding, Scales=Scales)


def test_a_conversion_that_is_none_in_one_dtype_is_found() -> None:
    """x.float() is a copy in float64, and x itself in float32: PB401 there, and nothing of one that copies."""

    class Converts(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            return 2 * x + buffer.float().sub_(1).to(x.dtype)

    class Copies(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
            return 2 * x + buffer.to(torch.float32, copy=True).sub_(1).to(x.dtype)

    _, (finding,) = run_probe(writes.PROBE, Converts, sample())
    assert (finding.rule, finding.where) == (
        "PB401",
        "argument buffer, sample 0 in float32",
    )
    shows_the_fault(finding, Converts=Converts)
    assert run_probe(writes.PROBE, Copies, sample())[1] == ()


def test_a_cotangent_that_other_values_alone_change_is_found() -> None:
    """PB403: the mask is written into grad_output, and for the sample's positive values it masks nothing."""

    class Masks(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g.masked_fill_(x < 0, 0)

    _, (finding,) = run_probe(writes.PROBE, Masks, (leaf(6).detach().abs().add_(0.1).requires_grad_(),))
    assert finding.rule == "PB403"
    assert finding.message.startswith("with values from a normal distribution, backward changed grad_output in place")
    shows_the_fault(finding, Masks=Masks)
