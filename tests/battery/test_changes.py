"""The probe `changes`: tensors changed between forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import changes
from pullback.finding import Status
from tests.battery.running import leaf, rules, run_probe


class Product(Function):
    """x·w, saved as it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, g * x


def test_saved_arguments_are_caught_by_their_versions() -> None:
    """Every change raises in backward: passed."""
    outcome, findings = run_probe(changes.PROBE, Product, (leaf(2), leaf(2)))
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_one_argument_kept_on_ctx_is_named_and_the_other_is_not() -> None:
    """The finding names the argument, where it is kept, and the two gradients."""

    class KeepsW(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.state = {"w": w}
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            (x,) = ctx.saved_tensors
            return g * ctx.state["w"], g * x

    _, (finding,) = run_probe(changes.PROBE, KeepsW, (leaf(2), leaf(2)))
    assert finding.rule == "PB302"
    assert finding.evidence["argument"] == "w"
    assert finding.evidence["kept_as"] == "ctx.state['w']"
    assert "version check" in finding.expected
    assert finding.expected != finding.got


def test_memory_that_escapes_through_numpy_is_found_too() -> None:
    """No tensor hangs on ctx, and the gradient changes all the same."""

    class Escapes(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.memory = x.detach().numpy()
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * torch.from_numpy(ctx.memory)

    _, (finding,) = run_probe(changes.PROBE, Escapes, (leaf(2),))
    assert finding.rule == "PB302"
    assert "without a saved tensor" in finding.message


def test_an_argument_kept_for_its_shape_is_harmless() -> None:
    """The gradient doesn't change with the values: no finding here."""

    class Shape(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.expand(ctx.x.shape)

    _, findings = run_probe(changes.PROBE, Shape, (leaf(2),))
    assert findings == ()


def test_integers_are_left_as_they_are() -> None:
    """Another index might be out of bounds, so it isn't tried, and the outcome says so."""

    class Pick(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
            ctx.index, ctx.size = index, x.numel()
            return x[index]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return torch.zeros(ctx.size, dtype=g.dtype).index_add(0, ctx.index, g), None

    outcome, findings = run_probe(changes.PROBE, Pick, (leaf(3), torch.tensor([0, 2])))
    assert findings == ()
    assert any("index can't be changed: it holds integers" in note for note in outcome.notes)


def test_the_repro_shows_the_fault() -> None:
    """The lines of the finding fail with the gradient before the change and another one after it."""

    class Kept(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.x

    _, (finding,) = run_probe(changes.PROBE, Kept, (torch.tensor([3.0], dtype=torch.float64, requires_grad=True),))
    lines = [line for line in finding.repro.splitlines() if "import" not in line and not line.startswith("#")]
    with pytest.raises(AssertionError) as failed:
        exec("\n".join(lines), {"torch": torch, "Kept": Kept})
    got, expected = str(failed.value).splitlines()[-2:]
    assert "6." in expected
    assert "9.5" in got  # 2 · (1.5 · 3 + 0.25)


def test_a_pullback_function_is_looked_at_in_the_same_way() -> None:
    """The guard for saved tensors is no guard for attributes of ctx."""

    class Kept(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.x

    _, findings = run_probe(changes.PROBE, Kept, (leaf(2),))
    assert rules(findings) == ["PB302"]


def test_plain_code_is_skipped_with_a_reason() -> None:
    """PyTorch decides what plain code saves."""
    outcome, _ = run_probe(changes.PROBE, lambda x: x.exp(), (leaf(2),))
    assert outcome.status is Status.SKIPPED
    assert outcome.reason
