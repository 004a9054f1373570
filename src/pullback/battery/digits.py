"""A gradient below float64 that has lost more digits than its arguments: something was added, and subtracted again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pullback.battery.budgets import Shake
from pullback.battery.compare import compare
from pullback.battery.numerics import flat
from pullback.battery.oracle import in_double, moved
from pullback.battery.repro_precision import lower_lines
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import EXACT, LOSING, PRECISIONS, SHAKES
from pullback.finding import Finding


def losing_digits(
    subject: Subject,
    case: Case,
    point: Case,
    dtype: torch.dtype,
    positions: tuple[int, ...],
    cotangents: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
    got: Sequence[torch.Tensor | None],
) -> Iterator[Finding]:
    """The first gradient that is far less exact than its arguments are: backward cancels where nothing has to.

    A budget that comes of the function's own operators has all that they lose in it. Arguments and cotangents that are
    rounded at random, with all else in float64, tell what anybody loses.

    Args:
        subject: Whose.
        case: The sample.
        point: The same at numbers that the dtype holds.
        dtype: The lower dtype.
        positions: Those of the outputs that are differentiated.
        cotangents: One for each of them.
        expected: The gradients in float64.
        got: Those that came.
    """
    short = str(dtype).removeprefix("torch.")
    unit = PRECISIONS[dtype].unit
    off = [_largest_difference(exact, came) for exact, came in zip(expected, got, strict=True)]
    sizes = [float(flat(exact).abs().max()) if exact is not None and exact.numel() else 0.0 for exact in expected]
    suspects = [place for place, size in enumerate(sizes) if LOSING * unit * size < off[place] < float("inf")]
    if not suspects:
        return
    most = _moved_most(subject, point, unit, positions, cotangents, expected)
    for place in suspects:
        if off[place] <= LOSING * (most[place] + unit * sizes[place]):
            continue
        leaf = subject.fresh(case).varying[place]
        bad = compare(expected[place], _in_double(got[place]), EXACT)
        if bad is not None:
            yield subject.finding(
                "PB214",
                case,
                f"in {short} the gradient of {leaf.name} loses more digits than its arguments have lost: "
                "backward cancels large numbers where nothing has to",
                argument=leaf.name,
                what=short,
                expected=bad.expected,
                got=bad.got,
                remedy="Rearrange backward so that what is added isn't subtracted again, or compute it in a higher "
                "dtype.",
                evidence={**bad.evidence, "dtype": short},
                repro=lower_lines(subject, case, leaf.name, dtype, share=LOSING * unit),
            )
            return


def _moved_most(
    subject: Subject,
    point: Case,
    unit: float,
    positions: tuple[int, ...],
    cotangents: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
) -> list[float]:
    """By how much each gradient changes at most where arguments and cotangents are rounded at random."""
    most = [0.0] * len(expected)
    for _ in range(SHAKES):
        shake = Shake(unit, subject.random)
        inputs = subject.fresh(moved(subject, point, lambda _, tensor: shake.rounded(tensor)))  # noqa: B023  # called at once
        outputs = subject.call(inputs)
        chosen = [outputs[position] for position in positions]
        shaken = subject.gradients(chosen, [shake.rounded(part) for part in cotangents], inputs.varying)
        most = [max(m, _largest_difference(e, s)) for m, e, s in zip(most, expected, shaken, strict=True)]
    return most


def _largest_difference(exact: torch.Tensor | None, other: torch.Tensor | None) -> float:
    if exact is None or other is None or exact.shape != other.shape or not exact.numel():
        return 0.0
    return float((flat(other) - flat(exact)).abs().max().nan_to_num(float("inf")))


def _in_double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return in_double(tensor) if tensor is not None else None
