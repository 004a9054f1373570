"""What is known of a wrong gradient, gathered for a diagnosis: this runs only where a fault was found."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from pullback.battery.curves import curve_maker
from pullback.battery.diagnosis import Facts, diagnose
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat, unflat
from pullback.battery.oracle import by_autograd, in_double, moved, oracle_of
from pullback.battery.raised import RAISED, BackwardRaised, ForwardRaised
from pullback.battery.subject import Case, Leaf, with_tensors
from pullback.battery.tolerances import DIFFERENCES, for_patterns
from pullback.battery.truth import Truth

_MOST = 512
"""Gradients of more elements than this are not found out element by element where autograd doesn't give them."""

_SECONDS = 2.0
"""Nor for longer than this, in seconds of the processor."""


def diagnosis(truth: Truth, place: int, leaf: Leaf, got: torch.Tensor) -> str:
    """The pattern of the error in the gradient of `leaf` for one output, in words; empty if there is none."""
    try:
        return _Gathering(truth, place).diagnosis(leaf, got)
    except (ForwardRaised, BackwardRaised, *RAISED):
        return ""  # a diagnosis is a help: that one can't be made must not hide the finding


class _Gathering:
    """The right gradients of one output at one point, each found when it is asked for."""

    def __init__(self, truth: Truth, place: int) -> None:
        self._truth, self._place = truth, place
        self._subject = truth.subject
        self._point = replace(truth.case, sample=with_tensors(truth.case.sample, in_double))
        self._deadline = time.process_time() + _SECONDS

    def diagnosis(self, leaf: Leaf, got: torch.Tensor) -> str:
        expected = self.gradient(self._point, leaf)
        if expected is None or got.shape != expected.shape:
            return ""
        return diagnose(
            Facts(
                expected=expected,
                got=in_double(got).to(expected.dtype),
                tolerance=for_patterns(self._truth.dtypes) if self._truth.exact else DIFFERENCES,
                argument=in_double(leaf.tensor),
                name=leaf.name,
                others=self._others(leaf),
                known=self._known(),
                parts=self._parts(leaf, expected),
            )
        )

    def gradient(self, point: Case, leaf: Leaf) -> torch.Tensor | None:
        """The right gradient of `leaf` at a point; None if it would take too long."""
        truth = self._truth
        if truth.exact:
            exact = by_autograd(self._subject, point, truth.outputs, truth.cotangents)
            found = exact.get((leaf.name, self._place))
            tensor = next(other.tensor for other in self._subject.fresh(point).leaves if other.name == leaf.name)
            return found if found is not None else torch.zeros_like(tensor)
        tensor = next(other.tensor for other in self._subject.fresh(point).leaves if other.name == leaf.name)
        count = flat(tensor).numel()
        if count > _MOST:
            return None
        oracle = oracle_of(self._subject)
        slopes_along = curve_maker(self._subject, point, oracle, truth.outputs, truth.cotangents)
        elements = torch.zeros(count, dtype=torch.float64)
        for element in range(count):
            if time.process_time() > self._deadline:
                return None
            direction = torch.zeros(count, dtype=torch.float64)
            direction[element] = 1.0
            elements[element] = slopes_along(leaf.name, direction).values[self._place]
        return unflat(elements, tensor.detach())

    def _others(self, leaf: Leaf) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for other in self._subject.fresh(self._point).varying:
            if other.name != leaf.name and other.tensor.shape == leaf.tensor.shape:
                gradient = self.gradient(self._point, other)
                if gradient is not None:
                    found[other.name] = gradient
        return found

    def _known(self) -> dict[str, torch.Tensor]:
        """What else backward may have returned by mistake."""
        inputs = self._subject.fresh(self._point, requires=())
        outputs = self._subject.call(inputs, oracle_of(self._subject))
        output = outputs[self._truth.outputs[self._place]]
        found = {"grad_output itself": self._truth.cotangents[self._place], "forward's own output": output.tensor}
        found.update({f"the argument {leaf.name} itself": leaf.tensor for leaf in inputs.leaves})
        return {name: in_double(tensor) for name, tensor in found.items() if is_float(tensor)}

    def _parts(self, leaf: Leaf, expected: torch.Tensor) -> dict[int, torch.Tensor]:
        """The gradient before its sum over the axis along which the argument is broadcast, if there is one."""
        shape, full = tuple(leaf.tensor.shape), tuple(self._truth.cotangents[self._place].shape)
        padded = (1,) * (len(full) - len(shape)) + shape
        axes = [axis for axis, (small, large) in enumerate(zip(padded, full, strict=False)) if small != large]
        if len(padded) != len(full) or len(axes) != 1 or padded[axes[0]] != 1 or leaf.also:
            return {}
        point = moved(
            self._subject,
            self._point,
            lambda name, tensor: tensor.expand(full).contiguous() if name == leaf.name else tensor,
        )
        whole = self.gradient(point, leaf)
        if whole is None or whole.shape != full:
            return {}
        summed = whole.sum(axes[0], keepdim=True).reshape(expected.shape)
        near = torch.allclose(summed, expected, DIFFERENCES.rtol, DIFFERENCES.atol * float(expected.abs().max()))
        return {axes[0]: whole} if near else {}
