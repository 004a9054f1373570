"""One place for tolerances, each with its reason."""

import re
from pathlib import Path

import torch

import pullback
from pullback.battery import tolerances
from pullback.battery.tolerances import (
    GRADIENTS,
    PATTERNS,
    PRECISIONS,
    SHOWN,
    VALUES,
    Tolerance,
    for_gradients,
    for_values,
)

SOURCE = Path(str(pullback.__file__)).parent


def test_no_other_module_has_a_tolerance_of_its_own() -> None:
    """A literal after rtol or atol, or a Tolerance made elsewhere, would hide from the table."""
    pattern = re.compile(r"\b[ra]tol\s*=\s*[\d.]|\bTolerance\(")
    strays = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted((SOURCE / "battery").rglob("*.py"))
        if path.name != "tolerances.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert strays == []


def test_every_tolerance_has_a_reason() -> None:
    """A number without one is a number that will be widened."""
    known = [value for value in vars(tolerances).values() if isinstance(value, Tolerance)]
    for entry in [*known, *GRADIENTS.values(), *VALUES.values(), *PATTERNS.values(), *SHOWN.values()]:
        assert len(entry.reason) > 10
    for precision in PRECISIONS.values():
        assert len(precision.reason) > 10


def test_lower_dtypes_are_allowed_more() -> None:
    """float64, float32, float16, bfloat16, in this order."""
    order = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    for table in (GRADIENTS, VALUES, PATTERNS, SHOWN):
        assert [table[dtype].rtol for dtype in order] == sorted(table[dtype].rtol for dtype in order)


def test_complex_dtypes_are_judged_by_their_parts() -> None:
    """And integers exactly, as float64 is."""
    assert for_gradients(torch.complex64) is GRADIENTS[torch.float32]
    assert for_values(torch.complex128) is VALUES[torch.float64]
    assert for_values(torch.int64) is VALUES[torch.float64]


def test_the_table_of_precisions_is_that_of_the_dtypes() -> None:
    """A unit is half of the distance between 1 and the next number."""
    for dtype, precision in PRECISIONS.items():
        assert precision.unit == torch.finfo(dtype).eps / 2
        assert precision.sums <= precision.unit
