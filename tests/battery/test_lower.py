"""The first samples in lower dtypes, and the probes that compare a call with itself there."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import make_subject
from pullback.battery.lower import lowered
from pullback.battery.probe import Probe
from pullback.battery.probes import aliases, forward_mode, layouts, repeats, second_order, writes
from pullback.battery.samples import Sample
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


def made(fault: Any = None, *, jvp: Any = None) -> type[Function]:
    """x·w, whose gradients are what `fault` makes of ctx, grad_output and the right ones, likewise the tangent."""

    class Product(Function):
        @staticmethod
        def forward(x: Tensor, w: Tensor) -> Tensor:
            return x * w

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return (g * w, g * x) if fault is None else fault(ctx, g, g * w, g * x)

    if jvp is not None:
        Product.jvp = staticmethod(jvp)
    return Product


def test_each_dtype_that_forward_takes() -> None:
    """The first sample in four dtypes; each says which dtype it is in."""
    subject = make_subject(made(), (leaf(3), leaf(3)))
    assert [case.label for case in lowered(subject)] == [
        "sample 0 in float32",
        "sample 0 in bfloat16",
        "sample 0 in float16",
        "sample 0 in complex128",
    ]


def test_a_later_sample_that_runs_something_else_is_tried_in_float32() -> None:
    """What a flag switches on may be another kernel."""

    def forward(x: Tensor, squared: bool) -> Tensor:
        return x * x if squared else x.exp()

    subject = make_subject(forward, (leaf(3), True), (leaf(2), False))
    assert [case.label for case in lowered(subject)][4:] == ["sample 1 in float32"]


@pytest.mark.parametrize("vary", [(), ("layout", "shape")])
def test_nothing_where_dtypes_are_not_to_vary(vary: tuple[str, ...]) -> None:
    """By the author's word."""
    assert lowered(make_subject(made(), Sample((leaf(3), leaf(3)), {}, vary))) == ()


def test_nothing_where_forward_refuses_or_promotes() -> None:
    """A forward for float64 alone, and one that computes in it whatever comes."""

    def strict(x: Tensor) -> Tensor:
        if x.dtype is not torch.float64:
            raise TypeError("float64 only")
        return x.exp()

    assert lowered(make_subject(strict, (leaf(3),))) == ()
    assert [case.name for case in lowered(make_subject(lambda x: x.double().exp(), (leaf(3),)))] == []


def _low(g: Tensor) -> bool:
    return g.dtype is torch.float32


def _expanded(_: Any, g: Tensor, gx: Tensor, gw: Tensor) -> Any:
    return gx, gw * 2 if _low(g) and not any(g.stride()) else gw


def _again(ctx: Any, g: Tensor, gx: Tensor, gw: Tensor) -> Any:
    ctx.count = getattr(ctx, "count", 0) + 1
    return gx, gw * ctx.count if _low(g) else gw


def _writes(_: Any, g: Tensor, gx: Tensor, gw: Tensor) -> Any:
    if _low(g) and any(g.stride()):
        g.mul_(2)
    return gx, gw


def _shared(ctx: Any, g: Tensor, gx: Tensor, gw: Tensor) -> Any:
    x, w = ctx.saved_tensors
    return gx, gw * 2 if _low(g) and x.data_ptr() == w.data_ptr() else gw


@pytest.mark.parametrize(
    ("fault", "probe", "rule"),
    [
        (_expanded, layouts.PROBE, "PB405"),
        (_again, repeats.PROBE, "PB404"),
        (_writes, writes.PROBE, "PB403"),
        (_shared, aliases.PROBE, "PB408"),
    ],
)
def test_a_fault_in_one_dtype_is_found(fault: Any, probe: Probe, rule: str) -> None:
    """Right in float64 and in each setting of its own; each probe tells the sample and the dtype, and shows it."""
    function = made(fault)
    _, (finding,) = run_probe(probe, function, (leaf(3), leaf(3)))
    assert (finding.rule, finding.where.endswith("sample 0 in float32")) == (rule, True)
    assert shows_the_fault(finding, Product=function)
    assert run_probe(probe, made(), (leaf(3), leaf(3)))[1] == ()


def test_a_tangent_is_tried_in_lower_dtypes() -> None:
    """PB507: jvp has a branch of its own for float16."""

    def jvp(ctx: Any, x_t: Tensor, w_t: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        right = x_t * w + x * w_t
        return right * 2 if x.dtype is torch.float16 else right

    function = made(jvp=jvp)
    _, (finding,) = run_probe(forward_mode.PROBE, function, (leaf(3), leaf(3)))
    assert (finding.rule, finding.where) == ("PB507", "sample 0 in float16")
    assert shows_the_fault(finding, Product=function)


class Scale(Function):
    """The identity, whose derivative is wrong: what goes through it in backward is wrong in second order alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 1.5


def test_a_second_derivative_is_tried_in_lower_dtypes() -> None:
    """PB205: the gradient is right in each dtype, and its derivative isn't in bfloat16."""
    function = made(lambda ctx, g, gx, gw: (gx, Scale.apply(gw) if g.dtype is torch.bfloat16 else gw))
    _, (finding,) = run_probe(second_order.PROBE, function, (leaf(3), leaf(3)))
    assert (finding.rule, finding.where) == ("PB205", "argument x, bfloat16, sample 0 in bfloat16")
    assert finding.message == "in bfloat16 the second derivative by x is further from float64 than rounding explains"


def test_a_gradient_under_create_graph_is_tried_in_lower_dtypes() -> None:
    """PB205: in float32 it is another where it will be differentiated."""
    function = made(lambda ctx, g, gx, gw: (gx, gw * 2 if g.dtype is torch.float32 and torch.is_grad_enabled() else gw))
    _, (finding,) = run_probe(second_order.PROBE, function, (leaf(3), leaf(3)))
    assert finding.message == (
        "in float32 under create_graph=True the gradient of w is further from float64 than rounding explains"
    )


def test_a_second_derivative_that_raises_in_one_dtype_is_found() -> None:
    """PB205, with the error."""

    def fault(_: Any, g: Tensor, gx: Tensor, gw: Tensor) -> Any:
        return gx, gw.reshape(7) if g.dtype is torch.float16 and torch.is_grad_enabled() else gw

    function = made(fault)
    _, (finding,) = run_probe(second_order.PROBE, function, (leaf(3), leaf(3)))
    assert finding.message.startswith(
        "differentiating the gradient raises in float16, and not in float64: RuntimeError"
    )
    assert shows_the_fault(finding, Product=function)
