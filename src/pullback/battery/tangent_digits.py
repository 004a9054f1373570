"""A float64 tangent that was rounded to a lower dtype on the way, where jvp alone computes in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback.battery.compare import Mismatch, compare
from pullback.battery.nodes import low_precision_in, low_precision_in_forward, lowest_dtype
from pullback.battery.numerics import terms
from pullback.battery.repro_transforms import tangent_lines
from pullback.battery.subject import Case, ForwardRaised, Subject
from pullback.battery.tangents import dual_outputs
from pullback.battery.tolerances import ROUNDED, SAME
from pullback.finding import Finding


def rounded_tangents(
    subject: Subject,
    point: Case,
    positions: Sequence[int],
    cotangents: Sequence[Tensor],
    gradients: Sequence[Mapping[str, Tensor | None]],
    tangents: Mapping[str, Tensor],
) -> Iterator[Finding]:
    """A finding where jvp computes in a lower dtype than forward and backward, and what it gives shows that.

    A tangent is linear: its part that float32 holds and the rest of it, moved one after the other, add up to the whole.
    And its product with a cotangent is that of the gradient with the tangent. Neither holds to the last digits of
    float64 where anything is rounded on the way.

    Args:
        subject: Whose jvp.
        point: Where.
        positions: The outputs that are looked at.
        cotangents: One for each of them.
        gradients: For each of them, the gradients by the names of the arguments.
        tangents: One for each argument, by its name.
    """
    if not point.exact or not all(t.dtype in (torch.float64, torch.complex128) for t in tangents.values()):
        return
    try:
        with lowest_dtype() as found:
            whole = _moved(subject, point, positions, tangents)
        low = found()
        if low is None or low_precision_in_forward(subject, point) is not None:
            return
        if low_precision_in(subject, point, cotangents, positions) is not None:
            return
        rough = {name: _roughly(tangent) for name, tangent in tangents.items()}
        rest = {name: tangent - rough[name] for name, tangent in tangents.items()}
        parts = [_moved(subject, point, positions, moving) for moving in (rough, rest)]
    except ForwardRaised:
        return  # told where tangents are asked for as they usually are
    for place, one in enumerate(whole):
        if one is None:
            continue
        bad = _differ_in_parts(one, [part[place] for part in parts])
        bad = bad or _differ_in_products(one, cotangents[place], gradients[place], tangents)
        if bad is None:
            continue
        name = str(low).removeprefix("torch.")
        yield subject.finding(
            "PB507",
            point,
            f"the tangent that jvp returns is float64 and has the precision of {name}: jvp computes in it, and forward "
            "and backward don't",
            what=subject.output_name(point, positions[place]) if len(positions) > 1 else "",
            expected=bad.expected,
            got=bad.got,
            remedy="Compute the tangent in the dtype that it comes in, or a higher one.",
            evidence={"max_error": bad.max_error, "dtype": name},
            repro=tangent_lines(subject, point, tuple(tangents), tracked=False, sharp=True),
        )
        return


def _differ_in_parts(whole: Tensor, parts: Sequence[Tensor | None]) -> Mismatch | None:
    known = [part for part in parts if part is not None]
    return compare(torch.stack([torch.zeros_like(whole), *known]).sum(0), whole, SAME)


def _differ_in_products(
    tangent: Tensor, cotangent: Tensor, gradients: Mapping[str, Tensor | None], tangents: Mapping[str, Tensor]
) -> Mismatch | None:
    reverse = [terms(g, t) for name, t in tangents.items() if (g := gradients[name]) is not None]
    forward = terms(tangent, cotangent)
    wanted = torch.stack([torch.zeros(()).double(), *(part.sum() for part in reverse)]).sum()
    bad = compare(
        wanted, forward.sum(), ROUNDED, scale=float(torch.stack([part.norm() for part in (forward, *reverse)]).norm())
    )
    if bad is None:
        return None
    return replace(bad, expected=f"⟨backward(u), t⟩ = {bad.expected}", got=f"⟨u, jvp(t)⟩ = {bad.got}")


def _roughly(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32).to(tensor.dtype)


def _moved(
    subject: Subject, point: Case, positions: Sequence[int], tangents: Mapping[str, Tensor]
) -> list[Tensor | None]:
    inputs = subject.fresh(point, requires=())
    with forward_ad.dual_level():
        outputs = dual_outputs(subject, inputs, tangents)
        found = [forward_ad.unpack_dual(outputs[position].tensor).tangent for position in positions]
        return [None if tangent is None else tangent.detach().clone() for tangent in found]
