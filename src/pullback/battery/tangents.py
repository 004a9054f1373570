"""Tangents through a call, and the derivative of them: that of ⟨u, jvp(t)⟩ is that of ⟨backward(u), t⟩."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback.battery.compare import compare
from pullback.battery.leaves import replace
from pullback.battery.numerics import size_of
from pullback.battery.probe import Note
from pullback.battery.repro_transforms import by_tangent_lines, differentiated_lines, spoiled_tangent_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Leaf, Output, Subject
from pullback.battery.tolerances import SAME, for_gradients
from pullback.finding import Finding

_WRONG = frozenset({"PB203", "PB205", "PB206", "PB207", "PB211", "PB217", "PB221"})
"""Where one of these is found, second derivatives by backward are nothing to go by."""


def dual_outputs(
    subject: Subject, inputs: Inputs, tangents: Mapping[str, Tensor], *, share: bool = False
) -> tuple[Output, ...]:
    """What the call returns where the leaves have these tangents; within a dual level.

    Args:
        subject: Whose.
        inputs: The arguments.
        tangents: By the names of the arguments that move.
        share: Whether these tensors go in themselves, and not copies that a jvp may write to.

    Raises:
        ForwardRaised: If it raises.
    """
    duals = {
        id(leaf.tensor): forward_ad.make_dual(
            leaf.tensor, tangents[leaf.name] if share else tangents[leaf.name].clone()
        )
        for leaf in inputs.leaves
        if leaf.name in tangents
    }
    args, kwargs = (replace(nest, lambda t: duals.get(id(t), t)) for nest in (inputs.args, inputs.kwargs))
    return subject.call(Inputs(args, kwargs, inputs.leaves))


def spoiled(subject: Subject, point: Case, tangents: Mapping[str, Tensor]) -> Iterator[Finding]:
    """A finding where jvp writes to a tangent that it gets; one that works in place is to do so, as PyTorch asks."""
    if subject.in_place:
        return
    given = {name: tangent.clone() for name, tangent in tangents.items()}
    with suppress(ForwardRaised), forward_ad.dual_level():
        dual_outputs(subject, subject.fresh(point, requires=()), given, share=True)
    for name, tangent in given.items():
        bad = compare(tangents[name], tangent, SAME)
        if bad is not None:
            yield subject.finding(
                "PB507",
                point,
                f"jvp changes the tangent of {name} in place",
                argument=name,
                expected=f"{bad.expected}, as before",
                got=bad.got,
                remedy="Use the out-of-place operation, or clone first: whoever passed the tangent holds it still.",
                evidence=bad.evidence,
                repro=spoiled_tangent_lines(subject, point, tuple(tangents), name),
            )
            return


def differentiated(
    subject: Subject,
    point: Case,
    positions: Sequence[int],
    cotangents: Sequence[Tensor],
    tangents: Mapping[str, Tensor],
) -> Iterator[Finding | Note]:
    """Compare the derivatives of the tangents with those of the gradients, where these are right.

    Args:
        subject: Whose jvp.
        point: Where.
        positions: The outputs that are looked at.
        cotangents: One for each of them.
        tangents: One for each argument that moves, by its name.
    """
    if subject.orders < 2 or not point.exact or subject.in_place or subject.found & _WRONG:
        return
    try:
        expected = _reverse_over_reverse(subject, point, positions, cotangents, tangents)
    except BackwardRaised:
        return  # as second_order says
    try:
        got = _reverse_over_forward(subject, point, positions, cotangents, tangents)
    except (ForwardRaised, BackwardRaised) as raised:
        yield Note(f"{point.label}: the tangents aren't differentiated: {raised}")
        return
    size = max((size_of(gradient) for gradient in expected.values() if gradient is not None), default=0.0)
    tolerance = for_gradients(next(iter(tangents.values())).dtype)
    for name, gradient in expected.items():
        bad = compare(gradient, got[name], tolerance, scale=size)
        if bad is None:
            continue
        lost = got[name] is None
        yield subject.finding(
            "PB507",
            point,
            f"the tangent that jvp returns has no graph: its derivative by {name} is lost"
            if lost
            else f"the derivative of jvp's tangent by {name} isn't that of backward's gradient",
            argument=name,
            expected=bad.expected,
            got="0 (no path)" if lost else bad.got,
            remedy="Compute the tangent from what save_for_forward kept, by PyTorch's operations and without detach: "
            "a gradient of a jvp, as in a Hessian, goes through it.",
            evidence={**bad.evidence, "order": 2},
            repro=differentiated_lines(subject, point, tuple(tangents), name),
        )
        return
    yield from _by_tangents(subject, point, positions, cotangents, tangents)


def _by_tangents(
    subject: Subject,
    point: Case,
    positions: Sequence[int],
    cotangents: Sequence[Tensor],
    tangents: Mapping[str, Tensor],
) -> Iterator[Finding]:
    """A finding where the derivative of ⟨u, jvp(t)⟩ by t, in which it is linear, isn't backward(u)."""
    if subject.definition is not None and subject.definition.once_differentiable:
        return
    moving = {name: tangent.clone().requires_grad_() for name, tangent in tangents.items()}
    plain = subject.fresh(point)
    outputs = subject.call(plain)
    gradients = subject.gradients([outputs[position] for position in positions], cotangents, plain.varying)
    try:
        with forward_ad.dual_level():
            found = dual_outputs(subject, subject.fresh(point), moving)
            made = [forward_ad.unpack_dual(found[position].tensor).tangent for position in positions]
            pairs = [(t, c) for t, c in zip(made, cotangents, strict=True) if t is not None]
            leaves = [Leaf(name, tangent, name) for name, tangent in moving.items()]
            got = _derivatives(subject, leaves, pairs)
    except (ForwardRaised, BackwardRaised):
        return  # told where no tangent requires grad
    expected = {leaf.name: one for leaf, one in zip(plain.varying, gradients, strict=True) if leaf.name in moving}
    size = max((size_of(gradient) for gradient in expected.values() if gradient is not None), default=0.0)
    for name, gradient in expected.items():
        bad = compare(gradient, got[name], for_gradients(tangents[name].dtype), scale=size)
        if bad is not None:
            yield subject.finding(
                "PB507",
                point,
                f"the tangent that jvp returns has no path back to the tangent of {name}"
                if got[name] is None
                else f"the derivative of jvp's tangent by the tangent of {name} isn't backward's gradient",
                argument=name,
                expected=bad.expected,
                got="0 (no path)" if got[name] is None else bad.got,
                remedy="Compute with the tangents that came, by PyTorch's operations and without detach: in a Hessian "
                "they depend on what came before this call.",
                evidence={**bad.evidence, "order": 2},
                repro=by_tangent_lines(subject, point, tuple(tangents), name),
            )
            return


def _reverse_over_reverse(
    subject: Subject,
    point: Case,
    positions: Sequence[int],
    cotangents: Sequence[Tensor],
    tangents: Mapping[str, Tensor],
) -> dict[str, Tensor | None]:
    inputs = subject.fresh(point)
    outputs = subject.call(inputs)
    chosen = [outputs[position] for position in positions]
    gradients = subject.gradients(chosen, [c.clone() for c in cotangents], inputs.varying, create_graph=True)
    pairs = [
        (gradient, tangents[leaf.name])
        for gradient, leaf in zip(gradients, inputs.varying, strict=True)
        if gradient is not None and leaf.name in tangents
    ]
    return _derivatives(subject, inputs.varying, pairs)


def _reverse_over_forward(
    subject: Subject,
    point: Case,
    positions: Sequence[int],
    cotangents: Sequence[Tensor],
    tangents: Mapping[str, Tensor],
) -> dict[str, Tensor | None]:
    inputs = subject.fresh(point)
    with forward_ad.dual_level():
        outputs = dual_outputs(subject, inputs, tangents)
        found = [forward_ad.unpack_dual(outputs[position].tensor).tangent for position in positions]
        pairs = [(t, c) for t, c in zip(found, cotangents, strict=True) if t is not None]
        return _derivatives(subject, inputs.varying, pairs)


def _derivatives(
    subject: Subject, leaves: Sequence[Leaf], pairs: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, Tensor | None]:
    """The derivative of the sum of all inner products by each leaf; None where there is no path."""
    terms = [_inner(tensor, weight) for tensor, weight in pairs if tensor.requires_grad]
    names = [leaf.name for leaf in leaves]
    if not terms:
        return dict.fromkeys(names)
    total = torch.stack(terms).sum()
    found = subject.gradients([Output("total", total)], [torch.ones_like(total.detach())], leaves)
    return dict(zip(names, (None if gradient is None else gradient.detach() for gradient in found), strict=True))


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """The real inner product of two tensors of one shape."""
    if one.is_complex():
        return (torch.view_as_real(one.resolve_conj()) * torch.view_as_real(other.to(one.dtype).resolve_conj())).sum()
    return (one * other.to(one.dtype)).sum()
