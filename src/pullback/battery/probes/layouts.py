"""Arguments and gradients in any memory layout give what contiguous ones give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from pullback.battery.all_layouts import all_at_once
from pullback.battery.arrangements import LAZY, OF_GRADIENTS, arrangements
from pullback.battery.away import FIRST_FEW
from pullback.battery.budgets import Shake
from pullback.battery.compare import Mismatch, compare, natural_scale
from pullback.battery.curves import is_smooth
from pullback.battery.draws import draws, same_draws
from pullback.battery.leaves import is_float
from pullback.battery.lower import or_in_lower
from pullback.battery.numerics import flat, signs, size_of, unflat
from pullback.battery.oracle import moved
from pullback.battery.own import Own
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import Note, Probe
from pullback.battery.redrawn import redrawn
from pullback.battery.repro import argument_lines, layout_lines
from pullback.battery.subject import (
    BackwardRaised,
    Case,
    ForwardRaised,
    Leaf,
    Output,
    Subject,
    text_of,
    with_tensors,
)
from pullback.battery.tolerances import KINK, SAME, SENSITIVITY
from pullback.battery.trials import by_name
from pullback.finding import Finding

_VIEW = "view size is not compatible with input tensor's size and stride"
"""What PyTorch says to a view that should have been a reshape: no author refuses a layout in these words."""

_Pulled = tuple[tuple[Leaf, ...], tuple["torch.Tensor | None", ...]]

_LOW_SENSITIVITY = 4.0
"""How many times as far a result may lie below float64, where its budget already has the conditioning in it: elements
that are all equal have an error in common, as that of a mean, which a budget takes for no rounding."""

_ROUNDINGS = 3
"""How often an argument is rounded at random, to see what that does."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Try gradients, then arguments, in each layout."""
    yield from or_in_lower(subject, _each(subject), _gradients)
    yield from passed_over(subject, "only the layout of gradients was varied there")


def _each(subject: Subject) -> Iterator[Finding | Note]:
    for case in subject.cases:
        about_gradients = list(_gradients(subject, case))
        yield from about_gradients
        if case.may_vary("layout") and case in telling(subject):
            found = [note for name in _leaves(subject, case) for note in _argument(subject, case, name)]
            yield from found
            if case in telling(subject)[:FIRST_FEW] and not any(isinstance(note, Finding) for note in found):
                yield from _elsewhere(subject, case)
                if not any(isinstance(note, Finding) for note in about_gradients):
                    yield from all_at_once(subject, case)


def _leaves(subject: Subject, case: Case, *, axes: int = 0) -> list[str]:
    return [leaf.name for leaf in subject.fresh(case).leaves if leaf.tensor.dim() >= axes]


def _elsewhere(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """Transposed arguments with other values: a mask of the sample's may be the same in any order of memory."""
    names = _leaves(subject, case, axes=2)
    if not (names and case.exact and case.may_vary("values")):
        return
    for variant in islice(redrawn(subject, case), 1):
        for name in names:
            yield from _argument(subject, replace(variant, index=case.index), name, only="transposed")


def _gradients(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """One finding for all layouts of a gradient that come out wrong, one for all that raise."""
    outputs = subject.call(subject.fresh(case))
    tracked = [output for output in outputs if output.tensor.requires_grad]
    for place, output in enumerate(tracked):
        others = [subject.cotangent(o.tensor) for o in tracked]
        wrong: dict[str, tuple[Leaf, Mismatch]] = {}
        tried: list[str] = []
        raising: dict[str, BackwardRaised] = {}
        known: dict[int, tuple[torch.Tensor, Own]] = {}  # several layouts are of one tensor
        for layout, plain, arranged in arrangements(subject.cotangent(output.tensor)):
            if arranged.is_contiguous() and layout not in ("offset", *LAZY):
                continue
            if draws(subject, case).backward and not same_draws(arranged):
                yield Note(f"{case.label}: backward draws random numbers, which fill a {layout} gradient otherwise")
                continue
            if id(plain) not in known:
                known[id(plain)] = plain, _own_gradients(subject, case, place, others, plain)
            _, own = known[id(plain)]
            try:
                leaves, got = _pull(subject, case, place, others, arranged)
            except BackwardRaised as raised:
                if layout not in LAZY:  # NumPy, say, refuses it aloud
                    raising[layout] = raised
                continue
            tried.append(layout)
            for leaf, other in zip(leaves, got, strict=True):
                scale = natural_scale([output.tensor], [plain], leaf.tensor)
                bad = own.differs(leaf.name, other, scale=scale)
                if bad is not None:
                    wrong.setdefault(layout, (leaf, bad))
        grad_output = f"grad_output {place}" if len(tracked) > 1 else "grad_output"
        yield from _about_gradients(subject, case, grad_output, output, wrong, raising, tried)


def _about_gradients(
    subject: Subject,
    case: Case,
    grad_output: str,
    output: Output,
    wrong: dict[str, tuple[Leaf, Mismatch]],
    raising: dict[str, BackwardRaised],
    tried: Sequence[str],
) -> Iterator[Finding]:
    if wrong:
        layout, (leaf, bad) = next(iter(wrong.items()))
        right = [other for other in tried if other not in wrong]
        strides = " (stride 0)" if all(other.startswith("expanded") for other in wrong) else ""
        only = f"only for those: it is right where {grad_output} is {' or '.join(['contiguous', *right])}"
        yield subject.finding(
            "PB405",
            case,
            f"the gradient of {leaf.name} is wrong where {grad_output} is {' or '.join(wrong)}{strides}, and {only}",
            output=output.name,
            what=f"{grad_output} {layout}",
            expected=f"{bad.expected} as for a contiguous one",
            got=bad.got,
            evidence={**bad.evidence, "layouts": list(wrong), "diagnosis": only},
            repro=layout_lines(subject, case, leaf.name, layout, output.name),
        )
    if raising:
        layout, raised = next(iter(raising.items()))
        yield subject.finding(
            "PB406",
            case,
            f"backward raises where {grad_output} is {' or '.join(raising)}: {raised}",
            output=output.name,
            what=f"{grad_output} {layout}",
            expected="the gradient, as for a contiguous one",
            got=str(raised),
            evidence={"layouts": list(raising)},
            repro=layout_lines(subject, case, min(case.varying), layout, output.name),
        )


def _pull(subject: Subject, case: Case, place: int, others: list[torch.Tensor], cotangent: torch.Tensor) -> _Pulled:
    inputs = subject.fresh(case)
    tracked = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    cotangents = [cotangent if i == place else other for i, other in enumerate(others)]
    lazy = cotangent.is_conj() or cotangent.is_neg()  # which a copy isn't
    return inputs.varying, subject.gradients(tracked, cotangents, inputs.varying, share=lazy)


def _own_gradients(
    subject: Subject, case: Case, place: int, others: list[torch.Tensor], cotangent: torch.Tensor
) -> Own:
    """The gradients for a contiguous one of the cotangent's values."""

    def again(shake: Shake) -> dict[str, torch.Tensor | None]:
        rounded = moved(subject, case, lambda _, tensor: shake.rounded(tensor))
        return by_name(*_pull(subject, rounded, place, [*map(shake.rounded, others)], shake.rounded(cotangent)))

    return Own(subject, case, by_name(*_pull(subject, case, place, others, cotangent)), again)


def _argument(subject: Subject, case: Case, name: str, *, only: str = "") -> Iterator[Finding | Note]:
    original = subject.fresh(case).leaf(name).tensor
    known: dict[int, tuple[torch.Tensor, _Run]] = {}  # several layouts are of one tensor
    for layout, plain, arranged in arrangements(original):
        if layout in OF_GRADIENTS or (only and layout != only):
            continue
        if draws(subject, case).forward and not same_draws(arranged):
            yield Note(f"{case.label}: {name} {layout}: forward draws random numbers, which fill it in another order")
            continue
        try:
            if id(plain) not in known:
                known[id(plain)] = plain, _run(subject, case, name, plain, None)
        except (ForwardRaised, BackwardRaised):
            continue  # other values than the author's, which forward need not take
        _, contiguous = known[id(plain)]
        try:
            other = _run(subject, case, name, arranged, contiguous.cotangents)
        except ForwardRaised as refused:
            if text_of(refused.error).startswith(_VIEW):
                yield _raises(subject, case, name, layout, "forward", refused)
                return
            yield Note(f"refused: {name} {layout}, {case.label}: {refused}")
            continue
        except BackwardRaised as raised:
            if layout in LAZY:
                continue
            yield _raises(subject, case, name, layout, "backward", raised)
            return
        finding = _compared(subject, case, name, layout, plain, contiguous, other)
        if finding is not None:
            yield finding
            return


def _raises(subject: Subject, case: Case, name: str, layout: str, method: str, raised: Exception) -> Finding:
    return subject.finding(
        "PB407",
        case,
        f"{method} raises where {name} is {layout}, and not where it is contiguous: {raised}",
        argument=name,
        what=layout,
        expected=f"the {'gradient' if method == 'backward' else 'result'}, as for a contiguous one",
        got=str(raised),
        remedy="" if method == "backward" else "Write reshape in the place of view, or refuse the layout by name.",
        repro=argument_lines(subject, case, name, layout),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """One call: its cotangents, and what it gave, by name, each with the size of the terms that it is a sum of."""

    cotangents: list[torch.Tensor]
    results: dict[str, tuple[torch.Tensor | None, float]]

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        """What it gave, by name."""
        return {name: result for name, (result, _) in self.results.items()}


def _run(subject: Subject, case: Case, name: str, value: torch.Tensor, cotangents: list[torch.Tensor] | None) -> _Run:
    """One call with `value` for the leaf `name`."""
    inputs = subject.fresh(case, change=lambda leaf, tensor: value.detach() if leaf == name else tensor)
    outputs = subject.call(inputs)
    if cotangents is None:
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
    gradients = subject.gradients(outputs, cotangents, inputs.varying)
    tensors = [output.tensor for output in outputs]
    results: dict[str, tuple[torch.Tensor | None, float]] = {o.name: (o.tensor, 0.0) for o in outputs}
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        results[f"the gradient of {leaf.name}"] = (gradient, natural_scale(tensors, cotangents, leaf.tensor))
    return _Run(cotangents, results)


def _compared(
    subject: Subject, case: Case, name: str, layout: str, plain: torch.Tensor, contiguous: _Run, other: _Run
) -> Finding | None:
    """A finding for the first result that is another one for no reason but the layout."""

    def again(shake: Shake) -> dict[str, torch.Tensor | None]:
        rounded = moved(subject, case, lambda _, tensor: shake.rounded(tensor))
        cotangents = [shake.rounded(cotangent) for cotangent in contiguous.cotangents]
        return _run(subject, rounded, name, shake.rounded(plain), cotangents).named

    own = Own(subject, case, contiguous.named, again)
    for what, (one, scale) in contiguous.results.items():
        two, _ = other.results.get(what, (None, 0.0))
        if one is None or two is None:
            continue
        bad = own.differs(what, two, scale=scale)
        if bad is None or (scale and not _has_gradient(subject, case, name, plain)):
            continue
        rounding = _sensitivity(subject, case, name, plain, contiguous, what)
        if case.exact and rounding > KINK * size_of(one):
            continue  # a singular matrix, say: no digit means anything there
        room = (SENSITIVITY if case.exact else _LOW_SENSITIVITY) * rounding
        if compare(one, two, SAME, scale=max(scale, room / SAME.atol)) is None:
            continue
        return subject.finding(
            "PB407",
            case,
            f"{what} is another where {name} is {layout} than where it is contiguous",
            argument=name,
            what=layout,
            expected=f"{bad.expected} as for a contiguous one",
            got=bad.got,
            evidence={**bad.evidence, "layout": layout},
            repro=argument_lines(subject, case, name, layout),
        )
    return None


def _sensitivity(subject: Subject, case: Case, name: str, value: torch.Tensor, known: _Run, what: str) -> float:
    """How much a result changes with a rounding of the argument: much where elements coincide, say in a variance."""
    if not is_float(value):
        return 0.0
    largest = 0.0
    for _ in range(_ROUNDINGS):
        elements = flat(value)
        nearby = unflat(elements * (1 + torch.finfo(value.dtype).eps * signs(elements.numel(), subject.random)), value)
        try:
            there, _ = _run(subject, case, name, nearby, known.cotangents).results[what]
        except (ForwardRaised, BackwardRaised):
            continue
        here, _ = known.results[what]
        if there is not None and here is not None and here.numel() and there.shape == here.shape:
            largest = max(largest, float((flat(there) - flat(here)).abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return largest


def _has_gradient(subject: Subject, case: Case, name: str, value: torch.Tensor) -> bool:
    """Whether forward is smooth where `name` is `value`; among repeated elements, ties, any choice is right."""
    original = next(tensor for path, _, tensor in subject.named_tensors(case.sample) if path == name)
    there = with_tensors(case.sample, lambda tensor: value if tensor is original else tensor)
    return is_smooth(subject, Case(case.index, there, case.varying), name) if is_float(value) else True


PROBE = Probe("layouts", "arguments and gradients in any memory layout give what contiguous ones give", run)
