"""Second derivatives where one argument alone requires grad, or all others, or all are or lie otherwise: the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from pullback.battery.advice import for_second_order
from pullback.battery.arrangements import arrangements
from pullback.battery.compare import Mismatch, compare
from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.numerics import size_of
from pullback.battery.paths import dealt, telling, tells
from pullback.battery.probe import Note
from pullback.battery.repro_second import (
    NO_LEAVES,
    created_lines,
    otherwise_lines,
    penalty_lines,
    unfollowed_lines,
)
from pullback.battery.second import Call, Weighted, differentiable_call, second_gradients, weights_for
from pullback.battery.subject import BackwardRaised, Change, ForwardRaised, Subject, one_line
from pullback.battery.tolerances import SAME
from pullback.battery.truth import Truth
from pullback.errors import PullbackError
from pullback.finding import Finding

_ARGUMENTS = 8
"""Up to so many arguments, each requires grad alone as well."""

_OF_OTHERS = 2
"""Where one argument requires no grad, the gradients of so many others are differentiated."""

_LAYOUT = frozenset({"PB405", "PB406", "PB407"})
"""Where one of these is found, what another layout does is told already."""

_LAYOUTS = {
    "sliced": "the arguments are slices of larger tensors",
    "transposed": "the arguments are transposed in memory",
    "offset": "the arguments begin within a larger tensor",
    "channels last": "the arguments are channels last",
}
"""The layouts that are tried for all arguments at once, in words."""

_SAVE = (
    "Save the argument itself and call .contiguous() in backward: what forward makes of it, a copy of one that isn't "
    "contiguous too, is a constant to the graph."
)

_SAVE_ANY = (
    "Save the argument itself, whatever made it, as an activation is no leaf: what forward makes of it, by detach() "
    "too, is a constant to the graph."
)


@dataclass(frozen=True)
class _Way:
    """Another way to ask for the same second derivatives.

    Attributes:
        when: The words for it, after "when".
        usual: The words for the usual way, after "as when".
        what: The same in short.
        gradients: The arguments whose gradients are differentiated.
        requires: The names of the arguments that require grad.
        change: Arranges the arguments' memory.
        remedy: What to do, unless the rule says.
        constant: Whether grad_output doesn't require grad.
        layout: What the arguments' memory is arranged to, if it is; `NO_LEAVES` where other operations made them.
        without: The one argument that requires no grad, if all others do.
    """

    when: str
    usual: str
    what: str
    gradients: tuple[str, ...]
    requires: frozenset[str]
    change: Change | None = None
    remedy: str = ""
    constant: bool = False
    layout: str = ""
    without: str = ""

    @property
    def leaf(self) -> bool | None:
        """Whether the arguments are leaves, as `Subject.fresh` makes them."""
        return False if self.layout == NO_LEAVES else None


def second_otherwise(subject: Subject, truth: Truth, tried: set[str]) -> Iterator[Finding | Note]:
    """A finding for the first way that gives another second derivative, or raises.

    Args:
        subject: Whose.
        truth: Where second derivatives are right as they are asked for most often.
        tried: The kinds of ways that an earlier sample was tried in; those of this one are added.
    """
    ways = list(_ways(subject, truth, tried))
    if not ways:
        return
    plain = differentiable_call(subject, truth)
    weights = weights_for(subject, plain)
    names = [leaf.name for leaf in plain.inputs.varying]
    by_name = dict(zip(names, weights.weights, strict=True))
    for way in ways:
        try:
            call = differentiable_call(
                subject,
                truth,
                requires=way.requires,
                change=way.change,
                cotangents_vary=not way.constant,
                leaf=way.leaf,
            )
        except ForwardRaised as refused:
            yield Note(f"refused: {way.what}, {truth.case.label} ({refused})")
            continue
        except BackwardRaised as raised:
            yield _said(truth, way, _raises(subject, truth, way, way.gradients[0], raised.error))
            return
        for gradient in way.gradients:
            expected = second_gradients(subject, plain, weights, names.index(gradient))
            apart = _first_differs(plain, call, gradient)
            if apart is not None:
                yield from _first_order(subject, truth, way, call, gradient, apart)
                continue
            known = dict(zip((leaf.name for leaf in plain.variables()), expected, strict=True))
            finding = _judged(subject, truth, way, call, gradient, by_name[gradient], known)
            if finding is not None:
                yield _said(truth, way, finding)
                return


def _ways(subject: Subject, truth: Truth, tried: set[str]) -> Iterator[_Way]:
    names = tuple(sorted(leaf.name for leaf in subject.fresh(truth.case).varying))  # one for what is passed twice
    if tells(subject, truth.case):
        when, usual = "grad_output doesn't require grad, as in a gradient penalty", "it does"
        yield _Way(when, usual, "a constant grad_output", names, truth.case.varying, constant=True)
        hands = dealt(subject, {case: sorted(case.varying) for case in telling(subject)})
        mine = next(hand for case, hand in hands.items() if case.index == truth.case.index)
        few = [name for name in names if name in mine and 1 < len(names) <= _ARGUMENTS]
        for name in few:
            yield _Way(f"only {name} requires grad", "all require grad", f"{name} alone", (name,), frozenset({name}))
        for name in few if len(names) > 2 else ():  # of two, what isn't left out is alone
            others = [other for other in names if other != name]
            start = names.index(name) % len(others)
            some = tuple((others[start:] + others)[:_OF_OTHERS])
            when, what, requires = f"{name} requires no grad", f"all but {name}", frozenset(others)
            yield _Way(when, "all require grad", what, some, requires, without=name)
        if subject.definition is not None and not subject.in_place:
            when, usual = "the arguments are results of other operations", "they are leaves"
            yield _Way(when, usual, NO_LEAVES, names, truth.case.varying, remedy=_SAVE_ANY, layout=NO_LEAVES)
    may = truth.case.may_vary("layout") and not subject.in_place and not subject.found & _LAYOUT
    if "sliced" in tried or not may or draws(subject, truth.case).forward:
        return
    leaves = subject.fresh(truth.case).varying
    for layout, when in _LAYOUTS.items():
        if any(_arranged(leaf.tensor, layout) is not leaf.tensor and leaf.tensor.numel() > 1 for leaf in leaves):
            tried.add("sliced")

            def change(_: str, tensor: Tensor, layout: str = layout) -> Tensor:
                return _arranged(tensor, layout)

            what = f"{layout} arguments"
            yield _Way(when, "they are contiguous", what, names, truth.case.varying, change, _SAVE, layout=layout)


def _arranged(tensor: Tensor, layout: str) -> Tensor:
    if not is_float(tensor) or not is_dense(tensor):
        return tensor
    return next((arranged for label, _, arranged in arrangements(tensor) if label == layout), tensor)


def _first_differs(plain: Call, call: Call, name: str) -> Mismatch | None:
    """How the gradient of an argument itself is another one."""
    one, other = (
        next(grad for leaf, grad in zip(made.inputs.varying, made.gradients, strict=True) if leaf.name == name)
        for made in (plain, call)
    )
    return compare(None if one is None else one.detach(), None if other is None else other.detach(), SAME)


def _first_order(
    subject: Subject, truth: Truth, way: _Way, call: Call, name: str, apart: Mismatch
) -> Iterator[Finding]:
    """A finding where the gradient is another under create_graph alone; else another probe tells it."""
    inputs = subject.fresh(truth.case, requires=way.requires, change=way.change, leaf=way.leaf)
    outputs = subject.call(inputs)
    chosen = [outputs[position] for position in truth.outputs]
    found = subject.gradients(chosen, truth.cotangents, inputs.varying)
    without = next(grad for leaf, grad in zip(inputs.varying, found, strict=True) if leaf.name == name)
    within = next(grad for leaf, grad in zip(call.inputs.varying, call.gradients, strict=True) if leaf.name == name)
    if compare(without, None if within is None else within.detach(), SAME) is None:
        return
    yield subject.finding(
        "PB205",
        truth.case,
        f"when {way.when}, the gradient of {name} is another under create_graph=True than without",
        argument=name,
        what=way.what,
        expected=f"{apart.expected}, as when {way.usual}",
        got=apart.got,
        remedy="Let backward compute the same whether or not its result will be differentiated.",
        evidence={**apart.evidence, "order": 1},
        repro=created_lines(
            subject,
            truth.case,
            name,
            alone=way.requires != truth.case.varying,
            without=way.without,
            results=way.layout == NO_LEAVES,
        ),
    )


def _judged(
    subject: Subject,
    truth: Truth,
    way: _Way,
    call: Call,
    gradient: str,
    weight: Tensor,
    known: dict[str, Tensor | None],
) -> Finding | None:
    """The finding for the first variable by which the derivative of one gradient is another one."""
    which = [leaf.name for leaf in call.inputs.varying].index(gradient)
    weights = Weighted(tuple(weight for _ in call.inputs.varying))
    try:
        found = second_gradients(subject, call, weights, which)
    except BackwardRaised as raised:
        return _raises(subject, truth, way, gradient, raised.error)
    size = max((size_of(wanted) for wanted in known.values() if wanted is not None), default=0.0)
    for variable, came in zip(call.variables(), found, strict=True):
        if not variable.tensor.requires_grad:
            continue
        bad = compare(known[variable.name], came, SAME, scale=size)
        if bad is not None:
            return subject.finding(
                "PB205",
                truth.case,
                f"the derivative of {gradient}'s gradient by {variable.name} is another when {way.when}",
                argument=gradient,
                what=way.what,
                expected=f"{bad.expected}, as when {way.usual}",
                got=bad.got,
                remedy=way.remedy,
                evidence={**bad.evidence, "by": str(variable.name), "order": 2},
                repro=penalty_lines(subject, truth.case, variable.name, bad.index)
                if way.constant
                else otherwise_lines(subject, truth.case, gradient, variable.name, way.layout, way.without),
            )
    return None


def _said(truth: Truth, way: _Way, finding: Finding) -> Finding | Note:
    """The finding, or a note: a rule that saves no argument is right, and who differentiates it twice is told aloud."""
    if way.layout == NO_LEAVES and finding.rule == "PB206":
        return Note(f"refused: {way.what}, {truth.case.label} ({finding.got})")
    return finding


def _raises(subject: Subject, truth: Truth, way: _Way, gradient: str, error: BaseException) -> Finding:
    """The finding where it raises, by pullback's own code if it has one."""
    text = one_line(error)
    rule, said, remedy = "PB205", text, way.remedy
    if isinstance(error, PullbackError):
        rule, said = error.rule, error.message
        remedy = way.remedy or for_second_order(subject, rule, said) or error.remedy
    case = replace(truth.case, varying=way.requires)
    return subject.finding(
        rule,
        truth.case,
        f"when {way.when}, differentiating the gradient raises: {said}",
        argument=gradient,
        what=way.what,
        expected=f"the second derivative that comes when {way.usual}",
        got=text,
        remedy=remedy,
        evidence={"order": 2, "raised": type(error).__name__},
        repro=penalty_lines(subject, case) if way.constant else unfollowed_lines(subject, case, gradient, way.layout),
    )
