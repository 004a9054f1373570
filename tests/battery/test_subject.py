"""Fresh arguments, repeatable calls, and errors told apart."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import make_subject
from pullback.battery.samples import Sample
from pullback.battery.subject import BackwardRaised, ForwardRaised, Subject


class Product(Function):
    """x times w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, g * x


class Dirty(Function):
    """Doubles in place, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A leaf that requires grad."""
    return torch.rand(shape, dtype=dtype).requires_grad_()


def names(subject: Subject) -> list[str]:
    """The leaves that the first case differentiates by."""
    return [inner.name for inner in subject.fresh(subject.all_cases[0]).varying]


def test_only_tensors_that_require_grad_are_differentiated() -> None:
    """The author's requires_grad decides."""
    assert names(make_subject(Product, (leaf(2), torch.rand(2)))) == ["x"]


def test_where_none_requires_grad_all_floats_are_differentiated() -> None:
    """A sample without requires_grad is not an empty test."""
    assert names(make_subject(Product, (torch.rand(2), torch.rand(2)))) == ["x", "w"]


def test_the_same_tensor_passed_twice_stays_one_leaf() -> None:
    """Its other places are known."""
    x = leaf(2)
    inputs = make_subject(Product, (x, x)).fresh(make_subject(Product, (x, x)).all_cases[0])
    assert [(one.name, one.also) for one in inputs.leaves] == [("x", ("w",))]
    assert inputs.args[0] is inputs.args[1]


def test_fresh_arguments_share_nothing_with_the_sample() -> None:
    """What a call does to its arguments can't reach the sample, nor the next call."""
    x = leaf(2)
    subject = make_subject(Product, (x, x.detach()))
    case = subject.all_cases[0]
    with torch.no_grad():
        subject.fresh(case).leaves[0].tensor.zero_()
    assert bool(x.all())
    assert bool(subject.fresh(case).leaves[0].tensor.all())


def test_leaves_in_containers_and_keywords_have_paths() -> None:
    """xs[0], table['a'] and keyword names."""
    subject = make_subject(
        lambda xs, table, *, w: xs[0] * table["a"] * w, Sample(([leaf(2)], {"a": leaf(2)}), {"w": leaf(2)})
    )
    assert names(subject) == ["xs[0]", "table['a']", "w"]


def test_low_dtypes_are_raised_to_float64_where_forward_takes_that() -> None:
    """Finite differences need float64."""
    case = make_subject(Product, (leaf(2, dtype=torch.float32), leaf(2, dtype=torch.float32))).all_cases[0]
    assert case.exact
    assert all(isinstance(arg, Tensor) and arg.dtype == torch.float64 for arg in case.sample.args)


def test_a_function_for_float32_alone_keeps_its_dtype() -> None:
    """Forward refuses float64, so the case isn't exact."""

    def single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x * 2

    assert not make_subject(single, (leaf(2, dtype=torch.float32),)).all_cases[0].exact


def test_an_in_place_function_is_given_tensors_that_are_not_leaves() -> None:
    """A leaf that requires grad can't be written to, but its clone can, and the gradient reaches the leaf."""
    subject = make_subject(Dirty, (leaf(3),))
    assert not subject.troubles
    inputs = subject.fresh(subject.cases[0])
    outputs = subject.call(inputs)
    (gradient,) = subject.gradients(outputs, [torch.ones(3, dtype=torch.float64)], inputs.varying)
    assert gradient is not None
    assert gradient.tolist() == [2.0, 2.0, 2.0]


def test_calls_draw_the_same_random_numbers() -> None:
    """torch's and Python's generators are in the same state at each call."""
    subject = make_subject(lambda x: x * torch.rand(2) * random.random(), (leaf(2),))
    first, second = (subject.call(subject.fresh(subject.all_cases[0]))[0].tensor for _ in range(2))
    assert torch.equal(first, second)


def test_cotangents_are_copied_for_backward_unless_shared() -> None:
    """A backward that writes into its gradient must not spoil the next comparison."""

    class Writes(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g.mul_(3), None

    subject = make_subject(Writes, (leaf(2), torch.rand(2)))
    for share, expected in ((False, 1.0), (True, 3.0)):
        inputs = subject.fresh(subject.all_cases[0])
        cotangent = torch.ones(2, dtype=torch.float64)
        subject.gradients(subject.call(inputs), [cotangent], inputs.varying, share=share)
        assert cotangent.tolist() == [expected, expected]


def test_errors_of_forward_and_backward_are_told_apart() -> None:
    """ForwardRaised and BackwardRaised hold what was raised."""

    class Refuses(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            raise KeyError("no backward today")

    subject = make_subject(lambda x: x.view(7), (leaf(2),))
    with pytest.raises(ForwardRaised, match="RuntimeError"):
        subject.call(subject.fresh(subject.all_cases[0]))
    subject = make_subject(Refuses, (leaf(2), torch.rand(2)))
    inputs = subject.fresh(subject.all_cases[0])
    outputs = subject.call(inputs)
    with pytest.raises(BackwardRaised, match="KeyError: 'no backward today'"):
        subject.gradients(outputs, [torch.ones(2, dtype=torch.float64)], inputs.varying)
    assert isinstance(subject.troubles[0], BackwardRaised)
    assert subject.cases == ()


def test_a_finding_names_its_place_in_words_and_in_data() -> None:
    """where is for people, evidence for the table of causes."""
    subject = make_subject(Product, (leaf(2), leaf(2)))
    finding = subject.finding("PB203", subject.all_cases[0], "wrong", argument="w", what="only w requires grad")
    assert finding.where == "argument w, only w requires grad, sample 0"
    assert finding.evidence == {"argument": "w", "sample": 0}
    assert finding.function == "Product"
