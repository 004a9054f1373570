"""The probe `short_form`: one returned tensor stands for a diagonal."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.probes import short_form
from pullback.battery.probes.short_form import _masks
from pullback.finding import Status
from tests.battery.running import leaf, run_probe


class Cube(pullback.Function):
    """x³ with the short form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Any:
        return 6 * ctx.saved_tensors[0] * gg


class Neighbours(Cube):
    """Each element is multiplied with the next."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.roll(1, -1)


def test_an_elementwise_function_passes() -> None:
    """In any shape."""
    assert run_probe(short_form.PROBE, Cube, (leaf(3),), (leaf(2, 5),), (leaf(1),))[1] == ()


@pytest.mark.parametrize("count", [2, 3, 7, 16, 100])
def test_a_dependence_on_any_other_element_is_found(count: int) -> None:
    """PB212."""
    _, (finding,) = run_probe(short_form.PROBE, Neighbours, (leaf(count),))
    assert (finding.rule, finding.evidence["argument"]) == ("PB212", "x")


@pytest.mark.parametrize("count", [1, 2, 5, 8, 33])
def test_every_two_elements_are_told_apart_by_a_mask(count: int) -> None:
    """One moves and the other doesn't."""
    masks = list(_masks(count))
    for i in range(count):
        for j in range(count):
            assert i == j or any(bool(mask[i]) and not bool(mask[j]) for mask in masks)


def test_an_output_of_another_shape_is_found() -> None:
    """A sum isn't elementwise."""

    class Sum(Cube):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (x**3).sum()

    _, findings = run_probe(short_form.PROBE, Sum, (leaf(3),))
    assert [finding.rule for finding in findings] == ["PB212"]


def test_the_general_form_is_not_its_business() -> None:
    """Nor a Function without double_backward."""

    class General(Neighbours):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            return gg, gg

    outcome, _ = run_probe(short_form.PROBE, General, (leaf(3),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "double_backward has its general form")
    outcome, _ = run_probe(short_form.PROBE, torch.sin, (leaf(3),))
    assert outcome.reason == "there is no double_backward"
