"""PB2xx: gradients."""

from __future__ import annotations

from pullback.rules.rule import Rule, Severity

RULES = (
    Rule(
        "PB201",
        "Wrong number of gradients",
        Severity.ERROR,
        "backward owes one entry for each argument that was passed to apply, in order: a gradient, or None.",
        "Return one entry for each argument, None for those that get no gradient.",
    ),
    Rule(
        "PB202",
        "A gradient is neither a tensor nor None",
        Severity.ERROR,
        "The engine can only pass on tensors; a number or an array has no place in the graph.",
        "Return a tensor, or None where there is no gradient.",
    ),
    Rule(
        "PB203",
        "The gradient isn't forward's derivative",
        Severity.ERROR,
        "What backward returns differs from the vector-Jacobian product of forward, so every optimiser step that uses "
        "it goes in a wrong direction.",
        "Derive backward anew for the argument named; if the difference is meant, declare the function whose "
        "derivative backward implements as surrogate.",
    ),
    Rule(
        "PB204",
        "None for an argument that the output depends on",
        Severity.ERROR,
        "None means that no gradient flows; the argument is treated as a constant, in silence.",
        "Compute the gradient, or declare the argument in nondiff_argnames if it never gets one.",
    ),
    Rule(
        "PB205",
        "The second derivative is wrong",
        Severity.ERROR,
        "First gradients are right, but differentiating them gives other numbers than the formula: gradient penalties, "
        "Hessians and meta-learning go wrong in silence. Only pullback.Function calls double_backward, reference and "
        "surrogate; torch.autograd.Function never does.",
        "Correct double_backward, or give a reference that higher orders can follow.",
    ),
    Rule(
        "PB206",
        "A saved intermediate is cut off from the graph",
        Severity.ERROR,
        "A tensor computed inside forward comes back in backward as a constant, so its part of the second derivative "
        "is lost: torch.autograd.Function gives a wrong number in silence; pullback.Function reconnects it, or raises.",
        "Recompute it from saved inputs, write double_backward, give a reference, or declare a true constant with "
        "ctx.save_for_backward(x, constants=(mask,)).",
    ),
    Rule(
        "PB207",
        "backward is opaque to autograd",
        Severity.ERROR,
        "The gradient was computed where autograd can't follow (NumPy, raw pointers, a kernel), so it is a constant to "
        "whoever differentiates it: the second derivative is lost.",
        "Write double_backward, give a reference, or mark backward with once_differentiable so that a second "
        "derivative raises.",
    ),
    Rule(
        "PB208",
        "A gradient depends on which other arguments require grad",
        Severity.ERROR,
        "With some subset of arguments requiring grad, an argument gets another gradient, or none: the usual cause is "
        "the wrong index into ctx.needs_input_grad.",
        "Guard each gradient with the flag of its own argument: ctx.needs_input_grad[i] for argument i.",
    ),
    Rule(
        "PB209",
        "The gradient of an output is ignored",
        Severity.ERROR,
        "An output varies with the arguments and requires grad, but backward drops the gradient that comes back for "
        "it.",
        "Use each grad_output in backward, or mark the output with ctx.mark_non_differentiable.",
    ),
    Rule(
        "PB210",
        "backward can't take None for an unused output",
        Severity.ERROR,
        "ctx.set_materialize_grads(False) promises to handle None in place of the gradient of an unused output; "
        "backward then uses it as a tensor.",
        "Test each grad_output for None, or leave gradients materialized.",
    ),
    Rule(
        "PB211",
        "backward isn't linear in grad_output",
        Severity.ERROR,
        "A vector-Jacobian product is linear: what comes back for a sum of cotangents is the sum of what comes back "
        "for each.",
        "Make it linear, or declare nonlinear_backward = True if clipping, normalising or the like is meant.",
    ),
    Rule(
        "PB212",
        "The short form of double_backward needs a diagonal Jacobian",
        Severity.ERROR,
        "One returned tensor is taken as f''(x) times grad_grad_input of an elementwise function; an element of this "
        "Function's output depends on other elements of its argument.",
        "Return the general form: one gradient for each grad_output, then one for each argument.",
    ),
    Rule(
        "PB213",
        "A gradient has the wrong shape",
        Severity.ERROR,
        "The gradient of an argument has the argument's shape; a broadcast argument's gradient is summed over the "
        "dimensions that were broadcast.",
        "Reduce it to the argument's shape, for instance with Tensor.sum_to_size.",
    ),
    Rule(
        "PB214",
        "The gradient is less precise than its dtype",
        Severity.ERROR,
        "The gradient is right only to the precision of a lower dtype than the arguments have: somewhere backward "
        "computes in that dtype.",
        "Compute backward in the dtype of the arguments, or a higher one.",
    ),
    Rule(
        "PB215",
        "The gradient has another dtype than its argument",
        Severity.WARNING,
        "The engine casts it back in silence: memory and time are lost, and the precision of the lower of the two is "
        "what remains.",
        "Return the gradient in the argument's dtype.",
    ),
    Rule(
        "PB216",
        "An undeclared surrogate gradient",
        Severity.ERROR,
        "forward's derivative is zero almost everywhere, and backward returns something else: a straight-through "
        "gradient, perhaps, but nothing says so, and nothing can prove it.",
        "Declare the function whose derivative backward implements: a surrogate static method with forward's "
        "parameters.",
    ),
    Rule(
        "PB217",
        "A declared constant varies",
        Severity.ERROR,
        "A tensor that was declared with constants= changes smoothly with the arguments, so its part of the second "
        "derivative is lost.",
        "Don't declare it: save it as any other tensor, and let the reference or a replay of forward connect it.",
    ),
    Rule(
        "PB218",
        "Gradients by name don't fit the arguments",
        Severity.ERROR,
        "A dict returned from backward is read by argument name: an unknown name, or an argument that needs a gradient "
        "and isn't there, is a slip.",
        "Use the names of forward's parameters, and write None on purpose where there is no gradient.",
    ),
    Rule(
        "PB219",
        "forward differs from its reference",
        Severity.ERROR,
        "The reference is the definition in plain PyTorch; forward computes other values.",
        "Mend whichever of the two is wrong.",
    ),
    Rule(
        "PB220",
        "double_backward returned what can't be used",
        Severity.ERROR,
        "double_backward returns one gradient for each grad_output and then one for each argument, a dict by argument "
        "name, or, for an elementwise function of one tensor, a single tensor.",
        "Return one of these forms.",
    ),
    Rule(
        "PB221",
        "A replay of forward gave other values",
        Severity.ERROR,
        "To differentiate through a saved intermediate, forward was run again on the same arguments under the same "
        "random state, and it saved something else: it depends on something outside the call.",
        "Write double_backward, give a reference, or make forward depend on its arguments alone.",
    ),
    Rule(
        "PB222",
        "A gradient for an argument that was declared without one",
        Severity.ERROR,
        "nondiff_argnames says that the argument never gets a gradient, and backward returns one.",
        "Remove the argument from nondiff_argnames, or return None for it.",
    ),
    Rule(
        "PB223",
        "A rule for tangents has no transpose",
        Severity.ERROR,
        "The gradients of custom_jvp are the transpose of what its rule does to tangents. Where the rule leaves "
        "PyTorch (NumPy, detach) or isn't linear in them, they would be zero, or anything.",
        "Make the tangent from the tangents by PyTorch operations, linearly; or give the derivative with custom_vjp.",
    ),
    Rule(
        "PB230",
        "A gradient for an argument that can't have one",
        Severity.ERROR,
        "An argument that isn't a tensor (a number, a string, a flag) has no gradient: PyTorch raises when backward "
        "returns anything but None for it.",
        "Return None at its place; or pass the number as a tensor, if it is to be learnt.",
    ),
    Rule(
        "PB231",
        "A flag of needs_input_grad that doesn't exist",
        Severity.ERROR,
        "ctx.needs_input_grad has one flag for each argument of forward, without ctx: the first argument's is flag 0. "
        "Another index, or taking it apart into another number, raises in backward.",
        "Count the arguments from 0, and leave ctx out.",
    ),
    Rule(
        "PB232",
        "Gradients in another order than the arguments",
        Severity.WARNING,
        "backward returns its gradients in the order of forward's arguments, whatever the order in which tensors were "
        "saved. Two of them that change places are a wrong gradient where their shapes agree, and an error where not.",
        "Return the gradients in the order of forward's parameters.",
    ),
    Rule(
        "PB233",
        "A name has no value where a flag is off",
        Severity.ERROR,
        "backward sets a name only where a flag of ctx.needs_input_grad is on, and reads it whether it is or not. Once "
        "that argument is frozen, backward ends in an UnboundLocalError.",
        "Set the name to None before the flags are asked for.",
    ),
    Rule(
        "PB234",
        "backward differentiates for arguments that need no gradient",
        Severity.WARNING,
        "backward runs a function again and has autograd differentiate it for every argument, without asking "
        "ctx.needs_input_grad: a frozen argument costs as much as a trained one, or raises, since it doesn't require "
        "grad.",
        "Ask ctx.needs_input_grad which arguments need a gradient, and differentiate for those alone.",
    ),
    Rule(
        "PB235",
        "A second declaration replaces the first",
        Severity.ERROR,
        "Each of ctx.mark_dirty and ctx.mark_non_differentiable counts once: what an earlier call marked is forgotten, "
        "in silence.",
        "Call it once, with everything.",
    ),
    Rule(
        "PB236",
        "Saved tensors are taken apart into another number",
        Severity.ERROR,
        "ctx.saved_tensors has as many entries as ctx.save_for_backward was given, and backward takes it apart into "
        "another number, or reads an entry behind its end.",
        "Read as many tensors as were saved, in the same order.",
    ),
    Rule(
        "PB237",
        "backward reads an attribute of ctx that nothing sets",
        Severity.ERROR,
        "Neither forward nor setup_context sets it, and ctx doesn't see the attributes of the class: backward ends in "
        "an AttributeError.",
        "Set it in forward, or in setup_context; read an attribute of the class from the class.",
    ),
    Rule(
        "PB238",
        "saved_variables is deprecated",
        Severity.WARNING,
        "ctx.saved_variables is the old name of ctx.saved_tensors: PyTorch warns of it at every read, and it will go.",
        "Write ctx.saved_tensors.",
    ),
    Rule(
        "PB240",
        "mark_dirty of what isn't returned",
        Severity.ERROR,
        "An argument that is changed in place is an output of the Function too: PyTorch raises unless forward returns "
        "the very tensor that was marked. What isn't an argument needs no mark.",
        "Return each tensor that was marked, not a view or a copy of it; mark nothing but arguments.",
    ),
    Rule(
        "PB241",
        "mark_non_differentiable of what isn't returned",
        Severity.WARNING,
        "The mark is for outputs, by identity: on an argument, an intermediate or a tensor of which a copy is returned "
        "it has no effect, and the output requires grad all the same.",
        "Mark the very tensors that forward returns.",
    ),
)
