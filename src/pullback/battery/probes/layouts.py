"""Arguments and gradients in any memory layout give what contiguous ones give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.arrangements import arrangements
from pullback.battery.compare import Mismatch, compare, natural_scale
from pullback.battery.curves import is_smooth
from pullback.battery.leaves import is_float
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import argument_lines, layout_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Leaf, Output, Subject, with_tensors
from pullback.battery.tolerances import SAME, Tolerance, for_gradients
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Try gradients, then arguments, in each layout."""
    for case in subject.cases:
        yield from _gradients(subject, case)
        if case.may_vary("layout"):
            for name in [leaf.name for leaf in subject.fresh(case).leaves]:
                yield from _argument(subject, case, name)


def _gradients(subject: Subject, case: Case) -> Iterator[Finding]:
    """One finding for all layouts of a gradient that come out wrong, one for all that raise."""
    outputs = subject.call(subject.fresh(case))
    tracked = [output for output in outputs if output.tensor.requires_grad]
    for place, output in enumerate(tracked):
        others = [subject.cotangent(o.tensor) for o in tracked]
        wrong: dict[str, tuple[Leaf, Mismatch]] = {}
        raising: dict[str, BackwardRaised] = {}
        for layout, plain, arranged in arrangements(subject.cotangent(output.tensor)):
            if arranged.is_contiguous() and layout != "offset":
                continue
            leaves, expected = _pull(subject, case, place, others, plain)
            try:
                _, got = _pull(subject, case, place, others, arranged)
            except BackwardRaised as raised:
                raising[layout] = raised
                continue
            for leaf, one, other in zip(leaves, expected, got, strict=True):
                scale = natural_scale([output.tensor], [plain], leaf.tensor)
                bad = compare(one, other, _tolerance(case, leaf.tensor), scale=scale)
                if bad is not None:
                    wrong.setdefault(layout, (leaf, bad))
        grad_output = f"grad_output {place}" if len(tracked) > 1 else "grad_output"
        yield from _about_gradients(subject, case, grad_output, output, wrong, raising)


def _about_gradients(
    subject: Subject,
    case: Case,
    grad_output: str,
    output: Output,
    wrong: dict[str, tuple[Leaf, Mismatch]],
    raising: dict[str, BackwardRaised],
) -> Iterator[Finding]:
    if wrong:
        layout, (leaf, bad) = next(iter(wrong.items()))
        yield subject.finding(
            "PB405",
            case,
            f"the gradient of {leaf.name} is wrong where {grad_output} is {' or '.join(wrong)}",
            output=output.name,
            what=f"{grad_output} {layout}",
            expected=f"{bad.expected} as for a contiguous one",
            got=bad.got,
            evidence={**bad.evidence, "layouts": list(wrong)},
            repro=layout_lines(subject, case, leaf.name, layout),
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
            repro=layout_lines(subject, case, next(iter(sorted(case.varying))), layout),
        )


def _pull(
    subject: Subject, case: Case, place: int, others: list[torch.Tensor], cotangent: torch.Tensor
) -> tuple[tuple[Leaf, ...], tuple[torch.Tensor | None, ...]]:
    inputs = subject.fresh(case)
    tracked = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    cotangents = [cotangent if i == place else other for i, other in enumerate(others)]
    return inputs.varying, subject.gradients(tracked, cotangents, inputs.varying)


def _argument(subject: Subject, case: Case, name: str) -> Iterator[Finding | Note]:
    original = subject.fresh(case).leaf(name).tensor
    for layout, plain, arranged in arrangements(original):
        try:
            _, expected_outputs, cotangents, expected = _with(subject, case, name, plain, None)
        except (ForwardRaised, BackwardRaised):
            continue  # other values than the author's, which forward need not take
        try:
            leaves, outputs, _, got = _with(subject, case, name, arranged, cotangents)
        except ForwardRaised as refused:
            yield Note(f"refused: {name} {layout}, {case.label}: {refused}")
            continue
        except BackwardRaised as raised:
            yield subject.finding(
                "PB407",
                case,
                f"backward raises where {name} is {layout}, and not where it is contiguous: {raised}",
                argument=name,
                what=layout,
                got=str(raised),
            )
            return
        tensors = [output.tensor for output in expected_outputs]
        pairs = [(a.name, a.tensor, o.tensor, 0.0) for a, o in zip(expected_outputs, outputs, strict=False)]
        pairs += [
            (f"the gradient of {leaf.name}", a, b, natural_scale(tensors, cotangents, leaf.tensor))
            for leaf, a, b in zip(leaves, expected, got, strict=True)
            if a is not None and b is not None
        ]
        for what, one, other, scale in pairs:
            bad = compare(one, other, _tolerance(case, other), scale=scale)
            if bad is None or (scale and not _has_gradient(subject, case, name, plain)):
                continue
            yield subject.finding(
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
            return


def _has_gradient(subject: Subject, case: Case, name: str, value: torch.Tensor) -> bool:
    """Whether forward is smooth where `name` is `value`; among repeated elements, ties, any choice is right."""
    original = next(tensor for path, _, tensor in subject.named_tensors(case.sample) if path == name)
    there = with_tensors(case.sample, lambda tensor: value if tensor is original else tensor)
    return is_smooth(subject, Case(case.index, there, case.varying), name) if is_float(value) else True


def _with(
    subject: Subject, case: Case, name: str, value: torch.Tensor, cotangents: list[torch.Tensor] | None
) -> tuple[tuple[Leaf, ...], tuple[Output, ...], list[torch.Tensor], tuple[torch.Tensor | None, ...]]:
    """One call with `value` for the leaf `name`: its leaves, outputs, cotangents and gradients."""
    inputs = subject.fresh(case, change=lambda leaf, tensor: value.detach() if leaf == name else tensor)
    outputs = subject.call(inputs)
    if cotangents is None:
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
    return inputs.varying, outputs, cotangents, subject.gradients(outputs, cotangents, inputs.varying)


def _tolerance(case: Case, tensor: torch.Tensor) -> Tolerance:
    return SAME if case.exact or not is_float(tensor) else for_gradients(tensor.dtype)


PROBE = Probe("layouts", "arguments and gradients in any memory layout give what contiguous ones give", run)
