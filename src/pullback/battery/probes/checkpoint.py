"""torch.utils.checkpoint, which runs forward again in backward, gives the values and gradients of a plain call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from pullback.battery.draws import draws
from pullback.battery.leaves import replace, tensors
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.randomness import own_seed, reseed
from pullback.battery.repro_surroundings import checkpoint_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, one_line
from pullback.battery.surroundings import under
from pullback.battery.trials import Call, Difference, Result, Trial, by_name
from pullback.finding import Finding

_KINDS = (False, True)
"""The values of ``use_reentrant``."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each case with the same call inside each kind of checkpoint; one fault of both kinds is reported once."""
    tried = 0
    for case in subject.cases:
        plain = Trial(subject, case)
        if not any(output.tensor.requires_grad for output in plain.forward().outputs):
            continue
        tried += 1
        if draws(subject, case).backward:
            yield Note(f"{case.label}: backward draws random numbers, so gradients under checkpoint were not compared")
            continue
        alone = plain.alone()
        for reentrant in _KINDS:
            found = _under(subject, case, alone, reentrant)
            if found is not None:
                yield found
                break
        else:
            yield from _second(subject, case, plain)
    if not tried:
        raise NotApplicable("nothing is differentiated")


def within(subject: Subject, *, reentrant: bool) -> Callable[..., Any]:
    """The function inside a checkpoint, each tensor an argument of its own: the reentrant kind sees no other ones."""

    def call(*args: Any, **kwargs: Any) -> Any:
        nest = (args, kwargs)
        distinct = list({id(tensor): tensor for _, tensor in tensors(nest, "")}.values())

        def inside(*passed: torch.Tensor) -> tuple[torch.Tensor, ...]:
            known = {id(old): new for old, new in zip(distinct, passed, strict=True)}
            own_args, own_kwargs = replace(nest, lambda tensor: _own(subject, known[id(tensor)]))
            with under(subject.surroundings):  # the second run, in backward, too
                returned = subject.callable(*own_args, **own_kwargs)
            return tuple(tensor for _, tensor in tensors(returned, ""))

        return checkpoint(inside, *distinct, use_reentrant=reentrant)

    return call


def _own(subject: Subject, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the call may write to: what is run twice must find its arguments as they were."""
    return tensor.clone() if subject.in_place and tensor.requires_grad else tensor


def _under(subject: Subject, case: Case, alone: Result, reentrant: bool) -> Finding | None:
    trial = Trial(subject, case, within(subject, reentrant=reentrant))
    try:
        got = _backward(subject, trial, trial.forward())
    except ForwardRaised as raised:
        return _raises(subject, case, reentrant, "forward", raised.error)
    except BackwardRaised as raised:
        return _raises(subject, case, reentrant, "backward", raised.error)
    found = alone.differs_from(got)
    return _differs(subject, case, reentrant, found) if found is not None else None


def _backward(subject: Subject, trial: Trial, call: Call) -> Result:
    """``backward()``, since the reentrant kind refuses ``autograd.grad``.

    Python's and NumPy's generators have moved on since forward, as in training: checkpoint restores torch's alone.
    """
    reseed(own_seed(subject.seed, "between forward and backward"), subject.runs_on)
    pairs = [
        (output.tensor, cotangent.clone())
        for output, cotangent in zip(call.outputs, trial.cotangents, strict=False)
        if output.tensor.requires_grad
    ]
    try:
        torch.autograd.backward([tensor for tensor, _ in pairs], [cotangent for _, cotangent in pairs])
    except RAISED as error:
        raise BackwardRaised(error) from error
    leaves = call.inputs.varying
    return Result(
        {output.name: output.tensor.detach() for output in call.outputs},
        by_name(leaves, [leaf.tensor.grad for leaf in leaves]),
    )


def _second(subject: Subject, case: Case, plain: Trial) -> Iterator[Finding]:
    """A second derivative that is another one under the kind that is not reentrant; the other kind has none."""
    if subject.orders < 2:
        return
    try:
        expected = plain.again(plain.forward())
    except (ForwardRaised, BackwardRaised):  # there is no second derivative to compare with
        return
    trial = Trial(subject, case, within(subject, reentrant=False))
    try:
        found = expected.differs_from(trial.again(trial.forward()))
    except (ForwardRaised, BackwardRaised) as raised:
        yield _raises(subject, case, False, "the second derivative", raised.error, order=2)
        return
    if found is not None:
        yield _differs(subject, case, False, found, order=2)


def _raises(
    subject: Subject, case: Case, reentrant: bool, what: str, error: BaseException, *, order: int = 1
) -> Finding:
    text = one_line(error)
    return subject.finding(
        "PB518",
        case,
        f"{what} raises under checkpoint(use_reentrant={reentrant}): {text}",
        expected="what comes without a checkpoint",
        got=text,
        repro=checkpoint_lines(subject, case, reentrant=reentrant, order=order),
        evidence={"use_reentrant": reentrant, "raised": type(error).__name__},
    )


def _differs(subject: Subject, case: Case, reentrant: bool, found: Difference, *, order: int = 1) -> Finding:
    what = "second derivative" if order > 1 else found.kind
    return subject.finding(
        "PB518",
        case,
        f"under checkpoint(use_reentrant={reentrant}) the {what} is another one",
        argument=found.name if found.kind == "gradient" else "",
        output=found.name if found.kind == "value" else "",
        expected=f"{found.mismatch.expected}, as without a checkpoint",
        got=found.mismatch.got,
        repro=checkpoint_lines(subject, case, reentrant=reentrant, order=order, values=found.kind == "value"),
        evidence={**found.mismatch.evidence, "use_reentrant": reentrant},
    )


PROBE = Probe(
    "checkpoint", "a call inside torch.utils.checkpoint, which runs forward twice, gives what it gives alone", run
)
