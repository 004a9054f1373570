"""Where samples come from, and what is said about those that can't be used."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import check
from pullback.battery.samples import Sample, find_samples, samples_for
from pullback.define.definition import describe
from pullback.errors import SampleError


class Double(Function):
    """Two times x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Declared(Double):
    """Declares its samples with a generator."""

    @staticmethod
    def samples() -> Iterator[object]:
        yield (torch.rand(2, dtype=torch.float64, requires_grad=True),)
        yield Sample((torch.rand(3, dtype=torch.float64),), vary=())


def found(cls: type[Function], *given: object) -> tuple[int, str]:
    """How many samples are found, and their source."""
    samples = find_samples(cls, given, describe(cls), seed=0)
    return len(samples.samples), samples.source


def test_given_samples_come_before_declared_ones() -> None:
    """What is passed to check wins over what the class declares."""
    assert found(Declared, (torch.rand(4),)) == (1, "given")


def test_declared_samples_may_come_from_a_generator() -> None:
    """samples() may yield tuples and Samples alike."""
    assert found(Declared) == (2, "declared")


def test_registered_samples_come_before_declared_ones() -> None:
    """samples_for serves classes that can't be edited, and overrules what they declare."""

    class Registered(Declared):
        pass

    @samples_for(Registered)
    def samples() -> Iterator[object]:
        yield (torch.rand(5),)

    assert found(Registered) == (1, "registered")


def test_samples_are_inferred_where_nothing_else_is_known() -> None:
    """The report says that the arguments were guessed."""
    assert str(check(Double).samples) == "2 inferred from the signature"


def test_a_bare_tensor_is_refused_with_the_way_to_write_it() -> None:
    """check(f, x) would read the rows of x as arguments; the error shows check(f, (x, y))."""
    with pytest.raises(SampleError, match=r"PB121 a sample is a tuple .*\n.*check\(f, \(x, y\)\)"):
        check(Double, torch.rand(3))


def test_a_samples_method_that_yields_bare_tensors_is_refused() -> None:
    """The same slip inside samples()."""

    class Bare(Double):
        @staticmethod
        def samples() -> Iterator[object]:
            yield torch.rand(3)

    with pytest.raises(SampleError, match=r"declared samples\(\) gave a bare tensor as sample 0, .*\n.*yield \(x,\)"):
        check(Bare)


def test_a_sample_whose_args_are_a_bare_tensor_is_refused() -> None:
    """Sample(x) is the same slip again."""
    with pytest.raises(SampleError, match="a bare tensor came"):
        Sample(torch.rand(3))


def test_an_unknown_vary_is_refused() -> None:
    """A misspelt entry would switch a probe off in silence."""
    with pytest.raises(SampleError, match=r"unknown entries: layuot"):
        Sample((torch.rand(3),), vary=("layuot",))


def test_a_samples_method_that_raises_is_named() -> None:
    """The exception of samples() is in the text."""

    class Broken(Double):
        @staticmethod
        def samples() -> list[object]:
            raise ZeroDivisionError("no samples today")

    with pytest.raises(SampleError, match="samples\\(\\) raised ZeroDivisionError: no samples today"):
        check(Broken)


def test_a_samples_method_without_samples_is_named() -> None:
    """An empty samples() proves nothing, and must not pass."""

    class Empty(Double):
        @staticmethod
        def samples() -> list[object]:
            return []

    with pytest.raises(SampleError, match="gave no sample at all"):
        check(Empty)


def test_a_samples_method_with_self_is_told_to_be_static() -> None:
    """samples() is called on the class, without arguments."""

    class Bound(Double):
        def samples(self) -> list[object]:
            return [(torch.rand(3),)]

    with pytest.raises(SampleError, match=r"Make it a @staticmethod without parameters: .* without self"):
        check(Bound)


def test_a_list_of_samples_in_place_of_the_method_is_taken() -> None:
    """For PyTorch's Functions a list or tuple as the attribute `samples` means the same."""

    class Listed(Double):
        samples = ((torch.rand(3),), (torch.rand(2),))

    assert found(Listed) == (2, "declared")


@pytest.mark.parametrize("given", [[(torch.rand(3),)], iter([(torch.rand(3),)]), []], ids=["list", "iterator", "empty"])
def test_samples_in_one_list_are_refused_with_the_way_to_write_them(given: object) -> None:
    """Each sample is an argument of its own."""
    with pytest.raises(SampleError, match=r"each sample is an argument of its own.*\n.*check\(f, \(x,\), \(y,\)\)"):
        check(Double, given)


def test_a_list_that_samples_gives_in_place_of_a_tuple_is_named_with_its_number() -> None:
    """The text speaks of samples(), which the author wrote, not of check's arguments."""

    class Listed(Double):
        @staticmethod
        def samples() -> Any:
            return [(torch.rand(3),), [torch.rand(3)]]

    with pytest.raises(SampleError, match=r"declared samples\(\) gave a list as sample 1, .*\n.*yield x, y"):
        check(Listed)


def test_arguments_of_a_sample_one_by_one_are_refused() -> None:
    """Sample(x, y) would take y for the arguments by keyword."""
    with pytest.raises(SampleError, match=r"a mapping of arguments by keyword, and a bare tensor came"):
        Sample((torch.rand(3),), torch.rand(3))


def test_one_entry_of_vary_may_stand_alone() -> None:
    """A string is one entry, not its letters."""
    assert Sample((torch.rand(3),), vary="shape").vary == ("shape",)
    with pytest.raises(SampleError, match="unknown entries: shapes"):
        Sample((torch.rand(3),), vary="shapes")


@pytest.mark.parametrize("wrong", ["Double", 3, lambda: [(torch.rand(3),)]], ids=["name", "number", "maker"])
def test_samples_for_takes_what_is_checked(wrong: Any) -> None:
    """Neither its name, nor the function that makes the samples, which is what @samples_for without brackets gives."""
    with pytest.raises(SampleError, match=r"PB121 samples_for takes the class or callable itself"):
        samples_for(wrong)


def test_samples_for_decorates_a_function() -> None:
    """A list in its place is refused, with the way to write it."""
    with pytest.raises(
        SampleError, match=r"a function that yields samples, and a list came.*\n.*@pullback.samples_for"
    ):
        samples_for(Double)([(torch.rand(3),)])


def test_samples_for_a_bound_apply_are_those_of_the_class() -> None:
    """The class is what a bound apply is about, and what stays."""

    class Applied(Double):
        pass

    @samples_for(Applied.apply)
    def samples() -> Iterator[object]:
        yield (torch.rand(5),)

    assert found(Applied) == (1, "registered")


def test_making_samples_leaves_the_global_generator_alone() -> None:
    """Samples drawn from torch's generator depend on the seed alone, and don't disturb the caller's draws."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (find_samples(Declared, (), describe(Declared), seed=1) for _ in range(2))
    torch.testing.assert_close(torch.rand(1), expected)
    torch.testing.assert_close(first.samples[0].args[0], second.samples[0].args[0])


def test_what_samples_raised_is_quoted_in_its_first_lines() -> None:
    """A tool's page of output is cut after four lines, a long line within; the remedy speaks of what raised."""

    class Broken(Double):
        @staticmethod
        def samples() -> list[object]:
            raise ZeroDivisionError("\n\n".join(f"line {number}" for number in range(9)))

    class Long(Double):
        @staticmethod
        def samples() -> list[object]:
            raise ZeroDivisionError("x" * 5000)

    with pytest.raises(SampleError) as caught:
        check(Broken)
    assert (
        caught.value.message == "the declared samples() raised ZeroDivisionError: line 0 | line 1 | line 2 | line 3 | …"
    )
    assert caught.value.remedy.startswith("Make samples() run by itself: mend what raised, in it or in what it calls.")
    with pytest.raises(SampleError) as caught:
        check(Long)
    assert len(caught.value.message) < 700
    assert caught.value.message.endswith("xx…")


def test_a_samples_method_that_forgets_to_return_is_told_what_to_give() -> None:
    """None, or anything that can't be gone through, isn't said to have raised."""

    class Forgets(Double):
        @staticmethod
        def samples() -> None:
            torch.rand(3)

    with pytest.raises(SampleError, match=r"the declared samples\(\) gave a NoneType, .*\n(.*\n)*.*Yield tuples of"):
        check(Forgets)
