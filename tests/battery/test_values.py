"""The probe `values`: forward against its reference."""

from typing import Any

import torch
from torch import Tensor

from pullback.battery.probes import values
from pullback.finding import Finding, Status
from tests.battery.running import leaf, rules, run_probe


def findings(function: Any, reference: Any, *args: object) -> tuple[Finding, ...]:
    """What the probe finds for one sample."""
    return run_probe(values.PROBE, function, args or (leaf(3),), reference=reference)[1]


def test_equal_values_pass_and_others_do_not() -> None:
    """PB219 with the output, in float64."""
    assert findings(torch.sin, torch.sin) == ()
    (finding,) = findings(torch.sin, lambda x: x.sin() + 1e-5)
    assert (finding.rule, finding.evidence["output"]) == ("PB219", "output")


def test_without_a_reference_there_is_nothing_to_compare_with() -> None:
    """Skipped, with the reason."""
    outcome, _ = run_probe(values.PROBE, torch.sin, (leaf(3),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no reference is known")


def test_float32_values_are_compared_with_the_reference_in_float64() -> None:
    """A function for float32 alone is right to within its own rounding."""

    def single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x.exp()

    x = torch.rand(5, requires_grad=True)
    assert findings(single, torch.exp, x) == ()
    assert rules(findings(single, lambda x: x.exp() * 1.01, x)) == ["PB219"]


def test_a_reference_that_raises_or_returns_less_is_named() -> None:
    """Whichever of the two is wrong, the pair can't be right."""
    assert "the reference raises: ZeroDivisionError" in findings(torch.sin, lambda x: 1 // 0)[0].message
    (finding,) = findings(lambda x: (x, x * 2), lambda x: x)
    assert (finding.expected, finding.got) == ("1", "2")


def test_integer_outputs_are_compared_too() -> None:
    """Indices differ or they don't."""
    assert findings(lambda x: x.max(0), lambda x: x.max(0)) == ()
    assert rules(findings(lambda x: x.argmax(), lambda x: x.argmax() + 1)) == ["PB219"]


def test_random_functions_draw_the_same_as_their_reference() -> None:
    """Both start from the same state of the generator."""
    assert findings(lambda x: x * torch.rand(3), lambda x: torch.rand(3) * x) == ()


def test_a_result_in_another_dtype_is_found() -> None:
    """Its numbers may be the reference's, and what is computed from them is another thing all the same."""
    x = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    (finding,) = findings(lambda x: (2 * x).float(), lambda x: 2 * x, x)
    assert finding.message == "output has the dtype torch.float32, and the reference's has torch.float64"
    assert findings(lambda x: (2 * x).float(), lambda x: (2 * x).float(), x) == ()
    assert findings(lambda x: x.argmax().int(), lambda x: x.argmax(), x) == ()  # of places only the numbers matter


def test_a_branch_for_the_dtype_of_the_sample_is_tried_too() -> None:
    """A float32 sample is tried in float64, where another branch runs; a float64 sample in the lower dtypes too."""

    def branching(offset: float) -> Any:
        return lambda x: x.exp() + offset if x.dtype is torch.float32 else x.exp()

    x = torch.rand(5, requires_grad=True)
    assert findings(branching(0.0), torch.exp, x) == ()
    (finding,) = findings(branching(0.01), torch.exp, x)
    assert finding.rule == "PB219"
    (finding,) = findings(branching(0.01), torch.exp, leaf(5))
    assert finding.message.startswith("in float32 output differs from the reference")
