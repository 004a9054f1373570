"""A batch of cotangents, as for a Jacobian, gives what a loop over them gives (``is_grads_batched=True``)."""

from __future__ import annotations

import ast
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from textwrap import shorten

import torch

from pullback.battery.advice import is_pullback
from pullback.battery.compare import compare, natural_scale
from pullback.battery.cotangents import POINTERS, DataError, ReadError, Watched, pulled
from pullback.battery.draws import draws
from pullback.battery.expected import takes_a_batch
from pullback.battery.leaves import is_dense
from pullback.battery.lower import Lowered, or_in_lower
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import REASON, Note, Probe, Skip
from pullback.battery.probes.batching import claims_batching
from pullback.battery.repro_transforms import cotangents_lines
from pullback.battery.subject import BackwardRaised, Case, Subject, one_line, text_of
from pullback.battery.targets import shorten as short_path
from pullback.battery.targets import user_line
from pullback.battery.tolerances import for_gradients
from pullback.finding import Finding
from pullback.rules import Severity

_LOST = frozenset({"PB206", "PB207"})
_EXPECTED = "what a loop over 2 cotangents gives"
_INSTEAD = {
    "detach": "Leave detach out: backward runs without a graph unless one is asked for, and then detach hides a part "
    "of the second derivative.",
    "flatten": "Write reshape in place of flatten.",
    "unflatten": "Write reshape in place of unflatten.",
    "swapaxes": "Write transpose in place of swapaxes.",
    **dict.fromkeys(POINTERS, "Don't ask where a gradient lies: nothing of it is computed from that."),
}
_READ = (
    "Decide nothing by the values of grad_output, but compute: torch.where in the place of if, or leave the shortcut "
    "out. On a GPU the question also waits for all work that is queued."
)
_ITERATED = (
    "An iteration that asks whether it has converged can't take a batch of cotangents, and PyTorch refuses one loudly: "
    "a fixed number of steps could take it, and so could torch.linalg.solve."
)
_WRITTEN = re.compile(r"vmap: (?:aten::)?(\w+?)_?(?:\.\w+)?\(self, \*extra_args\) is not possible")
_FILLED = (
    "Make the tensor that is written to from grad_output (grad_output.new_zeros(...)), so that it holds a batch too; "
    "or write what gives a new tensor in the place of {name}_ (scatter, index_add, torch.cat, torch.where)."
)
_LACKING = re.compile(r"not implemented for '\w+'|[Ll]ow precision dtypes not supported")
_NO_PLACE = re.compile(r"Cannot access (data pointer|storage)")
_DATA = (
    "Read the tensor itself: backward runs without a graph unless one is asked for, and then .data hides a part of "
    "the second derivative."
)


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Pull two cotangents back at once, and one by one, for each sample."""
    if _nonlinear(subject) and not all(takes_a_batch(subject, case) for case in subject.cases):
        raise Skip("backward is declared not to be linear, so that there is no Jacobian")
    refused: set[int] = set()  # what can't be batched in float64 is nothing to ask of lower dtypes

    def in_lower(subject: Subject, low: Lowered) -> Iterator[Finding | Note]:
        if low.index not in refused:
            yield from _compared(subject, low)

    yield from or_in_lower(subject, _each(subject, refused), in_lower)
    yield from passed_over(subject)


def _each(subject: Subject, refused: set[int]) -> Iterator[Finding | Note]:
    """The samples one by one, up to a finding; adds the numbers of those that can't be compared to `refused`."""
    reasons = list[str]()
    cases = telling(subject)
    for case in cases:
        found = list(_compared(subject, case))
        notes = [entry.text for entry in found if isinstance(entry, Note)]
        reasons += notes
        refused.update([case.index] if notes else [])
        findings = [entry for entry in found if isinstance(entry, Finding)]
        yield from findings
        if findings:
            break
    if reasons and len(refused) == len(cases):
        raise Skip(reasons[0])
    yield from map(Note, reasons)


def _compared(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    inputs = subject.fresh(case)
    outputs = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    if not outputs or not all(is_dense(output.tensor) for output in outputs):
        yield Note(f"{case.label}: no dense output requires grad")
        return
    rows = [[subject.cotangent(output.tensor) for output in outputs] for _ in range(2)]
    random = draws(subject, case).backward
    names = [leaf.name for leaf in inputs.varying]
    loop = [dict(zip(names, _alone(subject, case, row), strict=True)) for row in rows]
    batches = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    try:
        came = pulled(subject, outputs, batches, inputs.varying, Watched())
    except BackwardRaised as raised:
        if not random or isinstance(raised.error, (DataError, ReadError)):
            yield _raises(subject, case, batches, raised.error)
            return
    if random:
        yield Note(f"{case.label}: backward draws random numbers")
        return
    for leaf, batch in zip(inputs.varying, came, strict=True):
        wanted = [row[leaf.name] for row in loop]
        if batch is None and all(part is None for part in wanted):
            continue
        zeros = torch.zeros_like(leaf.tensor.detach())
        expected = torch.stack([zeros if part is None else part for part in wanted])
        scale = natural_scale([output.tensor for output in outputs], rows[0], leaf.tensor)
        bad = compare(expected, batch, for_gradients(leaf.tensor.dtype), scale=scale)
        if bad is not None:
            yield subject.finding(
                "PB509",
                case,
                f"the gradient of {leaf.name} for a batch of cotangents (is_grads_batched=True) differs from that of "
                "a loop",
                argument=leaf.name,
                what="2 cotangents at once",
                expected=f"{bad.expected}, as from a loop over 2 cotangents",
                got=bad.got,
                remedy="Let backward treat a batch of cotangents as it treats one: compute with PyTorch's operations "
                "on grad_output alone, and keep nothing of it.",
                evidence=bad.evidence,
                repro=cotangents_lines(subject, case, leaf.name),
            )
            return


def _alone(subject: Subject, case: Case, row: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    inputs = subject.fresh(case)
    outputs = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    return subject.gradients(outputs, row, inputs.varying)


def _raises(subject: Subject, case: Case, batches: Sequence[torch.Tensor], error: BaseException) -> Finding | Note:
    """A finding where an operator is at fault that needn't be there; else PyTorch can't batch what backward does."""
    lost = sorted(subject.found & _LOST)  # of which .data and detach are the cause: one finding is enough
    if isinstance(error, DataError):
        if lost:
            return Note(f"{case.label}: {error}, which {lost[0]} tells already")
        return subject.finding(
            "PB509",
            case,
            f"{error}: torch.autograd.grad(is_grads_batched=True) then ends the process",
            what="2 cotangents at once",
            expected=_EXPECTED,
            got="a crash, or under torch.vmap a RuntimeError",
            remedy=_DATA,
            repro=cotangents_lines(subject, case, crashes=True),
        )
    if isinstance(error, ReadError):
        return _reads(subject, case, error)
    text = one_line(error)
    if _nonlinear(subject):
        return _refused(case, text)
    written = _WRITTEN.search(text_of(error))
    if written is not None:
        return _fills(subject, case, error, written[1])
    eased = Watched(eased=True, placed=_NO_PLACE.search(text_of(error)) is not None)
    inputs = subject.fresh(case)
    outputs = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    try:
        pulled(subject, outputs, batches, inputs.varying, eased)
    except BackwardRaised:
        if isinstance(case, Lowered) and not _LACKING.search(text_of(error)):
            return _raises_there(subject, case, text)
        return _refused(case, text)
    names = sorted(eased.replaced)
    if names == ["detach"] and (lost or _cut_on_purpose(subject)):
        why = f"{lost[0]} tells it already" if lost else "its own derivative is written by hand, or ruled out"
        return Note(f"{case.label}: backward calls detach, so a batch of cotangents raises; {why}")
    return subject.finding(
        "PB509",
        case,
        f"backward calls {' and '.join(names)} on grad_output or what it makes of it, which PyTorch can't do for a "
        f"batch of cotangents: {text}",
        what="2 cotangents at once",
        # Loud, and a gap of PyTorch's own; but detach is a fault wherever backward is differentiated, and a batch has
        # no address.
        severity=Severity.WARNING if {"detach", *POINTERS} & set(names) else Severity.HINT,
        expected=_EXPECTED,
        got=text,
        remedy=" ".join(dict.fromkeys(_INSTEAD[name] for name in names)),
        evidence={"raised": type(error).__name__},
        repro=cotangents_lines(subject, case, fails=True),
    )


def _refused(case: Case, text: str) -> Note:
    return Note(shorten(f"refused: {case.label}: 2 cotangents at once: {text}", REASON, placeholder=" …"))


def _nonlinear(subject: Subject) -> bool:
    """Whether there is no Jacobian; several cotangents at once are still pulled back as each alone, as in a vmap."""
    return subject.definition is not None and subject.definition.nonlinear_backward


def _reads(subject: Subject, case: Case, error: ReadError) -> Finding | Note:
    """The finding where backward asks for a value of grad_output, with the line that does."""
    place, line = user_line(error, subject.location.rpartition(":")[0])
    at = f" ({place}: {line})" if line else ""
    if error.how == "tolist()":  # written down for people, as a rule, and nothing is decided by it
        return Note(f"refused: {case.label}: 2 cotangents at once: backward lists the values of grad_output{at}")
    iterated = _stands_in_a_loop(error, place)
    return subject.finding(
        "PB509",
        case,
        f"backward asks for a value of grad_output, by {error.how}{at}: a batch of cotangents, as "
        "torch.autograd.grad(is_grads_batched=True) and jacobian(vectorize=True) make them, has several",
        what="2 cotangents at once",
        # A solver has to ask when to stop, and what it can't do is refused; a shortcut can be left out.
        severity=Severity.HINT if iterated else Severity.WARNING,
        expected=_EXPECTED,
        got="a RuntimeError",
        remedy=_ITERATED if iterated else _READ,
        evidence={"raised": "RuntimeError", "asked": error.how},
        repro=cotangents_lines(subject, case, fails=True),
    )


def _stands_in_a_loop(error: BaseException, place: str) -> bool:
    """Whether the line at `place` (``file.py:7``), which the error came through, is in a loop of its function."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.lineno is None or f"{short_path(frame.filename)}:{frame.lineno}" != place:
            continue
        try:
            tree = ast.parse("".join(linecache.getlines(frame.filename)))
        except SyntaxError:
            return False
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.Lambda))
            and node.lineno <= frame.lineno <= (node.end_lineno or node.lineno)
        ]
        innermost = max(around, key=lambda node: (node.lineno, node.col_offset), default=None)
        return isinstance(innermost, (ast.For, ast.While))
    return False


def _fills(subject: Subject, case: Case, error: BaseException, name: str) -> Finding:
    """The finding where backward writes what it makes of a batch into a tensor that holds one entry."""
    place, line = user_line(error, subject.location.rpartition(":")[0])
    at = f" ({place}: {line})" if line else ""
    return subject.finding(
        "PB509",
        case,
        f"backward writes what it makes of grad_output, by {name}_, into a tensor that isn't made of it{at}: that has "
        "no room for a batch of cotangents, as torch.autograd.grad(is_grads_batched=True) and jacobian(vectorize=True) "
        "make them",
        what="2 cotangents at once",
        # Right and loud: a limit of PyTorch's, unless the class says that it can be batched, as all of pullback's do.
        severity=Severity.WARNING if is_pullback(subject) or claims_batching(subject) else Severity.HINT,
        expected=_EXPECTED,
        got=one_line(error),
        remedy=_FILLED.format(name=name),
        evidence={"raised": type(error).__name__, "written": name},
        repro=cotangents_lines(subject, case, fails=True),
    )


def _raises_there(subject: Subject, case: Lowered, text: str) -> Finding:
    """The finding where a batch raises in a lower dtype, though a batch in float64 doesn't, nor a loop there."""
    return subject.finding(
        "PB509",
        case,
        f"backward raises for a batch of cotangents in {case.name}, and not in float64, nor one by one: {text}",
        what="2 cotangents at once",
        severity=Severity.WARNING,
        expected=_EXPECTED,
        got=text,
        remedy="Let backward do in each dtype what it does in float64.",
        evidence={"raised": text.partition(":")[0]},
        repro=cotangents_lines(subject, case, fails=True),
    )


def _cut_on_purpose(subject: Subject) -> bool:
    """Whether nobody differentiates what backward computes, so that it may well be detached."""
    definition = subject.definition
    return definition is not None and (definition.double_backward is not None or definition.once_differentiable)


PROBE = Probe("jacobian", "a batch of cotangents (is_grads_batched) gives what a loop over them gives", run)
