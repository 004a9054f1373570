"""The probe `hooks`: backward gets a copy of each saved tensor, as from offloading, and is right."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check
from pullback.battery.probes import hooks
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class ByAddress(Function):
    """The mask's factor is found by the address of the mask."""

    alive: ClassVar[list[Tensor]] = []
    """The masks: in memory that was given back a copy may come to lie where the mask lay, and nothing would show."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ByAddress.alive.append(mask)
        ctx.save_for_backward(mask)
        ctx.address = mask.data_ptr()
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask * (1.0 if mask.data_ptr() == ctx.address else 2.0)


def test_another_gradient_from_copies_is_found() -> None:
    """The finding names the argument, what was kept, both numbers, and shows it."""
    (finding,) = run_probe(hooks.PROBE, ByAddress, (torch.tensor([0.25, 0.75], requires_grad=True).double(),))[1]
    assert finding.rule == "PB519"
    assert finding.evidence["argument"] == "x"
    assert (
        finding.message == "with saved-tensor hooks that keep copies with the same strides, the gradient is another one"
    )
    assert shows_the_fault(finding, ByAddress=ByAddress)


def test_strides_that_a_copy_loses_are_told_apart() -> None:
    """A copy with the same strides does, and a contiguous one doesn't."""

    class Flat(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward((x > 0.5).contiguous().t())
            return x * (x > 0.5)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (transposed,) = ctx.saved_tensors
            return g * transposed.t().view(-1).view(g.shape)

    (finding,) = run_probe(hooks.PROBE, Flat, (leaf(2, 3),))[1]
    assert finding.message.startswith(
        "with saved-tensor hooks that keep contiguous copies, as save_on_cpu makes them, backward raises: "
        "RuntimeError: view"
    )
    assert finding.got.startswith("RuntimeError: view")
    assert shows_the_fault(finding, Flat=Flat)


def test_a_fault_of_the_second_derivative_alone_is_found() -> None:
    """First gradients come from the values; the second derivative needs the object."""

    class ById(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.known = x.data_ptr()
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * g * (x**2 if x.data_ptr() == ctx.known else x.detach() ** 2)

    (finding,) = run_probe(hooks.PROBE, ById, (leaf(2),))[1]
    assert "the second derivative is another one" in finding.message
    assert shows_the_fault(finding, ById=ById)
    assert run_probe(hooks.PROBE, ById, (leaf(2),), orders=1)[1] == ()


class Square(pullback.Function):
    """A right one of pullback's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x


def test_right_functions_pass() -> None:
    """PyTorch's own functions, pullback's and plain callables, with second derivatives."""
    for function in (Square, torch.sin, torch.nn.functional.softplus):
        outcome, findings = run_probe(hooks.PROBE, function, (leaf(3),))
        assert (outcome.status, findings) == (Status.PASSED, ())


def test_where_nothing_is_saved_nothing_is_tried() -> None:
    """Skipped, with the reason."""
    outcome, _ = run_probe(hooks.PROBE, torch.neg, (leaf(3),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "nothing is saved where a hook would see it")


def test_a_tensor_on_ctx_is_said_once() -> None:
    """No hook sees it: that is PB302 and PB303, and not a fault of a copy."""

    class OnCtx(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mask = x > 0.5
            return x * ctx.mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.mask

    report = check(OnCtx, (leaf(3),), only=("saved", "hooks", "checkpoint"))
    assert "PB519" not in rules(report.findings)
    assert "PB518" not in rules(report.findings)
