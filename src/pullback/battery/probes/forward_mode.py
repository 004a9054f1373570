"""Forward mode agrees with reverse mode: ⟨u, jvp(t)⟩ is ⟨backward(u), t⟩ for random tangents t and cotangents u."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from textwrap import shorten
from types import CodeType, TracebackType
from typing import Any

import torch
from torch.autograd import forward_ad

from pullback.battery.budgets import Shake
from pullback.battery.compare import compare, number
from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.lower import Lowered, or_in_lower
from pullback.battery.nodes import low_precision_in_forward
from pullback.battery.numerics import terms
from pullback.battery.observe import is_finite
from pullback.battery.oracle import moved
from pullback.battery.own import Own
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.patterns import of_tangent
from pullback.battery.probe import REASON, NotApplicable, Note, Probe, Skip
from pullback.battery.repro_transforms import dual_lines, tangent_lines
from pullback.battery.subject import Case, ForwardRaised, Subject
from pullback.battery.tangent_digits import rounded_tangents
from pullback.battery.tangents import differentiated, dual_outputs, spoiled
from pullback.battery.targets import user_line
from pullback.battery.tolerances import for_gradients
from pullback.battery.truth import differentiable, truth_of
from pullback.errors import PullbackError
from pullback.finding import Finding
from pullback.function import Function

_PRODUCT = "⟨backward(u), t⟩"

_ALONE_UP_TO = 8
"""Of that many arguments each moves on its own as well; of more, only all together."""

_LACKS = re.compile(r"forward.?(mode|AD)|functorch|vmap|not implemented|dual|storage|data pointer", re.IGNORECASE)
"""What a RuntimeError says of that for which PyTorch has no forward mode, or no batch."""

_DELETE = "Or delete it: without one, a pullback.Function derives forward mode from backward."
_IN_JVP = (
    "Correct jvp: it gets None for an argument that isn't a tensor, and after set_materialize_grads(False) also for "
    f"one that doesn't move. {_DELETE}"
)
_OF_JVP = (
    "Return from jvp one tangent for each output, with the output's shape and dtype; zeros where it doesn't move, None "
    f"only where it is marked non-differentiable. {_DELETE}"
)


@dataclass(frozen=True, eq=False)
class _Reverse:
    """What reverse mode says at one point: for each differentiable output, the gradients of a random cotangent."""

    point: Case
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    cotangents: tuple[torch.Tensor, ...]
    gradients: tuple[Mapping[str, torch.Tensor | None], ...]


class _Refused(Exception):
    """Forward mode isn't to be had for this case, for a reason that is no fault."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare forward mode with reverse mode at every sample."""
    if not _has_forward_mode(subject):
        raise NotApplicable("there is no jvp, and PyTorch has no forward mode of a Function without one")
    if subject.definition is not None and subject.definition.nonlinear_backward:
        raise Skip("backward is declared not to be linear, so no jvp can agree with it")
    yield from or_in_lower(subject, _each(subject), _in_lower) if _own_jvp(subject) else _each(subject)
    yield from passed_over(subject, "there all arguments moved at once, if at all")


def _each(subject: Subject) -> Iterator[Finding | Note]:
    compared, reasons = 0, []
    names = {case: case.varying if len(case.varying) <= _ALONE_UP_TO else () for case in telling(subject)}
    # A jvp sees which arguments move; where a class has none, backward is run as it is run to differentiate.
    seen = _own_jvp(subject) is not None or not isinstance(subject.function, type)
    alone = names if seen else dealt(subject, {case: sorted(some) for case, some in names.items()})
    for case in subject.cases if seen else names:
        point = _point(subject, case)
        if isinstance(point, str):
            reasons.append(point)
            continue
        try:
            reverse = _reverse(subject, point)
            yield from _compared(subject, reverse, alone.get(case, ()), thorough=case in names)
            compared += 1
        except _Refused as refused:
            reasons.append(str(refused))
    if not compared:
        raise Skip(reasons[0])
    yield from map(Note, reasons)


def _in_lower(subject: Subject, low: Lowered) -> Iterator[Finding | Note]:
    """All arguments moved at once, in a real dtype below float64, where the sample lies on no kink."""
    point = _point(subject, next(case for case in subject.cases if case.index == low.index))
    if low.dtype.is_complex or isinstance(point, str) or point.moved:
        return
    with suppress(_Refused):
        yield from _compared(subject, _reverse(subject, low), (), thorough=False)


def _has_forward_mode(subject: Subject) -> bool:
    cls = subject.function
    return not isinstance(cls, type) or _own_jvp(subject) is not None or issubclass(cls, Function)


def _own_jvp(subject: Subject) -> Any:
    """The jvp that the class's author wrote, if any."""
    jvp = getattr(subject.function, "jvp", None) if isinstance(subject.function, type) else None
    return None if jvp is torch.autograd.Function.jvp else jvp


def _point(subject: Subject, case: Case) -> Case | str:
    """Where to compare: off the kinks, where jvp and backward may rightly choose differently; or why nowhere."""
    leaves = subject.fresh(case).leaves
    if not all(is_finite(leaf.tensor) for leaf in leaves if is_float(leaf.tensor)):
        return f"{case.label} holds NaN or infinities"
    if draws(subject, case).backward:
        return f"{case.label}: backward draws random numbers"
    truth = truth_of(subject, case)
    if not isinstance(truth, str):
        return truth.case
    return truth if case.exact else case  # without float64 nothing is known of kinks, and both modes may still differ


def _reverse(subject: Subject, point: Case) -> _Reverse:
    outputs = subject.call(subject.fresh(point))
    positions = tuple(position for position in differentiable(outputs) if is_dense(outputs[position].tensor))
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    rows = []
    names: tuple[str, ...] = ()
    for place in range(len(positions)):
        inputs = subject.fresh(point)
        found = subject.call(inputs)
        given = [c if i == place else torch.zeros_like(c) for i, c in enumerate(cotangents)]
        gradients = subject.gradients([found[position] for position in positions], given, inputs.varying)
        names = tuple(leaf.name for leaf in inputs.varying)
        rows.append(dict(zip(names, gradients, strict=True)))
    if not rows:
        raise _Refused(f"{point.label}: no dense output requires grad")
    return _Reverse(point, positions, names, cotangents, tuple(rows))


def _compared(
    subject: Subject, reverse: _Reverse, alone: Collection[str], *, thorough: bool
) -> Iterator[Finding | Note]:
    """Some arguments move alone where nothing requires grad, as in jacfwd; then all move where they require grad."""
    leaves = {leaf.name: leaf.tensor for leaf in subject.fresh(reverse.point).varying}
    tangents = {name: subject.cotangent(tensor) for name, tensor in leaves.items()}
    trials: list[tuple[str, ...]] = [(name,) for name in reverse.names if name in alone]
    found = False
    for moving in (*trials, reverse.names):
        tracked = moving is reverse.names
        if found and tracked:
            return
        chosen = {name: tangents[name] for name in moving}
        try:
            moved = _tangents(subject, reverse.point, chosen, tracked=tracked)
        except ForwardRaised as raised:
            yield _fails(subject, reverse.point, moving, tracked, raised)
            return
        for finding in _differing(subject, reverse, chosen, moved, tracked=tracked):
            found = True
            yield finding
    if thorough and not found and _own_jvp(subject) is not None:
        told: list[Finding | Note] = [
            *rounded_tangents(subject, reverse.point, reverse.outputs, reverse.cotangents, reverse.gradients, tangents),
            *spoiled(subject, reverse.point, tangents),
        ]
        yield from told
        if told:
            return
        parts = [tangents, *({name: tangents[name]} for name in reverse.names if name in alone and len(tangents) > 1)]
        for part in parts:
            results = list(differentiated(subject, reverse.point, reverse.outputs, reverse.cotangents, part))
            yield from results
            if results:
                return


def _tangents(
    subject: Subject, point: Case, tangents: Mapping[str, torch.Tensor], *, tracked: bool
) -> list[torch.Tensor | None]:
    """The tangents of the outputs where the arguments have `tangents`, by name."""
    inputs = subject.fresh(point, requires=None if tracked and not subject.in_place else ())
    with forward_ad.dual_level():
        outputs = dual_outputs(subject, inputs, tangents)
        return [
            forward_ad.unpack_dual(output.tensor).tangent if is_dense(output.tensor) else None for output in outputs
        ]


def _differing(
    subject: Subject,
    reverse: _Reverse,
    tangents: Mapping[str, torch.Tensor],
    moved: Sequence[torch.Tensor | None],
    *,
    tracked: bool,
) -> Iterator[Finding]:
    """A finding for the first output whose inner products differ."""
    for place, position in enumerate(reverse.outputs):
        cotangent, gradients = reverse.cotangents[place], reverse.gradients[place]
        tangent = moved[position] if position < len(moved) else None
        backward = [terms(g, t) for name, t in tangents.items() if (g := gradients[name]) is not None]
        forward = _terms(cotangent, tangent)
        several = len(reverse.outputs) > 1
        output = subject.output_name(reverse.point, position) if several else ""
        if forward is None:
            expected, got = f"a tangent of shape {tuple(cotangent.shape)}", f"shape {tuple(tangent.shape)}"  # type: ignore[union-attr]  # not None here
            evidence: dict[str, object] = {}
        else:
            dtypes = [cotangent.dtype, *(t.dtype for t in tangents.values())]
            tolerance = max((for_gradients(dtype) for dtype in dtypes), key=lambda entry: entry.rtol)
            size = float(forward.abs().sum()) + sum(float(part.abs().sum()) for part in backward)
            right, came = torch.stack([torch.zeros(()).double(), *(p.sum() for p in backward)]).sum(), forward.sum()
            bad = compare(right, came, tolerance, scale=size)
            if bad is not None and (low := low_precision_in_forward(subject, reverse.point)) is not None:
                bad = compare(right, came, for_gradients(low), scale=size)  # neither mode knows more digits there
            if not reverse.point.exact:  # below float64 a budget says what rounding may do
                norm = torch.stack([part.norm() for part in (forward, *backward)]).norm()
                bad = _own_product(subject, reverse, place, tangents, right, norm).differs(_PRODUCT, came)
            if bad is None:
                continue
            expected, got = f"⟨backward(u), t⟩ = {number(right)}", f"⟨u, jvp(t)⟩ = {number(came)}"
            evidence = {"max_error": bad.max_error}
        moving = next(iter(tangents)) if len(tangents) == 1 else ""
        of = f"the tangent of {moving}" if moving else "the tangents of all arguments"
        own = _own_jvp(subject) is not None
        mode = "jvp" if own else "forward mode"
        pattern = of_tangent(subject, reverse.point, position, tangents, tangent)
        told = f"; if backward is right, what is wrong with {mode}'s: {pattern}" if pattern else ""
        evidence = {**evidence, "diagnosis": pattern}
        yield subject.finding(
            "PB507",
            reverse.point,
            f"{mode} and backward disagree on {of}, for a random one{told}",
            argument=moving,
            what=output,
            expected=expected,
            got=got,
            remedy=""
            if own
            else "Check the operations inside one by one: the jvp or the backward of one of them is wrong.",
            evidence=evidence,
            repro=tangent_lines(
                subject, reverse.point, tuple(tangents), tracked=tracked, output=position if several else None
            ),
        )
        return


def _own_product(
    subject: Subject,
    reverse: _Reverse,
    place: int,
    tangents: Mapping[str, torch.Tensor],
    product: torch.Tensor,
    norm: torch.Tensor,
) -> Own:
    """⟨backward(u), t⟩ for an output, as a sum of terms whose roundings are as often up as down."""

    def again(shake: Shake) -> dict[str, torch.Tensor | None]:
        rounded = moved(subject, reverse.point, lambda _, tensor: shake.rounded(tensor))
        inputs = subject.fresh(rounded)
        output = subject.call(inputs)[reverse.outputs[place]]
        gradients = subject.gradients([output], [shake.rounded(reverse.cotangents[place])], inputs.varying)
        parts = [
            terms(gradient, shake.rounded(tangents[leaf.name])).sum()
            for leaf, gradient in zip(inputs.varying, gradients, strict=True)
            if gradient is not None and leaf.name in tangents
        ]
        return {_PRODUCT: torch.stack([torch.zeros(()).double(), *parts]).sum()}

    return Own(subject, reverse.point, {_PRODUCT: product}, again, sizes={_PRODUCT: norm / 2})


def _terms(cotangent: torch.Tensor, tangent: torch.Tensor | None) -> torch.Tensor | None:
    """The terms of ⟨u, jvp(t)⟩, where no tangent is 0; None where the shapes differ."""
    if tangent is None:
        return torch.zeros(1, dtype=torch.float64)
    return terms(tangent, cotangent) if tangent.shape == cotangent.shape else None


def _fails(subject: Subject, point: Case, moving: tuple[str, ...], tracked: bool, raised: ForwardRaised) -> Finding:
    """PB508 for a jvp that raises; PB507 for another of the author's methods that does where forward mode needs it.

    Raises:
        _Refused: If the error is a refusal: by pullback or PyTorch, or where nobody but PyTorch has a forward mode.
    """
    error, jvp = raised.error, _own_jvp(subject)
    if isinstance(error, PullbackError):
        raise _Refused(shorten(f"{error.rule} {error.message}", REASON, placeholder=" …"))
    if jvp is None and _is_a_slip(subject, error):
        place, line = user_line(error, subject.location.rpartition(":")[0])
        return subject.finding(
            "PB507",
            point,
            f"forward mode raises, and backward works: {raised} ({place}: {line})",
            expected="the tangent of each output",
            got=str(raised),
            remedy="Mend the line that raises: forward mode is made of the formulas that the class declares.",
            repro=dual_lines(subject, point, moving, tracked=tracked),
        )
    if jvp is None or isinstance(error, NotImplementedError):
        raise _Refused(f"forward mode raised: {raised}")
    inside, unsaved = _inside(error.__traceback__, getattr(inspect.unwrap(jvp), "__code__", None))
    alone = len(moving) == 1 and len(point.varying) > 1
    when = f"only {moving[0]} has a tangent" if alone else "every argument has a tangent"
    if unsaved:
        remedy = ""
        message = f"jvp reads ctx.saved_tensors, which are empty, since save_for_forward was never called: {raised}"
    elif inside:
        remedy = _IN_JVP
        message = f"jvp raises when {when}: {raised}"
    else:
        remedy = _OF_JVP
        message = f"the call raises when {when}, and without tangents it works: {raised}"
    return subject.finding(
        "PB508",
        point,
        message,
        argument=moving[0] if alone else "",
        expected="the tangent of each output",
        got=str(raised),
        remedy=remedy,
        repro=dual_lines(subject, point, moving, tracked=tracked),
    )


def _is_a_slip(subject: Subject, error: BaseException) -> bool:
    """Whether an error came up in the author's own lines, and isn't what PyTorch lacks."""
    if not isinstance(subject.function, type) or isinstance(error, NotImplementedError):
        return False
    lacks = isinstance(error, RuntimeError) and _LACKS.search(str(error)) is not None
    return not lacks and user_line(error, subject.location.rpartition(":")[0])[0] != ""


def _inside(trace: TracebackType | None, code: CodeType | None) -> tuple[bool, bool]:
    """Whether the error came up in the function with this code; and whether that read saved tensors without any."""
    while trace is not None:
        frame = trace.tb_frame
        if code is not None and frame.f_code is code:
            ctx: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            reads = "saved_tensors" in code.co_names
            return True, reads and not getattr(ctx, "saved_for_forward", None) and not _saved(ctx)
        trace = trace.tb_next
    return False, False


def _saved(ctx: Any) -> tuple[Any, ...]:
    """What a jvp's ctx has in ``saved_tensors``; nothing where the call is over, and with it what was saved."""
    try:
        return tuple(getattr(ctx, "saved_tensors", (ctx,)))
    except RuntimeError:
        return ()


PROBE = Probe("forward_mode", "forward mode and reverse mode are two sides of one derivative", run)
