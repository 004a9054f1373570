"""torch.utils.checkpoint, which runs forward again in backward, gives the values and gradients of a plain call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from pullback.battery.draws import draws
from pullback.battery.leaves import copy_of, replace, tensors
from pullback.battery.observe import identical
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.randomness import own_seed, reseed
from pullback.battery.repro_surroundings import checkpoint_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import BackwardRaised, Case, Subject
from pullback.battery.surroundings import under
from pullback.battery.trials import Call, Result, Trial, by_name
from pullback.finding import Finding

_KINDS = (False, True)
"""The values of ``use_reentrant``."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each case with the same call inside each kind of checkpoint; one fault of both kinds is reported once."""
    tried = 0
    for case in telling(subject):
        plain = Trial(subject, case)
        call = plain.forward()
        if not any(output.tensor.requires_grad for output in call.outputs):
            continue
        tried += 1
        written = _written(subject, case, call)
        if draws(subject, case).backward:
            yield Note(f"{case.label}: backward draws random numbers, so gradients under checkpoint were not compared")
            continue
        alone = plain.alone()
        if written:
            names = " and ".join(written)
            yield Note(f"{case.label}: forward writes to {names}, in a checkpoint twice: each time it got a fresh copy")
        found = _fault(subject, case, plain, alone, written)
        if found is not None:
            yield found
    if not tried:
        raise NotApplicable("nothing is differentiated")
    yield from passed_over(subject)


def _written(subject: Subject, case: Case, call: Call) -> tuple[str, ...]:
    """The arguments without a gradient that forward has written to, such as running statistics."""
    before = {name: tensor for name, _, tensor in subject.named_tensors(case.sample)}
    others = (leaf for leaf in call.inputs.leaves if leaf not in call.inputs.varying)
    return tuple(leaf.name for leaf in others if not identical(before[leaf.name].detach(), leaf.tensor.detach()))


def _fault(subject: Subject, case: Case, plain: Trial, alone: Result, written: tuple[str, ...] = ()) -> Finding | None:
    """The first fault; of second derivatives under the kind that is not reentrant, as the other kind has none."""
    for reentrant in _KINDS:
        trial = Trial(subject, case, within(subject, reentrant=reentrant, afresh=bool(written)))
        found = _setting(subject, case, reentrant, written).fault(alone, partial(_backward, subject, trial))
        if found is not None:
            return found
    trial = Trial(subject, case, within(subject, reentrant=False, afresh=bool(written)))
    setting = _setting(subject, case, False, written)
    return setting.second_fault(plain, lambda: trial.again(trial.forward()))


def within(subject: Subject, *, reentrant: bool, afresh: bool = False) -> Callable[..., Any]:
    """The function inside a checkpoint, each tensor that requires grad an argument of its own.

    The reentrant kind sees no other ones. What needs no gradient goes by the closure, as buffers do in use: whatever is
    an argument of a checkpoint must not be written to.

    Args:
        subject: Whose.
        reentrant: The kind.
        afresh: Whether each run gets copies of what needs no gradient, as forward writes to some of it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        nest = (args, kwargs)
        found = {id(tensor): tensor for _, tensor in tensors(nest, "")}.values()
        distinct = [tensor for tensor in found if tensor.requires_grad]

        def inside(*passed: torch.Tensor) -> tuple[torch.Tensor, ...]:
            known = {id(old): _own(subject, new) for old, new in zip(distinct, passed, strict=True)}
            storages: dict[int, torch.UntypedStorage] = {}

            def swap(tensor: torch.Tensor) -> torch.Tensor:
                if id(tensor) not in known:
                    known[id(tensor)] = copy_of(tensor, storages) if afresh else tensor
                return known[id(tensor)]

            own_args, own_kwargs = replace(nest, swap)
            with under(subject.surroundings):  # the second run, in backward, too
                returned = subject.callable(*own_args, **own_kwargs)
            return tuple(tensor for _, tensor in tensors(returned, ""))

        return checkpoint(inside, *distinct, use_reentrant=reentrant)

    return call


def _own(subject: Subject, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the call may write to: what is run twice must find its arguments as they were."""
    return tensor.clone() if subject.in_place and tensor.requires_grad else tensor


def _setting(subject: Subject, case: Case, reentrant: bool, written: tuple[str, ...]) -> Setting:
    def repro(order: int, values: bool) -> str:
        return checkpoint_lines(subject, case, reentrant=reentrant, order=order, values=values, afresh=written)

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
