"""PB1xx: definition and calls."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB101",
        "A method takes both self and ctx",
        Severity.ERROR,
        "PyTorch calls forward, backward and their companions on the class, so nothing is ever bound to self: ctx "
        "would arrive in its place and each argument would be off by one.",
        "Make it a @staticmethod and drop self: def forward(ctx, x).",
    ),
    Rule(
        "PB102",
        "Both backward and vjp are defined",
        Severity.ERROR,
        "The two are names for the same method; PyTorch refuses to choose when the gradient is asked for.",
        "Keep one of them.",
    ),
    Rule(
        "PB103",
        "double_backward without backward",
        Severity.ERROR,
        "double_backward differentiates what backward computes; without backward there is nothing to differentiate.",
        "Define backward, or remove double_backward.",
    ),
    Rule(
        "PB104",
        "setup_context beside a forward that takes ctx",
        Severity.ERROR,
        "With setup_context PyTorch calls forward without ctx, so the first argument would land in the parameter ctx.",
        "Drop ctx from forward, or drop setup_context and save in forward.",
    ),
    Rule(
        "PB105",
        "A companion's parameters aren't forward's",
        Severity.ERROR,
        "reference and surrogate are called with the arguments of forward; with other parameters they would compute "
        "another function, or fail long after the class was written.",
        "Give it forward's parameters (without ctx), in the same order and with the same names.",
    ),
    Rule(
        "PB106",
        "A declaration can't be honoured",
        Severity.ERROR,
        "One declaration says what another one denies, names an argument that forward doesn't have, or isn't of the "
        "kind that it must be; or its name is misspelt, so that it would be passed over in silence.",
        "Remove the one that isn't meant.",
    ),
    Rule(
        "PB107",
        "The class has no forward",
        Severity.ERROR,
        "A class without forward is abstract: it can be inherited from, not applied.",
        "Define forward, or apply the subclass that does.",
    ),
    Rule(
        "PB108",
        "The class was called instead of applied",
        Severity.ERROR,
        "A Function isn't instantiated: forward runs, and the graph gets its node, only through .apply.",
        "Write Name.apply(...) in place of Name(...) or Name()(...).",
    ),
    Rule(
        "PB109",
        "The class has no backward",
        Severity.ERROR,
        "A gradient was asked for through an operation whose derivative nobody wrote.",
        "Define backward, or detach the result if no gradient is meant to flow.",
    ),
    Rule(
        "PB110",
        "A declared constant isn't a tensor",
        Severity.ERROR,
        "ctx.save_for_backward takes its declared constants as a tuple of tensors, which come back in saved_tensors "
        "after the others. A bare tensor would be taken apart along its first dimension.",
        "Write ctx.save_for_backward(x, constants=(mask,)); keep what isn't a tensor as an attribute of ctx.",
    ),
    Rule(
        "PB111",
        "A method can't take what it is called with",
        Severity.ERROR,
        "backward is called with ctx and one grad_output for each output of forward, double_backward with ctx and one "
        "grad_grad_input for each argument; with another number of parameters the call ends in a TypeError.",
        "Give it one parameter for each, or take them all with a star: backward(ctx, *grad_outputs).",
    ),
    Rule(
        "PB112",
        "The decorated function has no derivative yet",
        Severity.ERROR,
        "custom_vjp and custom_jvp only mark a function; its rule is given after it, with defvjp or defjvp.",
        "Call f.defvjp(fwd, bwd), or f.defjvp(rule), before f is differentiated.",
    ),
    Rule(
        "PB113",
        "A method is async or a generator",
        Severity.ERROR,
        "Autograd calls it as a function. A call of it runs nothing, and gives back a coroutine or a generator, which "
        "is no output and no gradient; a setup_context saves nothing.",
        "Write def without async, and return where yield stands.",
    ),
    Rule(
        "PB120",
        "The target can't be loaded",
        Severity.ERROR,
        "The file or module to be checked raised while it was imported, doesn't exist, or holds no Function.",
        "Make it import by itself: python FILE must succeed.",
    ),
    Rule(
        "PB121",
        "No usable samples",
        Severity.ERROR,
        "A derivative is proved by running it, and the arguments to run it with can't be guessed from this signature.",
        "Declare a samples() static method that yields tuples of arguments, or register one with pullback.samples_for.",
    ),
    Rule(
        "PB122",
        "forward raises",
        Severity.ERROR,
        "forward refuses the author's own sample, or raises whatever it is given, so nothing about the Function could "
        "be tried.",
        "Mend forward, or give arguments that it accepts.",
    ),
    Rule(
        "PB123",
        "A probe crashed",
        Severity.ERROR,
        "An experiment of the checker ended in an exception that it did not expect, so it proved nothing.",
        "Read the exception; if the Function is not at fault, report it to pullback's authors.",
    ),
    Rule(
        "PB124",
        "A probe ran out of time",
        Severity.ERROR,
        "An experiment did not end within its time limit, so it proved nothing.",
        "Give smaller samples, raise the limit, or look for a call that waits for ever.",
    ),
    Rule(
        "PB125",
        "backward raises",
        Severity.ERROR,
        "forward accepted the arguments, and then backward raised: a training step would end there.",
        "Mend backward, or refuse such arguments in forward with a clear error.",
    ),
    Rule(
        "PB130",
        "An operation can't take its arguments",
        Severity.ERROR,
        "An operation of pullback.ops was called with shapes, dtypes or options that have no meaning for it.",
        "Give it what its docstring says.",
    ),
    Rule(
        "PB131",
        "apply is called with a wrong number of arguments",
        Severity.ERROR,
        "apply hands its arguments to forward as they are: one too few or too many ends in a TypeError. By keyword a "
        "torch.autograd.Function takes them since PyTorch 2.13.",
        "Pass what forward takes after ctx, in its order.",
    ),
    Rule(
        "PB132",
        "PyTorch never calls double_backward",
        Severity.ERROR,
        "torch.autograd.Function knows no such method: the second derivative is that of backward's operations, "
        "whatever double_backward says.",
        "Derive the class from pullback.Function, which calls it.",
    ),
    Rule(
        "PB133",
        "torch has no such name",
        Severity.ERROR,
        "No release of PyTorch since 2.0 has it, so the line raises an AttributeError when it is reached; in backward "
        "that is often long after the class was written.",
        "Write the name as the documentation has it; what was removed has a successor there.",
    ),
)
