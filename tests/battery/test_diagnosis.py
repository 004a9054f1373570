"""What is wrong with a gradient, in words: each pattern is named where it is the fault, and not where it is nearly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.check import check
from pullback.battery.diagnosis import Facts, diagnose
from pullback.battery.tolerances import DIFFERENCES, for_patterns
from pullback.finding import Finding


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers from a generator of their own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def said(expected: Tensor, got: Tensor, **known: Any) -> str:
    """The diagnosis of one gradient."""
    return diagnose(Facts(expected, got, DIFFERENCES, **known))


RIGHT = drawn(4, 6)
SQUARE = drawn(4, 4, seed=1)
CUBE = drawn(2, 3, 4, seed=2)


def rowed(tensor: Tensor, row: int, factor: float) -> Tensor:
    """The tensor with one row multiplied."""
    changed = tensor.clone()
    changed[row] *= factor
    return changed


def with_one(tensor: Tensor, value: float) -> Tensor:
    """The tensor with one element exchanged, which is no part of any pattern."""
    changed = tensor.contiguous().clone()
    changed.view(-1)[7] = value
    return changed


PATTERNS: dict[str, tuple[Tensor, Tensor, dict[str, Any], str]] = {
    "zero": (RIGHT, RIGHT * 0, {}, "it is zero everywhere, and should not be"),
    "twice": (RIGHT, 2 * RIGHT, {}, "it is 2 times the right one everywhere"),
    "half": (RIGHT, RIGHT / 2, {}, "it is 1/2 times the right one everywhere"),
    "sign": (RIGHT, -RIGHT, {}, "its sign is wrong everywhere, and nothing else"),
    "constant": (RIGHT, 0.88623 * RIGHT, {}, "it is 0.8862 times the right one everywhere"),
    "mean for sum": (RIGHT, RIGHT / 24, {}, "it is 1/24 (24 is the number of elements) times the right one everywhere"),
    "size of an axis": (RIGHT, RIGHT * 6, {}, "it is 6 (the size of axis 1) times the right one everywhere"),
    "transposed": (SQUARE, SQUARE.mT, {}, "it is the transpose of the right one"),
    "axes": (
        drawn(3, 3, 3), drawn(3, 3, 3).permute(1, 2, 0), {}, "it is the right one with its axes in the order (1, 2, 0)",
    ),
    "in memory": (
        RIGHT, RIGHT.mT.reshape(4, 6), {},
        "its numbers are those of the right one's transpose, in the memory of the right shape",
    ),
    "back to front": (RIGHT, RIGHT.flip(1), {}, "it is the right one back to front along axis 1"),
    "rolled": (
        RIGHT, RIGHT.roll(1, 1), {},
        "it is the right one shifted by 1 along axis 1, the end coming in at the other side",
    ),
    "shifted": (
        RIGHT, torch.cat([torch.zeros(1, 6, dtype=torch.float64), RIGHT[:-1]]), {},
        "it is the right one shifted by 1 along axis 0",
    ),
    "of another": (RIGHT, drawn(4, 6, seed=5), {"others": {"w": drawn(4, 6, seed=5)}}, "it is the gradient of w"),
    "output": (
        RIGHT, drawn(4, 6, seed=6), {"known": {"forward's own output": drawn(4, 6, seed=6)}},
        "it is forward's own output",
    ),
    "unsummed": (
        CUBE.sum(0), CUBE[0], {"parts": {0: CUBE}, "name": "b"},
        "a sum is missing: of the 2 parts along axis 0 of the output, over which b is broadcast, it is the first",
    ),
    "one element": (RIGHT, with_one(RIGHT, 9.0), {}, "it is wrong in one element, at [1, 1], and right elsewhere"),
    "one row": (RIGHT, rowed(RIGHT, 2, 3.0), {}, "it is 3 times the right one in row 2 only, and right elsewhere"),
    "the last row": (RIGHT, rowed(RIGHT, 3, 0.0), {}, "it is zero in row 3 (the last) only, and right elsewhere"),
    "one column": (
        RIGHT, rowed(RIGHT.mT, 1, -1.0).mT, {}, "it is -1 times the right one in column 1 only, and right elsewhere",
    ),
    "one slice": (
        CUBE, rowed(CUBE.movedim(1, 0), 1, 0.0).movedim(0, 1), {},
        "it is zero in slice 1 along axis 1 only, and right elsewhere",
    ),
    "every second": (
        RIGHT, RIGHT * torch.tensor([1.0, 0.0] * 3, dtype=torch.float64), {},
        "it is zero in every second column only, from 1 on, and right elsewhere",
    ),
    "negative": (
        RIGHT, torch.where(SQUARE.new_tensor(1) * drawn(4, 6, seed=8) < 0, 0.0, RIGHT),
        {"argument": drawn(4, 6, seed=8), "name": "x"}, "it is zero where x is negative, and right elsewhere",
    ),
    "above": (
        RIGHT, torch.where(drawn(4, 6, seed=8) > 0.7, 2 * RIGHT, RIGHT),
        {"argument": drawn(4, 6, seed=8), "name": "x"}, "it is 2 times the right one where x is above",
    ),
    "some zeros": (
        RIGHT, torch.where(drawn(4, 6, seed=9) > 0.2, 0.0, RIGHT), {},
        "elements where it should not be, and right elsewhere",
    ),
    "offset": (RIGHT, RIGHT + 0.25, {}, "it is off by 0.25 everywhere"),
    "by rows": (
        RIGHT, RIGHT * torch.tensor([[1.5], [2.0], [0.3], [4.0]], dtype=torch.float64), {},
        "each slice along axis 0 is multiplied by a factor of its own, such as [1.5, 2.0, 0.3]",
    ),
    "reordered": (RIGHT, RIGHT[[2, 3, 1, 0]], {}, "it has the right numbers in another order"),
}  # fmt: skip
COMPLEX = drawn(4, 6, dtype=torch.complex128)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_told_in_words(name: str) -> None:
    """The sentence says what came in terms of what should have come."""
    expected, got, known, sentence = PATTERNS[name]
    assert sentence in said(expected, got, **known)


@pytest.mark.parametrize("name", [name for name in PATTERNS if name not in ("one element", "some zeros")])
def test_a_near_miss_is_not_called_so(name: str) -> None:
    """One element that doesn't fit is enough for the pattern not to be it."""
    expected, got, known, sentence = PATTERNS[name]
    assert sentence not in said(expected, with_one(got, 17.0), **known)


def test_a_conjugate_is_told() -> None:
    """And a conjugate with a factor is not: it is no conjugate."""
    assert said(COMPLEX, COMPLEX.conj().resolve_conj()) == "it is the complex conjugate of the right one"
    assert said(COMPLEX, 2 * COMPLEX.conj().resolve_conj()) == ""
    assert said(COMPLEX, 1j * COMPLEX) == "it is 1j times the right one everywhere"


def test_of_too_few_numbers_nothing_is_said() -> None:
    """Any two numbers are each other's multiple; a pattern in one or two numbers is chance."""
    one, two = torch.tensor([3.0], dtype=torch.float64), torch.tensor([[3.0, 3.0], [3.0, 3.0]], dtype=torch.float64)
    assert said(one, 2.5 * one) == ""
    assert said(two, 2.5 * two) == ""


def test_noise_has_no_pattern() -> None:
    """Other numbers altogether, with every kind of candidate at hand."""
    known = {"others": {"w": drawn(4, 6, seed=5)}, "known": {"forward's own output": drawn(4, 6, seed=6)}}
    for seed in range(20, 40):
        assert said(RIGHT, drawn(4, 6, seed=seed), argument=drawn(4, 6, seed=8), **known) == ""


def test_an_error_below_the_tolerance_has_no_pattern() -> None:
    """Else all of them would be found in the rounding of a lower dtype, a factor of 1 first."""
    rounded = RIGHT.bfloat16().double()
    assert diagnose(Facts(RIGHT, rounded, for_patterns([torch.bfloat16]))) == ""
    assert diagnose(Facts(RIGHT, 1.05 * rounded, for_patterns([torch.bfloat16]))).startswith("it is ")


def test_numbers_that_are_none_are_placed() -> None:
    """NaN in one row is told as such."""
    assert said(RIGHT, rowed(RIGHT, 0, float("nan"))) == "it is NaN in row 0 only"


# -- in a report -------------------------------------------------------------------------------------------------------


def made(forward: Callable[..., Tensor], backward: Callable[..., Any], *, two: bool = False) -> type[pullback.Function]:
    """A Function of x, or of x and w, with a backward of one's own; no reference."""

    class One(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return backward(g, *ctx.saved_tensors)

    class Two(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return forward(x, w)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return backward(g, *ctx.saved_tensors)

    return Two if two else One


def finding(function: Any, *args: Tensor) -> Finding:
    """The PB203 that the first-order probe finds."""
    report = check(function, tuple(arg.clone().requires_grad_() for arg in args), only=("first_order",))
    return next(found for found in report.findings if found.rule == "PB203")


CALLS: dict[str, tuple[Any, tuple[Tensor, ...], str]] = {
    "factor": (made(lambda x: x**3, lambda g, x: g * x**2), (drawn(5, 4),), "it is 1/3 times the right one"),
    "transposed": (
        made(lambda x, w: x @ w, lambda g, x, w: ((g @ w.mT).mT, x.mT @ g), two=True),
        (drawn(3, 3), drawn(3, 3, seed=1)), "it is the transpose of the right one",
    ),
    "swapped": (
        made(lambda x, w: x * w.exp(), lambda g, x, w: (g * x * w.exp(), g * x * w.exp()), two=True),
        (drawn(3, 4), drawn(3, 4, seed=1)), "it is the gradient of w",
    ),
    "missing sum": (
        made(lambda x, w: x + w, lambda g, x, w: (g, g[0]), two=True),
        (drawn(3, 4), drawn(4, seed=1)), "a sum is missing: of the 3 parts along axis 0 of the output",
    ),
    "grad_output": (made(lambda x: x.clamp(-0.3, 0.3), lambda g, x: g), (drawn(3, 4),), "it is grad_output itself"),
    "its own output": (made(lambda x: x.sin(), lambda g, x: x.sin()), (drawn(3, 4),), "it is forward's own output"),
    "clamped at the wrong edge": (
        made(lambda x: x.relu(), lambda g, x: g * (x < 0)), (drawn(3, 4),), "",
    ),
    "large": (made(lambda x: x.sin(), lambda g, x: -g * x.cos()), (drawn(10, 20),), "its sign is wrong everywhere"),
    "the last row": (
        made(lambda x: x.sin(), lambda g, x: torch.cat([(g * x.cos())[:-1], 0 * x[-1:]])),
        (drawn(4, 5),), "it is zero in row 3 (the last) only, and right elsewhere",
    ),
    "conjugate": (
        made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x.conj()), two=True),
        (drawn(5, dtype=torch.complex128), drawn(5, seed=1, dtype=torch.complex128)), "",
    ),
    "conjugated": (
        made(lambda x: 2 * x, lambda g, x: 2 * g.conj()), (drawn(5, dtype=torch.complex128),),
        "it is the complex conjugate of the right one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_report_says_what_is_wrong(name: str) -> None:
    """From finite differences alone, in the finding's own sentence and among its evidence."""
    function, args, sentence = CALLS[name]
    found = finding(function, *args)
    assert sentence in found.message
    assert found.evidence.get("diagnosis", "").startswith(sentence[:10])


def test_a_diagnosis_that_can_not_be_made_hides_no_finding() -> None:
    """A reference that raises on other shapes than the sample's still leaves the finding."""

    def forward(x: Tensor, w: Tensor) -> Tensor:
        if w.dim() > 1:
            raise ValueError("one dimension only")
        return x + w

    found = finding(made(forward, lambda g, x, w: (g, g[0]), two=True), drawn(3, 4), drawn(4, seed=1))
    assert found.where == "argument w, sample 0"


def test_only_odd_sizes_are_told() -> None:
    """A kernel that works by pairs and leaves out the last of an odd number; all sizes of the sample are even."""

    def backward(g: Tensor, x: Tensor) -> Tensor:
        gradient = g * x.cos()
        if x.shape[-1] % 2 and x.shape[-1] > 1:
            gradient[..., -1] = 0
        return gradient

    report = check(made(lambda x: x.sin(), backward), (drawn(4, 6).requires_grad_(),), skip=("compiled",))
    (found,) = [finding for finding in report.findings if finding.severity.value == "error"]
    assert (found.rule, found.where) == ("PB203", "argument x, odd sizes (4 made 3, 6 made 5), sample 0")
    assert found.message.endswith("only for odd sizes, as with 4 made 2, 6 made 4 it is right")


def test_an_odd_size_that_is_wrong_for_another_reason_is_not_called_so() -> None:
    """Wrong for every size below 6."""

    def backward(g: Tensor, x: Tensor) -> Tensor:
        return g * x.cos() * (1 if x.shape[-1] in (1, 6) else 2)

    report = check(made(lambda x: x.sin(), backward), (drawn(4, 6).requires_grad_(),), only=("shapes",))
    (found,) = [finding for finding in report.findings if finding.severity.value == "error"]
    assert "only for odd sizes" not in found.message


def test_only_expanded_gradients_are_told() -> None:
    """A kernel that reads a gradient of stride 0 as if it were contiguous; transposed ones are copied first."""

    def backward(g: Tensor, x: Tensor) -> Tensor:
        return g * x.cos() * (2 if 0 in g.stride() else 1)

    report = check(made(lambda x: x.sin(), backward), (drawn(4, 6).requires_grad_(),), only=("layouts",))
    (found,) = [finding for finding in report.findings if finding.rule == "PB405"]
    assert "(stride 0), and only for those: it is right where grad_output is contiguous or transposed" in found.message


def test_a_factor_at_a_special_point_is_told_with_the_point() -> None:
    """0/0 at 0: the finding names the point."""
    sinc = made(lambda x: torch.sinc(x), lambda g, x: g * (x.mul(torch.pi).cos() - torch.sinc(x)) / x)
    report = check(sinc, (drawn(5).requires_grad_(),), only=("special_points",))
    assert any("with x 0" in found.message or "0" in found.where for found in report.findings)


@pytest.mark.parametrize(
    ("factor", "shown"), [(3.001 / 3, "1.00033"), (1.00002, "1.00002"), (0.999985, "0.999985"), (1.0012, "1.001")]
)
def test_a_factor_near_1_is_told_with_the_digits_that_tell_it_from_1(factor: float, shown: str) -> None:
    """To say "1 times the right one" would be to say that nothing is wrong."""
    assert said(RIGHT, factor * RIGHT) == f"it is {shown} times the right one everywhere"


def test_a_factor_that_can_not_be_told_from_1_is_not_told() -> None:
    """Nor as another pattern that would fit it: nothing is known but that it differs."""
    tolerance = for_patterns([torch.float64])
    assert diagnose(Facts(RIGHT, (1 + 1e-6) * RIGHT, tolerance)) == ""
    assert "times" not in diagnose(Facts(RIGHT, rowed(RIGHT, 1, 1 + 1e-6), tolerance))
