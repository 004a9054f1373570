"""Functions that are right but in one place: for one dtype, size, value, layout, or number of axes; and right ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probe import Probe
from pullback.battery.probes import (
    first_order,
    layouts,
    linearity,
    precision,
    second_order,
    shapes,
    special_points,
    values,
)
from pullback.finding import Finding
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe

LOW = (torch.float32, torch.bfloat16, torch.float16)

Condition = Callable[[Tensor, Tensor], bool]
"""Whether a call with x and w is the place."""


class Skewed(Function):
    """x, whose derivative is said to be 1.5."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 1.5


def product(x: Tensor, w: Tensor) -> Tensor:
    """The formula."""
    return x * w


def made(
    gradient: Condition | None = None,
    *,
    second: Condition | None = None,
    value: Condition | None = None,
    change: Callable[[Tensor], Tensor] = lambda t: t * 1.5,
    reference: Any = None,
) -> Any:
    """x · w, where x's gradient, its derivative or the value is another under a condition."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return change(x * w) if value is not None and value(x, w) else x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            gx, gw = (g * w.conj()).sum_to_size(x.shape), (g * x.conj()).sum_to_size(w.shape)
            if gradient is not None and gradient(x, w):
                gx = change(gx)
            return Skewed.apply(gx) if second is not None and second(x, w) else gx, gw

    if reference is not None:
        Product.reference = staticmethod(reference)
    return Product


def found(probe: Probe, function: Any, *samples: object) -> tuple[Finding, ...]:
    """What a probe finds for two matrices of one shape, unless other samples are given."""
    return run_probe(probe, function, *(samples or ((leaf(3, 4), leaf(3, 4)),)))[1]


def holds(where: Callable[[Tensor], Any]) -> Condition:
    """A condition on the numbers of x, of which there are some."""
    return lambda x, w: bool(x.numel() and where(x.detach()))


def the_finding(probe: Probe, function: Any, *samples: object) -> Finding:
    """The one finding, whose lines fail as long as the fault is there."""
    (finding,) = found(probe, function, *samples)
    assert shows_the_fault(finding, Product=function)
    return finding


PROBES = (first_order, layouts, linearity, precision, second_order, shapes, special_points, values)


@pytest.mark.parametrize("probe", [module.PROBE for module in PROBES], ids=lambda probe: probe.name)
def test_what_is_right_everywhere_passes(probe: Probe) -> None:
    """With a reference and without; of one shape, and broadcast."""
    samples = ((leaf(3, 4), leaf(3, 4)), (leaf(2, 3, 4), leaf(4)))
    assert found(probe, made(), *samples) == found(probe, made(reference=product), *samples) == ()


# -- cotangents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
def test_a_detour_by_a_dtype_of_a_smaller_range_is_found(dtype: torch.dtype) -> None:
    """PB214 where a large cotangent overflows, with the dtype and the factor, whatever dtype the function works in."""
    change = {torch.float32: torch.float16, torch.bfloat16: torch.float16, torch.float16: torch.float8_e4m3fn}[dtype]
    function = made(holds(lambda x: x.dtype is dtype), change=lambda t: t.to(change).to(t.dtype))
    findings = found(linearity.PROBE, function)
    if dtype is torch.float16:
        assert {finding.rule for finding in findings} <= {"PB211", "PB214"}
        return
    (finding,) = findings
    assert finding.rule == "PB214"
    assert finding.message == (
        f"in {str(dtype).removeprefix('torch.')} the gradient of x for 2**20 times a cotangent isn't 2**20 times the "
        "gradient: backward computes in a dtype of a smaller range"
    )
    assert shows_the_fault(finding, Product=function)


@pytest.mark.parametrize(
    "change", [lambda t: t.clamp(-1e4, 1e4), lambda t: torch.where(t.abs() < 1e-5, 0, t)], ids=["clamped", "flushed"]
)
def test_a_gradient_that_is_kept_within_bounds_is_found(change: Any) -> None:
    """PB211 or PB214, in float64 too: a usual cotangent doesn't come near the bounds."""
    finding = the_finding(linearity.PROBE, made(holds(lambda x: True), change=change))
    assert finding.rule in ("PB211", "PB214")


def test_a_solver_that_stops_at_a_residual_is_linear_enough() -> None:
    """Its error is the same for a small cotangent, of which it then is a larger share."""
    function = made(holds(lambda x: True), change=lambda t: t + 1e-11)
    assert found(linearity.PROBE, function) == ()


# -- sizes ------------------------------------------------------------------------------------------------------------

SIZES: dict[str, Callable[[Tensor], Any]] = {
    "one": lambda x: 1 in x.shape,
    "a long axis": lambda x: x.dim() and x.shape[-1] > 64,
    "a long first axis": lambda x: x.dim() > 1 and x.shape[0] > 64,
    "square": lambda x: x.dim() == 2 and x.shape[0] == x.shape[1],
    "a third axis": lambda x: x.dim() == 3,
    "many": lambda x: x.numel() > 64,
}


@pytest.mark.parametrize("size", SIZES)
def test_a_wrong_gradient_at_some_sizes_is_found(size: str) -> None:
    """PB203 or PB505, where samples have none of them."""
    assert rules(found(shapes.PROBE, made(holds(SIZES[size])))) in (["PB203"], ["PB505"])


@pytest.mark.parametrize("size", SIZES)
def test_a_wrong_second_derivative_at_some_sizes_is_found(size: str) -> None:
    """PB205, with the sizes."""
    finding = the_finding(shapes.PROBE, made(second=holds(SIZES[size])))
    assert finding.rule == "PB205"
    assert finding.message.startswith("with ")
    assert "is wrong, and with the sample as it is it is right" in finding.message


@pytest.mark.parametrize("size", SIZES)
def test_another_value_than_the_references_at_some_sizes_is_found(size: str) -> None:
    """PB219: gradients follow the reference there, so they say nothing."""
    finding = the_finding(shapes.PROBE, made(value=holds(SIZES[size]), reference=product))
    assert finding.rule == "PB219"


def test_a_second_differentiation_that_raises_at_some_sizes_is_found() -> None:
    """PB205, with the error."""

    class Raises(Function):
        @staticmethod
        def forward(ctx: Any, g: Tensor) -> Tensor:
            return g.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ValueError("not for long ones")

    function = made(holds(lambda x: x.numel() > 32 and torch.is_grad_enabled()), change=Raises.apply)
    (finding,) = found(shapes.PROBE, function)
    assert finding.rule == "PB205"
    assert "differentiating the gradient raises ValueError: not for long ones" in finding.message


BROADCAST: dict[str, Condition] = {
    "one axis of w of size 1": lambda x, w: x.dim() == w.dim() == 2 and w.shape != x.shape,
    "w a number": lambda x, w: w.dim() == 0 < x.dim(),
    "x with fewer axes": lambda x, w: 0 < x.dim() < w.dim(),
}


@pytest.mark.parametrize("where", BROADCAST)
def test_a_wrong_gradient_of_one_broadcast_argument_is_found(where: str) -> None:
    """PB203, where a sample shows that broadcasting is meant."""
    samples = (leaf(3, 4), leaf(3, 4)), (leaf(2, 3, 4), leaf(4))
    assert set(rules(found(shapes.PROBE, made(BROADCAST[where]), *samples))) == {"PB203"}


def test_broadcasting_that_no_sample_shows_is_not_asked_for() -> None:
    """Forward takes it by chance; nobody promised a gradient."""
    assert found(shapes.PROBE, made(BROADCAST["one axis of w of size 1"])) == ()


# -- values -----------------------------------------------------------------------------------------------------------

NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "all 0": lambda x: x.numel() > 1 and not x.any(),
    "some 0": lambda x: (x == 0).any(),
    "all 300": lambda x: (x == 300).all(),
    "tiny": lambda x: ((x != 0) & (x.abs() < 1e-3)).any(),
}


@pytest.mark.parametrize("numbers", NUMBERS)
def test_nan_for_some_numbers_of_all_arguments_is_found(numbers: str) -> None:
    """PB506: where both are 0, say, and not where one is."""
    both: Condition = lambda x, w: bool(x.numel() and NUMBERS[numbers](x) and NUMBERS[numbers](w))  # noqa: E731  # typed
    finding = the_finding(special_points.PROBE, made(both, change=lambda t: t * float("nan")))
    assert finding.rule == "PB506"
    assert "of every argument" in finding.message


def test_the_gradient_of_another_argument_than_the_special_one_is_looked_at() -> None:
    """PB506 of x, where w holds the 0."""
    finding = the_finding(special_points.PROBE, made(lambda x, w: bool((w == 0).any())))
    assert (finding.rule, finding.evidence["argument"]) == ("PB506", "x")
    assert finding.message == "with one element 0 in w, the gradient of x isn't forward's derivative"


@pytest.mark.parametrize("numbers", ["some 0", "tiny"])
def test_another_value_for_some_numbers_is_found(numbers: str) -> None:
    """PB219, where there is a reference."""
    function = made(value=holds(NUMBERS[numbers]), reference=product)
    assert the_finding(special_points.PROBE, function).rule == "PB219"


@pytest.mark.parametrize("numbers", ["some 0", "all 300"])
def test_nan_in_the_place_of_the_references_value_is_found(numbers: str) -> None:
    """PB219: forward divides by 0, or overflows, where the reference gives a number."""
    function = made(value=holds(NUMBERS[numbers]), change=lambda t: t * float("nan"), reference=product)
    assert the_finding(special_points.PROBE, function).rule == "PB219"


def test_a_wrong_second_derivative_at_zero_is_found() -> None:
    """PB205: the first one is right."""
    assert the_finding(special_points.PROBE, made(second=holds(NUMBERS["some 0"]))).rule == "PB205"


def test_a_wrong_second_derivative_at_large_values_is_found() -> None:
    """PB205 at values from a normal distribution, where the sample's are below 1.25."""
    assert the_finding(special_points.PROBE, made(second=holds(lambda x: (x > 2).any()))).rule == "PB205"


# -- dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
def test_another_value_in_a_lower_dtype_is_found(dtype: torch.dtype) -> None:
    """PB219 against the reference, or else against float64."""
    there = holds(lambda x: x.dtype is dtype)
    named = str(dtype).removeprefix("torch.")
    known = the_finding(values.PROBE, made(value=there, reference=product))
    assert (known.rule, known.message.split(" output ")[0]) == ("PB219", f"in {named}")
    alone = the_finding(precision.PROBE, made(value=there))
    assert alone.rule == "PB219"
    assert alone.message == f"in {named} output is another than in float64, by more than rounding explains"


def test_a_result_of_another_dtype_than_the_references_in_bfloat16_is_found() -> None:
    """PB219: what follows computes in float32, and nobody asked for it."""
    function = made(value=holds(lambda x: x.dtype is torch.bfloat16), change=Tensor.float, reference=product)
    finding = the_finding(values.PROBE, function)
    assert finding.message == "in bfloat16 output has the dtype torch.float32, and the reference's has torch.bfloat16"


@pytest.mark.parametrize("dtype", LOW)
def test_a_step_may_fall_on_its_other_side_in_a_lower_dtype(dtype: torch.dtype) -> None:
    """What quantises jumps wherever a number is rounded over an edge."""

    class Quantised(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return (x * 37.3).round() / 37.3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.sign()

    assert found(precision.PROBE, Quantised, (leaf(40),)) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fault_where_one_argument_alone_is_in_a_lower_dtype_is_found(dtype: torch.dtype) -> None:
    """PB214 for a gradient and PB219 for a value, with the argument and its dtype."""
    alone: Condition = lambda x, w: w.dtype is dtype and x.dtype is not dtype  # noqa: E731  # typed
    gradient = the_finding(precision.PROBE, made(alone))
    assert gradient.rule == "PB214"
    assert f"with w alone in {str(dtype).removeprefix('torch.')}, the gradient of x is another" in gradient.message
    assert the_finding(precision.PROBE, made(value=alone)).rule == "PB219"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_and_subtracted_again_is_found_without_a_reference(dtype: torch.dtype) -> None:
    """PB214: a budget of the function's own roundings would excuse it."""
    large = {torch.float32: 1e3, torch.bfloat16: 2e3}[dtype]
    function = made(holds(lambda x: x.dtype in (dtype, torch.float64)), change=lambda t: t + large - large)
    finding, *_ = found(precision.PROBE, function)
    assert (finding.rule, shows_the_fault(finding, Product=function)) == ("PB214", True)
    assert "loses more digits than its arguments have lost" in finding.message


def test_a_difference_that_is_badly_conditioned_may_lose_digits() -> None:
    """The gradient is small since its arguments nearly cancel: nobody could know it better."""

    class Difference(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w * 100 - x * 99

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return 100 * g * w - 99 * g, 100 * g * x

    w = (torch.ones(4, dtype=torch.float64) * 0.991).requires_grad_()
    assert found(precision.PROBE, Difference, (leaf(4), w)) == ()


def test_a_wrong_second_derivative_for_complex_arguments_is_found() -> None:
    """PB205: the first one has its conjugate."""
    (finding,) = found(first_order.PROBE, made(second=holds(Tensor.is_complex)))
    assert (finding.rule, finding.message[:22]) == ("PB205", "with complex arguments")


def test_complex_arguments_are_tried_on_each_sample_that_runs_another_path() -> None:
    """The third one here."""
    samples = [(leaf(2), leaf(2)), (leaf(3), leaf(3)), (leaf(2, 3), leaf(3))]
    wrong: Condition = lambda x, w: x.is_complex() and x.dim() == 2  # noqa: E731  # typed
    (finding,) = found(first_order.PROBE, made(wrong), *samples)
    assert (finding.rule, finding.evidence["sample"]) == ("PB203", 2)


@pytest.mark.parametrize("change", [lambda t: t.real + 0j, Tensor.conj], ids=["real part", "conjugate"])
def test_a_part_of_a_complex_gradient_that_is_dropped_on_purpose_is_found(change: Any) -> None:
    """PB203: forward is holomorphic, and what comes back isn't linear over the complex numbers."""

    class Tripled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * (change(g) if g.is_complex() else g)

    (finding,) = found(first_order.PROBE, Tripled, (leaf(3),))
    assert finding.rule == "PB203"
    assert finding.message.endswith(
        "while backward takes a real part or a conjugate of what comes in, though forward takes none"
    )


@pytest.mark.parametrize("change", [Tensor.double, lambda t: torch.zeros(3).double().copy_(t)], ids=["cast", "copied"])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_complex_numbers_that_a_cast_cuts_short_are_a_note(change: Any) -> None:
    """PyTorch itself warns of it; of complex arguments nobody thought."""

    class Tripled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * change(g)

    assert found(first_order.PROBE, Tripled, (leaf(3),)) == ()


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_a_fault_where_all_lie_otherwise_in_memory_is_found() -> None:
    """PB407, with the layout: right where one argument does."""
    function = made(lambda x, w: not x.is_contiguous() and not w.is_contiguous())
    finding = the_finding(layouts.PROBE, function)
    assert finding.rule == "PB407"
    assert "where all arguments and gradients are transposed, and right where one is" in finding.message


@pytest.mark.parametrize("layout", ["transposed", "offset", "channels last"])
def test_a_second_derivative_that_is_wrong_in_another_layout_is_found(layout: str) -> None:
    """PB205, with the layout."""
    where: dict[str, Callable[[Tensor], Any]] = {
        "transposed": lambda x: x.dim() == 2 and x.stride(0) == 1,
        "offset": lambda x: x.is_contiguous() and x.storage_offset() > 0,
        "channels last": lambda x: x.dim() == 4 and x.stride(1) == 1,
    }
    shape = (2, 3, 2, 2) if layout == "channels last" else (3, 4)
    finding = the_finding(second_order.PROBE, made(second=holds(where[layout])), (leaf(*shape), leaf(*shape)))
    assert (finding.rule, finding.where.split(", ")[1]) == ("PB205", f"{layout} arguments")


# -- backwards that aren't linear -------------------------------------------------------------------------------------

CLIPPED: dict[str, Callable[[Tensor], Any]] = {
    "complex": Tensor.is_complex,
    "square": lambda x: x.dim() == 2 and x.shape[0] == x.shape[1],
    "a third axis": lambda x: x.dim() == 3,
    "many": lambda x: x.numel() > 32,
    "large": lambda x: (x.abs() > 2).any(),
    "bfloat16": lambda x: x.dtype is torch.bfloat16,
}


@pytest.mark.parametrize("where", CLIPPED)
def test_a_declared_backward_is_compared_with_what_it_should_return_elsewhere_too(where: str) -> None:
    """PB203 against expected_backward, with what was changed."""

    class Halved(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * (0.5 if where and holds(CLIPPED[where])(x, x) else 0.25) * g.abs().max()

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> Any:
            return (grad_outputs[0] / 4 * grad_outputs[0].abs().max(),)

    (finding,) = found(first_order.PROBE, Halved, (leaf(3, 4),))
    assert finding.rule == "PB203"
    assert finding.message.startswith("with ")
    assert finding.message.endswith("the gradient of x differs from expected_backward")
