"""Arguments guessed from a signature, and chosen by what forward and backward do with them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from pullback.battery.check import check
from pullback.battery.inference import inferred
from pullback.define.definition import describe
from pullback.errors import SampleError


def shapes(function: object, sample: int = 0) -> list[object]:
    """The shapes of a sample's tensors, other values as they are."""
    definition = describe(function) if isinstance(function, type) else None
    values = inferred(function, definition).samples[sample]
    return [tuple(value.shape) if isinstance(value, Tensor) else value for value in values]


def test_parameters_become_small_float64_tensors_that_require_grad() -> None:
    """Two shapes that work are enough."""
    guesses = inferred(lambda x: x * 2, None).samples
    assert [[tuple(x.shape) for x in guess] for guess in guesses] == [[(2, 3)], [(3, 4)]]
    assert all(isinstance(x, Tensor) and x.requires_grad and x.dtype == torch.float64 for (x,) in guesses)


def test_shapes_that_do_not_fit_are_passed_over() -> None:
    """A matrix product takes matrices that multiply, none of them square."""
    assert shapes(lambda a, b: a @ b) == [(2, 3), (3, 4)]
    assert shapes(lambda x, w, b: x @ w.t() + b) == [(2, 3), (4, 3), (4,)]
    assert shapes(lambda x, w, b: functional.conv2d(x, w, b)) == [(2, 2, 5, 5), (3, 2, 3, 3), (3,)]


def test_numbers_are_guessed_for_annotations_that_ask_for_them() -> None:
    """A float, an int and a bool by annotation; defaults are kept."""

    def scaled(x: Tensor, by: float, times: int, negate: bool, offset: float = 1.0) -> Tensor:
        return x * by * times + offset

    assert shapes(scaled) == [(2, 3), 0.5, 1, False]


def test_names_and_annotations_tell_shapes_and_dimensions() -> None:
    """normalized_shape and dim are no tensors, list[Tensor] is a list of them, and a name alone can be wrong."""

    def listed(xs: list[Tensor], dim: object) -> Tensor:
        return torch.stack(xs).sum(dim)

    assert shapes(functional.layer_norm) == [(2, 3), (3,)]
    assert isinstance(inferred(listed, None).samples[0][0], list)
    assert shapes(lambda mean, eps: mean * eps.exp()) == [(2, 3), (2, 3)]


def test_star_arguments_become_two_tensors() -> None:
    """*args stands for any number: two are tried."""
    assert shapes(lambda *xs: sum(xs)) == [(2, 3), (2, 3)]


def test_a_function_that_takes_float32_alone_gets_that() -> None:
    """Many kernels refuse float64."""

    def single(x: Tensor) -> Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        return x * 2

    (value,) = inferred(single, None).samples[0]
    assert isinstance(value, Tensor)
    assert value.dtype is torch.float32


def test_values_lie_where_the_result_is_finite() -> None:
    """acos wants numbers below 1, acosh above."""
    for function in (torch.acos, torch.acosh):
        (value,) = inferred(lambda x, f=function: f(x), None).samples[0]
        assert isinstance(value, Tensor)
        assert function(value).isfinite().all()


class BiasAdd(Function):
    """A bias for each column."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g.sum(0)


class Linear(Function):
    """x @ w.t() + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0)


class MulConstant(Function):
    """A tensor times a number, which may be a tensor in forward."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, constant: Any) -> Any:
        ctx.constant = constant
        return tensor * constant

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.constant, None


class Clip(Function):
    """Clamped between two bounds."""

    @staticmethod
    def forward(ctx: Any, x: Any, lo: Any, hi: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.bounds = lo, hi
        return x.clamp(lo, hi)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (x,), (lo, hi) = ctx.saved_tensors, ctx.bounds
        return g * ((x >= lo) & (x <= hi)), None, None


class SquaredError(Function):
    """Saves its target, so that no number can be passed for it."""

    @staticmethod
    def forward(ctx: Any, output: Any, target: Any) -> Any:
        ctx.save_for_backward(output, target)
        return ((output - target) ** 2).mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        output, target = ctx.saved_tensors
        return g * 2 * (output - target) / output.numel(), None


class CrossEntropy(Function):
    """forward takes float targets too, and backward only classes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(logits, target)
        return functional.cross_entropy(logits, target)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        logits, target = ctx.saved_tensors
        return g * (logits.softmax(-1) - functional.one_hot(target, logits.shape[-1])) / len(logits), None


RIGHT = {
    BiasAdd: ([(2, 3), (3,)], ""),
    Linear: ([(2, 3), (4, 3), (4,)], ""),
    MulConstant: ([(2, 3), 0.5], "constant as a number, since backward gives it no gradient"),
    Clip: ([(2, 3), 0.5, 0.9], "lo as a number, hi as a number, since backward gives them no gradient"),
    SquaredError: ([(2, 3), (2, 3)], "target without grad, since backward gives it no gradient"),
    CrossEntropy: ([(4, 3), (4,)], ""),
}


@pytest.mark.parametrize("cls", RIGHT, ids=lambda cls: cls.__name__)
def test_a_guess_makes_no_error_of_a_right_function(cls: type[Function]) -> None:
    """What backward doesn't fit is passed over, what gets no gradient is no tensor that requires grad; all is said."""
    expected, remark = RIGHT[cls]
    assert shapes(cls) == expected
    report = check(cls)
    assert report.ok, str(report)
    assert report.samples == "2 inferred from the signature" + (f" ({remark})" if remark else "")


def test_a_finding_on_a_guess_says_that_it_is_one() -> None:
    """The remedy ends with the way to declare what is meant."""

    class Wrong(MulConstant):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return 2 * g, None

    guessed = [finding.remedy for finding in check(Wrong).findings]
    given = [finding.remedy for finding in check(Wrong, (torch.rand(3), 0.5)).findings]
    assert guessed
    assert all("This sample was guessed from the signature" in text and text.endswith("samples().") for text in guessed)
    assert given
    assert not any("guessed" in text for text in given)


def test_no_fitting_guess_is_an_error_with_the_refusals() -> None:
    """The error names the parameters, and what forward said of each kind of guess."""

    def picky(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        return x * table["w"]

    with pytest.raises(SampleError, match=r"PB121 no arguments could be guessed .*\(x, table\)") as caught:
        inferred(picky, None)
    assert caught.value.got.startswith("x (2, 3), table (2, 3): ")
    assert "x (2, 3), table 0.5: TypeError: 'float' object is not subscriptable" in caught.value.got


def test_guesses_that_backward_fits_in_no_way_are_shown() -> None:
    """A wrong shape is the guess's fault as likely as the author's: it is no finding about the author's code."""

    class SummedUp(BiasAdd):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g, g.sum()

    with pytest.raises(SampleError, match=r"\(x, bias\) for which backward fits forward") as caught:
        check(SummedUp)
    assert "x (2, 3), bias (2, 3): backward raised RuntimeError" in caught.value.got
    assert caught.value.remedy.startswith("If forward is meant to take arguments like these, backward is at fault")
    assert "Else declare a samples() static method" in caught.value.remedy


def test_a_bug_in_forward_is_no_lack_of_samples() -> None:
    """What fails in the same way whatever it is given is PB122, with the author's line."""

    class Misspelt(BiasAdd):
        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any) -> Any:
            return x.undefined_thing(bias)

    class OtherBase(BiasAdd):
        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any) -> Any:
            result = x + bias  # refuses some guesses before the slip
            ctx.save_for_backward(x, constants=(bias,))
            return result

    (misspelt,), (other_base,) = check(Misspelt).findings, check(OtherBase).findings
    assert (misspelt.rule, other_base.rule) == ("PB122", "PB122")
    assert "AttributeError: 'Tensor' object has no attribute 'undefined_thing'" in misspelt.message
    assert "test_inference.py:" in misspelt.message
    assert "return x.undefined_thing(bias)" in misspelt.message
    assert "unexpected keyword argument 'constants'" in other_base.message


def test_a_bug_in_backward_is_no_lack_of_samples() -> None:
    """So is a backward that fails in the same way for every guess."""

    class Misspelt(BiasAdd):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g, g * ctx.facter

    class OneShort(BiasAdd):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    assert [finding.rule for finding in check(Misspelt).findings] == ["PB125"]
    assert [finding.rule for finding in check(OneShort).findings] == ["PB201"]


def test_a_lone_argument_leaves_nothing_to_guess() -> None:
    """What backward does with every shape of it is the author's: PB213, not PB121."""

    class Halved(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.cat([g, g])

    assert [finding.rule for finding in check(Halved).findings] == ["PB213"]


def test_an_argument_that_gets_nothing_at_all_stays_a_tensor() -> None:
    """Where no argument gets a gradient, that is the fault: PB204."""

    class Nothing(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

    assert "PB204" in {finding.rule for finding in check(Nothing).findings}
