"""What stands at each place of the gradients: for which argument, and of which kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.alternatives import Alternative, Alternatives, Made, Nothing, Rest, Several
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.conditions import asked
from pullback.lint.functions import Parameter
from pullback.lint.returned import Returned
from pullback.lint.values import Kind, Value
from pullback.lint.walks import Owed, concerns, gradients, is_plain, lowered, owed, place, walk

_NO_GRADIENT: frozenset[Kind] = frozenset(
    ("bool", "number", "text", "shape", "dtype", "device", "array", "dict", "set")
)
"""Kinds of which no value is a gradient."""

_NO_TENSOR: dict[str, Confidence] = {"int": "certain", "bool": "certain", "str": "certain", "float": "possible"}
"""Annotations of arguments that have no gradient, and how sure that is: what is called a float may be a tensor."""


def kinds(analysis: Analysis) -> Iterator[Finding]:
    """PB202: a gradient is a list, a number or another thing that is neither tensor nor None."""
    due, walked = owed(analysis), walk(analysis)
    method = analysis.function.backward
    if due is None or walked is None or method is None or not concerns(analysis, "backward", "vjp"):
        return
    for returned in walked.returns:
        yield from _lists(analysis, due, returned)
        whole = [Alternative(one.thing, one.conditions | returned.path) for one in returned.what]
        for index, entry in enumerate(gradients(returned, alone=due.most == 1 or due.least == 1)):
            for one in entry:
                if not isinstance(one.thing, Made) or one.thing.node is None or one.thing.part is not None:
                    continue
                kind = _kind(analysis, one.thing.node)
                if kind == "tuple" and one in whole:  # what autograd gives, returned as the tuple of all gradients
                    continue
                if analysis.function.ours and kind == "dict":  # by name, or the nest of an argument
                    continue
                if kind and (kind == "tuple" or index not in asked(one.conditions)):
                    yield analysis.finding(
                        "PB202",
                        place((one,), returned.node),
                        f"{method.name} returns a {kind} as the gradient of {due.name(index)}.",
                        where=f"{method.name}, gradient of {due.name(index)}",
                        expected="a tensor, or None",
                        got=_short(one.thing.node),
                        confidence="certain" if isinstance(one.thing.node, ast.Constant) else "likely",
                        path=method.owner.source.path,
                    )


def _lists(analysis: Analysis, due: Owed, returned: Returned) -> Iterator[Finding]:
    method = analysis.function.backward
    assert method is not None
    is_nest = analysis.function.ours and due.least == 1  # the nest of a single argument
    lists = [one for one in returned.what if isinstance(one.thing, Several) and one.thing.is_list]
    if not lists or is_nest:
        return
    yield analysis.finding(
        "PB202",
        returned.node,
        f"{method.name} returns a list, which PyTorch takes as one gradient that isn't a tensor.",
        where=f"{method.name}, what it returns",
        expected="a tuple with one entry for each argument",
        got="a list",
        confidence=lowered("certain" if len(lists) == len(returned.what) else "likely", method),
        remedy="Return a tuple.",
        path=method.owner.source.path,
    )


def _kind(analysis: Analysis, node: ast.expr) -> str:
    """What a gradient is that can't be one; empty where it can."""
    flow = analysis.backward
    if flow is not None and isinstance(node, ast.Call) and flow.value(node.func).dotted == "torch.autograd.grad":
        return "tuple"
    value = flow.value(node) if flow is not None else None
    if value is None or not value.kinds or not value.kinds <= _NO_GRADIENT:
        return ""
    names = {"text": "string", "array": "NumPy array", "bool": "bool"}
    return " or ".join(sorted(names.get(kind, kind) for kind in value.kinds))


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def undue(analysis: Analysis) -> Iterator[Finding]:
    """PB230: a gradient for an argument that is no tensor."""
    due, walked = owed(analysis), walk(analysis)
    method = analysis.function.backward
    if due is None or walked is None or method is None or not concerns(analysis, "forward", "backward", "vjp"):
        return
    for returned in walked.returns:
        for index, entry in enumerate(gradients(returned, alone=False)):
            if index >= len(due.parameters):
                break
            parameter = due.parameters[index]
            what = _not_a_tensor(parameter)
            confidence = _is_gradient(analysis, index, entry, what[1]) if what else None
            if what and confidence and not is_plain(analysis.function.forward):
                confidence = "possible"
            if what and confidence:
                yield analysis.finding(
                    "PB230",
                    place(entry, returned.node),
                    f"{method.name} returns a gradient for {parameter.name}, which is {what[0]}.",
                    where=f"{method.name}, gradient of {parameter.name}",
                    expected="None",
                    got="a gradient",
                    confidence=confidence,
                    path=method.owner.source.path,
                )


def _not_a_tensor(parameter: Parameter) -> tuple[str, Confidence] | None:
    """What an argument is by its annotation, or by its default, where that is no tensor; and how sure that is."""
    text = re.sub(r"\s", "", parameter.annotation.strip("\"'"))
    text = re.sub(r"^None\||\|None$|^(typing\.)?Optional\[|\]$", "", text)
    if text in _NO_TENSOR:
        article = "an" if text == "int" else "a"
        return f"{article} {text}", _NO_TENSOR[text]
    default = parameter.default
    if not parameter.annotation and isinstance(default, ast.Constant) and isinstance(default.value, (bool, str)):
        return f"{default.value!r} by default", "likely"
    return None


def _is_gradient(analysis: Analysis, index: int, entry: Alternatives, sure: Confidence) -> Confidence | None:
    """How sure it is that an entry is a gradient whatever the flags are; None if it may well be none."""
    made = [one for one in entry if isinstance(one.thing, Made)]
    if not made or any(index in asked(one.conditions) for one in made) or len(made) < len(entry):
        return None
    values: list[Value | None] = [
        analysis.backward.value(one.thing.node)
        if isinstance(one.thing, Made) and one.thing.node is not None and one.thing.part is None and analysis.backward
        else None
        for one in made
    ]
    if not all(value is not None and value.is_tensor and not value.may_be_none for value in values):
        return None
    # What arrives for an output that is no tensor is None, so one of several grad_outputs may be handed on as it is.
    method = analysis.function.backward
    several = method is not None and (len(method.positional) > 1 or bool(method.vararg))
    handed_on = any(origin.how == "same" for value in values if value is not None for origin in value.of("grad"))
    return None if several and handed_on else sure


def order(analysis: Analysis) -> Iterator[Finding]:
    """PB232: two gradients, each with the other's name."""
    due, method = owed(analysis), analysis.function.backward
    flow = analysis.backward
    if due is None or method is None or flow is None or not concerns(analysis, "forward", "backward", "vjp"):
        return
    names = [parameter.name for parameter in due.parameters]
    for returned in flow.returns:
        node = returned.node.value
        if not isinstance(node, ast.Tuple) or any(isinstance(one, ast.Starred) for one in node.elts):
            continue
        meant = [_meant(one.id, names) if isinstance(one, ast.Name) else None for one in node.elts]
        for first, second in enumerate(meant):
            if second is not None and first < second < len(meant) and meant[second] == first:
                left, right = (ast.unparse(node.elts[index]) for index in (first, second))
                yield analysis.finding(
                    "PB232",
                    node,
                    f"{method.name} returns {left} for {names[first]}, and {right} for {names[second]}.",
                    where=f"{method.name}, gradients of {names[first]} and {names[second]}",
                    expected=f"the order of forward's arguments: {due.names}",
                    got=ast.unparse(node),
                    confidence="likely",
                    path=method.owner.source.path,
                )


_GRADIENT_OF = re.compile(r"^(?:grad_?|d_?|g_?|gradient_?|dloss_?d)(?P<front>.+)$|^(?P<back>.+?)_?(?:grad|gradient|g)$")


def _meant(name: str, names: list[str]) -> int | None:
    """The position of the one argument whose gradient a name says it is."""
    found = _GRADIENT_OF.match(name)
    if not found:
        return None
    of = found["front"] or found["back"]
    several = [index for index, argument in enumerate(names) if argument.lower().strip("_") == of.lower().strip("_")]
    return several[0] if len(several) == 1 else None


def nothing(analysis: Analysis) -> Iterator[Finding]:
    """PB204: None for every argument, though an output can be differentiated; a hint."""
    due, walked = owed(analysis), walk(analysis)
    method, forward = analysis.function.backward, analysis.forward
    if (
        due is None
        or walked is None
        or method is None
        or not walked.returns
        or not concerns(analysis, "backward", "vjp")
    ):
        return
    if forward is None or (analysis.keeper is not None and analysis.keeper.calls("mark_non_differentiable")):
        return
    for returned in walked.returns:
        entries = [entry for one in returned.what for entry in _entries(one.thing)]
        if (
            not returned.explicit
            or not entries
            or any(not isinstance(one, Nothing) and one != Rest(True) for one in entries)
        ):
            return
    yield analysis.finding(
        "PB204",
        walked.returns[0].node,
        f"{method.name} returns None for every argument, so that no gradient ever flows through this Function.",
        where=f"{method.name}, every gradient",
        expected="a gradient, or outputs that are marked as non-differentiable",
        got="None",
        confidence="possible",
        path=method.owner.source.path,
    )


def _entries(thing: object) -> list[object]:
    if not isinstance(thing, Several):
        return [thing]
    found: list[object] = []
    for entry in thing.entries:
        found += [entry] if isinstance(entry, Rest) else [one.thing for one in entry]
    return found
