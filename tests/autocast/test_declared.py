"""F2, F14: `cast_inputs` and `keep_autocast` are judged where the class is defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pullback
from pullback.define.definition import describe
from pullback.errors import DefinitionError
from tests.autocast.functions import with_ctx


def lines_of(**declared: Any) -> list[str]:
    """Return the lines of the error that a class with these declarations gets."""
    with pytest.raises(DefinitionError, match="PB106") as caught:
        with_ctx(**declared)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("value", ["float32", torch.int64, torch.complex64, torch.bool, True, float], ids=repr)
def test_a_cast_to_what_is_no_dtype_of_floats(value: Any) -> None:
    """F2: only a floating-point dtype can be cast to; PyTorch's decorator would find out in training."""
    assert lines_of(cast_inputs=value) == [
        "PB106 WithCtx.cast_inputs is no floating-point dtype.",
        "  expected: torch.float32 or another one",
        f"  got: {value!r}",
        "  remedy: Write cast_inputs = torch.float32, or None to leave the arguments as they are.",
    ]


def test_a_flag_that_is_none() -> None:
    """F2: keep_autocast is True or False."""
    assert lines_of(keep_autocast=torch.bfloat16) == [
        "PB106 WithCtx.keep_autocast is not a bool.",
        "  expected: True or False",
        "  got: torch.bfloat16",
        "  remedy: Write keep_autocast = True or keep_autocast = False.",
    ]


@pytest.mark.parametrize(
    ("written", "value", "meant"),
    [
        ("cast_input", torch.float32, "cast_inputs"),
        ("castinputs", torch.float32, "cast_inputs"),
        ("cast_input", "float32", "cast_inputs"),
        ("custom_fwd", torch.float32, "cast_inputs"),
        ("keep_autocasts", True, "keep_autocast"),
        ("keepAutocast", True, "keep_autocast"),
    ],
)
def test_a_misspelt_declaration(written: str, value: Any, meant: str) -> None:
    """F2: a name that is almost one of theirs, or PyTorch's for the same, is refused."""
    assert lines_of(**{written: value}) == [
        f"PB106 WithCtx.{written} is no declaration, and nothing would heed it.",
        f"  expected: {meant}",
        f"  got: {written}",
        f"  remedy: Did you mean {meant}? A name with an underscore in front is never taken for one.",
    ]


def test_other_things_of_these_names() -> None:
    """F1: a helper method of such a name is the author's own."""
    with_ctx(custom_fwd=staticmethod(lambda x: x), cast_input=staticmethod(lambda x: x))


def test_both_at_once() -> None:
    """F14: cast_inputs keeps autocast off for all methods, so keep_autocast beside it adds nothing and is no error."""
    described = describe(with_ctx(cast_inputs=torch.float32, keep_autocast=True))
    assert described.cast_inputs is torch.float32
    assert described.keep_autocast


def test_what_is_described() -> None:
    """A class that declares nothing is described so, and so is one of PyTorch's with something else of that name."""

    class Theirs(torch.autograd.Function):
        cast_inputs = "whatever"

    for cls in (with_ctx(), Theirs, pullback.Function):
        assert describe(cls).cast_inputs is None
        assert not describe(cls).keep_autocast


def test_adopting_a_class_with_something_else_of_that_name() -> None:
    """F2: an adopted class is judged like any other."""
    theirs = type("Theirs", (torch.autograd.Function,), {"cast_inputs": "whatever", "forward": staticmethod(len)})
    with pytest.raises(DefinitionError, match=r"PB106 Theirs\.cast_inputs is no floating-point dtype"):
        pullback.adopt(theirs)
