"""Samples with lists, dicts, tuples and modules of tensors: a pullback.Function of them is checked leaf by leaf."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.battery.check import check, make_subject
from pullback.battery.nodes import call_backward, entry_names, node_of
from pullback.battery.probes import first_order, precision, second_order, short_form, subsets
from pullback.finding import Finding, Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Affine(pullback.Function):
    """x · weight + bias, of a dict."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(x, state["weight"])
        return x * state["weight"] + state["bias"]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gx = g * weight if ctx.needs_input_grad[0] else None
        return gx, {"weight": g * x, "bias": g} if ctx.needs_input_grad[1] else None


def sample() -> tuple[object, ...]:
    """x and a dict."""
    return leaf(3), {"weight": leaf(3), "bias": leaf(3)}


def clean(findings: tuple[Finding, ...]) -> bool:
    """Whether nothing but hints was found."""
    return all(finding.severity == "hint" for finding in findings)


@pytest.mark.parametrize("kind", [list, tuple, lambda leaves: dict(enumerate(leaves))])
def test_containers_of_every_kind_are_checked(kind: Callable[[Any], Any]) -> None:
    """First and second order, subsets of the leaves, layouts: all that is done with arguments."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: Any) -> Tensor:
            a: Tensor
            b: Tensor
            a, b = torch.utils._pytree.tree_leaves(xs)
            ctx.save_for_backward(a, b)
            ctx.spec = torch.utils._pytree.tree_structure(xs)
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b = ctx.saved_tensors
            return (torch.utils._pytree.tree_unflatten([g * b, g * a], ctx.spec),)

    report = check(Product, (kind(leaf(2) for _ in range(2)),), skip="compiled")
    assert clean(report.findings), str(report)
    for probe in ("first_order", "second_order", "subsets", "layouts", "linearity"):
        assert report.outcomes[probe].status is Status.PASSED, probe


def test_the_leaf_whose_gradient_is_wrong_is_named() -> None:
    """By its path, with lines that show it."""

    class Wrong(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return g * weight, {"weight": 2 * g * x, "bias": g}

    _, (finding,) = run_probe(first_order.PROBE, Wrong, sample())
    assert (finding.rule, finding.where) == ("PB203", "argument state['weight'], sample 0")
    assert shows_the_fault(finding, Wrong=Wrong)


def test_a_leaf_that_is_right_only_beside_others_is_named() -> None:
    """Which leaves require grad decides what is computed, not what comes out."""

    class Forgets(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            both = all(ctx.needs_input_grad)
            return g * weight, {"weight": g * x, "bias": g if both else None}

    _, findings = run_probe(subsets.PROBE, Forgets, sample())
    errors = [finding for finding in findings if finding.severity == "error"]
    assert [(finding.rule, finding.evidence["argument"]) for finding in errors] == [("PB208", "state['bias']")]
    assert shows_the_fault(errors[0], Forgets=Forgets)


def test_leaves_of_one_argument_share_a_flag() -> None:
    """backward can't know which leaf needs a gradient, so the work for its neighbours is no waste."""
    assert run_probe(subsets.PROBE, Affine, sample())[1] == ()


def test_a_second_derivative_lost_in_a_leaf_is_named() -> None:
    """backward cuts off what it saved."""

    class Cuts(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return g * weight, {"weight": g * x.detach(), "bias": g}

    _, findings = run_probe(second_order.PROBE, Cuts, sample())
    assert rules(findings) == ["PB207"]
    assert "state['weight']" in findings[0].message
    assert shows_the_fault(findings[0], Cuts=Cuts)


def test_a_module_is_a_nest_of_its_parameters() -> None:
    """The module in the sample isn't changed, nor do its parameters get a gradient."""

    class Layer(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
            ctx.save_for_backward(x, layer.weight)
            result: Tensor = layer(x)
            return result

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            g = g.to(weight.dtype)
            return g @ weight, {"weight": g.mT @ x, "bias": 2 * g.sum(0)}

    layer = nn.Linear(3, 2, dtype=torch.float64)
    before = layer.weight.detach().clone()
    found = check(Layer, (leaf(4, 3), layer), skip="compiled").findings
    errors = [finding for finding in found if finding.severity == "error"]
    assert [(finding.rule, finding.where) for finding in errors] == [("PB203", "argument layer.bias, sample 0")]
    assert torch.equal(layer.weight, before)
    assert layer.weight.grad is None


def test_what_is_returned_in_a_container_is_judged_output_by_output() -> None:
    """A dict in a tuple."""

    class Nested(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 2, {"triple": x * 3}

        @staticmethod
        def backward(ctx: Any, g: Tensor, nest: dict[str, Tensor]) -> Tensor:
            return g * 2 + nest["triple"] * 4

    _, (finding,) = run_probe(first_order.PROBE, Nested, (leaf(2),))
    assert finding.rule == "PB203"
    assert shows_the_fault(finding, Nested=Nested)


def test_what_backward_itself_returns_is_named_leaf_by_leaf() -> None:
    """The node of a call that was taken apart has one entry for each leaf."""
    made = make_subject(Affine, sample())
    inputs = made.fresh(made.cases[0])
    outputs = made.call(inputs)
    node = node_of(made, outputs)
    assert entry_names(made, node, inputs) == ("x", "state['weight']", "state['bias']")
    entries = call_backward(made, node, inputs, outputs).by_name()
    assert all(isinstance(entry, Tensor) for entry in entries.values())


def test_a_leaf_that_comes_back_in_a_lower_dtype_is_named() -> None:
    """PB215, which the engine's cast hides."""

    class Lowers(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return g * weight, {"weight": (g * x).float(), "bias": g}

    _, findings = run_probe(precision.PROBE, Lowers, sample())
    found = next(finding for finding in findings if finding.rule == "PB215")
    assert found.evidence["argument"] == "state['weight']"
    assert shows_the_fault(found, Lowers=Lowers)


def test_an_expected_backward_may_return_nests() -> None:
    """It gets outputs and cotangents as backward does, and each leaf is compared."""

    class Clips(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, xs: list[Tensor]) -> Any:
            return {"first": xs[0] * 2, "second": xs[1] * 3}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            return [grads["first"].clamp(-1, 1), grads["second"].clamp(-1, 1)]

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Any:
            assert set(outputs[0]) == {"first", "second"}
            return [grad_outputs[0]["first"].clamp(-1, 1), grad_outputs[0]["second"].clamp(-2, 2)]

    _, (finding,) = run_probe(first_order.PROBE, Clips, ([leaf(2), leaf(2)],))
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "xs[1]")


def test_a_double_backward_of_leaves_is_no_short_form() -> None:
    """It takes one entry for each leaf, and returns as many and one more."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor]) -> Tensor:
            ctx.save_for_backward(xs[0])
            return xs[0] ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return [2 * ctx.saved_tensors[0] * g, None]

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor, constant: None) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * gg, 2 * ctx.grad_outputs[0] * gg, None

    constant = torch.arange(2)
    report = check(Square, ([leaf(2), constant],), skip="compiled")
    assert clean(report.findings), str(report)
    outcome, _ = run_probe(short_form.PROBE, Square, ([leaf(2), constant],))
    assert outcome.reason == "double_backward has its general form"


def test_outputs_go_by_their_own_names() -> None:
    """A wrong gradient for one output of a dict, or one that is dropped, names it by its key."""

    def made(second: Callable[[Tensor, Tensor], Tensor | None]) -> Any:
        class Both(pullback.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                ctx.save_for_backward(x)
                return {"once": x * 2, "twice": [x**2]}

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                more = second(g["twice"][0], x)
                return g["once"] * 2 + (0 if more is None else more)

        return Both

    _, (finding,) = run_probe(first_order.PROBE, made(lambda g, x: g * x), (leaf(2),))
    assert (finding.rule, finding.where) == ("PB203", "argument x, output['twice'][0], sample 0")
    _, (finding,) = run_probe(first_order.PROBE, made(lambda g, x: None), (leaf(2),))
    assert (finding.rule, finding.evidence["output"]) == ("PB209", "output['twice'][0]")
