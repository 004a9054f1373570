"""The probe `second_order`: gradients can be differentiated rightly, or say that they can't."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback
from pullback.battery.check import check
from pullback.battery.probes import second_order
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Cube(Function):
    """x³."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * g


@pytest.mark.parametrize("shape", [(), (3,), (40,), (3000,), (0,)])
def test_a_connected_backward_passes_in_any_size(shape: tuple[int, ...]) -> None:
    """Element by element, or along random directions."""
    x = torch.rand(shape, dtype=torch.float64).requires_grad_()
    assert run_probe(second_order.PROBE, Cube, (x,))[1] == ()


@pytest.mark.parametrize(
    "function",
    [
        torch.sin,
        lambda x: 3 * x,
        lambda x: x.relu(),
        lambda x: x.softmax(-1),
        lambda x: (x.exp(), x * x.sum()),
        lambda x: torch.complex(x, x.sin()) ** 2,
    ],
)
def test_autograd_itself_passes(function: Any) -> None:
    """Linear, kinked, coupled, with several outputs, complex."""
    assert run_probe(second_order.PROBE, function, (leaf(4),))[1] == ()


def test_complex_arguments_pass() -> None:
    """Products with a conjugate."""
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    assert run_probe(second_order.PROBE, lambda z: z * z.conj() * z, (z,))[1] == ()


@pytest.mark.parametrize("size", [2, 50])
def test_a_saved_intermediate_is_named(size: int) -> None:
    """PB206, by its number among the saved tensors."""

    class Sinh(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask, up = x > 0, x.exp()
            ctx.save_for_backward(x, mask, up)
            return up - (-x).exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, _, up = ctx.saved_tensors
            return g * (up + (-x).exp())

    _, (finding,) = run_probe(second_order.PROBE, Sinh, (leaf(size),))
    assert (finding.rule, finding.evidence["tensor"]) == ("PB206", "saved tensor 2")


def test_an_intermediate_on_ctx_is_named() -> None:
    """PB206, by its attribute."""

    class Fourth(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.squared = x * x
            ctx.save_for_backward(x)
            return ctx.squared**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 4 * ctx.squared * ctx.saved_tensors[0] * g

    _, (finding,) = run_probe(second_order.PROBE, Fourth, (leaf(2),))
    assert (finding.rule, finding.evidence["tensor"]) == ("PB206", "ctx.squared")


def test_an_intermediate_that_does_not_vary_is_no_fault() -> None:
    """A float mask and a constant: saved, cut off, and rightly so."""

    class Masked(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask, scale = (x > 0.5).double(), torch.full((), 2.0, dtype=torch.float64)
            ctx.save_for_backward(mask, scale)
            return x * mask * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            mask, scale = ctx.saved_tensors
            return g * mask * scale

    assert run_probe(second_order.PROBE, Masked, (leaf(5),))[1] == ()


def test_an_opaque_backward_is_named() -> None:
    """PB207, whether all of backward leaves autograd or a factor."""

    class Opaque(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy())

    class Partly(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 3 * ctx.saved_tensors[0].detach() ** 2 * g

    assert rules(run_probe(second_order.PROBE, Opaque, (leaf(2),))[1]) == ["PB207"]
    _, (finding,) = run_probe(second_order.PROBE, Partly, (leaf(2),))
    assert finding.rule == "PB207"
    assert finding.message.startswith("a part of backward")


def test_an_opaque_backward_of_a_linear_function_is_found_by_its_cotangent() -> None:
    """Even where the second derivative by x is 0, that by grad_output isn't."""

    class Opaque(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return torch.from_numpy(3 * g.detach().numpy())

    _, (finding,) = run_probe(second_order.PROBE, Opaque, (leaf(2),))
    assert (finding.rule, finding.evidence["by"]) == ("PB207", "grad_output")


class WithDoubleBackward(pullback.Function):
    """x³ with a second derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        (g,) = ctx.grad_outputs
        return 3 * x**2 * gg, 6 * x * g * gg


def test_a_right_double_backward_passes() -> None:
    """In both of its parts."""
    assert run_probe(second_order.PROBE, WithDoubleBackward, (leaf(3),))[1] == ()


@pytest.mark.parametrize("part", ["grad_output", "x"])
def test_a_wrong_double_backward_is_found_in_either_part(part: str) -> None:
    """PB205 says by what the gradient was differentiated."""

    class Wrong(WithDoubleBackward):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            by_g, by_x = 3 * x**2 * gg, 6 * x * g * gg
            return (2 * by_g, by_x) if part == "grad_output" else (by_g, 2 * by_x)

    _, (finding,) = run_probe(second_order.PROBE, Wrong, (leaf(3),))
    assert (finding.rule, finding.evidence["by"]) == ("PB205", part)


def test_a_double_backward_that_raises_is_found() -> None:
    """PB205 with what it raised."""

    class Raises(WithDoubleBackward):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            raise ArithmeticError("not implemented")

    _, (finding,) = run_probe(second_order.PROBE, Raises, (leaf(3),))
    assert finding.rule == "PB205"
    assert "ArithmeticError" in finding.got


def test_a_declared_once_differentiable_is_respected() -> None:
    """Raising is what was declared; a note says so."""

    class Once(Cube):
        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return 3 * ctx.saved_tensors[0] ** 2 * g

    outcome, findings = run_probe(second_order.PROBE, Once, (leaf(2),))
    assert findings == ()
    assert outcome.notes == ("sample 0: declared once differentiable, and a second differentiation raises",)


def test_an_operation_without_a_second_derivative_is_skipped_with_its_reason() -> None:
    """Loud, so not a fault; and not proved, so not a pass."""

    class Refuses(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Once.apply(3 * ctx.saved_tensors[0] ** 2 * g)

    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            raise NotImplementedError("derivative for Once is not implemented")

    outcome, findings = run_probe(second_order.PROBE, Refuses, (leaf(2),))
    assert findings == ()
    assert outcome.status is Status.SKIPPED
    assert "derivative for Once is not implemented" in outcome.reason


def test_a_named_refusal_of_pullback_is_a_finding_by_its_rule() -> None:
    """Where nothing was declared, pullback.Function raises PB207 for an opaque backward that can't be replayed."""

    class Opaque(pullback.Function):
        replayable = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy())

    assert rules(run_probe(second_order.PROBE, Opaque, (leaf(2),))[1]) == ["PB207"]


def test_a_reference_settles_it() -> None:
    """The same Function with a reference is exact."""

    class Opaque(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy())

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x**3

    assert run_probe(second_order.PROBE, Opaque, (leaf(2),))[1] == ()


def test_a_constant_that_varies_is_found() -> None:
    """PB217: constants= was declared and isn't true."""

    class Grown(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            grown = x.exp()
            ctx.save_for_backward(constants=(grown,))
            return grown * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    assert rules(run_probe(second_order.PROBE, Grown, (leaf(2),))[1]) == ["PB217"]


def test_two_arguments_are_told_apart() -> None:
    """The finding names the gradient that was differentiated, and by what."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w**2, 2 * g * x.detach() * w

    _, (finding,) = run_probe(second_order.PROBE, Product, (leaf(2), leaf(2)))
    assert (finding.rule, finding.evidence["argument"], finding.evidence["by"]) == ("PB207", "w", "x")


class CutSquare(Function):
    """x², through an intermediate that comes back as a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x + x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.saved_tensors[0] * g


def test_what_nobody_declared_is_not_called_a_declared_constant() -> None:
    """PB206: the reference that should connect the intermediate is cut off itself."""

    class ByACutReference(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x + x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return ctx.saved_tensors[0] * g

        @staticmethod
        def reference(x: Tensor) -> Any:
            return CutSquare.apply(x)

    assert rules(run_probe(second_order.PROBE, ByACutReference, (leaf(2),))[1]) == ["PB206"]


def test_a_gradient_that_isnt_the_references_is_told_once() -> None:
    """PB203 of the first order; what pullback itself says, when that gradient is differentiated, is the same fault."""

    class Wrong(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] * g

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x**2

    report = check(Wrong, (leaf(3),), skip="compiled")
    assert [finding.rule for finding in report.findings] == ["PB203"]
    alone = check(Wrong, (leaf(3),), only="second_order")
    assert [finding.rule for finding in alone.findings] == ["PB203"]


class Centred(Function):
    """What is centred is saved, and comes back as a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        c = x - x.mean(-1, keepdim=True)
        ctx.save_for_backward(c, weight)
        return c * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        c, weight = ctx.saved_tensors
        return g * weight - (g * weight).mean(-1, keepdim=True), g * c


def test_a_second_derivative_that_is_missing_is_shown_at_one_element() -> None:
    """Along all elements at once nothing changes: that is what a normalisation takes out."""
    samples = [tuple(torch.randn(4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)) for _ in range(2)]
    report = check(Centred, *samples, only="second_order")
    (finding,) = report.findings
    assert (finding.rule, finding.evidence["samples"]) == ("PB206", [0, 1])
    assert " at [" in finding.expected
    assert shows_the_fault(finding)


@pytest.mark.parametrize("power", [3, 1])
def test_an_argument_may_be_called_grad_output(power: int) -> None:
    """As that of a Function that is another one's backward: it isn't taken for the cotangent, nor is this for it."""

    class OfCube(Function):
        @staticmethod
        def forward(ctx: Any, grad_output: Tensor, x: Tensor) -> Tensor:
            ctx.save_for_backward(grad_output, x)
            return grad_output.sin() * x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            grad_output, x = ctx.saved_tensors
            slope = grad_output.cos() if power == 3 else grad_output.detach().cos()
            return g * slope * x**3, g * grad_output.sin() * 3 * x**2

    _, findings = run_probe(second_order.PROBE, OfCube, (leaf(3), leaf(3)))
    assert [finding.evidence["by"] for finding in findings] == ([] if power == 3 else ["grad_output"])


def test_one_tensor_may_be_passed_for_two_arguments() -> None:
    """It is one variable."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a * b * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b = ctx.saved_tensors
            return g * b * b, 2 * g * a * b

    x = leaf(3)
    outcome, findings = run_probe(second_order.PROBE, Product, (x, x))
    assert (outcome.status, findings) == (Status.PASSED, ())


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_tail_of_what_saturates_is_no_second_derivative(factor: float) -> None:
    """Beside terms of the usual size 1e-50 is nothing; where nothing saturates a wrong one is found."""

    class Softmax(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.temperature = temperature
            return torch.softmax(x / temperature, -1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            p = torch.softmax(ctx.saved_tensors[0] / ctx.temperature, -1)
            fixed = p.detach()
            p = factor * p + (1 - factor) * fixed
            return p * (g - (g * p).sum(-1, keepdim=True)) / ctx.temperature, None

    x = torch.tensor([[1.2, 1.0, 0.7], [1.1, 0.9, 1.02]], dtype=torch.float64, requires_grad=True)
    assert bool(run_probe(second_order.PROBE, Softmax, (x, 1.0))[1]) == (factor != 1.0)
    if factor == 1.0:
        assert run_probe(second_order.PROBE, Softmax, (x, 1e-3))[1] == ()


def test_numbers_below_a_lower_dtypes_are_zeros_there() -> None:
    """sigmoid(1000 x) where it is flat: in float64 its derivatives are 1e-130, and in float32 0."""

    class Steep(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = torch.sigmoid(1000 * x)
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            y = torch.sigmoid(1000 * x)
            return 1000 * g * y * torch.sigmoid(-1000 * x)

    assert (
        run_probe(second_order.PROBE, Steep, (torch.tensor([0.3, 0.4], dtype=torch.float64).requires_grad_(),))[1] == ()
    )
