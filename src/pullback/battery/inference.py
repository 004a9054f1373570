"""Arguments guessed from a signature, and chosen by what forward and backward do with them.

A guess must not turn into an error about the author's code. So several are tried, and those are taken that forward
accepts and under which backward is consistent: it runs, and its gradients have the shapes of their arguments. An
argument that never gets a gradient is tried again as a number, or as a tensor that doesn't require grad. What fails in
the same way whatever it is given is the author's own fault, and that guess is kept to show it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.battery.deadline import Deadline
from pullback.battery.guesses import Guess, Made, Slot, families, fresh, pointlike, slots_of
from pullback.battery.leaves import is_float, tensors
from pullback.battery.raised import RAISED, one_line, text_of
from pullback.custom.decorated import call_of
from pullback.define.definition import Definition
from pullback.errors import PullbackError, SampleError

_ENOUGH = 2
_SECONDS = 5.0
"""After this long no further guess is tried, if forward accepted one."""

_SPANS = ((0.3, 1.0), (0.1, 0.8), (1.1, 1.0))
"""Where random values begin, and how far they reach: near 1, inside (0, 1), above 1 (as log, acos and acosh ask)."""

_SHOWN = 4
_DIGITS = re.compile(r"\d+")
_UNFIT = re.compile(r"unexpected keyword|positional arguments? but")
_MEND = (
    "If forward is meant to take arguments like these, backward is at fault: mend it. Else declare a samples() static "
    "method that yields tuples of arguments, or register one with pullback.samples_for."
)
_UNUSABLE = re.compile(r"incorrect number of gradients|must implement either the backward")


@dataclass(frozen=True)
class Inferred:
    """Arguments that were guessed.

    Attributes:
        samples: The sets of arguments.
        remark: What is odd about them, in a few words; empty for plain tensors.
    """

    samples: tuple[tuple[object, ...], ...]
    remark: str = ""


@dataclass(frozen=True, eq=False)
class _Trial:
    """What became of one guess.

    Attributes:
        guess: The guess.
        args: The arguments that were made of it.
        ending: ``fine``, ``ungraded`` (no output requires grad, or no gradient came), ``raised`` (backward did),
            ``not finite``, or ``refused`` (forward raised, or gave no float).
        error: What was raised.
        without: The arguments for which no gradient came, or is declared never to come.
    """

    guess: Guess
    args: tuple[object, ...]
    ending: str
    error: BaseException | None = None
    without: frozenset[str] = frozenset()

    def __str__(self) -> str:
        text = one_line(self.error) if self.error is not None else "no float output"
        return f"{self.guess}: {'backward raised ' if self.ending == 'raised' else ''}{text}"


def inferred(function: object, definition: Definition | None, *, seed: int = 0) -> Inferred:
    """Up to two sets of arguments that `function` takes, guessed from its signature.

    Parameters without a default get tensors or numbers, as their annotation or name asks, or as forward and backward
    can use them; the others keep their default.

    Raises:
        SampleError: If no guess works (PB121).
    """
    parameters = _parameters(function, definition)
    tried: list[_Trial] = []
    for dtype in (torch.float64, torch.float32):
        for slots in dict.fromkeys(slots_of(parameters, by_name=by_name) for by_name in (True, False)):
            attempt = _Attempt(function, definition, dtype, seed)
            fine = attempt.first_fine(slots)
            if fine:
                return Inferred(tuple(trial.args for trial in fine[:_ENOUGH]), _remark(fine[0]))
            tried += attempt.trials
        if any(trial.ending != "refused" for trial in tried):
            break
    kept = _kept_anyway(tried)
    if kept is not None:
        return Inferred((kept.args,))
    names = ", ".join(parameter.name for parameter in parameters) or "no parameters"
    message = f"no arguments could be guessed from the signature ({names})"
    remedy = ""
    if any(trial.ending == "raised" for trial in tried):
        message += " for which backward fits forward"
        remedy = _MEND
    raise SampleError("PB121", message, got=_what_was_tried(tried), remedy=remedy)


class _Attempt:
    """Guesses tried one after another, with random values that depend on the seed alone."""

    def __init__(self, function: object, definition: Definition | None, dtype: torch.dtype, seed: int) -> None:
        self._call: Callable[..., Any] = call_of(function)
        self._declared = frozenset(definition.nondiff_argnames if definition is not None else ())
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)
        self._deadline = Deadline(_SECONDS)
        self.trials: list[_Trial] = []

    def first_fine(self, slots: tuple[Slot, ...]) -> list[_Trial]:
        """The trials of the first family of guesses in which any is fine."""
        for family in families(slots):
            fine = [trial for guess in family if (trial := self._best(guess)).ending == "fine"]
            if fine:
                return fine
            if self._accepted and self._deadline.passed():
                return []
        last = self._best(pointlike(slots)) if not self._accepted else None
        return [last] if last is not None and last.ending == "fine" else []

    @property
    def _accepted(self) -> bool:
        return any(trial.ending != "refused" for trial in self.trials)

    def _best(self, guess: Guess) -> _Trial:
        """The guess as it is, or with numbers or constants for the arguments that get no gradient."""
        trial = self._finite(guess)
        if trial.ending != "fine" or not trial.without:
            return trial
        for numbers in (True, False):
            other = self._finite(guess.without_grad(trial.without, numbers=numbers))
            if other.ending == "fine":
                return replace(other, without=trial.without)
        return trial

    def _finite(self, guess: Guess) -> _Trial:
        trials = (self._try(guess, *span) for span in _SPANS)
        trial = next((trial for trial in trials if trial.ending != "not finite"), None) or self._try(guess, *_SPANS[0])
        self.trials.append(trial)
        return trial

    def _try(self, guess: Guess, low: float, width: float) -> _Trial:
        args = guess.make(self._generator, self._dtype, low, width)
        passed, leaves = fresh(args)
        try:
            outputs = [tensor for _, tensor in tensors(self._call(*passed), "") if is_float(tensor)]
        except RAISED as error:  # whatever a wrong guess provokes is no fault of the Function
            return _Trial(guess, args, "refused", error)
        if not outputs or not leaves:
            return _Trial(guess, args, "refused")
        tracked = [tensor for tensor in outputs if tensor.requires_grad]
        if not tracked:
            return _Trial(guess, args, "ungraded")
        cotangents = [torch.rand(t.shape, generator=self._generator, device="cpu").add_(0.5).to(t) for t in tracked]
        given = _record_gradients(tracked[0].grad_fn)
        try:
            gradients = torch.autograd.grad(tracked, [leaf for _, leaf in leaves], cotangents, allow_unused=True)
        except RAISED as error:
            return _Trial(guess, args, "raised", error)
        if _some_for_integers(args, given):
            return _Trial(guess, args, "raised", TypeError("a gradient came for a tensor of integers"))
        if not all(_is_finite(tensor) for tensor in (*outputs, *gradients)):
            return _Trial(guess, args, "not finite")
        came = {place for (place, _), gradient in zip(leaves, gradients, strict=True) if gradient is not None}
        without = {guess.slots[place].name for place, _ in leaves if place not in came} | self._declared
        names = frozenset(slot.name for slot in guess.slots if slot.name in without)
        return _Trial(guess, args, "fine" if came else "ungraded", without=names)


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


def _remark(trial: _Trial) -> str:
    """Which arguments are no tensors that require grad, since backward gives them no gradient."""
    odd = []
    for slot, entry in zip(trial.guess.slots, trial.guess.entries, strict=True):
        if slot.name in trial.without:
            odd.append(f"{slot.name} {'without grad' if isinstance(entry, Made) else 'as a number'}")
    return f"{', '.join(odd)}, since backward gives {'them' if len(odd) > 1 else 'it'} no gradient" if odd else ""


def _kept_anyway(tried: Sequence[_Trial]) -> _Trial | None:
    """A guess whose failure says something about the Function, whatever else it could be given."""
    accepted = [trial for trial in tried if trial.ending != "refused"]
    for ending in ("ungraded", "not finite"):
        for trial in accepted:
            if trial.ending == ending:
                return trial
    failed = accepted or tried
    if accepted and sum(slot.open for slot in accepted[0].guess.slots) == 1:
        return accepted[0]  # a lone tensor leaves nothing to guess but its shape
    clear = next((trial for trial in failed if _is_a_slip(trial)), None)
    same = len({_text(trial) for trial in failed}) == 1
    return clear or (failed[0] if same and _is_the_authors(failed[0]) else None)


def _is_a_slip(trial: _Trial) -> bool:
    """Whether the error can't be about the arguments: a misspelt name, a missing module, a keyword that isn't there."""
    by_kind = isinstance(trial.error, (NameError, ImportError, SyntaxError))
    return by_kind or (isinstance(trial.error, TypeError) and bool(_UNFIT.search(_text(trial))))


def _is_the_authors(trial: _Trial) -> bool:
    """Whether an error that every guess ends in is more likely the author's than about the arguments."""
    error, text = trial.error, _text(trial)
    if isinstance(error, AttributeError) or "not callable" in text:
        return not (text.startswith("'Tensor' object") and any(slot.kind == "odd" for slot in trial.guess.slots))
    return isinstance(error, PullbackError) or bool(_UNUSABLE.search(text))


def _what_was_tried(tried: Sequence[_Trial]) -> str:
    """One line for each way to fail, backward's first."""
    lines: dict[str, str] = {}
    for trial in sorted(tried, key=lambda trial: trial.ending != "raised"):
        lines.setdefault(_DIGITS.sub("", _text(trial)), str(trial))
    shown = list(lines.values())[:_SHOWN]
    rest = len(tried) - len(shown)
    return "\n".join([*shown, *([f"and {rest} more guesses"] if rest > 0 else [])])


def _text(trial: _Trial) -> str:
    return (text_of(trial.error).splitlines() or [""])[0] if trial.error is not None else ""


def _is_finite(tensor: torch.Tensor | None) -> bool:
    return tensor is None or tensor.layout is not torch.strided or bool(tensor.isfinite().all())


def _parameters(function: object, definition: Definition | None) -> list[inspect.Parameter]:
    try:
        signature = definition.signature if definition is not None else inspect.signature(function)  # type: ignore[arg-type]  # no class
    except (TypeError, ValueError) as error:
        raise SampleError("PB121", f"the signature can't be read: {error}") from error
    return list(signature.parameters.values())
