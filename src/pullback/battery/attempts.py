"""Guesses tried one after another: what became of each, and which set of arguments to make of those that are fine.

A guess is fine if forward accepts it and backward is consistent under it: it runs, and its gradients have the shapes of
their arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.battery.deadline import Deadline
from pullback.battery.defaults import choices, defaults_of, fillings, optional_tensor
from pullback.battery.equations import by_equation
from pullback.battery.guesses import Guess, Shape, Slot, families, fresh, pointlike
from pullback.battery.leaves import is_float, tensors
from pullback.battery.raised import RAISED, one_line
from pullback.battery.targets import user_line
from pullback.custom.decorated import call_of
from pullback.define.definition import Definition

_SECONDS = 5.0
"""After this long no further guess is tried, if forward accepted one."""

_FLAGS = 4
"""So many samples more are tried for flags and choices."""

_SPANS = ((0.3, 1.0), (0.1, 0.8), (1.1, 1.0))
"""Where random values begin, and how far they reach: near 1, inside (0, 1), above 1 (as log, acos and acosh ask)."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What became of one guess.

    Attributes:
        guess: The guess.
        args: The arguments that were made of it, one for each slot.
        ending: ``fine``, ``ungraded`` (no output requires grad, or no gradient came), ``raised`` (backward did),
            ``not finite``, or ``refused`` (forward raised, or gave no float).
        error: What was raised.
        without: The arguments for which no gradient came, or is declared never to come.
        place: Where it was raised, and that line; empty if that isn't known.
        span: Where its random values begin, and how far they reach.
        written: The places of the arguments that forward wrote to.
        outputs: The shapes of what forward gave.
    """

    guess: Guess
    args: tuple[object, ...]
    ending: str
    error: BaseException | None = None
    without: frozenset[str] = frozenset()
    place: str = ""
    span: tuple[float, float] = _SPANS[0]
    written: frozenset[int] = frozenset()
    outputs: tuple[Shape, ...] = ()

    def __str__(self) -> str:
        text = one_line(self.error) if self.error is not None else "no float output"
        place = f" ({self.place})" if self.place else ""
        return f"{self.guess}: {'backward raised ' if self.ending == 'raised' else ''}{text}{place}"


class Attempt:
    """Guesses tried one after another, with random values that depend on the seed alone."""

    def __init__(self, function: object, definition: Definition | None, dtype: torch.dtype, seed: int) -> None:
        self._call: Callable[..., Any] = call_of(function)
        self._forward: Any = definition.forward if definition is not None else function
        self._declared = frozenset(definition.nondiff_argnames if definition is not None else ())
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)
        self._deadline = Deadline(_SECONDS)
        self._source = _source(function, definition)
        self._beside: list[Trial] = []  # where backward raises for another size of what is fine
        self.trials: list[Trial] = []

    def first_fine(self, slots: tuple[Slot, ...]) -> list[Trial]:
        """The trials of the first family of guesses in which any is fine."""
        for family in (*by_equation(self._forward, slots), *families(slots)):
            trials = [self._best(guess) for guess in family]
            fine = [trial for trial in trials if trial.ending == "fine"]
            if fine:
                self._beside = [trial for trial in trials if trial.ending == "raised"]
                return fine
            if self._accepted and self._deadline.passed():
                return []
        last = self._best(pointlike(slots)) if not self._accepted else None
        return [last] if last is not None and last.ending == "fine" else []

    def rounded_out(self, fine: Sequence[Trial], parameters: Sequence[inspect.Parameter]) -> list[Trial]:
        """The first of the fine trials; then one that passes what has a default, with numbers of both signs.

        Of several optional tensors each comes alone, too, behind these, and then each flag the other way.
        """
        last, failing = fine[-1], [*self._beside]
        known = {slot.name for slot in last.guess.slots}
        passed = [slot for slot in defaults_of(parameters) if slot.name not in known]
        if passed:
            fuller = self._finite(last.guess.followed_by(passed))
            if fuller.ending == "fine":
                last = replace(fuller, without=last.without | fuller.without)
            elif fuller.ending == "raised":
                failing.append(fuller)
        both = self._signed(self._filled(last, parameters))
        apart = len(fine) > 1 or both is not fine[0]
        more = [*self._alone(both, parameters), *self._otherwise(both, parameters)]
        return [*(fine[:1] if apart else ()), both, *more, *failing]

    def _filled(self, trial: Trial, parameters: Sequence[inspect.Parameter]) -> Trial:
        """The trial with a tensor for each optional one that forward and backward take."""
        for slot in filter(None, map(optional_tensor, parameters)):
            trial = self._with(slot, trial) or trial
        return trial

    def _with(self, slot: Slot, trial: Trial) -> Trial | None:
        """The trial with a tensor in a slot that is None as yet; None where there is no such slot, or none is taken."""
        pairs = enumerate(zip(trial.guess.slots, trial.guess.entries, strict=True))
        left = [place for place, (known, entry) in pairs if known.name == slot.name and entry is None]
        if not left:  # passed, and None as yet
            return None
        (place,) = left
        found: list[Trial] = []
        for entry in fillings(trial.guess, slot, trial.outputs):
            other = self._best(trial.guess.with_tensor(slot, entry))
            if other.ending == "fine" and place not in other.written:
                found.append(replace(other, without=other.without | trial.without))
                if slot.name not in other.without or entry.kind != "float":
                    break  # else another shape may get a gradient
        return found[-1 if found and slot.name not in found[-1].without else 0] if found else None

    def _alone(self, full: Trial, parameters: Sequence[inspect.Parameter]) -> list[Trial]:
        """Trials with one optional tensor each and None for the others, where `full` doesn't show that already.

        What forward and backward take together may be wrong where one of them is missing, and what can't come together
        (a scale or its logarithm) is in no trial at all as yet. One in which backward raises is kept to show that.
        """
        optional = [slot for slot in map(optional_tensor, parameters) if slot is not None]
        entries = {slot.name: entry for slot, entry in zip(full.guess.slots, full.guess.entries, strict=True)}
        names = frozenset(slot.name for slot in optional if slot.name in entries)
        given = [name for name in names if entries[name] is not None]
        found: list[Trial] = []
        for slot in optional:
            if slot.name not in names or given == [slot.name] or self._deadline.passed():
                continue
            if slot.name in given:
                trial: Trial | None = self._best(full.guess.with_nothing(names - {slot.name}))
            else:
                trial = self._with(slot, replace(full, guess=full.guess.with_nothing(names)))
            if trial is not None and trial.ending in ("fine", "raised"):
                found.append(trial)
        return found

    def _otherwise(self, full: Trial, parameters: Sequence[inspect.Parameter]) -> list[Trial]:
        """Trials with another value of a flag or choice each, where forward takes it and writes to no argument."""
        found: list[Trial] = []
        for slot, entry in zip(full.guess.slots, full.guess.entries, strict=True):
            parameter = next((other for other in parameters if other.name == slot.name), None)
            for value in choices(parameter, entry) if slot.kind == "value" and parameter is not None else ():
                if len(found) == _FLAGS or self._deadline.passed():
                    return found
                trial = self._finite(full.guess.with_value(slot.name, value))
                if trial.ending in ("fine", "raised") and not trial.written:
                    found.append(replace(trial, without=trial.without | full.without))
        return found

    def _signed(self, trial: Trial) -> Trial:
        """The trial with numbers of both signs for as many tensors as take them, or else as it is."""
        places = trial.guess.numeric()
        signed: frozenset[int] = frozenset()
        for more in (places, *((place,) for place in places if len(places) > 1)):
            other = self._try(trial.guess, *trial.span, signed=signed | frozenset(more))
            if other.ending == "fine":
                signed |= frozenset(more)
                trial = replace(other, without=trial.without)
            if len(signed) == len(places):
                break
        return trial

    @property
    def _accepted(self) -> bool:
        return any(trial.ending != "refused" for trial in self.trials)

    def _best(self, guess: Guess) -> Trial:
        """The guess as it is, or with numbers or constants for the arguments that get no gradient."""
        trial = self._finite(guess)
        if trial.ending != "fine" or not trial.without:
            return trial
        for numbers in (True, False):
            other = self._finite(guess.without_grad(trial.without, numbers=numbers))
            if other.ending == "fine":
                return replace(other, without=trial.without)
        return trial

    def _finite(self, guess: Guess) -> Trial:
        trials = (self._try(guess, *span) for span in _SPANS)
        trial = next((trial for trial in trials if trial.ending != "not finite"), None) or self._try(guess, *_SPANS[0])
        self.trials.append(trial)
        return trial

    def _try(self, guess: Guess, low: float, width: float, signed: frozenset[int] = frozenset()) -> Trial:
        args = guess.make(self._generator, self._dtype, low, width, signed)
        passed, leaves = fresh(args)
        positional, by_keyword = guess.split(passed)
        try:
            result = self._call(*positional, **by_keyword)
            outputs = [tensor for _, tensor in tensors(result, "") if is_float(tensor)]
        except RAISED as error:  # whatever a wrong guess provokes is no fault of the Function
            return Trial(guess, args, "refused", error)
        if not outputs or not leaves:
            return Trial(guess, args, "refused")
        tracked = [tensor for tensor in outputs if tensor.requires_grad]
        if not tracked:
            return Trial(guess, args, "ungraded")
        cotangents = [torch.rand(t.shape, generator=self._generator, device="cpu").add_(0.5).to(t) for t in tracked]
        given = _record_gradients(tracked[0].grad_fn)
        try:
            gradients = torch.autograd.grad(tracked, [leaf for _, leaf in leaves], cotangents, allow_unused=True)
        except RAISED as error:
            return Trial(guess, args, "raised", error, place=self._place(error))
        if _some_for_integers(args, given):
            return Trial(guess, args, "raised", TypeError("a gradient came for a tensor of integers"))
        if not all(_is_finite(tensor) for tensor in (*outputs, *gradients)):
            return Trial(guess, args, "not finite")
        came = {place for (place, _), gradient in zip(leaves, gradients, strict=True) if gradient is not None}
        without = {guess.slots[place].name for place, _ in leaves if place not in came} | self._declared
        names = frozenset(slot.name for slot in guess.slots if slot.name in without)
        return Trial(
            guess,
            args,
            "fine" if came else "ungraded",
            without=names,
            span=(low, width),
            written=frozenset(place for place, arg in enumerate(args) if _differs(arg, passed[place])),
            outputs=tuple(tuple(output.shape) for output in outputs),
        )

    def _place(self, error: BaseException) -> str:
        """The file, line and code that raised, if they are the author's."""
        place, line = user_line(error, self._source)
        return f"{place}: {line}" if line else ""


def _source(function: object, definition: Definition | None) -> str:
    """The file in which the function was written; empty if that isn't known."""
    if definition is not None:
        return definition.location.rpartition(":")[0]
    code = getattr(function, "__code__", None)
    return str(code.co_filename) if code is not None else ""


def _differs(arg: object, passed: object) -> bool:
    both = isinstance(arg, torch.Tensor) and isinstance(passed, torch.Tensor)
    return both and not torch.equal(arg.detach(), passed.detach())  # type: ignore[attr-defined]  # both are tensors


def _record_gradients(node: Any) -> list[torch.Tensor | None]:
    """What a node will return for each of its tensors, those without grad included, which the engine throws away."""
    given: list[torch.Tensor | None] = []
    node.register_hook(lambda gradients, _: given.extend(gradients))
    return given


def _some_for_integers(args: Sequence[object], given: Sequence[torch.Tensor | None]) -> bool:
    """Whether backward takes an argument of integers for one that has a gradient."""
    among = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if len(among) != len(given):
        return False
    return any(not is_float(arg) and gradient is not None for arg, gradient in zip(among, given, strict=True))


def _is_finite(tensor: torch.Tensor | None) -> bool:
    return tensor is None or tensor.layout is not torch.strided or bool(tensor.isfinite().all())
