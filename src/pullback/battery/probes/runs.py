"""forward takes each sample, and backward returns what the engine can use: count, kinds and shapes of its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.leaves import is_float
from pullback.battery.nodes import Returned, call_backward, node_of
from pullback.battery.observe import passed
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import backward_lines
from pullback.battery.repro_effects import declared_lines
from pullback.battery.said import said
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, one_line, text_of
from pullback.battery.targets import user_line
from pullback.errors import PullbackError
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Report each sample that forward or backward can't take, and each return value of backward that is malformed."""
    for case in subject.all_cases:
        trouble = subject.troubles.get(case.index)
        if isinstance(trouble, ForwardRaised):
            yield _forward_raised(subject, case, trouble.error)
        elif isinstance(trouble, BackwardRaised):
            yield _backward_raised(subject, case, trouble.error)
        else:
            yield from _nondiff(subject, case)
        if not case.exact and not isinstance(trouble, ForwardRaised):  # which takes no dtype at all
            yield Note(f"{case.label}: forward takes lower dtypes than float64 only")


def _forward_raised(subject: Subject, case: Case, error: BaseException) -> Finding:
    repro = backward_lines(subject, case)
    if isinstance(error, PullbackError):
        return said(subject, case, error, repro)
    message = f"forward raises: {one_line(error)}{_place_of(error, subject)}"
    return subject.finding("PB122", case, message, got=one_line(error), repro=repro)


def _place_of(error: BaseException, subject: Subject) -> str:
    """Where in the author's file it was raised, and that line, in brackets."""
    place, line = user_line(error, subject.location.rpartition(":")[0])
    return f" ({place}: {line})" if line else ""


def _backward_raised(subject: Subject, case: Case, error: BaseException) -> Finding:
    """The most telling finding for an error that came through the engine."""
    repro = backward_lines(subject, case)
    if isinstance(error, PullbackError):
        argument = next((name for name in subject.argument_names if f"argument {name}" in text_of(error)), "")
        return said(subject, case, error, repro, argument=argument)
    if (
        isinstance(error, NotImplementedError)
        and subject.definition is not None
        and subject.definition.backward is None
    ):
        return subject.finding("PB109", case, "the Function has no backward", repro=repro)
    returned = _returned(subject, case)
    if returned is not None:
        found = next(_malformed(subject, case, returned, repro), None)
        if found is not None:
            return found
    message = f"backward raises: {one_line(error)}{_place_of(error, subject)}{_as_it_came(subject, case)}"
    return subject.finding("PB125", case, message, got=one_line(error), repro=repro)


def _as_it_came(subject: Subject, case: Case) -> str:
    """That backward works in the dtypes in which the sample came, if so: the other probes go on in these."""
    if case.index not in subject.lowered:
        return ""
    tensors = (tensor for _, _, tensor in subject.named_tensors(subject.lowered[case.index].sample))
    names = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors if is_float(tensor)})
    return f"; this is in float64, which forward takes: in {' and '.join(names)}, as the sample came, it works"


def _returned(subject: Subject, case: Case) -> Returned | None:
    """What backward itself returns, before the engine looks at it."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is None:
        return None
    try:
        return call_backward(subject, node, inputs, outputs)
    except BackwardRaised:
        return None


def _malformed(subject: Subject, case: Case, returned: Returned, repro: str) -> Iterator[Finding]:
    inputs = subject.fresh(case)
    names, entries = returned.names, returned.entries
    due = len(names)
    if len(entries) < due or any(entry is not None for entry in entries[due:]):
        many = f"{len(entries)} gradient" + ("" if len(entries) == 1 else "s")
        yield subject.finding(
            "PB201",
            case,
            f"backward returned {many}, and {due} were due",
            expected=f"{due}: one for each of {', '.join(names)}",
            got=many,
            repro=repro,
        )
        return
    arguments = passed(subject, inputs)
    for name, entry in returned.by_name().items():
        argument = arguments.get(name)
        if entry is not None and not isinstance(entry, (torch.Tensor, list, tuple, dict)):
            kind = type(entry).__name__
            yield subject.finding(
                "PB202",
                case,
                f"backward returned a {kind} as the gradient of {name}",
                argument=name,
                expected="a tensor or None",
                got=f"{kind} {entry!r:.60}",
                repro=repro,
            )
        elif isinstance(entry, torch.Tensor) and argument is not None and entry.shape != argument.shape:
            yield subject.finding(
                "PB213",
                case,
                f"the gradient of {name} has the shape {tuple(entry.shape)}, and {name} has {tuple(argument.shape)}",
                argument=name,
                expected=f"shape {tuple(argument.shape)}",
                got=f"shape {tuple(entry.shape)}",
                repro=repro,
            )


def _nondiff(subject: Subject, case: Case) -> Iterator[Finding]:
    """A gradient for an argument that was declared without one."""
    declared = subject.definition.nondiff_argnames if subject.definition is not None else ()
    for leaf in subject.fresh(case).leaves if declared else ():
        if leaf.argument not in declared:
            continue
        inputs = subject.fresh(case, requires={*case.varying, leaf.name})
        chosen = [other for other in inputs.leaves if other.name == leaf.name and other.tensor.requires_grad]
        try:
            outputs = subject.call(inputs)
            cotangents = [subject.cotangent(output.tensor) for output in outputs]
            came = any(grad is not None for grad in subject.gradients(outputs, cotangents, chosen))
        except BackwardRaised as raised:
            came = isinstance(raised.error, PullbackError) and raised.error.rule == "PB222"
        except ForwardRaised:
            came = False
        if came:
            yield subject.finding(
                "PB222",
                case,
                f"backward returned a gradient for {leaf.name}, which nondiff_argnames declares without one",
                argument=leaf.name,
                expected="None",
                got="a tensor",
                repro=declared_lines(subject, case, leaf.name),
            )


PROBE = Probe("runs", "forward takes every sample, and backward returns gradients that the engine can use", run)
