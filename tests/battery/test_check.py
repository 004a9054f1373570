"""`check` and `assert_correct`, as their callers see them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.battery import PROBES
from pullback.battery.check import assert_correct, check
from pullback.errors import CallError, CheckFailedError, MissingMethodError, SampleError
from pullback.finding import Status
from tests.battery.running import leaf


class Square(Function):
    """x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Tripled(Square):
    """The gradient is half as large again."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] * g


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")


def test_a_right_function_is_ok() -> None:
    """Every probe has an outcome, in order; the report has the seed and the samples' source."""
    report = check(Square, seed=3)
    assert report.ok
    assert list(report.outcomes) == list(PROBES)
    assert (report.function, report.samples, report.seed) == ("Square", "1 declared", 3)
    assert report.location.rpartition(":")[0].endswith("test_check.py")


def test_a_wrong_function_has_one_finding_with_all_that_is_needed() -> None:
    """One cause, one finding: rule, place, numbers, remedy, lines to run."""
    report = check(Tripled)
    assert not report.ok
    (finding,) = report.findings
    assert (finding.rule, finding.function, finding.where) == ("PB203", "Tripled", "argument x, sample 0")
    assert finding.expected
    assert finding.got
    assert finding.remedy
    assert finding.probe == "first_order"
    assert "Tripled.apply(x)" in finding.repro


def test_pullback_functions_and_plain_callables_are_checked_alike() -> None:
    """A class by its apply, a callable by calling it."""

    class Mine(pullback.Function):
        forward = Square.__dict__["forward"]
        backward = Square.__dict__["backward"]

    assert check(Mine, (leaf(3),)).ok
    assert check(torch.sin, (leaf(3),)).ok
    assert [finding.rule for finding in check(lambda x: Tripled.apply(x), (leaf(3),)).findings] == ["PB203"]


def test_only_and_skip_choose_the_probes() -> None:
    """And what was left out is said."""
    report = check(Tripled, only=["values"])
    assert list(report.outcomes) == ["runs", "values"]
    assert any(sentence.startswith("probes that were left out: ") for sentence in report.untested)
    assert "first_order" not in check(Tripled, skip=["first_order"]).outcomes
    with pytest.raises(ValueError, match="no probe is called nonsense"):
        check(Square, only=["nonsense"])


def test_orders_leaves_out_second_derivatives() -> None:
    """And says so."""
    report = check(Square, orders=1)
    assert "second_order" not in report.outcomes
    assert "second derivatives (orders=1)" in report.untested
    with pytest.raises(ValueError, match="orders is 1 or 2, not 3"):
        check(Square, orders=3)


def test_progress_is_told_before_each_probe() -> None:
    """For a line on the terminal."""
    seen: list[str] = []
    check(Square, progress=seen.append)
    assert seen == list(PROBES)


def test_a_reference_and_a_surrogate_can_be_given() -> None:
    """They stand in for those of the class."""
    assert [f.rule for f in check(Square, reference=lambda x: x**2 + 1).findings] == ["PB219"]
    assert check(Tripled, surrogate=lambda x: 1.5 * x**2).ok


def test_assert_correct_raises_with_the_report_as_text() -> None:
    """In a test suite the message is the report."""
    assert_correct(Square)
    with pytest.raises(CheckFailedError, match=r"(?s)PB203 Tripled is not right.*argument x, sample 0") as raised:
        assert_correct(Tripled)
    assert isinstance(raised.value, AssertionError)


def test_hints_do_not_fail_a_report() -> None:
    """An opinion is shown, and the report is ok."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, g * x

    report = check(Product, (leaf(3), leaf(3)))
    assert {finding.rule for finding in report.findings} == {"PB601"}
    assert report.ok


def test_the_same_seed_gives_the_same_report() -> None:
    """Numbers included."""
    sample = (leaf(100),)
    first, second = (check(Tripled, sample, seed=7).findings[0] for _ in range(2))
    assert first == second


def test_what_can_not_be_checked_is_refused_by_name() -> None:
    """An abstract class, a class of another kind, something that can't be called."""

    class Abstract(Function):
        pass

    with pytest.raises(MissingMethodError, match="PB107 Abstract has no forward"):
        check(Abstract)
    with pytest.raises(TypeError, match=r"int is not a subclass of torch\.autograd\.Function"):
        check(int)
    with pytest.raises(SampleError, match=r"3 can't be called(.|\n)*Pass the class or the callable itself"):
        check(3)


def test_the_device_is_where_the_samples_go() -> None:
    """Moved before anything runs."""
    report = check(Square, device="cpu")
    assert report.ok
    assert "devices other than cpu" in report.untested


@pytest.mark.parametrize("device", ["cpu:", "nowhere", 3.5, pytest.param("cuda", marks=NO_CUDA)])
def test_a_device_that_is_not_there_is_one_sentence(device: Any) -> None:
    """It is said before anything runs, with what PyTorch says of it."""
    with pytest.raises(ValueError, match=f"device {device!r} can't be used: "):
        check(Square, device=device)


def test_untested_says_what_could_be_missed() -> None:
    """Large arguments without a reference, skipped proofs, and what no probe looks at."""
    untested = check(Square, (leaf(500),)).untested
    assert any(sentence.startswith("single elements of x: compared through dense random") for sentence in untested)
    assert "values: no reference is known" in untested
    assert not any(sentence.startswith("subsets:") for sentence in untested)
    assert any("torch.compile" in sentence for sentence in untested)


def test_a_function_that_misbehaves_in_one_sample_only_is_found() -> None:
    """Every sample is tried."""

    class Big(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return (2 if x.numel() < 5 else 3) * x * g

    (finding,) = check(Big, (leaf(3),), (leaf(8),)).findings
    assert (finding.rule, finding.evidence["sample"]) == ("PB203", 1)


def test_a_probe_that_could_not_judge_is_skipped() -> None:
    """No pass without a proof."""
    report = check(lambda x: x.detach(), (leaf(3),), only=["second_order"])
    assert report.outcomes["second_order"].status is Status.SKIPPED


def test_one_probe_may_be_named_as_it_is() -> None:
    """A bare string is one name; an unknown one is told which there are."""
    assert list(check(Square, (leaf(3),), only="first_order").outcomes) == ["runs", "first_order"]
    with pytest.raises(ValueError, match="no probe is called first; there are runs, hidden"):
        check(Square, (leaf(3),), only="first")


@pytest.mark.parametrize("seed", [-1, 2**32, "7", 7.0, True, None])
def test_a_seed_out_of_range_is_refused(seed: Any) -> None:
    """NumPy takes no other ones, and what is no number has no range."""
    with pytest.raises(ValueError, match="seed is a number from 0 to 4294967295"):
        check(Square, (leaf(3),), seed=seed)


def test_the_largest_seed_is_taken() -> None:
    """By every generator."""
    assert check(Square, (leaf(3),), seed=2**32 - 1).ok


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_an_instance_is_refused_and_the_class_is_named() -> None:
    """And the class's bound apply is taken for the class."""
    with pytest.raises(CallError, match=r"check\(Square, …\)"):
        check(Square(), (leaf(3),))
    assert check(Square.apply, (leaf(3),)).function == "Square"
