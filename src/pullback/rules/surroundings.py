"""PB5xx: transforms and surroundings."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB501",
        "Tensors in a container argument are invisible to autograd",
        Severity.ERROR,
        "To PyTorch a list, tuple or dict of tensors is one opaque argument: the output doesn't require grad, in "
        "silence.",
        "Pass the tensors as arguments of their own: f.apply(*tensors).",
    ),
    Rule(
        "PB502",
        "Tensors in a returned container are invisible to autograd",
        Severity.ERROR,
        "To PyTorch a list or dict returned from forward is one opaque output: its tensors don't require grad, in "
        "silence.",
        "Return a tuple of tensors.",
    ),
    Rule(
        "PB503",
        "A captured tensor requires grad",
        Severity.ERROR,
        "forward reads a tensor that requires grad and isn't an argument (a closure, a global, a module's parameter), "
        "so it never gets its gradient.",
        "Pass it as an argument.",
    ),
    Rule(
        "PB504",
        "The result depends on state outside the call",
        Severity.ERROR,
        "The same arguments give another result or gradient after other calls: something is kept on the class, in a "
        "module or in a cache.",
        "Keep what backward needs on ctx, one call at a time.",
    ),
    Rule(
        "PB505",
        "Empty or 0-d tensors fail",
        Severity.ERROR,
        "The last batch of an epoch may be empty, and a scalar is a tensor too; forward takes them and backward fails "
        "or returns another shape.",
        "Handle them, or refuse them in forward.",
    ),
    Rule(
        "PB506",
        "Special values give a wrong gradient",
        Severity.ERROR,
        "At zeros, ties, edges or infinities the gradient is NaN or otherwise not what the formula has there.",
        "Treat the point apart: torch.where on the argument before the formula, not on its result.",
    ),
)
