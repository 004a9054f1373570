"""A function and a set of arguments as lines of code, which the lines that show a fault begin with."""

from __future__ import annotations

import builtins
import keyword
import math
import re

import torch

from pullback.battery.case import Output
from pullback.battery.draws import draws, seed_lines
from pullback.battery.literals import code_for, import_lines, is_exact, is_literal
from pullback.battery.numerics import size_of
from pullback.battery.other_numbers import parameters_of
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.subject import Case, Subject
from pullback.custom.decorated import decorated

_OWN_NAMES = frozenset(
    "torch gc runpy output outputs total gradient gradients other weights value values step plain place penalty slope "
    "second grad_output before after count kept saved node samples spoil pack unpack jacobian call again "
    "tangent products forward_ad one entry batch k "
    "random sys threading checkpoint derivative leaves leaf copy tensor thread other trace frame event f t0 t1 t2 t3 "
    "func types args kwargs result compiled moved seen low owed times spoilt read store grads start g "
    "sizes change wait ThreadPoolExecutor Between Watch left called suppress Shortage".split()
)
"""What the lines themselves call their variables."""


class Scene:
    """The function and its arguments, as code; a suffix tells the arguments of a second scene from those of the first.

    Attributes:
        lines: The lines before the call.
        made: Those of them that make the arguments.
        passed: The code of each argument, as it is passed.
        arguments: All of them.
        call: The call.
        function: What the function is called.
    """

    def __init__(self, subject: Subject, case: Case, *, suffix: str = "") -> None:
        self._subject, self._case = subject, case
        imports, self.function = import_lines(decorated(subject.function) or subject.function)
        self._variables: dict[str, str] = {}
        made, passed = [], []
        known = subject.argument_names  # of what samples give; a variant may give more
        names = (*known, *list(parameters_of(subject))[len(known) :])
        values = [*zip(names, case.sample.args, strict=False), *case.sample.kwargs.items()]
        random = False
        for position, (name, value) in enumerate(values):
            variable = self._variables.setdefault(name, _variable(name, self.function) + suffix)
            text = self._from_samples(position, name, value)
            random = random or not (text or is_exact(value))
            made.append(f"{variable} = {text or self._written(name, value)}")
            passes = f"{variable}.clone()" if subject.in_place and name in case.varying else variable
            passes = f"({variable} + {variable}.mT) / 2" if name in subject.symmetric else passes
            passed.append(passes if position < len(case.sample.args) else f"{name}={passes}")
        seeded = ["torch.manual_seed(0)"] if random or any("samples()" in line for line in made) else []
        self.made = [*seeded, *made]
        self.lines = ["import torch", *imports, *self.made]
        apply = ".apply" if isinstance(subject.function, type) and not decorated(subject.function) else ""
        self.passed = passed
        self.arguments = ", ".join(passed)
        self.call = f"{self.function}{apply}({self.arguments})"

    def expression(self, leaf: str) -> str:
        """The tensor called `leaf`, as code: ``x``, ``xs[0]``."""
        for name in sorted(self._variables, key=len, reverse=True):
            rest = leaf.removeprefix(name)
            if leaf == name or (rest != leaf and rest[0] in "[."):
                return self._variables[name] + rest
        return leaf

    def seed(self, indent: str = "") -> list[str]:
        """The line that makes repeated calls draw the same numbers, where they draw any."""
        try:
            drawn_from = draws(self._subject, self._case).generators
        except (ForwardRaised, BackwardRaised):
            drawn_from = ()
        return [f"{indent}{line}" for line in seed_lines(drawn_from)]

    def seeded(self, expression: str, seed: int = 0) -> str:
        """An expression that is evaluated from the state of a seed, where a call draws random numbers."""
        seeds = ", ".join(line.replace("(0)", f"({seed})") for line in self.seed())
        return f"({seeds}, {expression})[-1]" if seeds else expression

    def total(self, only: int | None = None, *, of: str = "output", equally: bool = False) -> str:
        """A weighted sum of all outputs that require grad, or of one of them; with weights of 1 where `equally`."""
        tracked = [output for output in self.outputs() if output.tensor.requires_grad]
        if only is not None:
            tracked = [self.outputs()[only]]
        terms = [weighted(output.name.replace("output", of, 1), output.tensor, equally) for output in tracked]
        return " + ".join(terms) or f"{of}.sum()"

    def sums(self) -> str:
        """The sum of all outputs that require grad, whose gradient for each is ones."""
        tracked = [output for output in self.outputs() if output.tensor.requires_grad]
        return " + ".join(f"{o.name}.sum(){'.real' if o.tensor.is_complex() else ''}" for o in tracked)

    def outputs(self) -> tuple[Output, ...]:
        """What the call returns; nothing where it raises, which the lines then show."""
        key = ("repro", id(self._case))
        if key not in self._subject.cache:
            try:
                found = self._subject.call(self._subject.fresh(self._case))
            except ForwardRaised:
                found = ()
            self._subject.cache[key] = self._case, found  # the case is kept so that its id stays its own
        outputs: tuple[Output, ...] = self._subject.cache[key][1]
        return outputs

    def is_complex(self, leaf: str) -> bool:
        """Whether a leaf is a complex tensor."""
        return any(name == leaf and t.is_complex() for name, _, t in self._subject.named_tensors(self._case.sample))

    def place(self, x: str) -> str:
        """The keyword that makes a tensor beside `x`; nothing on the CPU."""
        return "" if self._subject.runs_on.type == "cpu" else f", device={x}.device"

    def size(self, leaf: str) -> int:
        """How many elements a leaf has; those of the first output for grad_output."""
        named = ((name, t) for name, _, t in self._subject.named_tensors(self._case.sample))
        found = (t.numel() for name, t in [*named, *((o.name, o.tensor) for o in self.outputs())] if name == leaf)
        return next(found, next((output.tensor.numel() for output in self.outputs()), 1))

    def step(self, leaf: str) -> float:
        """A step for finite differences: a power of ten that suits the size and the dtype of a leaf."""
        tensors = (t for name, _, t in self._subject.named_tensors(self._case.sample) if name == leaf)
        tensor = next(tensors, torch.ones((), dtype=torch.float64))  # grad_output is no argument
        low = {torch.float32: 1e-2, torch.complex64: 1e-2, torch.float16: 1e-1, torch.bfloat16: 1e-1}
        size = max(size_of(tensor), 1e-3)
        return float(f"{low.get(tensor.dtype, 1e-6) * 10 ** round(math.log10(size)):.0e}")

    def _written(self, name: str, value: object) -> str:
        if is_literal(value):
            return code_for(value, name, self._case.varying)
        return f"...  # the {type(value).__name__} that was passed"  # a module, say, of which nobody wrote the code

    def _from_samples(self, position: int, name: str, value: object) -> str:
        """The argument taken from the class's own samples, where it is in them and can't be written out."""
        subject, case = self._subject, self._case
        known = case.index < len(subject.samples.samples)  # a variant has a number of its own
        if (is_literal(value) and is_exact(value)) or subject.samples.source != "declared" or not known:
            return ""
        sample = subject.samples.samples[case.index]
        by_position = position < len(sample.args)
        if not by_position and name not in sample.kwargs:
            return ""
        given = sample.args[position] if by_position else sample.kwargs[name]
        place = f".kwargs[{name!r}]"  # a tuple has no arguments by keyword, so this one was written as a Sample
        if by_position:
            place = f"{'.args' if case.index in subject.samples.wrapped else ''}[{position}]"
        made = "samples()" if callable(subject.function.samples) else "samples"
        text = f"list({self.function}.{made})[{case.index}]{place}"
        if not isinstance(value, torch.Tensor) or not isinstance(given, torch.Tensor):
            return text
        if given.shape != value.shape or not torch.equal(given.detach().to(value), value.detach()):
            return ""
        cast = "" if given.dtype == value.dtype else f".to({value.dtype})"
        return f"{text}.detach(){cast}" + (".requires_grad_()" if name in case.varying else "")


def weighted(name: str, tensor: torch.Tensor, equally: bool = False) -> str:
    """The sum of a tensor's elements, each with another weight, or 1; a real number for complex ones too."""
    if equally:
        return f"{name}.real.sum()" if tensor.is_complex() else f"{name}.sum()"
    if tensor.numel() <= 1:
        return f"torch.view_as_real({name}).sum()" if tensor.is_complex() else f"{name}.sum()"
    place = "" if tensor.device.type == "cpu" else f", device={name}.device"
    product = f"{name} * torch.linspace(0.5, 1.5, {name}.numel(){place}).view({name}.shape)"
    return f"torch.view_as_real({product}).sum()" if tensor.is_complex() else f"({product}).sum()"


def _variable(name: str, function: str) -> str:
    """A name for an argument that is an identifier and means nothing else in the lines."""
    variable = re.sub(r"\W+", "_", name).strip("_") or "argument"
    taken = variable in _OWN_NAMES or variable == function or hasattr(builtins, variable) or keyword.iskeyword(variable)
    return f"{variable}_" if taken else variable if variable.isidentifier() else f"argument_{variable}"
