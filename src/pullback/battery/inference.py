"""Arguments guessed from a signature, and chosen by what forward and backward do with them.

A guess must not turn into an error about the author's code. So several are tried, and those are taken that forward
accepts and under which backward is consistent: it runs, and its gradients have the shapes of their arguments. An
argument that never gets a gradient is tried again as a number, or as a tensor that doesn't require grad. What fails in
the same way whatever it is given is the author's own fault, and that guess is kept to show it.

What has a default is left out of one sample, and passed in another: a tensor, where None is the default and forward
takes one; several of these are tried together, and each alone, and flags both ways. The second sample has numbers of
both signs where forward takes them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pullback.battery.attempts import Attempt, Trial
from pullback.battery.defaults import defaults_of
from pullback.battery.guesses import Made, Slot, slots_of
from pullback.battery.raised import text_of
from pullback.define.definition import Definition
from pullback.errors import PullbackError, SampleError
from pullback.function import Function

_ENOUGH = 2
_SHOWN = 4
_DIGITS = re.compile(r"\d+")
_UNFIT = re.compile(r"unexpected keyword|^[\w.<>]*(forward|backward|vjp|setup_context)\(\) .*positional arguments? but")
_MEND = (
    "If forward is meant to take arguments like these, backward is at fault: mend it. Else declare a samples() static "
    "method that yields tuples of arguments, or register one with pullback.samples_for."
)
_DTYPES = re.compile(r"\bd?types?\b|\bDouble\b|\bdouble\b")
_UNUSABLE = re.compile(r"incorrect number of gradients|must implement either the backward")


@dataclass(frozen=True)
class Inferred:
    """Arguments that were guessed.

    Attributes:
        samples: The sets of arguments that go by position.
        keywords: For each of them the arguments that go by keyword alone.
        remark: What is odd about them, in a few words; empty for plain tensors.
    """

    samples: tuple[tuple[object, ...], ...]
    keywords: tuple[Mapping[str, object], ...]
    remark: str = ""


def inferred(function: object, definition: Definition | None, *, seed: int = 0) -> Inferred:
    """Sets of arguments that `function` takes, guessed from its signature.

    Parameters without a default get tensors or numbers, as their annotation or name asks, or as forward and backward
    can use them. The others are left out of the first set, and passed in the second: their default, or a tensor where
    that is None. If there are several of these tensors, each has a further set to itself, and so has each flag the
    other way. A set for which backward raises, and by its defaults alone, comes beside these.

    Raises:
        SampleError: If no guess works (PB121).
    """
    parameters = _parameters(function, definition)
    tried: list[Trial] = []
    telling: list[Trial] = []  # those of the first way to treat defaults in which forward takes any guess
    for dtype in (torch.float64, torch.float32):
        for way in _ways(parameters):
            of_way: list[Trial] = []
            by_names = [(*slots_of(parameters, by_name=by_name), *way) for by_name in (True, False)]
            for slots in _apart(by_names):
                attempt = Attempt(function, definition, dtype, seed)
                fine = attempt.first_fine(slots)
                if fine:
                    short = next((trial for trial in tried if _falls_short(trial, fine[0])), None)
                    return _inferred(attempt.rounded_out(fine[:_ENOUGH], parameters), short)
                of_way += attempt.trials
            if not telling and any(trial.ending != "refused" for trial in of_way):
                telling = of_way
            tried += of_way
        if any(trial.ending != "refused" for trial in tried) and not any(map(_is_about_dtypes, tried)):
            break
    kept = _kept_anyway(telling or tried)
    if kept is not None:
        return _of([kept])
    names = ", ".join(parameter.name for parameter in parameters) or "no parameters"
    message = f"no arguments could be guessed from the signature ({names})"
    remedy = ""
    if any(trial.ending == "raised" for trial in tried):
        message += " for which backward fits forward"
        remedy = _MEND
    raise SampleError("PB121", message, got=_what_was_tried(tried), remedy=remedy)


def _ways(parameters: Sequence[inspect.Parameter]) -> Iterable[tuple[Slot, ...]]:
    """What has a default left out, passed as it is, and passed as a tensor where that may be."""
    return _apart([(), defaults_of(parameters), defaults_of(parameters, tensors=True)])


def _apart(listed: Iterable[tuple[Slot, ...]]) -> Iterable[tuple[Slot, ...]]:
    """Each of them once; a value that is a default may be neither hashed nor compared, so that is told by its repr."""
    return {repr(slots): slots for slots in listed}.values()


def _falls_short(trial: Trial, fine: Trial) -> bool:
    """Whether it differs from a fine one by leaving out what has a default, and backward raised for it."""
    count = len(trial.guess.entries)
    shorter = 0 < count < len(fine.guess.entries)
    return trial.ending == "raised" and shorter and trial.guess.entries == fine.guess.entries[:count]


def _inferred(trials: Sequence[Trial], short: Trial | None) -> Inferred:
    """The samples of some trials, behind that in which backward raises where a default is left out."""
    found = [*([short] if short is not None else []), *trials]
    return _of(found, _remark([trial for trial in trials if trial.ending == "fine"]))


def _of(trials: Sequence[Trial], remark: str = "") -> Inferred:
    given = [trial.guess.split(trial.args) for trial in trials]
    return Inferred(tuple(args for args, _ in given), tuple(keywords for _, keywords in given), remark)


def _remark(trials: Sequence[Trial]) -> str:
    """Which arguments are no tensors that require grad, since backward gives them no gradient."""
    how: dict[str, str] = {}
    for trial in trials[1:] or trials:  # the first one may leave out what the others pass
        for slot, entry in zip(trial.guess.slots, trial.guess.entries, strict=True):
            if slot.name in trial.without and entry is not None:
                how.setdefault(slot.name, "without grad" if isinstance(entry, Made) else "as a number")
    odd = [f"{name} {text}" for name, text in how.items()]
    return f"{', '.join(odd)}, since backward gives {'them' if len(odd) > 1 else 'it'} no gradient" if odd else ""


def _kept_anyway(tried: Sequence[Trial]) -> Trial | None:
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


def _is_a_slip(trial: Trial) -> bool:
    """Whether the error can't be about the arguments: a misspelt name, a missing module, a keyword that isn't there."""
    by_kind = isinstance(trial.error, (NameError, ImportError, SyntaxError))
    return by_kind or (isinstance(trial.error, TypeError) and bool(_UNFIT.search(_text(trial))))


def _is_the_authors(trial: Trial) -> bool:
    """Whether an error that every guess ends in is more likely the author's than about the arguments."""
    error, text = trial.error, _text(trial)
    if isinstance(error, AttributeError) or "not callable" in text:
        return not (text.startswith("'Tensor' object") and any(slot.kind == "odd" for slot in trial.guess.slots))
    return isinstance(error, PullbackError) or bool(_UNUSABLE.search(text))


def _is_about_dtypes(trial: Trial) -> bool:
    """Whether backward raised for a mixture of dtypes: one that knows float32 alone fits a call in float32."""
    return trial.ending == "raised" and _DTYPES.search(_text(trial)) is not None


def _what_was_tried(tried: Sequence[Trial]) -> str:
    """One line for each way to fail, backward's first."""
    lines: dict[str, str] = {}
    for trial in sorted(tried, key=lambda trial: trial.ending != "raised"):
        lines.setdefault(_DIGITS.sub("", _text(trial)), str(trial))
    shown = list(lines.values())[:_SHOWN]
    rest = len(tried) - len(shown)
    return "\n".join([*shown, *([f"and {rest} more guesses"] if rest > 0 else [])])


def _text(trial: Trial) -> str:
    return (text_of(trial.error).splitlines() or [""])[0] if trial.error is not None else ""


def _parameters(function: object, definition: Definition | None) -> list[inspect.Parameter]:
    try:
        signature = definition.signature if definition is not None else inspect.signature(function)  # type: ignore[arg-type]  # no class
    except (TypeError, ValueError) as error:
        raise SampleError("PB121", f"the signature can't be read: {error}") from error
    by_name_alone = inspect.Parameter.KEYWORD_ONLY
    plain = isinstance(function, type) and not issubclass(function, Function)  # PyTorch's apply can't pass these
    return [
        parameter
        for parameter in signature.parameters.values()
        if not (plain and parameter.kind is by_name_alone and parameter.default is not parameter.empty)
    ]
