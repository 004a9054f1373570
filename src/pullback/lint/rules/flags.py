"""The flags of needs_input_grad: whose is asked for, whether it exists, and what happens where it is off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.alternatives import Alternatives, Made
from pullback.lint.analysis import Analysis
from pullback.lint.conditions import Condition, Conditions, asked, together
from pullback.lint.flow import Flow
from pullback.lint.parts import integer
from pullback.lint.returned import Returned, Unset
from pullback.lint.walks import Owed, concerns, gradients, lowered, owed, place, walk


def wrong(analysis: Analysis) -> Iterator[Finding]:
    """PB208: a gradient stands under the flag of another argument."""
    due, walked = owed(analysis), walk(analysis)
    method = analysis.function.backward
    if due is None or walked is None or method is None or not concerns(analysis, "forward", "backward", "vjp"):
        return
    for index, entry in enumerate(_everywhere(walked.returns)):
        flags = _others(entry, index)
        if not flags or index >= len(due.parameters) or max(flags) >= len(due.parameters):
            continue
        own, others = due.name(index), " or ".join(due.name(flag) for flag in sorted(flags))
        yield analysis.finding(
            "PB208",
            place(tuple(one for one in entry if isinstance(one.thing, Made)), method.node),
            f"{method.name} makes the gradient of {own} only where {others} needs one.",
            where=f"{method.name}, gradient of {own}",
            expected=f"{method.ctx}.needs_input_grad[{index}]",
            got=" or ".join(f"{method.ctx}.needs_input_grad[{flag}]" for flag in sorted(flags)),
            confidence=lowered("likely", method),
            path=method.owner.source.path,
        )


def _everywhere(returns: list[Returned]) -> list[Alternatives]:
    """The gradients by position, with what each may be at any return."""
    found: list[Alternatives] = []
    for returned in returns:
        for index, entry in enumerate(gradients(returned, alone=False)):
            if index == len(found):
                found.append(())
            found[index] += entry
    return found


def _others(entry: Alternatives, index: int) -> frozenset[int]:
    """The flags under which a gradient is made, if its own isn't among them and it is never made without any."""
    made = [one for one in entry if isinstance(one.thing, Made)]
    flags = [asked(one.conditions) for one in made]
    if not made or not all(flags) or any(index in some for some in flags):
        return frozenset()
    # Where a flag is off, another gradient may be made: which flags matter can't be told then.
    if any(condition.is_flag and not condition.on for one in made for condition in one.conditions):
        return frozenset()
    return frozenset().union(*flags)


def absent(analysis: Analysis) -> Iterator[Finding]:
    """PB231: an index of needs_input_grad behind its end, or the flags unpacked into another number of names."""
    due = owed(analysis)
    if due is None or due.most is None:
        return
    for flow in analysis.flows():
        if not (analysis.owns(flow) or concerns(analysis, "forward")):
            continue
        for node in flow.nodes(ast.Subscript):
            family, index = flow.value(node.value).family, integer(node.slice)
            if family is None or family[0] != "needs" or index is None or family[1] < 0:
                continue
            if family[1] + index >= due.most or (index < 0 and (family[1] or -index > due.most)):
                yield _no_flag(analysis, flow, due, node, f"flag {family[1] + index}")
        yield from _unpacked(analysis, flow, due)


def _unpacked(analysis: Analysis, flow: Flow, due: Owed) -> Iterator[Finding]:
    assert due.most is not None
    for node in flow.nodes(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, (ast.Tuple, ast.List)) or flow.value(node.value).family != ("needs", 0):
            continue
        if isinstance(node.value, ast.Subscript):  # a slice: how long it is isn't known
            continue
        stars = sum(isinstance(element, ast.Starred) for element in target.elts)
        count = len(target.elts) - stars
        if count > due.most or (not stars and count < due.least):
            yield _no_flag(analysis, flow, due, node.value, f"{count} flags")


def _no_flag(analysis: Analysis, flow: Flow, due: Owed, node: ast.expr, got: str) -> Finding:
    method = flow.method
    count = f"{due.most} flag{'' if due.most == 1 else 's'}"
    if due.most != due.least:
        count = f"at most {count}"
    first = due.parameters[0].name if due.parameters else "forward's first argument"
    return analysis.finding(
        "PB231",
        node,
        f"{method.name} asks for {got} of needs_input_grad, which has {count}, for {due.names}: "
        f"flag 0 is that of {first}.",
        where=f"{method.name}, needs_input_grad",
        expected=count,
        got=got,
        confidence=lowered("certain", analysis.function.forward),
        path=method.owner.source.path,
    )


def unset(analysis: Analysis) -> Iterator[Finding]:
    """PB233: a name that has no value where a flag is off, and is read all the same."""
    due, walked = owed(analysis), walk(analysis)
    method = analysis.function.backward
    if due is None or walked is None or method is None or not concerns(analysis, "backward", "vjp"):
        return
    said: set[str] = set()
    for one in walked.unset:
        off = _flags_off(one)
        if not off or one.node.id in said:
            continue
        other = _another(walked.returns, off, len(due.parameters))
        if other is None:
            continue
        said.add(one.node.id)
        flags = " and ".join(f"{method.ctx}.needs_input_grad[{flag}]" for flag in sorted(off))
        yield analysis.finding(
            "PB233",
            one.node,
            f"{one.node.id} is read here, and nothing sets it where {flags} {'is' if len(off) == 1 else 'are'} off "
            f"and {due.name(other)} needs a gradient.",
            where=f"{method.name}, {one.node.id}",
            expected=f"{one.node.id} = None before the flag is asked for",
            got="no value",
            confidence="certain",
            path=method.owner.source.path,
        )


def _flags_off(one: Unset) -> frozenset[int]:
    """The flags that have to be off for a name to have no value; none where more has to hold than that."""
    beyond = [condition for condition in one.conditions if condition not in one.path]
    if not beyond or any(not condition.is_flag or condition.on for condition in beyond):
        return frozenset()
    return frozenset().union(*(condition.flags for condition in beyond))


def _another(returns: list[Returned], off: frozenset[int], count: int) -> int | None:
    """An argument that gets a gradient with those flags off, so that backward is called then."""
    conditions: Conditions = frozenset((Condition(off, False),))
    for returned in returns:
        for index, entry in enumerate(gradients(returned, alone=False)):
            if index in off or index >= count:
                continue
            if any(isinstance(one.thing, Made) and together(one.conditions, conditions) is not None for one in entry):
                return index
    return None


def undefined(analysis: Analysis) -> Iterator[Finding]:
    """PB210: gradients aren't materialized, and one is used without a look whether it is None."""
    keeper, flow, method = analysis.keeper, analysis.backward, analysis.function.backward
    if (
        keeper is None
        or flow is None
        or method is None
        or not concerns(analysis, "forward", "setup_context", "backward")
    ):
        return
    off = [call for call in keeper.calls("set_materialize_grads") if _is_false(call.node)]
    if not off or any(call.guards for call in off):
        return
    # Whoever marks some outputs has thought of which others come together.
    chosen = bool(keeper.calls("mark_non_differentiable"))
    used = [parameter.name for parameter in method.positional if _is_named(method.node, parameter.name)]
    uses = {name: _first_use(method.node, name) for name in used}
    untested = {name: use for name, use in uses.items() if use is not None}
    if not untested:
        return
    names = " and ".join(untested)
    use = min(untested.values(), key=lambda node: (node.lineno, node.col_offset))
    yield analysis.finding(
        "PB210",
        use,
        f"{names} {'is' if len(untested) == 1 else 'are'} used without a test for None, "
        "and gradients aren't materialized.",
        where=f"{method.name}, {names}",
        expected=f"if {next(iter(untested))} is not None",
        got=_line(use),
        confidence="likely" if len(used) > 1 and not chosen else "possible",
        path=method.owner.source.path,
    )


def _is_named(node: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _is_false(call: ast.Call) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is False


def _line(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_use(node: ast.FunctionDef, name: str) -> ast.expr | None:
    """Where a name is first used as a tensor; None if it is tested or set anywhere, or only handed on."""
    found: list[ast.expr] = []
    for statement in node.body:
        for one in ast.walk(statement):
            if _settles(one, name):
                return None
            if isinstance(one, ast.BinOp) and _is(name, one.left, one.right):
                found.append(one)
            elif isinstance(one, ast.UnaryOp) and not isinstance(one.op, ast.Not) and _is(name, one.operand):
                found.append(one)
            elif isinstance(one, (ast.Attribute, ast.Subscript)) and _is(name, one.value):
                found.append(one)
    return min(found, key=lambda one: (one.lineno, one.col_offset), default=None)


def _is(name: str, *nodes: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _settles(node: ast.AST, name: str) -> bool:
    """Whether a test, or an assignment, may see to it that a name isn't None."""
    if isinstance(node, ast.Compare):
        return _is(name, node.left, *node.comparators)
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        return _is(name, node.test)
    if isinstance(node, ast.BoolOp):
        return _is(name, *node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is(name, node.operand)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "bool", "any", "all")
    ):
        return any(_is(name, one) for argument in node.args for one in ast.walk(argument) if isinstance(one, ast.expr))
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, (ast.Store, ast.Del))
