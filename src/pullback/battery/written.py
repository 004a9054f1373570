"""Arguments that are written to in some calls alone: where fewer require grad, nothing is tracked, or shapes agree.

A buffer that is saved where nobody needs it looks free, and so does an argument without a gradient, or one of the
result's own shape; but the caller still holds it. What a plain call writes to as well, `writes` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from pullback.battery.flags import REMEDY, reflagged
from pullback.battery.observe import identical, passed
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro_standing import written_when_lines
from pullback.battery.subject import Case, Inputs, Subject
from pullback.finding import Finding


def written_only(
    subject: Subject,
    case: Case,
    inputs: Inputs,
    when: str,
    requires: Collection[str] | None,
    under: Callable[[], AbstractContextManager[object]] = nullcontext,
    code: str = "",
    variant: Case | None = None,
    leaf: bool | None = None,
    ones: bool = False,
) -> Finding | None:
    """A finding if a call has left an argument otherwise than it came, and a plain call with its backward leaves it so.

    Args:
        subject: Whose.
        case: The arguments.
        inputs: Those of the call, as it left them.
        when: The words for its setting, after "when".
        requires: The names of the arguments that required grad there; None for all.
        under: What forward ran in.
        code: The same as code; empty for none.
        variant: What the call was made on, if not on the case itself.
        leaf: Whether it got leaves, as `Subject.fresh` makes them.
        ones: Whether it was differentiated along ones.
    """
    variant = variant or case
    changed = [] if subject.definition is None or subject.in_place else _changed(subject, variant, inputs)
    if not changed:
        return None
    plain, again = subject.fresh(case), subject.fresh(variant, requires=requires, leaf=leaf)
    try:
        outputs = subject.call(plain)
        subject.gradients(outputs, [subject.cotangent(output.tensor) for output in outputs], plain.varying)
        with under():
            subject.call(again)
    except (ForwardRaised, BackwardRaised):
        return None
    usual = _changed(subject, case, plain)
    name = next((name for name in changed if name not in usual), None)
    if name is None:
        return None
    by_forward = name in _changed(subject, variant, again)
    method = "forward" if by_forward else "backward"
    flag = reflagged(inputs).get(name)
    bumped = flag is not None or _is_bumped(subject, inputs, subject.fresh(variant, requires=requires, leaf=leaf), name)
    asked = flag.asked if flag is not None else ".detach().clone()"
    required = case.varying if requires is None else requires
    rule = ("PB401" if bumped else "PB402") if by_forward else "PB404"
    return subject.finding(
        rule if flag is None else flag.rule(method),
        case,
        f"{method} changes {name}{flag.asked if flag else ''} in place when {when}, and otherwise it doesn't",
        argument=name,
        what=when,
        expected=flag.expected if flag is not None else "the values that were passed",
        got=flag.got if flag is not None else "other ones",
        remedy=REMEDY if flag is not None else "",
        repro=written_when_lines(subject, variant, name, required, code, method, asked, leaf=leaf, ones=ones),
    )


def _changed(subject: Subject, case: Case, inputs: Inputs) -> list[str]:
    """The names of the arguments that don't hold the case's values any more, or aren't to autograd what they were."""
    before = {name: tensor for name, _, tensor in subject.named_tensors(case.sample)}
    held, flags = passed(subject, inputs), reflagged(inputs)
    return [name for name in held if name in flags or not identical(before[name].detach(), held[name].detach())]


def _is_bumped(subject: Subject, inputs: Inputs, untouched: Inputs, name: str) -> bool:
    """Whether a tensor's version counter has moved, beside that of another copy; those of inference have none."""
    tensor, other = passed(subject, inputs)[name], passed(subject, untouched)[name]
    return not tensor.is_inference() and tensor._version > other._version
