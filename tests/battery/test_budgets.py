"""What rounding may cost: right kernels of low precision pass, wrong ones are found."""

import pytest
import torch
from torch import Tensor

from pullback.battery.budgets import Budgets, Shake
from pullback.battery.check import check
from pullback.battery.tolerances import AVERAGE_ROUNDINGS, COMMON_ROUNDINGS, PRECISIONS, ROUNDINGS
from pullback.finding import Finding
from pullback.rules import Severity
from tests.battery.approximate import RIGHT, WRONG, Kernel

PROBES = ("values", "first_order", "linearity", "repeats", "subsets", "layouts", "precision")
"""The probes that compare numbers of a kernel; the others try what has nothing to do with precision."""

FOUND_AS = {
    "NormInBfloat16ForFloat32": "PB214",
    "NormInFloat16ForFloat32": "PB214",
    "BiasAddedInFloat32": "PB214",
    "BiasAddedInBfloat16ForFloat32": "PB214",
}
"""Where a lower dtype is seen on the way, the finding names it; a wrong derivative is the others' fault."""


def findings(kernel: Kernel, seed: int) -> list[Finding]:
    """Errors and warnings about one kernel."""
    report = check(kernel.function, kernel.sample(seed), seed=seed, only=PROBES)
    return [finding for finding in report.findings if finding.severity is not Severity.HINT]


@pytest.mark.parametrize("name", RIGHT)
def test_a_kernel_with_normal_rounding_is_not_flagged(name: str) -> None:
    """Norms, softmax, long products and sums, cancellation, chance, whole numbers, any order: all within the budget."""
    for seed in range(2):
        assert findings(RIGHT[name], seed) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_beyond_its_rounding(name: str) -> None:
    """A factor, a term or an eps that is left out, and sums that are accumulated in too few bits."""
    found = findings(WRONG[name], 0)
    assert {finding.rule for finding in found} == {FOUND_AS.get(name, "PB203")}


# -- the budget itself -------------------------------------------------------------------------------------------------

BFLOAT16 = PRECISIONS[torch.bfloat16]


def budgets(exact: Tensor, *, conditioning: float = 0.0, terms: int = 1, low: torch.dtype = torch.bfloat16) -> Budgets:
    """The budgets of one result that changes by so many of its own roundings when all else is rounded."""

    def shaken(shake: Shake) -> list[Tensor]:
        return [exact + conditioning * (shake.rounded(exact) - exact)]

    return Budgets(PRECISIONS[low], terms, [exact], shaken, torch.Generator().manual_seed(0))


def noise(*shape: int) -> Tensor:
    """Signs at random."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(3)).double() * 2 - 1


EXACT = torch.linspace(0.5, 1.5, 400, dtype=torch.float64) * noise(400)


def test_a_rounded_result_is_within_its_budget() -> None:
    """Rounding to nearest costs half of the distance between two numbers."""
    assert budgets(EXACT).judge(0, EXACT.bfloat16().double()) is None


def test_one_element_beyond_its_budget_is_found_with_its_place() -> None:
    """Though all others are right."""
    got = EXACT.clone()
    got[17] *= 1 + 3 * ROUNDINGS * BFLOAT16.unit
    found = budgets(EXACT).judge(0, got)
    assert found is not None
    assert found.index == (17,)


def test_errors_that_no_element_shows_alone_are_found_by_their_average() -> None:
    """Each is within the budget of an element, and together they are no rounding."""
    errors = 3 * AVERAGE_ROUNDINGS * BFLOAT16.unit * noise(400)
    assert budgets(EXACT).judge(0, EXACT * (1 + errors)) is not None
    assert budgets(EXACT).judge(0, EXACT * (1 + errors * (torch.arange(400) % 40 == 0))) is None


@pytest.mark.parametrize("factor", [1.03, 0.97])
def test_a_common_factor_is_found_below_the_budget_of_an_element(factor: float) -> None:
    """Rounding has no preference for up or down, so it leaves no factor; 1.01 is below what bfloat16 tells."""
    got = EXACT * factor
    assert abs(factor - 1) < 2 * ROUNDINGS * BFLOAT16.unit
    assert budgets(EXACT).judge(0, got) is not None
    assert budgets(EXACT).judge(0, EXACT * 1.01) is None
    assert 0.01 < COMMON_ROUNDINGS * BFLOAT16.unit


def test_a_badly_conditioned_element_may_be_further_off() -> None:
    """By as much as roundings of the arguments change it."""
    got = EXACT * (1 + 40 * BFLOAT16.unit * noise(400))
    assert budgets(EXACT).judge(0, got) is not None
    assert budgets(EXACT, conditioning=40.0).judge(0, got) is None


def test_long_sums_in_float32_may_lose_the_root_of_their_length() -> None:
    """But not in bfloat16, whose kernels accumulate in float32."""
    for low, allowed in ((torch.float32, True), (torch.bfloat16, False)):
        got = EXACT * (1 + 40 * PRECISIONS[low].unit * noise(400))
        assert (budgets(EXACT, terms=4096, low=low).judge(0, got) is None) is allowed


def test_numbers_too_small_for_the_dtype_may_be_flushed() -> None:
    """Zero for 1e-8 in float16 is a rounding; for 1e-3 it isn't."""
    tiny = torch.full((3,), 1e-8, dtype=torch.float64)
    assert budgets(tiny, low=torch.float16).judge(0, tiny * 0) is None
    assert budgets(tiny * 1e5, low=torch.float16).judge(0, tiny * 0) is not None


def test_nan_is_beyond_every_budget() -> None:
    """Unless it was due."""
    odd = EXACT.clone()
    odd[0] = float("nan")
    assert budgets(EXACT, conditioning=1e6).judge(0, odd) is not None
    assert budgets(odd).judge(0, odd.clone()) is None


def test_a_function_that_refuses_rounded_arguments_is_rounded_inside_alone() -> None:
    """A probability of 1 can't be rounded up."""

    def shaken(shake: Shake) -> list[Tensor]:
        rounded = shake.rounded(EXACT)
        if not torch.equal(rounded, EXACT):
            from pullback.battery.raised import ForwardRaised

            raise ForwardRaised(ValueError("no such probability"))
        with shake.operators():
            return [EXACT * 1.0 + 0.0]

    made = Budgets(BFLOAT16, 1, [EXACT], shaken, torch.Generator().manual_seed(0))
    assert made.judge(0, EXACT * (1 + 6 * BFLOAT16.unit * noise(400))) is None


def test_operators_are_rounded_and_views_and_masks_are_not() -> None:
    """The sum of 1/3 changes by a unit; a transposed view, a mask and a count stay."""
    shake = Shake(BFLOAT16.unit, torch.Generator().manual_seed(0))
    third = torch.full((4, 2), 1 / 3, dtype=torch.float64)
    with shake.operators():
        product, view, mask, count = third * 0.7, third.t(), (third > 0).double(), third.new_ones(3).sum()
    assert torch.allclose((product / (third * 0.7) - 1).abs(), torch.tensor(BFLOAT16.unit, dtype=torch.float64))
    assert torch.equal(view, third.t())
    assert torch.equal(mask, torch.ones(4, 2, dtype=torch.float64))
    assert count == 3
