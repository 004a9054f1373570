"""The probe `forward_mode`: jvp and backward are two sides of one derivative."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import forward_mode
from pullback.finding import Status
from tests.battery.repros import shown, shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Product(Function):
    """x · w, with a jvp that takes its two tangents one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return tx * w + x * tw


SAMPLE = (leaf(3), leaf(3))


def test_a_jvp_that_agrees_passes() -> None:
    """Nothing is found, nothing is left out."""
    outcome, findings = run_probe(forward_mode.PROBE, Product, SAMPLE)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_the_argument_whose_tangent_is_wrong_is_named() -> None:
    """PB507 with both inner products; x, whose part is right, isn't mentioned."""

    class Wrong(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return tx * w + 2 * x * tw

    _, (finding,) = run_probe(forward_mode.PROBE, Wrong, SAMPLE)
    assert (finding.rule, finding.where) == ("PB507", "argument w, sample 0")
    right, came = (float(text.rpartition(" = ")[2]) for text in (finding.expected, finding.got))
    assert came == pytest.approx(2 * right, rel=1e-5)
    assert shows_the_fault(finding, Wrong=Wrong)


def test_the_output_whose_tangent_is_wrong_is_named() -> None:
    """Each output has an inner product of its own, so that errors can't cancel."""

    class TwoOutputs(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
            return g * 2 + h * 3

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Any:
            return t * 3, t * 3

    _, (finding,) = run_probe(forward_mode.PROBE, TwoOutputs, (leaf(2),))
    assert finding.where == "argument x, output[0], sample 0"
    assert shows_the_fault(finding, TwoOutputs=TwoOutputs)


def test_a_jvp_that_is_not_linear_is_found_where_all_move() -> None:
    """Each tangent alone comes out right; both at once don't."""

    class Bilinear(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return Product.jvp(ctx, tx, tw) + tx * tw

    _, (finding,) = run_probe(forward_mode.PROBE, Bilinear, SAMPLE)
    assert (finding.rule, finding.where) == ("PB507", "sample 0")
    assert "the tangents of all arguments" in finding.message
    assert shows_the_fault(finding, Bilinear=Bilinear)


def test_a_tangent_of_another_shape_is_found() -> None:
    """PyTorch refuses it, and the remedy says what jvp has to return."""

    class Flat(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return tx.sum()

    _, (finding,) = run_probe(forward_mode.PROBE, Flat, SAMPLE)
    assert finding.rule == "PB508"
    assert "one tangent for each output" in finding.remedy
    assert shows_the_fault(finding, Flat=Flat)


def test_nothing_saved_for_forward_is_named() -> None:
    """Whatever the error is that comes of it."""

    class Unsaved(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

    _, (finding,) = run_probe(forward_mode.PROBE, Unsaved, SAMPLE)
    assert finding.rule == "PB508"
    assert "since save_for_forward was never called: ValueError: not enough values" in finding.message
    assert shown(finding, Unsaved=Unsaved).startswith("ValueError: not enough values")


def test_another_error_in_jvp_is_not_blamed_on_what_was_saved() -> None:
    """The message has the error, and under which tangents it came."""

    class Raises(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            x, _ = ctx.saved_tensors
            raise KeyError(len(x))

    _, (finding,) = run_probe(forward_mode.PROBE, Raises, SAMPLE)
    assert finding.message == "jvp raises when only x has a tangent: KeyError: 3"
    assert "save_for_forward" not in finding.remedy


def test_a_jvp_may_refuse() -> None:
    """NotImplementedError says that forward mode isn't there; that is no fault."""

    class Refuses(Product):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            raise NotImplementedError("some day")

    outcome, findings = run_probe(forward_mode.PROBE, Refuses, SAMPLE)
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert outcome.reason == "forward mode raised: NotImplementedError: some day"


def test_without_a_jvp_there_is_nothing_to_try() -> None:
    """PyTorch refuses forward mode then; the report doesn't count it as untested."""

    class Plain(Function):
        forward = Product.forward
        backward = Product.backward

    report = check(Plain, SAMPLE, only="forward_mode")
    assert report.outcomes["forward_mode"].status is Status.SKIPPED
    assert "there is no jvp" in report.outcomes["forward_mode"].reason
    assert not any(sentence.startswith("forward_mode") for sentence in report.untested)


def test_plain_callables_have_both_modes() -> None:
    """PyTorch's own operations agree; what has no forward mode is skipped with the reason."""
    assert run_probe(forward_mode.PROBE, torch.logsumexp, (leaf(3), 0))[0].status is Status.PASSED

    class Plain(Function):
        forward = Product.forward
        backward = Product.backward

    outcome, findings = run_probe(forward_mode.PROBE, lambda x, w: Plain.apply(x, w), SAMPLE)
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert outcome.reason.startswith("forward mode raised: NotImplementedError")


def test_a_wrong_backward_is_one_fault() -> None:
    """jvp is right, backward isn't: the inner products differ for a reason that has a code of its own."""

    class WrongBackward(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, 3 * g * x

    assert rules(run_probe(forward_mode.PROBE, WrongBackward, SAMPLE)[1]) == ["PB507"]
    found = check(WrongBackward, SAMPLE).findings
    assert [finding.rule for finding in found if finding.severity == "error"] == ["PB203"]


def test_single_precision_is_compared_with_its_own_tolerance() -> None:
    """A kernel that takes float32 alone rounds, and a wrong jvp of it is found all the same."""

    class Single(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return Product.forward(ctx, x, w)

    class WrongSingle(Single):
        @staticmethod
        def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Any:
            return 1.01 * Product.jvp(ctx, tx, tw)

    sample = (torch.rand(50) + 0.5, torch.rand(50) + 0.5)
    assert run_probe(forward_mode.PROBE, Single, sample)[0].status is Status.PASSED
    assert rules(run_probe(forward_mode.PROBE, WrongSingle, sample)[1]) == ["PB507", "PB507"]


def test_many_arguments_move_together_only() -> None:
    """Twenty arguments cost one call more, and one that is differentiated, not twenty."""
    calls = []

    class Sum(Function):
        @staticmethod
        def forward(ctx: Any, *xs: Tensor) -> Tensor:
            ctx.count = len(xs)
            return torch.stack(xs).sum(0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g,) * ctx.count

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Any:
            calls.append(len(tangents))
            return torch.stack(tangents).sum(0)

    assert run_probe(forward_mode.PROBE, Sum, tuple(leaf(2) for _ in range(20)))[1] == ()
    assert set(calls) == {20}


def test_infinities_and_draws_in_backward_are_left_out() -> None:
    """Skipped with the reason."""
    outcome, _ = run_probe(forward_mode.PROBE, Product, (torch.tensor([torch.inf, 1.0]), leaf(2)))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "sample 0 holds NaN or infinities")

    class Rounds(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w * (1 + 1e-3 * torch.rand_like(g)), g * x

    outcome, _ = run_probe(forward_mode.PROBE, Rounds, SAMPLE)
    assert outcome.reason == "sample 0: backward draws random numbers"


class Derived(pullback.Function):
    """x · w, of which pullback derives forward mode; unused is no part of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, unused: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x, None


def test_forward_mode_that_is_derived_is_compared_as_well() -> None:
    """A pullback.Function needs no jvp; an argument that the result doesn't depend on has the tangent 0."""
    outcome, findings = run_probe(forward_mode.PROBE, Derived, (leaf(3), leaf(3), leaf(3)))
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_leaves_of_containers_have_tangents() -> None:
    """Each leaf moves alone."""

    class Nested(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor]) -> dict[str, Tensor]:
            ctx.save_for_backward(*xs)
            ctx.save_for_forward(*xs)
            return {"product": xs[0] * xs[1], "sum": xs[0] + xs[1]}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            a, b = ctx.saved_tensors
            return [grads["product"] * b + grads["sum"], grads["product"] * a + grads["sum"]]

        @staticmethod
        def jvp(ctx: Any, tangents: list[Tensor]) -> Any:
            a, b = ctx.saved_tensors
            return {"product": tangents[0] * b + tangents[1] * a, "sum": 2 * tangents[0] + tangents[1]}

    _, (finding,) = run_probe(forward_mode.PROBE, Nested, ([leaf(2), leaf(2)],))
    assert (finding.rule, finding.where) == ("PB507", "argument xs[0], output['sum'], sample 0")
    assert shows_the_fault(finding, Nested=Nested)


def test_what_can_not_be_derived_is_skipped() -> None:
    """An opaque backward without a reference: the reason is that of the refusal."""

    class Opaque(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(2 * x.detach().numpy() * g.detach().numpy())

    outcome, findings = run_probe(forward_mode.PROBE, Opaque, (leaf(2),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert outcome.reason.startswith("PB511 ")


def test_a_formula_of_the_author_s_that_raises_in_forward_mode_alone_is_found() -> None:
    """A double_backward with a slip: told with its line, not passed over as if PyTorch had no forward mode."""

    class Slips(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return gg * x.cosine(), -gg * x.sin()

    (finding,) = run_probe(forward_mode.PROBE, Slips, (leaf(3),))[1]
    assert finding.rule == "PB507"
    assert finding.message.startswith("forward mode raises, and backward works: AttributeError: 'Tensor' object has no")
    assert "return gg * x.cosine(), -gg * x.sin()" in finding.message
    assert shows_the_fault(finding, Slips=Slips)
    report = check(Slips, (leaf(3),), only=("second_order", "forward_mode"))
    assert [found.rule for found in report.findings] == ["PB205"]


def test_a_formula_that_says_that_it_is_not_implemented_is_a_refusal() -> None:
    """The author's own NotImplementedError is no slip: the probe is skipped with it."""

    class Refuses(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            raise NotImplementedError("not yet")

    outcome, findings = run_probe(forward_mode.PROBE, Refuses, (leaf(3),))
    assert findings == ()
    assert outcome.reason == "forward mode raised: NotImplementedError: not yet"


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_both_modes_know_no_more_digits_than_forward(factor: float) -> None:
    """What computes in float32 within is compared as float32, at every seed."""

    class Tanh(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.float().tanh().to(x.dtype)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def slope(x: Tensor, moved: Tensor) -> Tensor:
            y = x.float().tanh()
            return ((1 - y * y) * moved.float()).to(moved.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return Tanh.slope(ctx.saved_tensors[0], g)

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return factor * Tanh.slope(ctx.saved_tensors[0], t)

    found = [run_probe(forward_mode.PROBE, Tanh, (leaf(3, 2),), seed=seed)[1] for seed in range(12)]
    told = [[one for one in findings if one.rule == "PB507"] for findings in found]
    assert all(told) if factor != 1.0 else not any(told)
