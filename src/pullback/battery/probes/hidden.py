"""Tensors that autograd can't see: in containers and modules among the arguments, in returned containers, captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.battery.leaves import is_float, tensors
from pullback.battery.observe import difference, passed, references, storage_of
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro_effects import captured_lines, untracked_lines
from pullback.battery.subject import Case, ForwardRaised, Output, Subject, outputs_in
from pullback.finding import Finding

_LOOKS = frozenset(
    "detach detach_ size stride dim ndimension numel element_size storage_offset is_contiguous is_floating_point "
    "is_complex __get__ __len__ requires_grad_ type_as register_hook __repr__ __hash__ __setattr__ "
    "zeros_like ones_like empty_like rand_like randn_like full_like new_empty new_zeros new_ones new_full".split()
)
"""What can be asked of a tensor without its values going into a result."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Look for tensors that matter to the result and are not tracked."""
    if subject.definition is None:
        raise Skip("plain PyTorch tracks whatever a function reads")
    for case in subject.all_cases:
        try:
            yield from _in_arguments(subject, case)
            yield from _in_outputs(subject, case)
            yield from _captured(subject, case)
        except ForwardRaised as refused:
            yield Note(f"{case.label}: forward raised: {refused}")


# -- containers among the arguments -----------------------------------------------------------------------------------


def _in_arguments(subject: Subject, case: Case) -> Iterator[Finding]:
    reported: set[str] = set()
    for leaf in subject.fresh(case).leaves:
        if leaf.name == leaf.argument or leaf.name not in case.varying or leaf.argument in reported:
            continue
        outputs = subject.call(subject.fresh(case, requires={leaf.name}))
        if any(output.tensor.requires_grad for output in outputs) or not _varies(subject, case, leaf.name, outputs):
            continue
        reported.add(leaf.argument)
        yield subject.finding(
            "PB501",
            case,
            f"the result varies with {leaf.name}, which requires grad, and no output requires grad for it",
            argument=leaf.argument,
            expected=f"an output that requires grad when {leaf.name} does",
            got="outputs cut off from it",
            repro=untracked_lines(subject, replace(case, varying=frozenset({leaf.name})), outputs[0].name),
            evidence={"leaf": leaf.name},
        )


def _varies(subject: Subject, case: Case, name: str, before: tuple[Output, ...]) -> bool:
    """Whether an output has other values when the leaf `name` has."""
    inputs = subject.fresh(case, requires=())
    with torch.no_grad():
        tensor = passed(subject, inputs)[name]
        tensor.detach().mul_(1.25).add_(0.125)
        after = subject.call(inputs)
    return any(difference(b.tensor, a.tensor) is not None for b, a in zip(before, after, strict=False))


# -- returned containers ----------------------------------------------------------------------------------------------


def _in_outputs(subject: Subject, case: Case) -> Iterator[Finding]:
    inputs = subject.fresh(case)
    if not any(leaf.name == leaf.argument for leaf in inputs.varying):
        return
    returned = subject.raw_call(inputs)
    tracked = {id(item) for item in (returned if isinstance(returned, tuple) else (returned,))}
    hidden = [
        output
        for output in outputs_in(returned)
        if id(output.tensor) not in tracked and is_float(output.tensor) and not output.tensor.requires_grad
    ]
    if not hidden:
        return
    inputs = subject.fresh(case, change=lambda name, t: t * 1.25 + 0.125 if name in case.varying else t)
    try:
        others = {output.name: output.tensor for output in subject.call(inputs)}
    except ForwardRaised:
        return
    varying = [o for o in hidden if o.name in others and difference(o.tensor, others[o.name]) is not None]
    if varying:
        first = varying[0]
        kind = type(returned if not isinstance(returned, tuple) else _container(returned, first)).__name__
        yield subject.finding(
            "PB502",
            case,
            f"{first.name}, in a {kind} that forward returned, varies with the arguments and doesn't require grad",
            what=f"{len(varying)} tensor{'s' if len(varying) > 1 else ''} in a {kind}",
            expected="an output that requires grad",
            got=f"{first.name}.requires_grad is False",
            repro=untracked_lines(subject, case, first.name),
        )


def _container(returned: tuple[object, ...], output: Output) -> object:
    """The entry of the returned tuple that holds the output."""
    return next((item for item in returned if any(t is output.tensor for _, t in tensors(item, ""))), returned)


# -- captured tensors -------------------------------------------------------------------------------------------------


class _Operands(TorchFunctionMode):
    """Records the tensors that require grad among the operands of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _LOOKS:
            for _, tensor in tensors((args, kwargs or {}), ""):
                if tensor.requires_grad:
                    self.seen.setdefault(id(tensor), tensor)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class _Captured:
    """A tensor from outside, and the name by which forward knows it."""

    name: str
    tensor: torch.Tensor


def _captured(subject: Subject, case: Case) -> Iterator[Finding]:
    """Operands of forward that require grad, are no arguments, and are the same objects in two calls."""
    first, second = _operands(subject, case), _operands(subject, case)
    for key, tensor in first.items():
        if second.get(key) is not tensor:
            continue  # made inside the call
        captured = _named(subject, tensor)
        yield subject.finding(
            "PB503",
            case,
            f"forward computes with {captured.name}, which requires grad and isn't an argument",
            what=captured.name,
            expected="every tensor that requires grad among the arguments",
            got=f"a captured tensor of shape {tuple(tensor.shape)}, which never gets a gradient",
            repro=captured_lines(subject, case, captured.name),
            evidence={"tensor": captured.name},
        )


def _operands(subject: Subject, case: Case) -> dict[int, torch.Tensor]:
    inputs = subject.fresh(case)
    own = passed(subject, inputs).values()
    ids, storages = {id(tensor) for tensor in own}, {storage_of(tensor) for tensor in own} - {None}
    with _Operands() as operands:
        subject.call(inputs)
    return {
        key: tensor for key, tensor in operands.seen.items() if key not in ids and storage_of(tensor) not in storages
    }


def _named(subject: Subject, tensor: torch.Tensor) -> _Captured:
    for method in ("forward", "setup_context"):
        for name, value in references(getattr(subject.function, method)).items():
            nest = value if not isinstance(value, type) else {}
            for path, found in tensors(nest, name):
                if found is tensor or (storage_of(found) is not None and storage_of(found) == storage_of(tensor)):
                    return _Captured(path, tensor)
    return _Captured("a tensor", tensor)


PROBE = Probe("hidden", "every tensor that matters to the result and requires grad is seen by autograd", run)
