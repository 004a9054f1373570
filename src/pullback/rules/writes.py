"""PB4xx: writes and aliases."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB401",
        "forward changes an argument without mark_dirty",
        Severity.ERROR,
        "The caller's tensor is changed and autograd doesn't know: a leaf is overwritten, and what was saved of it "
        "upstream is wrong.",
        "Call ctx.mark_dirty(x) and return x, or work on a clone.",
    ),
    Rule(
        "PB402",
        "An argument is changed behind its version counter",
        Severity.ERROR,
        "The write goes through memory that PyTorch doesn't watch, so no error can warn of the gradients that become "
        "wrong.",
        "Write to a tensor of your own; if the change is meant, mark it dirty, return it, and bump its version.",
    ),
    Rule(
        "PB403",
        "backward writes into grad_output",
        Severity.ERROR,
        "The engine shares that tensor with the other branches of the graph, which then get the changed values.",
        "Use the out-of-place operation, or clone first.",
    ),
    Rule(
        "PB404",
        "backward writes into a saved tensor",
        Severity.ERROR,
        "A second backward, or whoever else holds the tensor, gets the changed values.",
        "Use the out-of-place operation, or clone first.",
    ),
    Rule(
        "PB405",
        "backward ignores the strides of grad_output",
        Severity.ERROR,
        "Gradients arrive transposed, expanded or sliced as often as contiguous; read in memory order they give wrong "
        "numbers.",
        "Start backward with g = g.contiguous(), or declare contiguous_grads = True on a pullback.Function.",
    ),
    Rule(
        "PB406",
        "backward raises for a gradient that isn't contiguous",
        Severity.ERROR,
        "Tensor.sum sends an expanded gradient, Tensor.t a transposed one; view can't take them.",
        "Use reshape in place of view, or declare contiguous_grads = True on a pullback.Function.",
    ),
    Rule(
        "PB407",
        "Arguments in another layout give other results",
        Severity.ERROR,
        "A transposed, expanded or sliced argument has the same values, but not the same memory order.",
        "Call .contiguous() on the argument before its memory is read.",
    ),
    Rule(
        "PB408",
        "The same tensor passed twice gives a wrong gradient",
        Severity.ERROR,
        "One tensor may stand for several arguments; its gradient is the sum over all of them.",
        "Look for arguments told apart by identity, or changed while another one is read.",
    ),
)
