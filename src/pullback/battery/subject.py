"""What the probes try: a function, its samples as `Case`s, fresh copies of their arguments, and repeatable calls.

A probe asks the `Subject` for everything: `fresh` arguments, a `call`, `gradients`, a `finding`. So inputs are never
shared between experiments, each call starts from the same random state, and errors come back told apart: forward's as
`ForwardRaised`, backward's as `BackwardRaised`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pullback.battery.case import Case, Inputs, Leaf, Output, outputs_in, positional_names, with_tensors
from pullback.battery.copies import Change, Names, Template
from pullback.battery.leaves import copy_of, is_dense, is_float, tensors
from pullback.battery.raised import RAISED, BackwardRaised, ForwardRaised, one_line, shows_fault, text_of
from pullback.battery.randomness import own_seed, reseed
from pullback.battery.samples import GUESSED, Sample, Samples
from pullback.battery.surroundings import default_device, under
from pullback.battery.verdict import failing, with_seeds
from pullback.custom.decorated import call_of
from pullback.define.definition import Definition
from pullback.errors import PullbackError
from pullback.finding import Finding
from pullback.rules import RULES, Severity

__all__ = [
    "BackwardRaised",
    "Case",
    "Change",
    "ForwardRaised",
    "Inputs",
    "Leaf",
    "Output",
    "Subject",
    "one_line",
    "outputs_in",
    "positional_names",
    "text_of",
    "with_tensors",
]


@dataclass(eq=False)
class Subject:
    """A function under test.

    Attributes:
        function: The Function's class, or any callable.
        name: Its name in findings.
        location: ``file.py:12``, if known.
        definition: What the author wrote, for classes; None for plain callables.
        samples: The arguments to try, and where they came from.
        reference: forward's definition in plain PyTorch, if known.
        surrogate: The function whose derivative backward implements, if that isn't forward.
        seed: Repeats everything.
        device: Where the samples are moved to; None leaves them.
        orders: The highest derivative order that is tried.
        surroundings: The default device of whoever asked for the check; forward runs under it.
        random: For what a probe draws; seeded anew for each probe.
        cache: Results that probes share, by a key of their own.
        inapplicable: The probes that have nothing to try on this function.
        in_place: Whether forward works in place, so that it must not be given leaves that require grad.
        symmetric: The names of the leaves that are meant to be symmetric matrices, and stay so in each copy.
        said: pullback's own errors that came out of a call and show a fault, whatever the probe made of them.
        found: The rules that the probes themselves have found so far.
        left_out: What probes had no time for, in words: ``compiled: …``.
    """

    function: Any
    name: str
    location: str
    definition: Definition | None
    samples: Samples
    reference: Callable[..., Any] | None = None
    surrogate: Callable[..., Any] | None = None
    seed: int = 0
    device: torch.device | None = None
    orders: int = 2
    surroundings: torch.device = field(default_factory=default_device)
    random: torch.Generator = field(default_factory=torch.Generator)
    cache: dict[Any, Any] = field(default_factory=dict)
    inapplicable: set[str] = field(default_factory=set)
    in_place: bool = False
    symmetric: frozenset[str] = frozenset()
    said: list[PullbackError] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    # -- samples and arguments ------------------------------------------------------------------------------------

    @cached_property
    def all_cases(self) -> tuple[Case, ...]:
        """Every sample as a case, those that don't work included."""
        return tuple(self._case(index, sample) for index, sample in enumerate(self.samples.samples))

    @cached_property
    def troubles(self) -> dict[int, Exception]:
        """Sample number -> what forward or backward raised for it (`ForwardRaised` or `BackwardRaised`)."""
        with self.drawing_for("troubles"):
            return {case.index: trouble for case in self.all_cases if (trouble := self._trouble(case)) is not None}

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases on which forward and backward run, if only as they came; the probe `runs` reports the others."""
        known = ((case, self.lowered.get(case.index)) for case in self.all_cases)
        return tuple(low or case for case, low in known if low or case.index not in self.troubles)

    @cached_property
    def lowered(self) -> dict[int, Case]:
        """Sample number -> the case as it came, where backward raises in float64, and not in the dtypes that came."""
        raising = [case for case in self.all_cases if isinstance(self.troubles.get(case.index), BackwardRaised)]
        came = {case.index: self.as_given(case) for case in raising if case.exact}
        with self.drawing_for("lowered"):
            return {index: low for index, low in came.items() if _is_lower(low) and self._trouble(low) is None}

    def as_given(self, case: Case) -> Case:
        """The case in the dtypes in which the sample came."""
        given = self.samples.samples[case.index]
        if self.device is not None:
            given = with_tensors(given, lambda tensor: tensor.detach().to(self.device))
        return Case(case.index, given, case.varying, exact=False)

    def fresh(
        self, case: Case, *, requires: Names | None = None, change: Change | None = None, leaf: bool | None = None
    ) -> Inputs:
        """Copies of the case's arguments that keep strides, dtypes and which tensors are the same one.

        Args:
            case: The case.
            requires: The names of the leaves that require grad; the case's own unless given.
            change: Makes another tensor of each copied one: a layout, a dtype, other values.
            leaf: Whether to pass leaves; None passes them unless the Function works in place.
        """
        wanted = case.varying if requires is None else requires
        held, made_for = self.in_place if leaf is None else not leaf, self._template(case.sample)
        return made_for.copies(case.sample, wanted, change, non_leaves=held, symmetric=self.symmetric)

    # -- calls ----------------------------------------------------------------------------------------------------

    def raw_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Any:
        """What the function (or `function` in its place) returns, from the same random state each time.

        Raises:
            ForwardRaised: If it raises.
        """
        call = function if function is not None else self.callable
        self.reseed()
        try:
            with under(self.surroundings):
                return call(*inputs.args, **inputs.kwargs)
        except RAISED as error:
            self.note(error)
            raise ForwardRaised(error) from error

    def note(self, error: BaseException) -> None:
        """Remember an error if it is pullback's own word on a fault: the battery reports it after the probe."""
        if isinstance(error, PullbackError) and shows_fault(error):
            self.said.append(error)

    def call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> tuple[Output, ...]:
        """The tensors in what the function returns.

        Raises:
            ForwardRaised: If it raises.
        """
        return outputs_in(self.raw_call(inputs, function))

    def output_name(self, case: Case, position: int) -> str:
        """What an output is called, such as ``output[1]`` or ``output['y']``; calls the function to see."""
        return self.call(self.fresh(case))[position].name

    def gradients(
        self,
        outputs: Sequence[Output],
        cotangents: Sequence[torch.Tensor],
        leaves: Sequence[Leaf],
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
        share: bool = False,
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient for each leaf; None where none came.

        Args:
            outputs: What to differentiate; those that don't require grad are left out.
            cotangents: One for each output. backward gets copies in the same layout, so that it can't spoil them.
            leaves: What to differentiate by.
            retain_graph: Whether the graph is used again.
            create_graph: Whether the gradients are differentiated; the cotangents then go in as they are.
            share: Whether backward gets the cotangents themselves, to see what it does to them.

        Raises:
            BackwardRaised: If backward raises.
        """
        safe = share or create_graph
        pairs = [
            (output.tensor, cotangent if safe else copy_of(cotangent))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output.tensor.requires_grad
        ]
        if not pairs or not leaves:
            return (None,) * len(leaves)
        self.reseed(backward=True)
        try:
            return torch.autograd.grad(
                [tensor for tensor, _ in pairs],
                [leaf.tensor for leaf in leaves],
                [cotangent for _, cotangent in pairs],
                retain_graph=retain_graph or create_graph,
                create_graph=create_graph,
                allow_unused=True,
            )
        except RAISED as error:
            raise BackwardRaised(error) from error

    def reseed(self, *, backward: bool = False) -> None:
        """Put the global generators into the state that each call starts from, or each backward.

        These are two, as in use: a mask that is drawn in forward and drawn again in backward is another one.
        """
        reseed(own_seed(self.seed, "backward") if backward else self.seed, self.runs_on)
        for put_back in () if backward else self.samples.generators:
            put_back()

    @cached_property
    def runs_on(self) -> torch.device:
        """The device of the calls: where the samples are moved to, or where their first tensor is."""
        named = (tensor for sample in self.samples.samples for _, _, tensor in self.named_tensors(sample))
        first = next(named, None)
        return self.device or (first.device if first is not None else torch.device("cpu"))

    def cotangent(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense random cotangent for an output: contiguous, no element near 0."""
        signs = torch.randint(0, 2, tensor.shape, generator=self.random).mul_(2).sub_(1)
        sizes = torch.rand(tensor.shape, generator=self.random, dtype=torch.float64).add_(0.5)
        values = sizes.mul_(signs).to(tensor.device)
        if tensor.is_complex():
            other = torch.rand(tensor.shape, generator=self.random, dtype=torch.float64).to(tensor.device) + 0.5
            return torch.complex(values, other).to(tensor.dtype)
        return values.to(tensor.dtype)

    @contextmanager
    def drawing_for(self, purpose: str) -> Iterator[None]:
        """Draw from a generator of its own, so that what probes share doesn't depend on who asked first."""
        outer = self.random
        self.random = torch.Generator().manual_seed(own_seed(self.seed, purpose))
        try:
            yield
        finally:
            self.random = outer

    # -- findings -------------------------------------------------------------------------------------------------

    def finding(
        self,
        rule: str,
        case: Case | None,
        message: str,
        *,
        argument: str = "",
        output: str = "",
        what: str = "",
        expected: str = "",
        got: str = "",
        remedy: str = "",
        repro: str = "",
        severity: Severity | None = None,
        evidence: dict[str, object] | None = None,
    ) -> Finding:
        """A finding about this function; `argument`, `output`, `what` and the case make up its `where`."""
        if self.samples.guessed:
            remedy = f"{remedy or RULES[rule].remedy} {GUESSED}"
        parts = [f"argument {argument}" if argument else "", output, what, case.label if case is not None else ""]
        known: dict[str, object] = {"argument": argument, "output": output}
        if case is not None:
            known["sample"] = case.index
        return Finding(
            rule=rule,
            function=self.name,
            where=", ".join(part for part in parts if part),
            message=message,
            expected=expected,
            got=got,
            remedy=remedy,
            repro=failing(with_seeds(repro, self._seeds(case) if repro else ()), self._dtypes(case)),
            severity=severity,  # type: ignore[arg-type]  # None takes the rule's own
            evidence={key: value for key, value in {**known, **(evidence or {})}.items() if value != ""},
            location=self.location,
        )

    def _seeds(self, case: Case | None) -> list[str]:
        """The lines that seed what backward draws from, if it draws; not as forward is seeded, as it isn't here."""
        from pullback.battery.draws import draws, seed_lines  # here, since it is made of what this module defines

        try:
            found = draws(self, case) if case is not None else None
        except (ForwardRaised, BackwardRaised):
            return []
        return seed_lines(found.generators, 1) if found is not None and found.backward else []

    def _dtypes(self, case: Case | None) -> list[torch.dtype]:
        tensors = self.named_tensors(case.sample) if case is not None else ()
        return [tensor.dtype for _, _, tensor in tensors if is_float(tensor)]

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def callable(self) -> Callable[..., Any]:
        """What is called: the class's apply, or the function itself."""
        return call_of(self.function)

    def named_tensors(self, sample: Sample) -> Sequence[tuple[str, str, torch.Tensor]]:
        """Path, parameter and tensor for each tensor among the arguments."""
        return self._template(sample).named

    def _template(self, sample: Sample) -> Template:
        """What is known of a sample, which is asked for at each call."""
        known = self._templates.get(id(sample))
        if known is None:
            key = id(sample)
            # A variant is forgotten with the last who holds it, before its id can be another's.
            forget = weakref.ref(sample, lambda _: self._templates.pop(key, None))
            known = forget, Template(sample, self._find_tensors(sample))
            self._templates[key] = known
        return known[1]

    @cached_property
    def _templates(self) -> dict[int, tuple[weakref.ref[Sample], Template]]:
        """The templates of the samples that are in use, by their identity."""
        return {}

    def _find_tensors(self, sample: Sample) -> Iterator[tuple[str, str, torch.Tensor]]:
        named = [(self._argument_name(index), value) for index, value in enumerate(sample.args)]
        for name, value in (*named, *sample.kwargs.items()):
            yield from ((path, name, tensor) for path, tensor in tensors(value, name))

    def _argument_name(self, index: int) -> str:
        return self.argument_names[index] if index < len(self.argument_names) else f"argument {index}"

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """A name for each positional argument of the longest sample."""
        count = max((len(sample.args) for sample in self.samples.samples), default=0)
        if self.definition is not None:
            return tuple(self.definition.argument_name(index) for index in range(count))
        return positional_names(self.function, count)

    def _case(self, index: int, sample: Sample) -> Case:
        named = list(self.named_tensors(sample))
        floats = [(name, argument, tensor) for name, argument, tensor in named if is_float(tensor)]
        asked = [entry for entry in floats if entry[2].requires_grad] or [e for e in floats if is_dense(e[2])]
        nondiff = self.definition.nondiff_argnames if self.definition is not None else ()
        varying = frozenset(name for name, argument, _ in asked if argument not in nondiff)
        if self.device is not None:
            sample = with_tensors(sample, lambda tensor: tensor.detach().to(self.device))
        case = Case(index, sample, varying)
        high = with_tensors(sample, _in_double)
        if all(tensor.dtype in (torch.float64, torch.complex128) for _, _, tensor in floats):
            return case
        raised = Case(index, high, varying)
        try:
            self.call(self.fresh(raised, requires=()))
        except ForwardRaised:
            return Case(index, sample, varying, exact=False)
        return raised

    def _trouble(self, case: Case) -> Exception | None:
        try:
            try:
                outputs = self.call(self.fresh(case))
            except ForwardRaised as refused:
                if self.in_place or "leaf Variable" not in text_of(refused.error):
                    raise
                self.in_place = True
            inputs = self.fresh(case)
            outputs = self.call(inputs)
            self.gradients(outputs, [self.cotangent(output.tensor) for output in outputs], inputs.varying)
        except (ForwardRaised, BackwardRaised) as trouble:
            return trouble
        return None


def _is_lower(case: Case) -> bool:
    """Whether any tensor is in a lower dtype than float64."""
    found = (tensor for value in (*case.sample.args, *case.sample.kwargs.values()) for _, tensor in tensors(value, ""))
    return any(is_float(tensor) and tensor.dtype not in (torch.float64, torch.complex128) for tensor in found)


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor
