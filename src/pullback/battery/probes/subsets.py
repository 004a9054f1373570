"""A gradient doesn't depend on which other arguments require grad, and no work is done for those that don't."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import torch

from pullback.battery.budgets import Shake
from pullback.battery.compare import natural_scale
from pullback.battery.leaves import is_float
from pullback.battery.nodes import node_of
from pullback.battery.oracle import moved
from pullback.battery.own import Own
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro import subset_lines, waste_lines
from pullback.battery.repro_standing import subset_value_lines
from pullback.battery.subject import BackwardRaised, Case, Inputs, Subject
from pullback.battery.work import wasted_work
from pullback.battery.written import written_only
from pullback.custom.decorated import decorated
from pullback.finding import Finding

_ALL_UP_TO = 5


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare the gradients for every subset of the arguments with those for all of them."""
    tried = 0
    for case in subject.cases:
        names = [leaf.name for leaf in subject.fresh(case).varying]
        if len(names) > 1:
            tried += 1
            yield from _subsets(subject, case, names)
    if not tried:
        raise NotApplicable("there is only one argument that requires grad")


def subsets_of(names: list[str]) -> list[tuple[str, ...]]:
    """Every proper subset of a few names; of many the single ones, the pairs with the first, and all but one."""
    if len(names) <= _ALL_UP_TO:
        return [chosen for size in range(1, len(names)) for chosen in combinations(names, size)]
    singles = [(name,) for name in names]
    pairs = [(names[0], name) for name in names[1:]]
    return [*singles, *pairs, *(tuple(n for n in names if n != name) for name in names)]


def _subsets(subject: Subject, case: Case, names: list[str]) -> Iterator[Finding | Note]:
    outputs = subject.call(subject.fresh(case))
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    together = _gradients(subject, subject.fresh(case), cotangents)
    written: Finding | None = None
    own = Own(subject, case, together, lambda shake: _shaken(subject, case, names, cotangents, shake))
    reported: set[str] = set()
    for chosen in subsets_of(names):
        only = _only(chosen)
        inputs = subject.fresh(case, requires=set(chosen))
        try:
            alone = _gradients(subject, inputs, cotangents)
        except BackwardRaised as raised:
            argument = chosen[0]
            if argument not in reported:
                reported.add(argument)
                yield _raises(subject, case, argument, chosen, raised)
            continue
        written = written or written_only(subject, case, inputs, only, chosen)
        for output in (output for output in outputs if is_float(output.tensor)):
            bad = own.differs(_value(output.name), alone.get(_value(output.name)))
            if bad is not None and output.name not in reported:
                reported.add(output.name)
                yield subject.finding(
                    "PB208",
                    case,
                    f"{output.name} is another when {only}",
                    output=output.name,
                    what=only,
                    expected=f"{bad.expected} as when all require grad",
                    got=bad.got,
                    remedy="Let forward compute the same whichever arguments require grad: ctx.needs_input_grad is to "
                    "decide what is saved and which gradients are computed, only.",
                    evidence={**bad.evidence, "requires_grad": list(chosen)},
                    repro=subset_value_lines(subject, case, output.name, chosen),
                )
        for name in chosen:
            leaf = subject.fresh(case).leaf(name).tensor
            scale = natural_scale([output.tensor for output in outputs], cotangents, leaf)
            bad = own.differs(name, alone[name], scale=scale)
            if bad is None or name in reported:
                continue
            reported.add(name)
            yield subject.finding(
                "PB208",
                case,
                f"the gradient of {name} is another when {only}",
                argument=name,
                what=only,
                expected=f"{bad.expected} as when all require grad",
                got=bad.got,
                evidence={**bad.evidence, "requires_grad": list(chosen)},
                repro=subset_lines(subject, case, name, chosen),
            )
    if written is not None:
        yield written
    yield from _wasted(subject, case, names, cotangents)


def _only(chosen: tuple[str, ...]) -> str:
    return f"only {' and '.join(chosen)} require{'s' if len(chosen) == 1 else ''} grad"


def _raises(subject: Subject, case: Case, argument: str, chosen: tuple[str, ...], raised: BackwardRaised) -> Finding:
    return subject.finding(
        "PB208",
        case,
        f"backward raises when {_only(chosen)}: {raised}",
        argument=argument,
        expected="the gradient that comes when all require grad",
        got=str(raised),
        repro=subset_lines(subject, case, argument, chosen),
    )


def _value(output: str) -> str:
    """The key of an output among gradients, which go by the names of arguments."""
    return f"the value of {output}"


def _gradients(subject: Subject, inputs: Inputs, cotangents: list[torch.Tensor]) -> dict[str, torch.Tensor | None]:
    outputs = subject.call(inputs)
    gradients = subject.gradients(outputs, cotangents, inputs.varying)
    return {
        **{leaf.name: gradient for leaf, gradient in zip(inputs.varying, gradients, strict=True)},
        **{_value(output.name): output.tensor.detach() for output in outputs if is_float(output.tensor)},
    }


def _shaken(
    subject: Subject, case: Case, names: list[str], cotangents: list[torch.Tensor], shake: Shake
) -> dict[str, torch.Tensor | None]:
    rounded = moved(subject, case, lambda _, tensor: shake.rounded(tensor))
    return _gradients(subject, subject.fresh(rounded), [shake.rounded(cotangent) for cotangent in cotangents])


def _wasted(subject: Subject, case: Case, names: list[str], cotangents: list[torch.Tensor]) -> Iterator[Finding]:
    """A hint for each argument whose gradient is computed though it doesn't require grad."""
    found: dict[str, Finding] = {}
    if decorated(subject.function) is not None:  # its author has no ctx to ask
        return
    for name in names:
        inputs = subject.fresh(case, requires={name})
        outputs = subject.call(inputs)  # without them, what the node saved may be freed
        node = node_of(subject, outputs)
        if node is None:
            return
        for argument, waste in wasted_work(subject, node, inputs, name, cotangents):
            total = f"{len(waste.operators)} operator{'s' if len(waste.operators) > 1 else ''}"
            found.setdefault(
                argument,
                subject.finding(
                    "PB601",
                    case,
                    f"backward computes the gradient of {argument} when only {name} requires grad: {total} "
                    f"({', '.join(waste.operators)}), {waste.elements} elements",
                    argument=argument,
                    expected="None",
                    got="a tensor that the engine throws away",
                    evidence={"operators": list(waste.operators), "elements": waste.elements},
                    repro=waste_lines(subject, case, argument, name),
                ),
            )
    yield from found.values()


PROBE = Probe("subsets", "an argument's gradient doesn't depend on which others require grad", run)
