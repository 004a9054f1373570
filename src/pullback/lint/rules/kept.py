"""PB302, PB303 and PB306: tensors, and ctx itself, that are kept as attributes of ctx."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.ctx import attributes
from pullback.lint.flow import CtxSet, Flow
from pullback.lint.given import is_tensor, returned
from pullback.lint.remarks import explains
from pullback.lint.rooms import is_room
from pullback.lint.tensors import telling_methods, torch_names
from pullback.lint.values import Value

Defined = ast.FunctionDef | ast.Lambda


def tensors(analysis: Analysis) -> Iterator[Finding]:
    """PB302 and PB303: an argument, an output or an intermediate tensor that is an attribute of ctx."""
    flow = analysis.keeper
    if flow is None or not analysis.owns(flow):
        return
    said: set[tuple[str, int]] = set()
    for number, kept in enumerate(flow.ctx_sets):
        if _is_let_go(analysis, kept, flow.ctx_sets[number + 1 :]) or explains(flow.method.owner.source, kept.node):
            continue
        for value in (kept.value, *(kept.value.items or ())):
            found = _tensor(analysis, kept, value)
            key = (kept.name, kept.node.lineno)
            if found is not None and key not in said:
                said.add(key)
                yield found


def _tensor(analysis: Analysis, kept: CtxSet, value: Value) -> Finding | None:
    """What is wrong with keeping one value."""
    if value.items is not None or not (is_tensor(analysis, value) or _is_used_as_one(analysis, kept, value)):
        return None
    where = f"{_method(analysis)}, ctx.{kept.name}"
    confidence: Confidence = "certain" if value.kinds == {"tensor"} else "likely"
    inputs = value.of("input")
    if inputs:
        if _is_more(analysis, kept, inputs[0].name):
            return None
        alias = all(origin.how != "same" for origin in inputs)
        if _may_be_a_number(analysis, inputs[0].name) or is_room(analysis, inputs[0].name):
            confidence = "possible"
        what = f"the argument {inputs[0].name}" if inputs[0].name else "an argument"
        shares = "what may share the memory of " if alias else ""
        return analysis.finding(
            "PB302",
            kept.node,
            f"ctx.{kept.name} keeps {shares}{what}.",
            where=where,
            expected=f"ctx.save_for_backward({inputs[0].name or kept.name})",
            confidence="likely" if alias and confidence != "possible" else confidence,
        )
    if value.of("output") or value.origins & _outputs(analysis):
        if _is_marked(analysis, value):
            return None  # it has no graph, and so doesn't hold this ctx
        return analysis.finding(
            "PB302",
            kept.node,
            f"ctx.{kept.name} keeps an output, which holds this ctx: a cycle that only the garbage collector frees.",
            where=where,
            confidence=confidence,
        )
    if value.fresh and not _is_scratch(analysis, value):
        return analysis.finding(
            "PB303",
            kept.node,
            f"ctx.{kept.name} keeps a tensor that forward computed.",
            where=where,
            expected=f"ctx.save_for_backward({_name(kept)})",
            confidence=confidence,
        )
    return None


def _is_scratch(analysis: Analysis, value: Value) -> bool:
    """Whether nobody need save it: ``x.new_empty(0)``, room for a kernel, or ``torch.tensor(sizes)``, numbers."""
    flow = analysis.keeper
    sites = {origin.site[:2] for origin in value.origins}
    for call in flow.nodes(ast.Call) if flow is not None else ():
        if (call.lineno, call.col_offset) in sites and isinstance(call.func, ast.Attribute):
            if flow is not None and flow.value(call.func).dotted == "torch.tensor":
                return True
            first = call.args[0] if call.args else None
            if call.func.attr in ("empty", "new_empty") and isinstance(first, ast.Constant) and first.value == 0:
                return True
    return False


def _is_marked(analysis: Analysis, value: Value) -> bool:
    """Whether some of what it may be is marked as non-differentiable."""
    keeper = analysis.keeper
    calls = keeper.calls("mark_non_differentiable") if keeper is not None else []
    marked = {origin for call in calls for one in call.values for origin in one.origins}
    return bool(marked & value.origins) or any(not call.whole for call in calls)


def _is_let_go(analysis: Analysis, kept: CtxSet, later: Sequence[CtxSet]) -> bool:
    """Whether ctx surely keeps it no longer than needed: forward puts something else there, or backward drops it."""
    if any(one.name == kept.name and all(guard in kept.guards for guard in one.guards) for one in later):
        return True
    for name, method in analysis.function.own.items():
        gone = (ast.Del, ast.Store) if name in ("backward", "vjp") else ast.Del
        if any(node.attr == kept.name and isinstance(node.ctx, gone) for node in attributes(method)):
            return True
    return False


def _is_used_as_one(analysis: Analysis, kept: CtxSet, value: Value) -> bool:
    """Whether backward calls a method on an argument kept on ctx that hardly anything but a tensor has."""
    flow = analysis.backward
    if flow is None or value is not kept.value or not value.surely("input") or "unknown" not in value.kinds:
        return False
    called = {id(call.func) for call in flow.nodes(ast.Call)}
    return any(id(node) in called and node.attr in telling_methods() for node in _asked(flow, kept.name))


def _asked(flow: Flow, name: str) -> list[ast.Attribute]:
    """What backward asks of what is kept on ctx by that name."""
    found = []
    for node in flow.nodes(ast.Attribute):
        origins = flow.value(node.value).origins
        if origins and all((one.kind, one.name, one.how) == ("ctx", name, "same") for one in origins):
            found.append(node)
    return found


def _is_more(analysis: Analysis, kept: CtxSet, name: str) -> bool:
    """Whether an argument is asked for what a plain tensor doesn't have: another object, or one of a subclass.

    Those may have to be kept as the objects that they are.
    """
    forward, backward = analysis.function.forward, analysis.backward
    asked = _asked(backward, kept.name) if backward is not None else []
    if forward is not None and name:
        reads = (node for node in forward.nodes if isinstance(node, ast.Attribute))
        asked += [node for node in reads if isinstance(node.value, ast.Name) and node.value.id == name]
    return any(node.attr not in torch_names()["torch.Tensor"] for node in asked)


def _may_be_a_number(analysis: Analysis, name: str) -> bool:
    """Whether the annotation of an argument has more in it than a tensor, so that most often it may be none."""
    method = analysis.function.forward
    notes = [one.annotation for one in method.parameters if one.name == name] if method is not None else []
    return any(re.search(r"\b(?:int|float|complex|bool|str|Number|Any|object)\b", one) for one in notes)


def _method(analysis: Analysis) -> str:
    return analysis.keeper.method.name if analysis.keeper is not None else "forward"


def _name(kept: CtxSet) -> str:
    return kept.name.lstrip("_") or kept.name


def _outputs(analysis: Analysis) -> frozenset[object]:
    return frozenset(origin for origin in returned(analysis) if origin.kind == "fresh" and origin.how == "same")


def functions(analysis: Analysis) -> Iterator[Finding]:
    """PB302 and PB306: a function on ctx that holds an argument, or ctx itself."""
    flow = analysis.keeper
    if flow is None or not analysis.owns(flow):
        return
    defined = {node.name: node for node in flow.nodes(ast.FunctionDef)}
    for node in flow.nodes(ast.Assign):
        function: Defined | None = node.value if isinstance(node.value, ast.Lambda) else None
        if isinstance(node.value, ast.Name):
            function = defined.get(node.value.id)
        targets = [one for one in node.targets if isinstance(one, ast.Attribute) and _is_ctx(flow, one.value)]
        if targets and function is not None:
            yield from _held(analysis, flow, targets[0], function)
        if targets and isinstance(node.value, ast.Name) and node.value.id == flow.method.ctx:
            yield _cycle(analysis, flow, targets[0], "is ctx itself")


def _held(analysis: Analysis, flow: Flow, target: ast.Attribute, function: Defined) -> Iterator[Finding]:
    own = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    own |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    free = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id not in own]
    if any(one.id == flow.method.ctx for one in free):
        yield _cycle(analysis, flow, target, "is a function that holds ctx")
    for name in free:
        value = flow.value(name)
        arguments = value.of("input")
        if arguments and is_tensor(analysis, value):
            yield analysis.finding(
                "PB302",
                target,
                f"ctx.{target.attr} is a function that holds the argument {name.id}.",
                where=f"{flow.method.name}, ctx.{target.attr}",
                expected=f"ctx.save_for_backward({name.id})",
                confidence="likely",
            )
            return


def _cycle(analysis: Analysis, flow: Flow, target: ast.Attribute, what: str) -> Finding:
    return analysis.finding(
        "PB306",
        target,
        f"ctx.{target.attr} {what}: a cycle that only the garbage collector frees.",
        where=f"{flow.method.name}, ctx.{target.attr}",
    )


def _is_ctx(flow: Flow, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == flow.method.ctx != ""
