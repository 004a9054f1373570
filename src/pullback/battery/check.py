"""`check` and `assert_correct`: the whole battery on one function, as data or as an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pullback.battery import battery, causes
from pullback.battery.leaves import why_unusable
from pullback.battery.modules import reference_of
from pullback.battery.probe import Probe
from pullback.battery.samples import behind_apply, find_samples
from pullback.battery.subject import Subject, one_line
from pullback.battery.surroundings import tracking
from pullback.battery.symmetric import symmetric_arguments
from pullback.battery.untested import untested
from pullback.custom.decorated import Decorated
from pullback.define.definition import Definition, describe
from pullback.errors import CallError, CheckFailedError, MissingMethodError, SampleError
from pullback.finding import LARGEST_SEED, Finding, Outcome, Report


def check(
    function: Any,
    *samples: object,
    reference: Callable[..., Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    orders: int = 2,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Try to prove `function` wrong, and report what was found.

    Args:
        function: A Function's class (PyTorch's or pullback's), or any differentiable callable.
        samples: The arguments to try it with: tuples, or `Sample`s. Without any, those registered, declared by a
            ``samples()`` static method, or inferred from the signature.
        reference: forward's definition in plain PyTorch; the class's own unless given.
        surrogate: The function whose derivative backward implements, where it isn't forward's on purpose.
        only: Names of the probes to run, or one name; all unless given.
        skip: Names of probes to leave out.
        orders: The highest derivative order that is tried, 1 or 2.
        device: Where to run; the samples' own device unless given.
        seed: Repeats the run; from 0 to 2**32 - 1.
        progress: Called with each probe's name before it runs.

    Returns:
        The report: findings, outcomes by probe, and what was not tested.

    Raises:
        SampleError: If the samples can't be used, or none can be found (PB121).
        CallError: If an instance of a Function came in place of its class (PB108).
        ValueError: If a probe's name isn't known, `seed` or `orders` is out of range, or `device` isn't there.
    """
    probes = battery.select(only, skip, orders=orders)
    subject = make_subject(
        function, *samples, reference=reference, surrogate=surrogate, orders=orders, device=device, seed=seed
    )
    outcomes: dict[str, Outcome] = {}
    findings: list[Finding] = []
    for probe in probes:
        if progress is not None:
            progress(probe.name)
        for name, outcome, found in battery.run(subject, [probe], seed=seed):
            outcomes[name] = outcome
            findings += found
    return make_report(subject, probes, outcomes, findings)


def assert_correct(function: Any, *samples: object, **options: Any) -> None:
    """Like `check`, but raise where the report isn't clean of errors and warnings.

    Raises:
        CheckFailedError: With the report as its text.
    """
    report = check(function, *samples, **options)
    if not report.ok:
        worst = report.findings[0]
        message = f"{report.function} is not right\n{report}"
        raise CheckFailedError(worst.rule, message, remedy=worst.remedy)


def make_subject(
    function: Any,
    *samples: object,
    reference: Callable[..., Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
    orders: int = 2,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Subject:
    """`function` with its samples, ready for the battery; the arguments are those of `check`.

    Raises:
        SampleError: If the samples can't be used, or none can be found (PB121).
        MissingMethodError: If the class has no forward (PB107), a decorated function no derivative (PB112).
    """
    if orders not in (1, 2):
        raise ValueError(f"orders is 1 or 2, not {orders!r}")
    if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed is a number from 0 to {LARGEST_SEED}, not {seed!r}")
    function = _class_of(function)
    definition = _definition(function)
    with tracking():
        found = find_samples(function, samples, definition, seed=seed)
    if definition is not None:
        reference = reference or definition.reference
        surrogate = surrogate or definition.surrogate
    subject = Subject(
        function=function,
        name=definition.name if definition is not None else getattr(function, "__qualname__", repr(function)),
        location=definition.location if definition is not None else _location(function),
        definition=definition,
        samples=found,
        reference=reference,
        surrogate=surrogate,
        seed=seed,
        device=_usable(device),
        orders=orders,
    )
    _demand_usable(subject)
    if subject.reference is None and subject.surrogate is None:
        subject.reference = reference_of(subject)
    subject.symmetric = symmetric_arguments(subject)
    return subject


def _usable(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, TypeError, AssertionError) as error:  # the last without CUDA
        raise ValueError(f"device {device!r} can't be used: {one_line(error)}") from None
    return made


def make_report(
    subject: Subject, probes: Iterable[Probe], outcomes: dict[str, Outcome], findings: Iterable[Finding]
) -> Report:
    """The report of a run: one finding for each cause, and what was left untested."""
    return Report(
        function=subject.name,
        findings=causes.merge(findings),
        outcomes=outcomes,
        samples=str(subject.samples),
        untested=untested(subject, probes, outcomes),
        seed=subject.seed,
        location=subject.location,
    )


def _definition(function: Any) -> Definition | None:
    if not isinstance(function, type):
        if not callable(function):
            raise SampleError(
                "PB121",
                f"{function!r:.60} can't be called",
                expected="a Function's class, or a callable that takes tensors and returns tensors",
                got=f"{type(function).__name__} {function!r:.60}",
                remedy="Pass the class or the callable itself: check(Square), check(Square, (x,)).",
            )
        return None
    if not issubclass(function, torch.autograd.Function):
        raise TypeError(f"{function.__name__} is not a subclass of torch.autograd.Function")
    definition = describe(function)
    if definition.forward is None:
        raise MissingMethodError("PB107", f"{definition.name} has no forward: it can be inherited from, not checked")
    return definition


def _class_of(function: Any) -> Any:
    """The class, where its bound ``apply`` came; anything else as it is."""
    if isinstance(function, Decorated):
        function.demand_rule()
    if isinstance(function, torch.autograd.Function):
        name = type(function).__name__
        raise CallError(
            "PB108",
            f"an instance of {name} can't be checked",
            expected=f"the class itself: check({name}, …)",
            got=f"check({name}(), …)",
            remedy="Pass the class: a Function is never instantiated.",
        )
    return behind_apply(function)


def _demand_usable(subject: Subject) -> None:
    """Refuse samples with tensors that can't be copied, moved by a little and rearranged."""
    for index, sample in enumerate(subject.samples.samples):
        for name, _, tensor in subject.named_tensors(sample):
            kind = why_unusable(tensor)
            if kind:
                raise SampleError(
                    "PB121",
                    f"sample {index} can't be used: {name} is {kind}",
                    expected="dense tensors with data; sparse ones where they don't require grad",
                    got=f"a tensor that is {kind}",
                    remedy=f"Check a callable that makes {name} from dense tensors with data.",
                )


def _location(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
