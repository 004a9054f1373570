"""What a probe is: a name, what it proves, and a function from a `Subject` to findings and notes.

The contract that every probe keeps is written in `pullback.battery.battery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pullback.finding import Finding

if TYPE_CHECKING:
    from pullback.battery.subject import Subject

REASON = 240
"""The length to which the text of an error is shortened where it is a reason or a note, and not a finding."""


@dataclass(frozen=True)
class Note:
    """Something that a probe left out, such as a refused variant; it is shown, and doesn't fail the probe."""

    text: str


@dataclass(frozen=True)
class LeftOut(Note):
    """A note on what would have been tried, had there been time; the report lists it as not tested, too."""


class Skip(Exception):
    """Raised by a probe that can't try this Function; the outcome is `skipped` with this reason."""


class NotApplicable(Skip):
    """Raised where there is nothing to try, such as subsets of one argument: skipped, and nothing is left untested."""


@dataclass(frozen=True)
class Probe:
    """One experiment of the battery.

    Attributes:
        name: Its name in the table, such as ``first_order``.
        proves: What holds when it passes, in one sentence.
        run: Tries the subject and yields what it found.
        order: The derivative order it concerns; probes above the order asked for are left out.
        patience: After how many seconds smaller samples are advised.
    """

    name: str
    proves: str
    run: Callable[[Subject], Iterable[Finding | Note]]
    order: int = 1
    patience: float = 5.0
