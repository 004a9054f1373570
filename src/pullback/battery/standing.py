"""What an argument is to autograd, and what is switched on around a call: a result doesn't depend on it.

Whether a gradient will be asked for, whether an argument is a leaf, a parameter or what another operation gave, is no
business of a formula. Nor does a call change the settings of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense, replace
from pullback.battery.repro_standing import inference_lines, setting_lines, standing_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Output, Subject, text_of
from pullback.battery.trials import Result, Trial, by_name
from pullback.battery.written import written_only
from pullback.custom.decorated import decorated
from pullback.errors import PullbackError
from pullback.finding import Finding


@dataclass(frozen=True)
class _Way:
    """Another way to make the same call.

    Attributes:
        when: The words for it, after "when".
        under: What it runs in.
        code: The same as code; empty for none.
        tracked: Whether the arguments require grad, so that there are gradients.
        made: What is passed in the place of an argument that requires grad.
        passed: The same as code, with a place for the argument.
        leaf: Whether leaves are passed, as `Subject.fresh` makes them.
        start: Lines of code that `passed` relies on.
    """

    when: str
    under: Callable[[], AbstractContextManager[object]] = nullcontext
    code: str = ""
    tracked: bool = False
    made: Callable[[Tensor], Tensor] = lambda tensor: tensor
    passed: str = "{}"
    leaf: bool | None = None
    start: tuple[str, ...] = ()


UNTRACKED = (
    _Way("no argument requires grad", passed="{}.detach()"),
    _Way("it runs under torch.no_grad()", torch.no_grad, "torch.no_grad()"),
    _Way("it runs under torch.inference_mode()", torch.inference_mode, "torch.inference_mode()", passed="{}.clone()"),
)
"""Calls that nobody differentiates."""

_PYTORCHS = "Inference tensors"
"""What PyTorch says where a tensor made under inference_mode lacks something, such as a version counter."""

_NO_GRAPH = "element 0 of tensors does not require grad"
"""What it says where a forward that differentiates gets no graph: enable_grad makes one under no_grad alone."""

_PARAMETERS = _Way(
    "arguments are parameters of a module",
    tracked=True,
    made=lambda tensor: torch.nn.Parameter(tensor),
    passed="torch.nn.Parameter({})",
)
_RESULTS = _Way("arguments are results of other operations", tracked=True, passed="{}.clone()", leaf=False)


def _with_grad(tensor: Tensor) -> Tensor:
    parameter = torch.nn.Parameter(tensor)
    parameter.grad = torch.ones_like(parameter)
    return parameter


_ADDED_UP = _Way(
    "arguments hold a .grad already, as where gradients are added up",
    tracked=True,
    made=_with_grad,
    passed="with_grad({})",
    start=(
        "def with_grad(x):",
        "    parameter = torch.nn.Parameter(x)",
        "    parameter.grad = torch.ones_like(x)",
        "    return parameter",
    ),
)


def whoever_asks(subject: Subject, case: Case, alone: Result, *, thorough: bool = True) -> Iterator[Finding]:
    """A finding for the first way to make the call that gives another result than the plain one.

    Args:
        subject: Whose.
        case: The arguments.
        alone: What the plain call gives.
        thorough: Whether to try what arguments are, too, and not only whether anything is tracked.
    """
    if draws(subject, case).forward and draws(subject, case).backward:
        return
    handed_out = next((name for name, one in alone.gradients.items() if one is not None and one.is_inference()), "")
    if handed_out:
        yield _of_inference(subject, case, f"the gradient of {handed_out}", handed_out)
        return
    own = thorough and not subject.in_place and subject.definition is not None
    others = (_PARAMETERS, _RESULTS, _ADDED_UP) if own else ()
    # Of a decorated function, what is called where nothing is tracked is another function: the probe values asks it.
    for way in (*(() if decorated(subject.function) else UNTRACKED), *others):
        finding = _tried(subject, case, alone, way)
        if finding is not None:
            yield finding
            return


def _tried(subject: Subject, case: Case, alone: Result, way: _Way) -> Finding | None:
    with way.under():  # whose tensors are of its own kind under inference_mode
        inputs = subject.fresh(case, requires=None if way.tracked or way.code else (), leaf=way.leaf)
    swapped = {
        id(leaf.tensor): way.made(leaf.tensor) for leaf in inputs.varying if way.tracked and is_dense(leaf.tensor)
    }
    args, kwargs = (replace(nest, lambda t: swapped.get(id(t), t)) for nest in (inputs.args, inputs.kwargs))
    try:
        with way.under():
            outputs = subject.call(Inputs(args, kwargs, inputs.leaves))
        result = _result(subject, case, inputs, outputs, swapped) if way.tracked else _values(outputs)
        if not way.tracked and "inference" not in way.code:
            made = next((output.name for output in outputs if output.tensor.is_inference()), "")
            if made:
                return _of_inference(subject, case, f"{made}, when {way.when},", output=made)
        requires = None if way.tracked or way.code else ()
        written = written_only(subject, case, inputs, way.when, requires, way.under, way.code, leaf=way.leaf)
    except (ForwardRaised, BackwardRaised) as raised:
        gaps = (_PYTORCHS, _NO_GRAPH) if "inference_mode" in way.code else (_PYTORCHS,)
        if text_of(raised.error).startswith(gaps) or isinstance(raised.error, PullbackError):
            return None  # PyTorch's own gap, or an error with a code, which tells of itself
        what = "forward" if isinstance(raised, ForwardRaised) else "backward"
        return _finding(subject, case, way, f"{what} raises when {way.when}: {raised}", "no error", str(raised))
    known = alone if way.tracked else Result(alone.values, {})
    found = known.differs_from(result)
    if found is None:
        return written
    kind, mismatch, name = found
    message = f"the {kind} is another one when {way.when}"
    return _finding(subject, case, way, message, mismatch.expected, mismatch.got, name, mismatch.evidence)


def _of_inference(subject: Subject, case: Case, what: str, argument: str = "", output: str = "") -> Finding:
    """The finding of a tensor made under inference_mode that comes out to where that is off."""
    return subject.finding(
        "PB504",
        case,
        f"{what} is an inference tensor, and the caller isn't under torch.inference_mode()",
        argument=argument,
        output=output,
        expected="an ordinary tensor",
        got="one that can't be changed in place, as by a clip of gradients, nor be saved for backward",
        remedy="Compute under torch.no_grad() in place of torch.inference_mode(): what that makes stays of its kind.",
        repro=inference_lines(subject, case, argument, output),
    )


def _values(outputs: tuple[Output, ...]) -> Result:
    return Result({output.name: output.tensor.detach() for output in outputs}, {})


def _result(
    subject: Subject, case: Case, inputs: Inputs, outputs: tuple[Output, ...], swapped: Mapping[int, Tensor]
) -> Result:
    """Values and gradients, those for parameters by the leaves that they stand for."""
    cotangents = Trial(subject, case).cotangents
    leaves = [
        type(leaf)(leaf.name, made, leaf.argument) if made.is_leaf else leaf
        for leaf in inputs.varying
        for made in (swapped.get(id(leaf.tensor), leaf.tensor),)
    ]
    gradients = subject.gradients(outputs, [cotangent.clone() for cotangent in cotangents], leaves)
    return Result(_values(outputs).values, by_name(leaves, gradients))


def _finding(
    subject: Subject,
    case: Case,
    way: _Way,
    message: str,
    expected: str,
    got: str,
    name: str = "",
    evidence: Mapping[str, object] | None = None,
) -> Finding:
    gradient = message.startswith("the gradient")
    return subject.finding(
        "PB504",
        case,
        message,
        argument=name if gradient else "",
        what=way.when,
        expected=expected,
        got=got,
        remedy="Let forward and backward compute the same whoever asks: not by torch.is_grad_enabled(), requires_grad, "
        "is_leaf, needs_input_grad or the class of an argument, but for what is saved and which gradients are made.",
        evidence=dict(evidence or {}),
        repro=standing_lines(subject, case, way.code, way.passed, start=way.start, gradients=way.tracked),
    )


_Setting = tuple[str, Callable[[], object], Callable[[Any], object], tuple[object, object]]

_SETTINGS: tuple[_Setting, ...] = (
    ("torch.get_default_dtype()", torch.get_default_dtype, torch.set_default_dtype, (torch.float64, torch.float32)),
    (
        "torch.get_float32_matmul_precision()",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ("high", "highest"),
    ),
    (
        "torch.are_deterministic_algorithms_enabled()",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        (True, False),
    ),
)
"""Settings of the process: the code that asks for one, what gets it, what sets it, and two values of it."""


def settings_kept(subject: Subject, case: Case) -> Iterator[Finding]:
    """A finding for each setting of the process that a call or its backward leaves changed; it is put back.

    A setting that each call makes is the same after a call as before it: so the call is made where it is another. All
    are others at once, unless the call doesn't take that.
    """
    changed = _left_changed(subject, case, _SETTINGS)
    if changed is None:
        changed = [one for setting in _SETTINGS for one in _left_changed(subject, case, (setting,)) or ()]
    for code, put, given, now in changed:
        yield subject.finding(
            "PB504",
            case,
            f"a call and its backward leave {code} changed, for all that the process does from then on",
            what=code,
            expected=f"{given}, as before",
            got=str(now),
            remedy="Put it back as it was, in a finally clause, or do without.",
            repro=setting_lines(subject, case, code, f"{put.__module__}.{put.__name__}({given!r})"),
        )


def _left_changed(
    subject: Subject, case: Case, settings: tuple[_Setting, ...]
) -> list[tuple[str, Callable[[Any], object], object, object]] | None:
    """Of each setting that a call changes: its code, what sets it, what was set, and what is now; None if it raises."""
    known = [get() for _, get, _, _ in settings]
    given = [one if before != one else other for before, (_, _, _, (one, other)) in zip(known, settings, strict=True)]
    try:
        for (_, _, put, _), value in zip(settings, given, strict=True):
            put(value)
        raised = False
        try:
            inputs = subject.fresh(case)
            outputs = subject.call(inputs)
            subject.gradients(outputs, [subject.cotangent(o.tensor) for o in outputs], inputs.varying)
        except (ForwardRaised, BackwardRaised):
            raised = True
        found = [
            (code, put, value, now)
            for (code, get, put, _), value in zip(settings, given, strict=True)
            for now in (get(),)
            if now != value
        ]
    finally:
        for (_, _, put, _), before in zip(settings, known, strict=True):
            put(before)
    return None if raised and len(settings) > 1 else found
