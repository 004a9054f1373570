"""What a call left in the graph: its node, what it keeps, what backward returns by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import make_subject
from pullback.battery.nodes import attributes_of, call_backward, cut_off, kept_tensors, low_precision_in, node_of
from pullback.battery.probes import saved
from pullback.battery.subject import BackwardRaised, Subject
from tests.battery.running import leaf, run_probe


class Keeps(Function):
    """Saves its argument, its output, an intermediate, and one more on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        middle, y = x + 1, x * 2
        ctx.aside = x - 1
        ctx.save_for_backward(x, y, middle, x > 0)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if bool((g == 0).all()):
            raise ValueError("no zeros")
        return g.half().double() * 2


def subject() -> Subject:
    """One sample."""
    return make_subject(Keeps, (leaf(3),))


def test_kept_tensors_have_names_and_those_cut_off_are_told_apart() -> None:
    """Arguments and outputs come back connected, masks have no derivative."""
    made = subject()
    inputs = made.fresh(made.cases[0])
    outputs = made.call(inputs)
    node = node_of(made, outputs)
    kept = {one.name for one in kept_tensors(node)}
    assert kept == {"saved tensor 0", "saved tensor 1", "saved tensor 2", "saved tensor 3", "ctx.aside"}
    assert {one.name for one in cut_off(node, inputs, outputs)} == {"saved tensor 2", "ctx.aside"}


def test_plain_callables_have_no_node_of_their_own() -> None:
    """Autograd's own nodes keep their own books."""
    made = make_subject(torch.sin, (leaf(3),))
    assert node_of(made, made.call(made.fresh(made.cases[0]))) is None


def test_backward_is_called_by_itself_on_copies() -> None:
    """Its result comes as it is; what it raises is told apart."""
    made = subject()
    inputs = made.fresh(made.cases[0])
    outputs = made.call(inputs)
    node = node_of(made, outputs)
    (entry,) = call_backward(made, node, inputs, outputs).entries
    assert isinstance(entry, Tensor)
    with pytest.raises(BackwardRaised, match="ValueError: no zeros"):
        call_backward(made, node, inputs, outputs, [torch.zeros(3, dtype=torch.float64)])


def test_low_dtypes_inside_backward_are_seen() -> None:
    """The lowest one."""
    made = subject()
    cotangent = torch.ones(3, dtype=torch.float64)
    assert low_precision_in(made, made.cases[0], [cotangent], [0]) is torch.float16
    plain = make_subject(torch.sin, (leaf(3),))
    assert low_precision_in(plain, plain.cases[0], [cotangent], [0]) is None


def test_what_pullback_itself_keeps_is_passed_over() -> None:
    """The random state of a call that draws is no tensor of the author's."""

    class Masked(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = (torch.rand(x.shape) < 0.5).to(x.dtype)
            ctx.save_for_backward(mask)
            ctx.own = 3
            return x * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0]

    subject = make_subject(Masked, (leaf(3),))
    with torch.enable_grad():
        node = node_of(subject, subject.call(subject.fresh(subject.cases[0])))
    assert any(name.startswith("_pullback") for name in vars(node))
    assert attributes_of(node) == {"own": 3}
    assert run_probe(saved.PROBE, Masked, (leaf(3),))[1] == ()
