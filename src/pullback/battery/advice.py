"""Remedies that depend on what is checked: a Function of PyTorch's has other ways out than one of pullback's."""

from __future__ import annotations

from pullback.battery.subject import Subject
from pullback.function import Function

_DECLARATIONS = ("double_backward", "reference", "surrogate")


def is_pullback(subject: Subject) -> bool:
    """Whether the Function is one of pullback's, with its guards and declarations."""
    return isinstance(subject.function, type) and issubclass(subject.function, Function)


def for_surrogate(subject: Subject, rule: str) -> str:
    """The remedy where second derivatives come from a surrogate and differ from its own; empty where they don't."""
    definition = subject.definition
    if rule not in ("PB205", "PB207") or not is_pullback(subject) or definition is None:
        return ""
    if definition.surrogate is None or definition.double_backward is not None:
        return ""
    return (
        "Second derivatives are those of the surrogate, and autograd must be able to follow it: no detach in it, and "
        "no .data, NumPy or no_grad. Or write double_backward."
    )


def to_declare(subject: Subject, rule: str) -> str:
    """How to declare a gradient that on purpose isn't forward's (PB216), or isn't linear (PB211), in code."""
    if rule == "PB216":
        arguments = ", ".join(name for name in subject.argument_names if name.isidentifier()) or "x"
        return (
            "If it is meant, declare the function whose derivative backward implements, and the check proves it: "
            f"@staticmethod def surrogate({arguments}): return ..., which for a straight-through gradient is forward's "
            "formula without the rounding. If not, return zeros."
        )
    return (
        "Make it linear; or, if clipping, normalising, noise or the like is meant, write nonlinear_backward = True in "
        "the class, and expected_backward(inputs, outputs, grad_outputs) for the check to prove it by."
    )


def for_second_order(subject: Subject, rule: str, cut_off: str = "") -> str:
    """The remedy for a second derivative that is wrong; empty for the rule's own.

    Args:
        subject: What was checked.
        rule: The rule's code.
        cut_off: What is cut off, such as ``ctx.n``, if something is.
    """
    recompute = "recompute it from saved inputs in backward"
    if "ctx." in cut_off:
        recompute += ", where autograd can follow it"
    if is_pullback(subject):
        if rule == "PB206" and "ctx." in cut_off:
            return f"{recompute[0].upper()}{recompute[1:]}, write double_backward, or give a reference."
        return ""
    if subject.definition is None or rule not in _BY_RULE:
        return ""
    return _BY_RULE[rule].format(recompute=recompute) + _never_called(subject)


_BY_RULE = {
    "PB206": "Change the base to pullback.Function, which reconnects it or raises; or {recompute}.",
    "PB207": "Change the base to pullback.Function, and write double_backward or give a reference; or mark backward "
    "with once_differentiable so that a second derivative raises.",
    "PB205": "Change the base to pullback.Function, and write double_backward or give a reference that higher orders "
    "can follow.",
}


def _never_called(subject: Subject) -> str:
    """A sentence about declarations that PyTorch passes over."""
    declared = [name for name in _DECLARATIONS if getattr(subject.definition, name) is not None]
    if not declared:
        return ""
    return f" PyTorch never calls {' and '.join(declared)}; pullback.Function does."
