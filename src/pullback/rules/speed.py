"""PB6xx: speed."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB601",
        "Work for a gradient that nobody asked for",
        Severity.HINT,
        "backward computes the gradient of an argument that doesn't require grad, and the engine throws it away.",
        "Guard it: if ctx.needs_input_grad[i].",
    ),
)
