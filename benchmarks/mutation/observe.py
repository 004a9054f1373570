"""Whether anybody could notice a fault: the mutant's records beside the original's, without the battery.

**The rule.** A mutant is *observable* if, for some input and some trial, it raises where the original doesn't, or a
number differs by more than rounding: by more than `ROUNDING` of the largest element of the same tensor, by the lowest
dtype among it and the arguments. A gradient that is None counts as zeros. What only tells about memory or writes (what
an input holds afterwards, the random state, whether tensors are freed) counts likewise.

Left out, since the original itself says nothing there:

* inputs whose forward the original refuses, or for which it returns NaN;
* what the original doesn't repeat: two copies of it are compared first;
* elements that aren't finite in the original;
* gradients at special points (`Input.generic`), unless they aren't finite in the mutant alone: at a kink several are
  right. Those at points nearby are compared;
* complex arguments, unless finite differences say that the original's gradient is right there;
* errors of the original that the mutant doesn't raise, unless they are backward's refusal of what can't be right
  (a second derivative, a saved tensor that was changed in place).

A mutant that can't be imported, or raises on the author's first sample, is *broken at once*: it counts as observable.
One that differs only in what a right Function may decline, too, *declines*: it counts, and a hint that says so is
enough to have found it (`_declined`). The others are *equivalent* as far as this script can see, and aren't counted.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from benchmarks.mutation import trying
from benchmarks.mutation.inputs import FIRST, Input, inputs
from benchmarks.mutation.nests import exchanged
from benchmarks.mutation.originals import ROOT, load
from benchmarks.mutation.trials import ONCE, QUICK, THOROUGH
from benchmarks.mutation.trying import RAISED, Record, Trial
from pullback import Function

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Differences up to this share of a tensor's largest element are rounding."""

SEED = 7

MANY = 2
"""From this number on samples are tried with fewer inputs."""


@dataclass(frozen=True)
class Seen:
    """What was found out about a mutant.

    Attributes:
        verdict: ``observable``, ``broken at once``, ``declines`` or ``equivalent``.
        where: The first input, trial and number that differ.
    """

    verdict: str
    where: str = ""


def observe(mutant: Path, original: str, name: str) -> Seen:
    """Compare a mutant's file with the original's, up to the first difference that isn't declined."""
    try:
        cls = load(mutant, name)
    except Exception as error:
        return Seen("broken at once", f"importing it raises {type(error).__name__}")
    declined = ""
    for number, trial in enumerate(recorded(original, name)):
        found = trial.run(cls)
        for key, how in _differences(trial, found):
            where = f"{trial.label}: {key} {how}"
            if _declined(cls, key, how):
                declined = declined or where
                continue
            plainly = number == 0 and RAISED in (found.get("value"), found.get("gradient"), found.get("trial"))
            return Seen("broken at once" if plainly else "observable", where)
    return Seen("declines", declined) if declined else Seen("equivalent")


def _declined(cls: Any, key: str, how: str) -> bool:
    """Whether a right Function may do so as well: nothing promised what is missing, or the class says that it is.

    That is a second derivative behind PyTorch's `once_differentiable`, or an error for the tangent that would be made
    of it; and an error for a batch of cotangents in a class of PyTorch's own without a rule for batches: many
    operators that a backward may use can't be batched.
    """
    once = getattr(cls.backward, "__code__", None) is _DECLARED
    if key.startswith("second gradient"):
        return once and how != "doesn't raise"
    if key.startswith("tangent"):
        return once and how == "raises" and cls.jvp is torch.autograd.Function.jvp
    batches = issubclass(cls, Function) or cls.generate_vmap_rule or cls.vmap is not torch.autograd.Function.vmap
    return key.startswith("batched gradient") and how == "raises" and not batches


_DECLARED = once_differentiable(print).__code__
"""The code that stands in place of a backward that is declared once differentiable."""


@dataclass(frozen=True, eq=False)
class Expected:
    """One trial of the original, and what it gave, where that is worth comparing."""

    label: str
    given: Input
    trial: Trial
    record: Record
    cloned: bool

    def run(self, cls: Any) -> Record:
        """The same with another class."""
        return run(self.trial, _callable(cls, cloned=self.cloned), self.given)


def _callable(cls: Any, *, cloned: bool) -> Any:
    """The class's apply; on clones, where it writes to its arguments and so takes no leaves."""
    if not cloned:
        return cls.apply
    return lambda *args, **kwargs: cls.apply(*exchanged(args, Tensor.clone), **exchanged(kwargs, Tensor.clone))


def run(trial: Trial, function: Any, given: Input) -> Record:
    """Run one trial, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return trial(function, given)
        except Exception:
            return {"trial": RAISED}


class Recorded:
    """What an original gives, made as far as somebody asks for it, and remembered."""

    def __init__(self, made: Iterator[Expected]) -> None:
        self._made = made
        self._known: list[Expected] = []

    def __iter__(self) -> Iterator[Expected]:
        for index in itertools.count():
            if index == len(self._known):
                following = next(self._made, None)
                if following is None:
                    return
                self._known.append(following)
            yield self._known[index]


@functools.lru_cache(maxsize=8)
def recorded(original: str, name: str) -> Recorded:
    """Everything that the original is tried with, and what came; a sample as it is comes first."""
    return Recorded(_expected(original, name))


def _expected(original: str, name: str) -> Iterator[Expected]:
    one, other = (_copy_of(original, name) for _ in range(2))
    torch.manual_seed(SEED)
    samples = list(one.samples())
    cloned = _takes_no_leaves(one, samples[0])
    call, call_other = (_callable(cls, cloned=cloned) for cls in (one, other))
    for number, sample in enumerate(samples):
        for given in inputs(sample, SEED + number, few=number >= MANY):
            first = given.label == FIRST
            for title, trial in {**QUICK, **(THOROUGH if given.thorough else {})}.items():
                if (trial is trying.second_order and not given.generic) or (title in ONCE and not first):
                    continue
                record = run(trial, call, given)
                if trial is trying.first_order and not _fit(record, call, given):
                    break
                again = run(trial, call_other, given)
                same = {key: value for key, value in record.items() if not _differs(value, again.get(key), given)}
                yield Expected(f"sample {number}, {given.label}, {title}", given, trial, same, cloned)


def _copy_of(original: str, name: str) -> Any:
    return load(ROOT / original, name)


def _takes_no_leaves(cls: Any, sample: Any) -> bool:
    """Whether the author's own sample is refused as it is, and taken as a clone."""
    own = next(inputs(sample, SEED))
    refused = [run(trying.first_order, _callable(cls, cloned=cloned), own).get("value") for cloned in (False, True)]
    return refused == [RAISED, None]


def _fit(record: Record, call: Any, given: Input) -> bool:
    """Whether the original says anything about an input."""
    values = [value for key, value in record.items() if key.startswith("value")]
    if any(isinstance(value, str) or bool(value.isnan().any()) for value in values if value is not RAISED):
        return False
    if RAISED in values:
        return False
    return given.label != "complex128" or _right_for_complex(call, given)


def _right_for_complex(call: Any, given: Input) -> bool:
    """Whether the gradient of Re(g, y) agrees with finite differences, along one random direction."""
    try:
        nest, flat = given.fresh()
        ends = trying.differentiable(trying.call(call, nest))
        by = [flat[index] for index in given.wanted]
        g = trying.cotangents(ends, 3)
        made = trying.gradients(ends, by, g)
        directions = trying.cotangents(by, 21)
        claimed = sum(float((m.conj() * d).real.sum()) for m, d in zip(made, directions, strict=True))
        sides = []
        for step in (1e-6, -1e-6):
            nest, flat = given.fresh()
            with torch.no_grad():
                for index, direction in zip(given.wanted, directions, strict=True):
                    flat[index].add_(step * direction)
            outputs = [output for output in trying.call(call, nest) if output.requires_grad]
            sides.append(sum(float((o.detach().conj() * w).real.sum()) for o, w in zip(outputs, g, strict=True)))
    except Exception:
        return False
    found = (sides[0] - sides[1]) / 2e-6
    return abs(found - claimed) <= 1e-4 * max(abs(found), abs(claimed), 1e-3)


def _differences(trial: Expected, found: Record) -> Iterator[tuple[str, str]]:
    for key, value in trial.record.items():
        how = _different(key, value, found.get(key, found.get(_stem(key), found.get("trial"))), trial.given)
        if how:
            yield key, how


def _stem(key: str) -> str:
    """The name under which a whole list is put on record as raised: ``gradient`` for ``gradient 0``."""
    head, _, tail = key.partition(",")
    stem = head.rstrip("0123456789").rstrip()
    return f"{stem},{tail}" if tail else stem


def _different(key: str, value: Tensor | str, found: Tensor | str | None, given: Input) -> str:
    """How two entries differ; empty where they don't, or where that means nothing."""
    if value is RAISED:
        refusal = key.startswith(("second gradient", "gradient after a change"))
        return "doesn't raise" if refusal and isinstance(found, Tensor) else ""
    if found is None:
        return "is missing" if isinstance(value, Tensor) and bool(value.any()) else ""
    if found is RAISED:
        return "" if key.startswith("gradient after a change") else "raises"
    if isinstance(value, str) or isinstance(found, str):
        return "" if value == found else f"is {found}, was {value}"
    special = not given.generic and ("gradient" in key or key.startswith("tangent"))
    return _apart(value, found, given.dtypes, only_finiteness=special)


def _differs(value: Tensor | str, other: Tensor | str | None, given: Input) -> bool:
    if isinstance(value, str) or isinstance(other, str) or other is None:
        return value is not other and value != other
    return bool(_apart(value, other, given.dtypes, only_finiteness=False))


def _apart(value: Tensor, found: Tensor, dtypes: frozenset[torch.dtype], *, only_finiteness: bool) -> str:
    if value.shape != found.shape:
        return f"has shape {tuple(found.shape)}, had {tuple(value.shape)}"
    if value.dtype != found.dtype:
        return f"is of {found.dtype}, was of {value.dtype}"
    if not value.numel():
        return ""
    if not (value.is_floating_point() or value.is_complex()):
        return "" if torch.equal(value, found) else "differs"
    finite = value.isfinite()
    if bool((finite & ~found.isfinite()).any()):
        return "isn't finite"
    if only_finiteness or not bool(finite.any()):
        return ""
    wide = torch.complex128 if value.is_complex() else torch.float64
    one, two = value[finite].to(wide), found[finite].to(wide)
    off, size = float((one - two).abs().max()), float(one.abs().max())
    limit = max(ROUNDING.get(dtype, 0.0) for dtype in (torch.float64, value.dtype, *dtypes))
    return f"is off by {off:.1e} of {size:.1e}" if off > limit * size + 1e-3 * limit else ""
