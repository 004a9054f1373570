"""Is the class one that can ever work? Judged where it is defined, so that training never finds out."""

from __future__ import annotations

import inspect

from torch.autograd import Function as TorchFunction

from pullback.define.declarations import DECLARATIONS, check_kinds, check_together
from pullback.define.definition import Definition, describe, forward_signature
from pullback.define.parameters import double_backward_misfit
from pullback.errors import DefinitionError

_METHODS = "forward setup_context backward vjp jvp vmap double_backward reference surrogate expected_backward".split()

HEEDED = frozenset(
    (*DECLARATIONS, *_METHODS, "boxed_grads_call", "clear_saved_tensors_on_access", "generate_vmap_rule")
)
"""The attributes of a class that its calls go by."""


def validate(cls: type[TorchFunction]) -> Definition:
    """Describe `cls`, or raise for the first thing about it that can never work.

    Args:
        cls: The class, just defined.

    Raises:
        DefinitionError: PB101 to PB106, and PB111.
    """
    _no_self(cls)
    check_kinds(cls)
    definition = describe(cls)
    if _defined(cls, "backward") and _defined(cls, "vjp"):
        raise DefinitionError(
            "PB102",
            f"{cls.__name__} defines both backward and vjp.",
            expected="one of them",
            got=f"backward of {_owner(cls, 'backward')} and vjp of {_owner(cls, 'vjp')}",
        )
    if definition.forward is None:  # abstract: the subclass that completes it is judged
        return definition
    if definition.double_backward is not None and definition.backward is None:
        raise DefinitionError(
            "PB103",
            f"{cls.__name__} defines double_backward, and no backward.",
            expected="backward beside it",
            got="double_backward alone",
        )
    _one_style(cls, definition)
    for companion in ("reference", "surrogate"):
        _same_parameters(cls, definition, companion)
    error = double_backward_misfit(definition)
    if error is not None:
        raise error
    check_together(cls, definition)
    return definition


def _no_self(cls: type) -> None:
    for name in _METHODS:
        method = inspect.getattr_static(cls, name, None)
        if isinstance(method, classmethod):  # binds its first parameter, whatever that is called
            continue
        method = getattr(method, "__func__", method)
        code = getattr(method, "__code__", None)
        if code is not None and code.co_varnames[: min(2, code.co_argcount)] == ("self", "ctx"):
            raise DefinitionError(
                "PB101",
                f"{cls.__name__}.{name} takes self and ctx.",
                expected=f"@staticmethod def {name}(ctx, …)",
                got=f"def {name}(self, ctx, …)",
            )


def _one_style(cls: type, definition: Definition) -> None:
    if definition.style == "setup_context" and definition.parameters[:1] == ("ctx",):
        raise DefinitionError(
            "PB104",
            f"{cls.__name__} defines setup_context, and its forward takes ctx.",
            expected=f"forward({', '.join(definition.parameters[1:])}) beside setup_context(ctx, inputs, output)",
            got=f"forward({', '.join(definition.parameters)})",
        )


def _same_parameters(cls: type, definition: Definition, companion: str) -> None:
    method = getattr(definition, companion)
    if method is None or definition.variadic:
        return
    theirs, ours = _taken(forward_signature(method, "setup_context"), definition), _taken(definition.signature)
    if theirs is None:
        return
    if theirs != ours:
        raise DefinitionError(
            "PB105",
            f"{cls.__name__}.{companion} doesn't take the parameters of forward.",
            expected=f"{companion}({', '.join(ours or ())})",
            got=f"{companion}({', '.join(theirs)})",
        )


def _taken(signature: inspect.Signature, forward: Definition | None = None) -> list[str] | None:
    """The parameters to be given, keyword-only ones with a star; None where anything is taken.

    Of a companion's own keyword-only parameters, those that may be left out don't count.
    """
    taken = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return None
        by_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        own = forward is not None and name not in forward.signature.parameters
        left_out = by_keyword and own and parameter.default is not inspect.Parameter.empty
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and not left_out:
            taken.append(f"*, {name}" if by_keyword else name)
    return taken


def _defined(cls: type, name: str) -> bool:
    method = getattr(cls, name, None)
    return method is not None and method != getattr(TorchFunction, name)


def _owner(cls: type, name: str) -> str:
    return next((base.__name__ for base in cls.__mro__ if name in base.__dict__), cls.__name__)
