"""A gradient below float64 that has lost more digits than its arguments: something was added, and subtracted again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pullback.battery.budgets import Shake
from pullback.battery.compare import compare
from pullback.battery.numerics import flat
from pullback.battery.oracle import in_double, moved
from pullback.battery.repro_precision import lower_lines
from pullback.battery.subject import Case, ForwardRaised, Subject
from pullback.battery.tolerances import AS_FORWARD, EXACT, LOSING, PRECISIONS, SHAKES
from pullback.battery.truth import differentiable
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
    rounded at random, with all else in float64, tell what anybody loses. What forward's own values lose, backward may
    lose too; nothing is said where they lose far more than a rounding.

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
    lost = lost_by_forward(subject, case, point, dtype, positions) if suspects else 0.0
    if not suspects or not lost <= LOSING * unit:
        return
    most = _moved_most(subject, point, unit, positions, cotangents, expected)
    for place in suspects:
        if off[place] <= LOSING * (most[place] + unit * sizes[place]) + AS_FORWARD * lost * sizes[place]:
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


def lost_by_forward(subject: Subject, case: Case, point: Case, dtype: torch.dtype, positions: tuple[int, ...]) -> float:
    """The largest relative error of forward's values in a dtype: the true one, or that of random roundings on the way.

    The true one alone won't do: a single number may be right by chance. Infinite where forward refuses the dtype.
    """

    def values(which: Case) -> list[torch.Tensor]:
        outputs = subject.call(subject.fresh(which, requires=()))
        return [outputs[position].tensor for position in positions]

    try:
        exact, found = values(point), [values(moved(subject, case, lambda _, tensor: _down(tensor, dtype)))]
        for _ in range(SHAKES):
            with Shake(PRECISIONS[dtype].unit, subject.random).operators():
                found.append(values(point))
    except ForwardRaised:
        return float("inf")
    return max(
        (
            _largest_difference(one, other) / (float(flat(one).abs().max()) or 1.0)
            for others in found
            for one, other in zip(exact, others, strict=True)
            if one.numel()
        ),
        default=0.0,
    )


def as_forward(subject: Subject, case: Case, dtype: torch.dtype, exact: torch.Tensor, error: float) -> bool:
    """Whether a gradient is off by what forward's own values are off by, where that is more than roundings explain.

    A kernel may lose digits where its operators, rounded one by one, don't: log_softmax does for a sure sample.
    """

    def rounded(_: str, tensor: torch.Tensor) -> torch.Tensor:
        return _down(tensor, dtype).to(tensor.dtype)

    point = moved(subject, case, rounded)
    positions = tuple(differentiable(subject.call(subject.fresh(point))))
    lost = lost_by_forward(subject, case, point, dtype, positions)
    size = float(flat(exact).abs().max()) if exact.numel() else 0.0
    return LOSING * PRECISIONS[dtype].unit < lost < float("inf") and error <= AS_FORWARD * lost * size


def _down(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex64) if dtype is torch.float32 else tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


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
