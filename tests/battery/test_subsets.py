"""The probe `subsets`: which arguments require grad decides what is computed, not what comes out."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import subsets
from pullback.battery.probes.subsets import subsets_of
from pullback.finding import Status
from pullback.rules import Severity
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """A matrix product that does what is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gx = g @ w.t() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw


SAMPLE = (leaf(2, 3), leaf(3, 2))


def test_guards_by_the_right_flag_pass() -> None:
    """No finding, no hint."""
    assert run_probe(subsets.PROBE, Product, SAMPLE)[1] == ()


def test_a_guard_by_the_wrong_flag_is_found() -> None:
    """PB208 names the argument and the subset."""

    class Wrong(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return (g @ w.t(), x.t() @ g) if ctx.needs_input_grad[0] else (None, None)

    _, findings = run_probe(subsets.PROBE, Wrong, SAMPLE)
    (error,) = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert (error.rule, error.where) == ("PB208", "argument w, only w requires grad, sample 0")
    assert error.got == "None"


def test_a_backward_that_raises_for_a_subset_is_found() -> None:
    """As bad as a wrong number."""

    class Raises(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            if not all(ctx.needs_input_grad):
                raise RuntimeError("all or nothing")
            return Product.backward(ctx, g)

    _, findings = run_probe(subsets.PROBE, Raises, SAMPLE)
    assert [(finding.rule, finding.evidence["argument"]) for finding in findings] == [("PB208", "x"), ("PB208", "w")]


def test_work_for_nobody_is_a_hint_with_its_cost() -> None:
    """The operators that only the unwanted gradient needed, and how many elements they gave."""

    class Eager(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            doubled = g * 1
            return doubled @ w.t(), (x.t() @ doubled) * 1

    _, findings = run_probe(subsets.PROBE, Eager, SAMPLE)
    cost = {finding.evidence["argument"]: finding.evidence["operators"] for finding in findings}
    assert cost == {"w": ["aten.mm", "aten.mul"], "x": ["aten.mm"]}
    assert {finding.severity for finding in findings} == {Severity.HINT}
    assert findings[0].evidence["elements"] == 12


def test_returning_grad_output_itself_is_no_work() -> None:
    """(g, g) for a sum costs nothing, nor does a view of it."""

    class Sum(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x + w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g.view(-1).view(g.shape)

    assert run_probe(subsets.PROBE, Sum, (leaf(2, 3), leaf(2, 3)))[1] == ()


@pytest.mark.parametrize(("count", "expected"), [(2, 2), (3, 6), (5, 30), (8, 8 + 7 + 8)])
def test_every_subset_of_a_few_and_a_choice_of_many(count: int, expected: int) -> None:
    """Up to five arguments all; of more the single ones, pairs with the first, and all but one."""
    chosen = subsets_of([f"x{i}" for i in range(count)])
    assert len(set(chosen)) == len(chosen) == expected


def test_one_argument_has_no_subsets() -> None:
    """Skipped with the reason."""
    outcome, _ = run_probe(subsets.PROBE, torch.sin, (leaf(3),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "there is only one argument that requires grad")


def test_a_value_that_depends_on_who_requires_grad_is_found() -> None:
    """PB208 names the output and the subset."""

    class Shortens(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w * (1 if ctx.needs_input_grad[0] else 2)

    _, (finding, *_) = run_probe(subsets.PROBE, Shortens, (leaf(2, 3), leaf(3, 2)))
    assert (finding.rule, finding.message) == ("PB208", "output is another when only w requires grad")
    assert shows_the_fault(finding, Shortens=Shortens)
