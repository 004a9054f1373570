"""The lines that show a fault fail by themselves, and pass once it is mended."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery import repro, repro_effects, repro_precision, repro_second
from pullback.battery.case import CotangentName
from pullback.battery.check import make_subject
from pullback.battery.stores import Variable, Variables
from pullback.battery.subject import Case, Subject
from pullback.battery.verdict import equal, failing, with_remark, with_seeds

F64 = [torch.float64]


class Right(pullback.Function):
    """x w, with a backward that is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        return g * w if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None

    @staticmethod
    def reference(x: Tensor, w: Tensor) -> Tensor:
        return x * w


def right() -> tuple[Subject, Case]:
    """The right Function and its sample."""
    sample = tuple(torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    subject = make_subject(Right, sample)
    return subject, subject.cases[0]


def test_two_prints_become_an_assertion() -> None:
    """With both numbers in its text."""
    lines = failing('import torch\nprint("got, from backward:", 1.0)\nprint("expected:", 2.0)', F64)
    assert lines.splitlines()[1:3] == ["got = 1.0  # from backward", "expected = 2.0"]
    with pytest.raises(AssertionError, match=r"got 1.0\nexpected 2.0"):
        exec(lines, {})


def test_lines_that_end_in_an_error_of_their_own_stay() -> None:
    """There is nothing to compare."""
    assert failing("x = 1\nx.backward()", F64) == "x = 1\nx.backward()"
    assert failing('print("got:", f())', F64) == "got = f()"


def test_none_is_not_a_gradient() -> None:
    """A gradient that is None where one is due fails, and two that are None agree."""
    with pytest.raises(AssertionError):
        exec(failing('import torch\nprint("got:", None)\nprint("expected:", torch.ones(2))', F64), {})
    exec(failing('import torch\nprint("got:", None)\nprint("expected:", None)', F64), {})


def test_what_is_no_number_is_compared_as_it_is() -> None:
    """Dtypes, say."""
    with pytest.raises(AssertionError, match="got 1, expected 2"):
        exec("\n".join(equal("1", "2")), {})


def test_neighbouring_assignments_share_a_line_where_none_needs_the_other() -> None:
    """And plain imports share one; what is looked at keeps a line of its own."""
    lines = failing("import threading\nimport torch\na = 1\nb = 2\nc = a\noutput = 3\ntotal = 4", F64).splitlines()
    assert lines == ["import threading, torch", "a, b = 1, 2", "c = a", "output = 3", "total = 4"]


def test_low_precision_is_compared_by_its_digits() -> None:
    """Three percent in bfloat16, a thousandth of that in float64."""
    text = 'print("got:", 1.0)\nprint("expected:", 1.01)'
    exec(failing("import torch\n" + text, [torch.bfloat16]), {})
    with pytest.raises(AssertionError):
        exec(failing("import torch\n" + text, F64), {})


CACHE = Variables((Variable("Right.cache", Right, "cache"),))
"""A variable that the calls might fill."""


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize(
    "made",
    [
        lambda s, c: repro.difference_lines(s, c, "x", (1, 2)),
        lambda s, c: repro.oracle_lines(s, c, "w", "reference"),
        lambda s, c: repro.value_lines(s, c),
        lambda s, c: repro.scale_lines(s, c, "x"),
        lambda s, c: repro.subset_lines(s, c, "x", ("x",)),
        lambda s, c: repro.layout_lines(s, c, "x", "transposed"),
        lambda s, c: repro.argument_lines(s, c, "x", "sliced"),
        lambda s, c: repro_second.penalty_lines(s, c, "x", (0, 0)),
        lambda s, c: repro_second.penalty_lines(s, c, "w"),
        lambda s, c: repro_second.cotangent_lines(s, c, "x", (0, 0)),
        lambda s, c: repro_second.cotangent_lines(s, c, "w", ()),
        lambda s, c: repro_second.accumulated_lines(s, c, "x"),
        lambda s, c: repro_second.accumulated_lines(s, c, CotangentName("grad_output")),
        lambda s, c: repro_effects.mixed_lines(s, c, c, "without grad"),
        lambda s, c: repro_effects.mixed_lines(s, c, c, "last in, first out"),
        lambda s, c: repro_effects.store_lines(s, c, c, "Right.cache", values=False),
        lambda s, c: repro_effects.store_lines(s, c, c, "Right.cache", values=True, variables=CACHE),
        lambda s, c: repro.waste_lines(s, c, "x", "w"),
        lambda s, c: repro_effects.written_lines(s, c, "x"),
        lambda s, c: repro_effects.again_lines(s, c, values=False),
        lambda s, c: repro_effects.spoiled_lines(s, c, 0),
        lambda s, c: repro_effects.pinned_lines(s, c, 0),
        lambda s, c: repro_effects.attribute_lines(s, c, "ctx.mask"),
        lambda s, c: repro_effects.leak_lines(s, c, differentiate=True),
        lambda s, c: repro_precision.dtype_lines(s, c, "x"),
        lambda s, c: repro_precision.operator_lines(s, c),
        lambda s, c: repro_precision.rounded_lines(s, c, "x", torch.float32),
        lambda s, c: repro_precision.lower_lines(s, c, "x", torch.float32),
    ],
)
def test_the_lines_pass_once_the_fault_is_mended(made: Any) -> None:
    """Run on a Function that is right, they end in nothing."""
    import gc

    subject, case = right()
    try:
        exec(failing(made(subject, case), F64), {"Right": Right})
    finally:
        gc.enable()


def test_another_grad_output_than_the_findings_is_told_on_the_first_line() -> None:
    """The lines weigh outputs by evenly spaced numbers, the probes by random ones: so the numbers are others."""
    text = 'import torch\nprint("got:", torch.linspace(0.5, 1.5, 3).sum())\nprint("expected:", torch.ones(()))'
    assert failing(text, F64).splitlines()[0] == "import torch  # with another grad_output than above, so other numbers"
    assert failing('import torch\nprint("got:", 1.0)\nprint("expected:", 2.0)', F64).startswith("import torch\n")


def test_a_remark_stands_where_the_expected_number_is() -> None:
    """Before and after the prints have become an assertion; the lines fail as they did."""
    text = 'import torch\nprint("got:", 1.0)\nprint("expected, from differences:", 2.0)'
    first, last = failing(with_remark(text, "it stays"), F64), with_remark(failing(text, F64), "it stays")
    assert first == last
    assert "expected = 2.0  # from differences; it stays" in first.splitlines()
    with pytest.raises(AssertionError, match=r"got 1.0\nexpected 2.0"):
        exec(last, {})


def test_generators_that_are_seeded_are_imported() -> None:
    """Python's and NumPy's, wherever in the lines they are."""
    lines = failing("import torch\nx = (random.seed(0), numpy.random.seed(0), 1)[-1]", F64)
    assert lines.splitlines()[0] == "import numpy, random, torch"
    exec(lines, {})


def test_where_lines_are_many_a_seed_shares_the_line_of_what_it_seeds() -> None:
    """In functions too, and never before a def."""
    many = [f"a[{i}] = {i}" for i in range(12)]
    seeds = [
        "torch.manual_seed(0)",
        "output = f(x)",
        "torch.manual_seed(0)",
        "def g():",
        "    random.seed(1)",
        "    return 1",
    ]
    lines = failing("\n".join([*seeds, *many]), F64).splitlines()
    assert lines[:5] == [
        "import random",
        "torch.manual_seed(0); output = f(x)",
        "torch.manual_seed(0)",
        "def g():",
        "    random.seed(1); return 1",
    ]


def test_what_draws_is_seeded_before_each_line_that_differentiates() -> None:
    """Within functions at their indentation, and not before a definition."""
    text = "def slope():\n    return torch.autograd.grad(y, x)\ndef torch_autograd_grad(): pass\ny.backward()"
    assert with_seeds(text, ["torch.manual_seed(1)", "random.seed(1)"]).splitlines() == [
        "def slope():",
        "    torch.manual_seed(1); random.seed(1)",
        "    return torch.autograd.grad(y, x)",
        "def torch_autograd_grad(): pass",
        "torch.manual_seed(1); random.seed(1)",
        "y.backward()",
    ]
    assert with_seeds(text, []) == text
