"""Random small Functions with the formula that they implement, for comparing derivatives of every order.

A program is a list of steps on values; the Function's forward runs it, and its backward runs the adjoints in reverse.
Where backward finds each intermediate is drawn too: saved, kept on ctx in some container, or computed again. That is
where higher derivatives get lost, and calls of one class that keep things in other places are where a class that
learns from its first call could go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pullback

# A step is y = f(a) or y = f(a, b); its adjoint gives one cotangent for each argument from (arguments, y, g).
Step = tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]]]

STEPS: dict[str, Step] = {
    "exp": (lambda a: (0.3 * a).exp(), lambda a, y, g: (0.3 * g * y,)),
    "tanh": (torch.tanh, lambda a, y, g: (g * (1 - y * y),)),
    "square": (lambda a: a * a, lambda a, y, g: (2 * g * a,)),
    "relu": (torch.relu, lambda a, y, g: (g * (a > 0),)),
    "softmax": (lambda a: a.softmax(-1), lambda a, y, g: (y * (g - (g * y).sum(-1, keepdim=True)),)),
    "running_sum": (lambda a: a.cumsum(-1), lambda a, y, g: (g.flip(-1).cumsum(-1).flip(-1),)),
    "product": (lambda a, b: a * b, lambda a, b, y, g: (g * b, g * a)),
    "difference": (lambda a, b: a - 0.5 * b, lambda a, b, y, g: (g, -0.5 * g)),
    "quotient": (lambda a, b: a / (2 + b * b), lambda a, b, y, g: (g / (2 + b * b), -2 * g * y * b / (2 + b * b))),
}
BINARY = ("product", "difference", "quotient")

PLACES = ("saved", "on ctx", "in a list", "in a closure", "again", "again")
"""Where backward may find an intermediate; computing it again is always right."""


@dataclass(frozen=True)
class Program:
    """Steps on numbered values: the arguments come first.

    Attributes:
        arguments: How many arguments there are.
        steps: The name of each step and the numbers of its arguments.
        outputs: The numbers of the values that are returned.
    """

    arguments: int
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[int, ...]

    @classmethod
    def drawn(cls, choose: random.Random) -> Program:
        """Draw a program of one to three arguments and two to six steps."""
        arguments = choose.randint(1, 3)
        steps: list[tuple[str, tuple[int, ...]]] = []
        for number in range(arguments, arguments + choose.randint(2, 6)):
            name = choose.choice(list(STEPS))
            steps.append((name, tuple(choose.randrange(number) for _ in range(2 if name in BINARY else 1))))
        last = arguments + len(steps) - 1
        others = choose.sample(range(arguments, last), k=min(choose.randint(0, 1), last - arguments))
        return cls(arguments, tuple(steps), (*others, last))

    def step(self, number: int, values: Callable[[int], Tensor]) -> Tensor:
        """Compute the value of that number from the values that it is made of."""
        name, sources = self.steps[number - self.arguments]
        return STEPS[name][0](*(values(source) for source in sources))

    def run(self, *arguments: Tensor) -> list[Tensor]:
        """Compute every value."""
        values = list(arguments)
        for number in range(self.arguments, self.arguments + len(self.steps)):
            values.append(self.step(number, values.__getitem__))
        return values

    def formula(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs, in plain PyTorch."""
        values = self.run(*arguments)
        return tuple(values[number] for number in self.outputs)

    def adjoint(self, values: Callable[[int], Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Send the cotangents of the outputs back to the arguments."""
        sent: dict[int, Tensor] = {}
        for number, grad in zip(self.outputs, grads, strict=True):
            sent[number] = sent[number] + grad if number in sent else grad
        for number in reversed(range(self.arguments, self.arguments + len(self.steps))):
            if number not in sent:
                continue
            name, sources = self.steps[number - self.arguments]
            given = (*(values(source) for source in sources), values(number), sent[number])
            for source, grad in zip(sources, STEPS[name][1](*given), strict=True):
                sent[source] = sent[source] + grad if source in sent else grad
        return [sent.get(number) for number in range(self.arguments)]


def function_of(program: Program, plans: Sequence[dict[int, str]]) -> Any:
    """Make a Function of `program` whose flag chooses among `plans`, which say where backward finds each value."""

    class Drawn(pullback.Function):
        @staticmethod
        def forward(ctx: Any, flag: int, *arguments: Tensor) -> Any:
            plan, values = plans[flag], program.run(*arguments)
            there = {place: [number for number in plan if plan[number] == place] for place in set(plan.values())}
            kept = {number: values[number] for number in there.get("in a closure", ())}
            ctx.flag, ctx.numbers, ctx.closure = flag, there, kept.__getitem__
            ctx.save_for_backward(*(values[number] for number in there.get("saved", ())))
            ctx.listed = [values[number] for number in there.get("in a list", ())]
            for number in there.get("on ctx", ()):
                setattr(ctx, f"value{number}", values[number])
            outputs = tuple(values[number] for number in program.outputs)
            return outputs if len(outputs) > 1 else outputs[0]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            plan, found = plans[ctx.flag], dict(zip(ctx.numbers.get("saved", ()), ctx.saved_tensors, strict=True))
            found.update(zip(ctx.numbers.get("in a list", ()), ctx.listed, strict=True))

            def value(number: int) -> Tensor:
                if number not in found:
                    if plan[number] == "on ctx":
                        found[number] = getattr(ctx, f"value{number}")
                    elif plan[number] == "in a closure":
                        found[number] = ctx.closure(number)
                    else:
                        found[number] = program.step(number, value)
                return found[number]

            return None, *program.adjoint(value, grads)

    return Drawn


def drawn_plans(program: Program, choose: random.Random, count: int) -> list[dict[int, str]]:
    """Draw where backward finds each value; arguments are saved, as a replay needs them."""
    numbers = range(program.arguments + len(program.steps))
    return [
        {number: "saved" if number < program.arguments else choose.choice(PLACES) for number in numbers}
        for _ in range(count)
    ]
