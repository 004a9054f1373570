"""What a call leaves alone elsewhere than at the sample: arguments and cotangents, and backward can run again.

A branch that some values or shapes alone take may write to these, or use up what it reads. Whether its gradient is
right there other probes ask; they look at each result once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import torch

from pullback.battery.grown import shaped_alike
from pullback.battery.observe import difference, passed, storage_of
from pullback.battery.redrawn import OTHER_VALUES, redrawn
from pullback.battery.repro_effects import spoiled_gradient_lines, spoiled_saved_lines
from pullback.battery.repro_standing import shared_memory_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Subject
from pullback.battery.written import written_only
from pullback.finding import Finding

_ONES, _LARGE = "a grad_output of ones", "a large grad_output"
"""What comes from a sum, and a shortcut is likeliest for; and what is clipped."""

_SIZE = 1e6
"""The elements of a large one."""

_FEW = 3
"""So many variants are tried in which an argument has the shape of an output."""


def left_alone_elsewhere(subject: Subject, case: Case) -> Iterator[Finding]:
    """A finding for the first variant of a case at which an argument is changed, or a second backward is another."""
    if subject.definition is None or not case.exact:
        return
    outputs = [output.tensor for output in subject.call(subject.fresh(case, requires=()))]
    along = (_ONES, _LARGE) if subject.definition.nonlinear_backward else (_ONES,)  # what is linear is tried far from 1
    for label, variant in chain(_variants(subject, case, outputs), ((way, case) for way in along)):
        try:
            finding = _tried(subject, case, variant, label)
        except (ForwardRaised, BackwardRaised):
            continue  # other probes tell it
        if finding is not None:
            yield finding
            return


def _variants(subject: Subject, case: Case, outputs: list[torch.Tensor]) -> Iterator[tuple[str, Case]]:
    values = ((OTHER_VALUES, variant) for variant in redrawn(subject, case)) if case.may_vary("values") else ()
    shapes = islice(shaped_alike(subject, case, outputs), _FEW) if case.may_vary("shape") else ()
    return chain(values, shapes)


def _tried(subject: Subject, case: Case, variant: Case, label: str) -> Finding | None:
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    ones, large = label == _ONES, label == _LARGE
    size = 1.0 if ones else _SIZE if large else None
    cotangents = [size * torch.ones_like(o.tensor) if size else subject.cotangent(o.tensor) for o in outputs]
    given = [cotangent.clone() for cotangent in cotangents]
    first = subject.gradients(outputs, given, inputs.varying, retain_graph=True, share=True)
    for output, cotangent, after in zip(outputs, cotangents, given, strict=True):
        changed = difference(cotangent, after)
        if changed is not None:
            return subject.finding(
                "PB403",
                case,
                f"with {label}, backward changed grad_{output.name} in place",
                what=label,
                expected=f"{changed.expected}, as before",
                got=changed.got,
                repro=spoiled_gradient_lines(subject, variant, output.name, f".mul({_SIZE})" if large else ""),
            )
    if large:
        return None
    shared = _in_an_argument(subject, case, inputs, first, label)
    if shared is not None:
        return shared
    first = tuple(None if gradient is None else gradient.clone() for gradient in first)
    second = subject.gradients(outputs, cotangents, inputs.varying)
    when = f"it is differentiated along {label}" if ones else f"it is called with {label}"
    written = written_only(subject, case, inputs, when, None, variant=variant, ones=ones)
    if written is not None:
        return written
    for leaf, one, other in zip(inputs.varying, first, second, strict=True):
        found = difference(one, other)
        if found is not None:
            again = subject.fresh(variant)
            anew = subject.gradients(subject.call(again), cotangents, again.varying)
            if any(difference(right, got) is not None for right, got in zip(first, anew, strict=True)):
                return None  # another call gives another gradient, too: `repeats` tells it
            return subject.finding(
                "PB404",
                case,
                f"with {label}, a second backward through the same call gives another gradient: the first one changed "
                "what it reads",
                argument=leaf.name,
                what=label,
                expected=found.expected,
                got=found.got,
                evidence=found.evidence,
                repro=spoiled_saved_lines(subject, variant, ones=ones),
            )
    return None


def _in_an_argument(
    subject: Subject, case: Case, inputs: Inputs, gradients: Sequence[torch.Tensor | None], label: str
) -> Finding | None:
    """The finding of a gradient that is an argument's own memory, as where a product with ones is left out."""
    storages = {storage_of(tensor): name for name, tensor in passed(subject, inputs).items() if tensor.numel()}
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        name = "" if gradient is None else storages.get(storage_of(gradient), "")
        if name:
            return subject.finding(
                "PB504",
                case,
                f"with {label}, the gradient of {leaf.name} lies in the memory of {name}: what clips the gradient in "
                f"place changes {name}",
                argument=leaf.name,
                what=label,
                expected="a tensor of its own",
                got=f"the memory of {name}",
                remedy="Return a new tensor, such as a clone, whatever grad_output is.",
                repro=shared_memory_lines(subject, case, leaf.name, name),
            )
    return None
