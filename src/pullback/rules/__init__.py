"""The rulebook: each way to get a Function wrong has one permanent code, title, reason and remedy.

Run-time errors, the checker, the reports and the docs speak of a fault by its code. Codes are never reused: a rule that
is dropped leaves a gap. Hundreds are themes: PB1xx definition and calls, PB2xx gradients, PB3xx saved tensors and
memory, PB4xx writes and aliases, PB5xx transforms and surroundings, PB6xx speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pullback.rules import calls, gradients, saved, speed, surroundings, writes
from pullback.rules.rule import Rule as Rule
from pullback.rules.rule import Severity as Severity

_BOOK = (calls, gradients, saved, writes, surroundings, speed)

RULES: Mapping[str, Rule] = MappingProxyType({rule.code: rule for part in _BOOK for rule in part.RULES})
"""Every rule by its code, in order."""
