"""Arguments guessed from a signature, and chosen by what forward and backward do with them."""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

import pullback
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

    assert shapes(scaled) == [(2, 3), 0.6, 1, False]


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
    MulConstant: ([(2, 3), 0.6], "constant as a number, since backward gives it no gradient"),
    Clip: ([(2, 3), 0.6, 0.9], "lo as a number, hi as a number, since backward gives them no gradient"),
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
    assert "x (2, 3), table 0.6: TypeError: 'float' object is not subscriptable" in caught.value.got


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


class OptionalBias(Function):
    """x @ w.t(), and a bias where one is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0) if any(ctx.needs_input_grad[2:]) else None


def test_an_optional_tensor_is_left_out_of_one_sample_and_given_in_another() -> None:
    """By its annotation or, without any, because forward and backward take it: a wrong gradient of it is found."""

    class Unannotated(OptionalBias):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any = None) -> Any:
            return OptionalBias.forward(ctx, x, weight, bias)

    class Thrice(OptionalBias):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            *others, bias = OptionalBias.backward(ctx, g)
            return *others, 3 * bias if bias is not None else None

    for cls in (OptionalBias, Unannotated):
        assert (shapes(cls, 0), shapes(cls, 1)) == ([(2, 3), (2, 3)], [(3, 4), (3, 4), (3,)])
    report = check(OptionalBias, skip=("autocast", "subsets"))
    assert report.ok, str(report)
    assert not any("bias" in sentence for sentence in report.untested)
    (finding,) = check(Thrice, only=("first_order",)).findings
    assert (finding.rule, finding.where) == ("PB203", "argument bias, sample 1")


def test_what_stays_at_none_is_said_to_be_untested() -> None:
    """An optional argument for which forward takes no tensor; and a bias that no declared sample gives."""

    def summed(x: Tensor, dim: Any = None, dtype: Any = None) -> Tensor:
        return x.sum(dim=dim, dtype=dtype)

    assert "dim, dtype (left at their default None)" in check(summed, only=("runs",)).untested
    pair = torch.rand(2, 3, requires_grad=True), torch.rand(4, 3)
    assert "bias (left at its default None)" in check(OptionalBias, pair, only=("runs",)).untested
    assert not any("default" in text for text in check(OptionalBias, (*pair, torch.rand(4)), only=("runs",)).untested)


def test_a_mask_is_guessed_for_an_optional_argument_of_that_name() -> None:
    """Bools, where the name asks for them."""

    def masked(x: Tensor, mask: Any = None) -> Tensor:
        return x if mask is None else x.masked_fill(mask, 0.0)

    _, (_, mask) = inferred(masked, None).samples
    assert isinstance(mask, Tensor)
    assert mask.dtype is torch.bool


def test_a_tensor_that_forward_would_write_to_is_left_at_none() -> None:
    """Running statistics are no argument to differentiate by."""

    def normed(x: Tensor, running_mean: Any = None) -> Tensor:
        if running_mean is not None:
            running_mean.copy_(x.detach().mean(0))
        return x - x.mean(0)

    assert shapes(normed, 1)[1:] == [None]


def test_a_backward_that_counts_on_every_argument_is_shown_where_one_is_left_out() -> None:
    """PB125 with the author's line for the call without a default; the samples that pass it are tried all the same."""

    class Unpacks(OptionalBias):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            x, weight = ctx.saved_tensors
            nx, nw, nb = ctx.needs_input_grad
            return g @ weight if nx else None, g.t() @ x if nw else None, g.sum(0) if nb else None

    report = check(Unpacks, skip=("autocast", "compiled"))
    (finding,) = report.findings
    assert (finding.rule, finding.where) == ("PB125", "sample 0")
    assert "not enough values to unpack" in finding.message
    assert "test_inference.py:" in finding.message
    assert "nx, nw, nb = ctx.needs_input_grad" in finding.message
    assert shapes(Unpacks, 2) == [(3, 4), (3, 4), (3,)]


def test_too_few_gradients_are_found_where_a_default_is_passed() -> None:
    """backward that fits the short call alone gets PB201 for the full one."""

    class Forgets(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, alpha: float = 2.0) -> Tensor:
            ctx.alpha = alpha
            return x * alpha

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.alpha, *[None] * (len(ctx.needs_input_grad) - 1)

    class ForgetsOne(Forgets):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.alpha

    assert check(Forgets, only=("runs",)).ok
    (finding,) = check(ForgetsOne, only=("runs",)).findings
    assert (finding.rule, finding.where) == ("PB201", "sample 2")


def test_a_backward_that_raises_is_told_with_its_line_among_the_refusals() -> None:
    """PB121 says where in the author's file, as PB125 does."""

    class Picky(BiasAdd):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            raise ValueError(f"not {tuple(g.shape)}")

    with pytest.raises(SampleError) as caught:
        inferred(Picky, describe(Picky))
    assert "test_inference.py:" in caught.value.got
    assert "raise ValueError" in caught.value.got


def test_the_last_sample_has_numbers_of_both_signs_where_forward_takes_them() -> None:
    """Of each argument that takes them: not of a logarithm's, and of one factor where the other must be positive."""

    def signs(function: object) -> list[bool]:
        return [bool((x < 0).any()) for x in inferred(function, None).samples[-1] if isinstance(x, Tensor)]

    assert signs(lambda x: x * 2) == [True]
    assert signs(lambda x: x.log()) == [False]
    assert signs(lambda x, y: x * y.log()) == [True, False]
    for first in inferred(lambda x: x * 2, None).samples[0]:
        assert isinstance(first, Tensor)
        assert (first > 0).all()


def test_a_fault_for_negative_numbers_is_told_as_what_it_is() -> None:
    """A leaky ReLU with the slope 1 is a wrong gradient; one that writes to its argument changes it."""

    class Leaky(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.where(x > 0, x, 0.1 * x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    class Writes(Leaky):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x > 0)
            return x.copy_(torch.where(x > 0, x, 0.1 * x)) * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * torch.where(ctx.saved_tensors[0], g, 0.1 * g)

    assert [finding.rule for finding in check(Leaky, skip=("compiled",)).findings] == ["PB203"]
    assert [finding.rule for finding in check(Writes, skip=("compiled",)).findings] == ["PB401"]


class Affine(Function):
    """x times a weight and plus a bias for each column, either of which may be missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = x if weight is None else x * weight
        return y.clone() if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = (*ctx.needs_input_grad[1:], False, False)[:2]
        of_x = g if weight is None else g * weight
        return of_x, (g * x).sum(0) if of_weight else None, g.sum(0) if of_bias else None


def test_several_optional_tensors_come_together_and_each_alone() -> None:
    """None of them, all of them, and one at a time."""
    given = [[value is not None for value in sample[1:]] for sample in inferred(Affine, describe(Affine)).samples]
    assert given == [[], [True, True], [True, False], [False, True]]
    assert check(Affine, only=("runs", "first_order")).ok


def test_what_is_wrong_where_an_optional_tensor_comes_alone_is_found() -> None:
    """A bias whose gradient is right with a weight and wrong without one; and a backward that raises without one."""

    class WrongAlone(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            *others, bias = Affine.backward(ctx, g)
            alone = len(others) == 2 and ctx.saved_tensors[1] is None and bias is not None
            return *others, bias * 2 if alone else bias

    class RaisesAlone(Affine):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            weight = ctx.saved_tensors[1]
            if any(ctx.needs_input_grad[2:]):
                g = g * weight / weight
            return Affine.backward(ctx, g)

    (wrong,) = check(WrongAlone, only=("first_order",)).findings
    assert (wrong.rule, wrong.where) == ("PB203", "argument bias, sample 3")
    (raises,) = check(RaisesAlone, only=("runs",)).findings
    assert (raises.rule, raises.where) == ("PB125", "sample 3")


def test_optional_tensors_that_exclude_each_other_come_one_at_a_time() -> None:
    """A scale or its logarithm: the second one is not left out because the first one was taken."""

    def scaled(x: Tensor, scale: Tensor | None = None, log_scale: Tensor | None = None) -> Tensor:
        if scale is not None and log_scale is not None:
            raise ValueError("either a scale or its logarithm")
        return x if scale is None and log_scale is None else x * (scale if log_scale is None else log_scale.exp())

    samples = inferred(scaled, None).samples
    assert [[value is not None for value in sample[1:]] for sample in samples] == [[], [True, False], [False, True]]


def test_keyword_only_tensors_and_numbers_are_guessed() -> None:
    """Those without a default are filled, an optional tensor is tried and left out, and what is wrong is found."""

    class Keyed(pullback.Function):
        factor = 1

        @classmethod
        def forward(cls, ctx: Any, x: Tensor, *, by: Tensor, bias: Tensor | None = None, alpha: float = 2.0) -> Tensor:
            ctx.save_for_backward(x, by)
            ctx.alpha = alpha
            return x * by * alpha + (0 if bias is None else bias)

        @classmethod
        def backward(cls, ctx: Any, g: Tensor) -> dict[str, Tensor]:
            x, by = ctx.saved_tensors
            found = {"x": g * by * ctx.alpha, "by": g * x * ctx.alpha}
            return {**found, "bias": cls.factor * g.sum(0)} if any(ctx.needs_input_grad[2:]) else found

    class Doubled(Keyed):
        factor = 2

    guessed = inferred(Keyed, describe(Keyed))
    assert [len(args) for args in guessed.samples] == [1, 1]
    assert [sorted(keywords) for keywords in guessed.keywords] == [["by"], ["alpha", "bias", "by"]]
    assert isinstance(guessed.keywords[1]["bias"], Tensor)
    assert check(Keyed, only=("runs", "first_order")).ok
    (finding,) = check(Doubled, only=("first_order",)).findings
    assert (finding.rule, finding.where) == ("PB203", "argument bias, sample 1")


def test_a_keyword_that_apply_cannot_pass_is_not_guessed() -> None:
    """PyTorch's own class takes none: its Function is checked without it, and the report says so."""

    class Plain(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *, bias: Tensor | None = None) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    report = check(Plain, only=("runs",))
    assert report.ok
    assert "bias (left at its default None)" in report.untested


@dataclass
class Settings:
    """Settings, which are compared and so can't be hashed."""

    factor: float = 3.0


class Way(enum.Enum):
    """How to scale."""

    ONCE = 1
    TWICE = 2


class Choosy(Function):
    """A flag, a reduction and a choice, each of which backward has to follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, negate: bool = False, reduction: str = "mean", way: Way = Way.ONCE) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = (-1 if negate else 1) * way.value
        ctx.reduction = reduction
        y = ctx.factor * x * x
        return {"mean": y.mean, "sum": y.sum, "none": y.clone}[reduction]()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        count = x.numel() if ctx.reduction == "mean" else 1
        return 2 * ctx.factor * x * g / count, None, None, None


def test_flags_and_choices_are_tried_the_other_way() -> None:
    """One at a time; a gradient that is wrong for one of them is found."""

    class OnlyMean(Choosy):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            (x,) = ctx.saved_tensors
            return 2 * ctx.factor * x * g / x.numel(), None, None, None

    given = [tuple(sample[1:]) for sample in inferred(Choosy, describe(Choosy)).samples]
    assert given == [
        (),
        (False, "mean", Way.ONCE),
        (True, "mean", Way.ONCE),
        (False, "sum", Way.ONCE),
        (False, "none", Way.ONCE),
        (False, "mean", Way.TWICE),
    ]
    assert check(Choosy, only=("runs", "first_order")).ok
    (finding,) = check(OnlyMean, only=("first_order",)).findings
    assert (finding.rule, finding.evidence["samples"]) == ("PB203", [3, 4])


def test_indices_and_how_many_there_are_of_them_are_guessed_together() -> None:
    """A mean of segments: integers by the name, and a number that no index reaches."""

    class Segments(Function):
        @staticmethod
        def forward(ctx: Any, src: Any, index: Any, num: Any) -> Any:
            ctx.save_for_backward(index)
            return src.new_zeros(num, src.shape[1]).index_add_(0, index, src)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g[ctx.saved_tensors[0]], None, None

    assert shapes(Segments) == [(4, 3), (4,), 3]
    assert check(Segments, skip=("compiled",)).ok


def test_an_error_of_an_operator_about_a_guess_is_no_slip_of_the_author_s() -> None:
    """new_zeros that gets a number that is none: no usable samples, and not a forward that raises."""

    class Sized(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, count: Any) -> Any:
            return x.new_zeros(count, 2) if isinstance(count, str) else x.new_zeros(count, 2, 0.5)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.sum(0), None

    with pytest.raises(SampleError, match=r"^PB121 no arguments could be guessed"):
        check(Sized)


def test_a_default_that_can_be_neither_hashed_nor_compared_is_passed_as_it_is() -> None:
    """A dataclass of settings, a list, an array."""

    def scaled(x: Tensor, by: Any = [2.0], table: Any = np.ones(2), settings: Any = Settings()) -> Tensor:  # noqa: B006, B008  # on purpose
        return x * by[0] * settings.factor * float(table[0])

    samples = inferred(scaled, None).samples
    assert samples[1][1] == [2.0]
    assert samples[1][3] == Settings()
    assert check(scaled, only=("runs", "first_order")).ok


def test_an_equation_in_forward_tells_the_shapes_of_its_arguments() -> None:
    """Each letter is a size of its own, so that an axis that is taken for another one shows."""

    class Bilinear(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, y: Any) -> Any:
            ctx.save_for_backward(x, w, y)
            return torch.einsum("bi,oij,bj -> bo", x, w, y)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w, y = ctx.saved_tensors
            of_x = torch.einsum("bo,oij,bj->bi", g, w, y)
            return of_x, torch.einsum("bo,bi,bj->oij", g, x, y), torch.einsum("bo,oij,bi->bj", g, w, x)

    class Swapped(Bilinear):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w, y = ctx.saved_tensors
            of_x, _, of_y = Bilinear.backward(ctx, g)
            return of_x, torch.einsum("bo,bi,bj->oji", g, x, y).reshape(w.shape), of_y

    assert shapes(Bilinear) == [(2, 3), (4, 3, 5), (2, 5)]
    assert check(Bilinear, only=("runs", "first_order")).ok
    assert [finding.rule for finding in check(Swapped, only=("first_order",)).findings] == ["PB203"]
    assert shapes(lambda x, w: torch.einsum("...i,ij->...j", x, w)) == [(2, 3), (3, 4)]


def test_a_flag_that_no_sample_turns_is_said_to_be_untested() -> None:
    """With the value at which it stayed; a choice likewise."""
    x = torch.rand(3, requires_grad=True)
    assert "negate (left at its default False)" in check(Choosy, (x,), only=("runs",)).untested
    assert "reduction (left at its default mean)" in check(Choosy, (x, False), only=("runs",)).untested
    report = check(Choosy, (x, True), (x, False, "sum", Way.TWICE), only=("runs",))
    assert not any("default" in sentence for sentence in report.untested)
