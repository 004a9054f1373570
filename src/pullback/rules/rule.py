"""What a rule is: a permanent code with its title, reason and remedy."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Severity(str, enum.Enum):
    """How bad a finding is: `error` and `warning` make a report fail, a `hint` never does."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"

    def __str__(self) -> str:
        return self.value


class Rule(NamedTuple):
    """One way to get a Function wrong.

    Attributes:
        code: The permanent code, such as ``PB203``.
        title: What is wrong, in one line.
        severity: The severity of its findings, unless a finding says otherwise.
        reason: Why it is wrong, and what happens to whoever does it.
        remedy: What to do instead.
    """

    code: str
    title: str
    severity: Severity
    reason: str
    remedy: str
