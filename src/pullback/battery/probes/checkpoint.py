"""torch.utils.checkpoint, which runs forward again in backward, gives the values and gradients of a plain call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from pullback.battery.draws import draws
from pullback.battery.leaves import replace, tensors
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.randomness import own_seed, reseed
from pullback.battery.repro_surroundings import checkpoint_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import BackwardRaised, Case, Subject
from pullback.battery.surroundings import under
from pullback.battery.trials import Result, Trial, by_name
from pullback.finding import Finding

_KINDS = (False, True)
"""The values of ``use_reentrant``."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each case with the same call inside each kind of checkpoint; one fault of both kinds is reported once."""
    tried = 0
    for case in telling(subject):
        plain = Trial(subject, case)
        if not any(output.tensor.requires_grad for output in plain.forward().outputs):
            continue
        tried += 1
        if draws(subject, case).backward:
            yield Note(f"{case.label}: backward draws random numbers, so gradients under checkpoint were not compared")
            continue
        alone = plain.alone()
        found = _fault(subject, case, plain, alone)
        if found is not None:
            yield found
    if not tried:
        raise NotApplicable("nothing is differentiated")
    yield from passed_over(subject)


def _fault(subject: Subject, case: Case, plain: Trial, alone: Result) -> Finding | None:
    """The first fault; of second derivatives under the kind that is not reentrant, as the other kind has none."""
    for reentrant in _KINDS:
        trial = Trial(subject, case, within(subject, reentrant=reentrant))
        found = _setting(subject, case, reentrant).fault(alone, partial(_backward, subject, trial))
        if found is not None:
            return found
    trial = Trial(subject, case, within(subject, reentrant=False))
    return _setting(subject, case, False).second_fault(plain, lambda: trial.again(trial.forward()))


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


def _setting(subject: Subject, case: Case, reentrant: bool) -> Setting:
    def repro(order: int, values: bool) -> str:
        return checkpoint_lines(subject, case, reentrant=reentrant, order=order, values=values)

    where = f"under checkpoint(use_reentrant={reentrant})"
    evidence = {"use_reentrant": reentrant}
    return Setting(subject, case, "PB518", where, "without a checkpoint", repro, evidence=evidence)


def _backward(subject: Subject, trial: Trial) -> Result:
    """``backward()``, since the reentrant kind refuses ``autograd.grad``.

    Python's and NumPy's generators have moved on since forward, as in training: checkpoint restores torch's alone.
    """
    call = trial.forward()
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


PROBE = Probe(
    "checkpoint", "a call inside torch.utils.checkpoint, which runs forward twice, gives what it gives alone", run
)
