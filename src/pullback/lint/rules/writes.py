"""PB401 to PB404: writes into what belongs to somebody else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.flow import Flow
from pullback.lint.given import gradient_of, returned
from pullback.lint.remarks import asked_for, explains_write
from pullback.lint.rooms import is_output, is_overwritten
from pullback.lint.values import Origin
from pullback.lint.writing import Write, writes


def backward(analysis: Analysis) -> Iterator[Finding]:
    """PB403 and PB404: backward changes a grad_output, a saved tensor, or an argument that was kept on ctx."""
    flow = analysis.backward
    if flow is None or not analysis.owns(flow):
        return
    for write in writes(flow):
        gradients = write.into("grad")
        if gradients:
            name = _grad_name(flow, gradients[0])
            message = f"backward changes {name} in place"
            hint = _is_asked_for(analysis, flow, write)
            yield _finding(analysis, flow, "PB403", write, gradients, f"backward, {name}", message, hint=hint)
        elif write.into("saved"):
            saved = write.into("saved")
            message, where = "backward changes a saved tensor in place", _saved_place(saved)
            arguments = any(analysis.came_from(one).of("input") for one in saved)
            meant = not arguments and explains_write(analysis.function.source, write.node)
            hint = meant or _is_asked_for(analysis, flow, write)
            yield _finding(analysis, flow, "PB404", write, saved, where, message, hint=hint)
        else:
            kept = [one for one in write.into("ctx") if analysis.came_from(one).of("input")]
            if kept:
                message = f"backward changes the argument that is kept as ctx.{kept[0].name} in place"
                names = [one.name for origin in kept for one in analysis.came_from(origin).of("input")]
                hint = is_overwritten(analysis, write, names) or _is_asked_for(analysis, flow, write)
                yield _finding(analysis, flow, "PB404", write, tuple(kept), "backward", message, hint=hint)


def forward(analysis: Analysis) -> Iterator[Finding]:
    """PB401 and PB402: forward or setup_context changes an argument that isn't marked dirty."""
    for flow in (analysis.forward, analysis.setup_context):
        if flow is None or not analysis.owns(flow):
            continue
        dirty = _dirty(analysis)
        everything = writes(flow)
        for write in everything:
            for origin in write.into("input"):
                if dirty is None or origin.name in dirty or _is_a_buffer(analysis, flow, write, origin, everything):
                    continue
                name = origin.name or "an argument"
                rule = "PB402" if _is_hidden(write) else "PB401"
                where = f"{flow.method.name}, argument {origin.name}" if origin.name else flow.method.name
                message = f"{flow.method.name} changes {name} in place"
                hint = is_overwritten(analysis, write, (origin.name,)) and not is_output(analysis, origin.name)
                yield _finding(analysis, flow, rule, write, (origin,), where, message, hint=hint)
                break


def _finding(
    analysis: Analysis,
    flow: Flow,
    rule: str,
    write: Write,
    origins: tuple[Origin, ...],
    where: str,
    message: str,
    *,
    hint: bool = False,
) -> Finding:
    maybe = all(origin.how in ("maybe", "apart", "unsure") for origin in origins)
    unsure = all(origin.how == "unsure" for origin in origins)
    mixed = any(origin not in origins for origin in write.value.origins) or bool(write.value.may_be_none)
    confidence: Confidence = "likely" if maybe or mixed or not write.always else "certain"
    if maybe:
        message += ", unless it is a copy by then"
    elif mixed:
        message += ", on one of the ways that lead here"
    if hint or unsure or (mixed and any(guard.kind == "if" for guard in flow.guards(write.target))):
        # The memory may be lent for it; the index may copy; the condition may leave out just that way.
        confidence = "possible"
    return analysis.finding(
        rule, write.node, f"{message} ({write.shown}).", where=where, got=_shown(write), confidence=confidence
    )


def _shown(write: Write) -> str:
    text = ast.unparse(write.node)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_asked_for(analysis: Analysis, flow: Flow, write: Write) -> bool:
    """Whether backward writes only where the caller asked for it by an argument such as ``inplace``."""
    forward = analysis.function.forward
    names = {one.name for one in forward.parameters} if forward is not None else set()
    return asked_for(flow.guards(write.target), names)


def _saved_place(saved: tuple[Origin, ...]) -> str:
    known = len(saved) == 1 and saved[0].index >= 0
    return f"backward, saved tensor {saved[0].index}" if known else "backward"


def _grad_name(flow: Flow, origin: Origin) -> str:
    names = [parameter.name for parameter in flow.method.positional]
    return names[origin.index] if 0 <= origin.index < len(names) else "a grad_output"


def _dirty(analysis: Analysis) -> frozenset[str] | None:
    """The arguments that are marked dirty; None where any may be."""
    names: set[str] = set()
    for flow in (analysis.forward, analysis.setup_context):
        for call in flow.calls("mark_dirty") if flow is not None else ():
            if not call.whole:
                return None
            for value in call.values:
                if not value.of("input"):
                    return None  # an output, perhaps, that is an argument
                names |= {origin.name for origin in value.of("input")}
    return frozenset(names) if "" not in names else None


def _is_hidden(write: Write) -> bool:
    """Whether PyTorch's version counter can't see the write: through ``.data`` or NumPy."""
    if write.value.kinds == {"array"} or write.shown == ".data =":
        return True
    return any(isinstance(node, ast.Attribute) and node.attr == "data" for node in ast.walk(write.target))


def _is_a_buffer(analysis: Analysis, flow: Flow, write: Write, origin: Origin, everything: list[Write]) -> bool:
    """Whether an argument is a running statistic: it gets no gradient, and no result depends on what was written."""
    if write.read or not origin.name or gradient_of(analysis, origin.name) == "some":
        return False
    if any(one.kind == "input" and one.name == origin.name for one in returned(analysis)):
        return False
    targets = {id(inner) for other in everything for inner in ast.walk(other.target)}
    return not any(_reads(flow, node, write, origin) for node in flow.nodes(ast.Name) if id(node) not in targets)


def _reads(flow: Flow, node: ast.Name, write: Write, origin: Origin) -> bool:
    """Whether a name behind the write stands for the argument."""
    if not isinstance(node.ctx, ast.Load) or (node.lineno, node.col_offset) <= _end(write.node):
        return False
    return any(one.kind == "input" and one.name == origin.name for one in flow.value(node).origins)


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
