"""PB3xx: saved tensors and memory."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB301",
        "A saved tensor was changed in place",
        Severity.ERROR,
        "backward would compute with values that forward never saw.",
        "Don't change the tensor between forward and backward, or save a clone of it.",
    ),
    Rule(
        "PB302",
        "An argument or output is kept on ctx",
        Severity.ERROR,
        "An attribute of ctx goes round PyTorch's version check: changed between forward and backward, the tensor "
        "gives a wrong gradient in silence; an output kept there is a reference cycle that leaks.",
        "Save it with ctx.save_for_backward.",
    ),
    Rule(
        "PB303",
        "A tensor is kept on ctx",
        Severity.WARNING,
        "No saved-tensor hook, checkpoint or offload ever sees it, it outlives backward, and it is cut off from the "
        "graph, so its part of the second derivative is lost.",
        "Save it with ctx.save_for_backward, or recompute it in backward.",
    ),
    Rule(
        "PB304",
        "Saved but never used",
        Severity.WARNING,
        "backward never reads the tensor, which stays in memory from forward to backward all the same.",
        "Don't save it.",
    ),
    Rule(
        "PB305",
        "A saved view pins a larger storage",
        Severity.WARNING,
        "Saving a slice keeps its whole storage alive, however small the slice.",
        "Save a clone of the slice.",
    ),
    Rule(
        "PB306",
        "The graph is not freed",
        Severity.WARNING,
        "After the outputs are gone, tensors of the call are still alive, and only the garbage collector, or nothing, "
        "frees them.",
        "Look for tensors on ctx, on the class or in a global.",
    ),
    Rule(
        "PB307",
        "A recomputed function gave something else",
        Severity.ERROR,
        "Run again in backward, the function saved tensors of another number, shape or dtype than in forward, so the "
        "gradients would be those of another function.",
        "Have it depend on its arguments and parameters alone: not on a global flag, on Python's or NumPy's random "
        "numbers, or on a module's mode that has changed since.",
    ),
    Rule(
        "PB330",
        "requires_grad is set on somebody else's tensor",
        Severity.ERROR,
        "An argument, a saved argument and a grad_output are the caller's own tensors or share their graph: one that "
        "was frozen starts to require grad, one that wasn't sends torch.autograd.grad on through the caller's graph.",
        "Detach it first: x = x.detach().requires_grad_().",
    ),
    Rule(
        "PB331",
        "save_for_backward is called twice",
        Severity.ERROR,
        "The second call replaces what the first one saved, in silence.",
        "Save everything in one call.",
    ),
    Rule(
        "PB332",
        "save_for_backward can't take this",
        Severity.ERROR,
        "It takes tensors and None, one argument for each: a list, a tuple, a number or a shape ends in a TypeError.",
        "Unpack a list with a star, ctx.save_for_backward(*tensors); keep what isn't a tensor as an attribute of ctx.",
    ),
)
