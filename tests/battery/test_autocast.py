"""The probe `autocast`: gradients of a call under autocast are those of float64, to within what bfloat16 costs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import pullback
from pullback.battery.probes import autocast
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """A matrix product whose backward knows one dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def test_a_backward_that_raises_is_found() -> None:
    """With the error, the remedy, and lines that end in it."""
    (finding,) = run_probe(autocast.PROBE, Product, (leaf(2, 3), leaf(3, 2)))[1]
    assert finding.rule == "PB517"
    assert finding.message.startswith(
        "backward raises after a forward under autocast (float32 arguments): RuntimeError"
    )
    assert "cast_inputs = torch.float32" in finding.remedy
    assert shows_the_fault(finding, Product=Product)


def test_the_same_is_found_where_the_samples_are_float32() -> None:
    """The samples' dtype makes no difference."""
    sample = (torch.rand(2, 3, requires_grad=True), torch.rand(3, 2, requires_grad=True))
    (finding,) = run_probe(autocast.PROBE, Product, sample)[1]
    assert finding.rule == "PB517"


class Forgets(Product):
    """Casts, and forgets a factor where it does."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        g = g if g.dtype == w.dtype else 0.5 * g.to(w.dtype)
        return g @ w.t(), x.t() @ g


def test_a_gradient_that_is_wrong_in_silence_is_found() -> None:
    """The finding names the argument and shows both numbers."""
    (finding,) = run_probe(autocast.PROBE, Forgets, (leaf(2, 3), leaf(3, 2)))[1]
    assert finding.message == (
        "after a forward under autocast (float32 arguments), the gradient of x is further from float64 than bfloat16 "
        "explains"
    )
    assert finding.evidence["argument"] == "x"
    assert shows_the_fault(finding, Forgets=Forgets)


class OnlyOutside(Product):
    """Casts to what was saved, and trusts the product to be of that dtype, which inside the region it isn't."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)
        return torch.zeros_like(x).addmm_(g, w.t()), x.t() @ g


def test_backward_inside_the_region_is_tried_too() -> None:
    """Said in the finding."""
    outcome, findings = run_probe(autocast.PROBE, OnlyOutside, (leaf(2, 3), leaf(3, 2)))
    assert outcome.status is (Status.FAILED if findings else Status.PASSED)
    assert all("inside the region" in finding.message for finding in findings)


class Bessel(Function):
    """I₁(x @ w), differentiated by autograd within backward: PyTorch has no gradient of I₁ in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.special.i1(x @ w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=g.dtype is torch.bfloat16):
            y = torch.special.i1(x @ w)
        return torch.autograd.grad(y, (x, w), g)


class BesselByHand(Bessel):
    """The same, by a formula that PyTorch has in bfloat16, where dtypes are forgotten."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        z = x @ w
        of_z = g * (torch.special.i0(z) - torch.special.i1(z) / z).to(g.dtype)
        return of_z @ w.t(), x.t() @ of_z


def test_what_pytorch_refuses_of_the_plain_formula_is_no_fault() -> None:
    """An operator without a gradient in bfloat16: a note with PyTorch's words. A slip beside it is a finding."""
    outcome, findings = run_probe(autocast.PROBE, Bessel, (leaf(2, 3), leaf(3, 2)))
    assert findings == ()
    assert any(
        "as that of the plain formula" in note and '"i1_backward" not implemented for' in note for note in outcome.notes
    )
    reference = pullback.check(Bessel.apply, (leaf(2, 3), leaf(3, 2)), reference=bessel, only=("autocast",))
    assert reference.findings == ()
    (finding,) = run_probe(autocast.PROBE, BesselByHand, (leaf(2, 3), leaf(3, 2)))[1]
    assert finding.rule == "PB517"


def bessel(x: Tensor, w: Tensor) -> Tensor:
    """The plain formula of Bessel."""
    return torch.special.i1(x @ w)


class Declared(Product):
    """By PyTorch's decorators."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def softmax_of_products(x: Tensor, w: Tensor) -> Tensor:
    """Exponentials of large products: each rounding is felt."""
    return torch.softmax(20 * x @ w, -1)


def difference_of_products(x: Tensor, w: Tensor) -> Tensor:
    """Two products that all but cancel."""
    return x @ w - (x * 1.001) @ w


def largest(x: Tensor, w: Tensor) -> Tensor:
    """Which of several products is the largest: a kink that roundings may cross."""
    return (x @ w).amax(-1)


def rounded(x: Tensor, w: Tensor) -> Tensor:
    """Steps."""
    return (x @ w * 16).round() * x.sum()


@pytest.mark.parametrize(
    "function",
    [Declared, torch.matmul, softmax_of_products, difference_of_products, largest, rounded],
)
def test_right_functions_pass(function: Any) -> None:
    """What autocast rounds is no fault of the function, however badly conditioned it is."""
    for size in (2, 5, 16):
        for seed in range(3):
            torch.manual_seed(seed)
            sample = (leaf(size, 3), leaf(3, size))
            outcome, findings = run_probe(autocast.PROBE, function, sample, seed=seed)
            assert findings == (), str(findings)
            assert outcome.status is Status.PASSED


def test_a_module_among_the_arguments_is_cast() -> None:
    """Its parameters too."""

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
            return g @ weight, {"weight": g.mT @ x, "bias": g.sum(0)}

    sample = (leaf(4, 3), nn.Linear(3, 2, dtype=torch.float64))
    assert run_probe(autocast.PROBE, Layer, sample)[1] == ()


def test_what_takes_float64_alone_is_skipped() -> None:
    """With the refusal as the reason."""

    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.dtype is not torch.float64:
                raise TypeError("x must be float64")
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    outcome, findings = run_probe(autocast.PROBE, Double, (leaf(2),))
    assert findings == ()
    assert (outcome.status, outcome.reason) == (
        Status.SKIPPED,
        "sample 0: forward refuses float32: TypeError: x must be float64",
    )


def test_a_forward_that_refuses_autocast_is_noted() -> None:
    """It says so itself, which is no fault of backward."""

    class Refuses(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            y = x @ w
            if y.dtype is not x.dtype:
                raise TypeError("not under autocast")
            return y

    outcome, findings = run_probe(autocast.PROBE, Refuses, (leaf(2, 3), leaf(3, 2)))
    assert findings == ()
    assert outcome.notes == ("refused: autocast, sample 0: TypeError: not under autocast",)


class Rounds(Function):
    """sin(x), which autocast leaves alone; what is saved is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.float8_e5m2 if torch.is_autocast_enabled("cpu") else x.dtype
        ctx.save_for_backward(x.to(kept).to(x.dtype))
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos()


def test_what_is_kept_in_eight_bits_where_autocast_does_nothing_is_found() -> None:
    """PB517: the value is float32's to the bit, and the gradient further off than a rounding to bfloat16 explains."""
    sample = (torch.tensor([0.97, 1.19, 1.43, 2.4], dtype=torch.float64, requires_grad=True),)
    _, (finding,) = run_probe(autocast.PROBE, Rounds, sample)
    assert finding.message.startswith(
        "after a forward under autocast (float32 arguments), the gradient of x is further"
    )


def test_what_is_kept_in_bfloat16_under_autocast_passes() -> None:
    """As memory is saved there on purpose."""

    class Half(Rounds):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            kept = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
            ctx.save_for_backward(x.to(kept).to(x.dtype))
            return x.sin()

    sample = (torch.tensor([0.97, 1.19, 1.43, 2.4], dtype=torch.float64, requires_grad=True),)
    assert run_probe(autocast.PROBE, Half, sample)[1] == ()


def test_another_value_under_autocast_is_found() -> None:
    """PB517 names the output: more than the rounding of each operator to bfloat16 explains."""

    class Doubles(Rounds):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin() * (2 if torch.is_autocast_enabled("cpu") else 1)

    _, (finding,) = run_probe(autocast.PROBE, Doubles, (leaf(4),))
    assert (finding.rule, finding.message) == (
        "PB517",
        "under autocast output is further from float64 than bfloat16 explains (float32 arguments)",
    )
    assert shows_the_fault(finding, Doubles=Doubles)
