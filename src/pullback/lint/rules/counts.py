"""How many gradients backward returns, and how many it takes."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from pullback.finding import Finding
from pullback.lint.alternatives import Alternatives, Made, Nothing, Rest, Several
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.conditions import CALLED
from pullback.lint.returned import Returned
from pullback.lint.rules.misspelt import contexts
from pullback.lint.values import Value
from pullback.lint.walks import Owed, concerns, is_twofold, lowered, owed, tuples, walk


def gradients(analysis: Analysis) -> Iterator[Finding]:
    """PB201: backward returns too few gradients, or too many."""
    due, walked = owed(analysis), walk(analysis)
    if due is None or walked is None or not concerns(analysis, "forward", "backward", "vjp") or _never_runs(analysis):
        return
    if next(contexts(analysis), None) is not None:  # a misspelt setup_context: forward's first argument isn't ctx
        return
    longest = max((len(several.entries) for one in walked.returns for _, several in tuples(one)), default=0)
    for returned in walked.returns:
        for alternative in returned.what:
            if isinstance(alternative.thing, Several):
                if not alternative.thing.is_list:
                    yield from _of_tuple(analysis, due, returned, alternative.thing, longest)
            elif due.least > 1 and _is_one(analysis, alternative.thing):
                others = len(walked.returns) > 1 or len(returned.what) > 1
                yield _wrong(analysis, due, returned, 1, _alone(analysis, returned, alternative.thing, others))


def _never_runs(analysis: Analysis) -> bool:
    """Whether every output is marked by name as not differentiable, so that nobody calls backward."""
    flow = analysis.forward
    if flow is None or not flow.returns:
        return False
    calls = flow.calls("mark_non_differentiable")
    marked = {one.id for call in calls for one in call.node.args if isinstance(one, ast.Name)}
    given = [one.node.value for one in flow.returns]
    outputs = [part for one in given for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return all(isinstance(one, ast.Name) and one.id in marked for one in outputs)


def _of_tuple(analysis: Analysis, due: Owed, returned: Returned, several: Several, longest: int) -> Iterator[Finding]:
    fixed = [entry for entry in several.entries if not isinstance(entry, Rest)]
    if several.count is None:
        # What stands behind a star may be empty, so only too many can be told: those that stand before it.
        leading = several.entries.index(next(one for one in several.entries if isinstance(one, Rest)))
        fixed = fixed[:leading]
    count = _without_last_nones(fixed, due)
    if several.count is not None and len(fixed) < due.least:
        yield _wrong(analysis, due, returned, len(fixed), "certain")
    elif due.most is not None and count > due.most:
        yield _wrong(analysis, due, returned, count, _surely(analysis, fixed[count - 1]))
    elif several.count is not None and (due.most is None or len(fixed) < due.most):
        if due.most is None and _goes_by_a_length(analysis, returned):
            return
        if due.most is not None and not analysis.uses:
            yield _wrong(analysis, due, returned, len(fixed), "possible", due.most)
        for use in analysis.uses:
            if use.how == "apply" and use.passed is not None and not use.keywords and use.passed > len(fixed):
                if use.passed <= longest:
                    continue  # it goes by how many arguments there were, and returns as many elsewhere
                confidence: Confidence = "certain" if not returned.path - CALLED else "likely"
                yield _wrong(analysis, due, returned, len(fixed), confidence, use.passed)
                return


def _goes_by_a_length(analysis: Analysis, returned: Returned) -> bool:
    """Whether the way to a place goes by a length, of what backward gets or has saved: by how many arguments came."""
    flow = analysis.backward
    if flow is None:
        return False
    lengths = {
        target.id
        for node in flow.nodes(ast.Assign)
        if _has_length(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    tests = [ast.parse(one.text, mode="eval") for one in returned.path if one.text]
    return any(_has_length(test, lengths | {flow.method.vararg}) for test in tests)


def _has_length(node: ast.AST, names: Container[str] = ()) -> bool:
    """Whether an expression has a call of ``len`` in it, or reads one of `names`."""
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return "len" in read or any(name in names for name in read)


def _without_last_nones(fixed: list[Alternatives], due: Owed) -> int:
    """How many entries count: Nones behind those that are due may be there."""
    count = len(fixed)
    while due.most is not None and count > due.most and all(isinstance(one.thing, Nothing) for one in fixed[count - 1]):
        count -= 1
    return count


def _surely(analysis: Analysis, entry: Alternatives) -> Confidence:
    """How sure it is that an entry isn't None, which would be allowed."""
    if any(isinstance(one.thing, Nothing) for one in entry):
        return "possible"
    values = [
        _value(analysis, one.thing.node) for one in entry if isinstance(one.thing, Made) and one.thing.part is None
    ]
    sure = len(values) == len(entry) and all(value is not None and value.may_be_none is False for value in values)
    return "certain" if sure else "likely"


def _value(analysis: Analysis, node: ast.expr | None) -> Value | None:
    return None if node is None or analysis.backward is None else analysis.backward.value(node)


def _is_one(analysis: Analysis, thing: object) -> bool:
    """Whether a returned thing is a single gradient, or None."""
    if isinstance(thing, Nothing):
        return True
    if not isinstance(thing, Made) or thing.part is not None:
        return False
    value = _value(analysis, thing.node)
    return value is not None and value.is_tensor is True


def _alone(analysis: Analysis, returned: Returned, thing: object, others: bool) -> Confidence:
    """How sure it is that a single thing, or nothing, is returned by mistake."""
    method = analysis.function.backward
    if isinstance(thing, Nothing) and others:
        return "possible"  # on a path that may never be taken
    if method is not None and not returned.explicit:
        written = [one for one in method.node.body if not _is_idle(one)]
        return "likely" if written else "possible"  # an empty body says: not to be differentiated
    return "certain"


def _is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _wrong(
    analysis: Analysis, due: Owed, returned: Returned, got: int, confidence: Confidence, passed: int | None = None
) -> Finding:
    method = analysis.function.backward
    assert method is not None
    number = passed if passed is not None else due.most if due.most is not None and got > due.most else due.least
    of = f"{due.names}" if passed is None else f"{due.names}, of which a call passes {passed}"
    message = f"{method.name} returns {_count(got, 'gradient')} for {_count(number, 'argument')}"
    if number == due.least != due.most:
        message = f"{method.name} returns {_count(got, 'gradient')} for {number} arguments or more"
    names = [due.name(index) for index in range(got, number)]
    if 0 < len(names) < 4:
        message += f"; there is none for {' and '.join(names)}"
    if not returned.explicit:
        message += ", since its end is reached without a return"
    return analysis.finding(
        "PB201",
        returned.node,
        f"{message}.",
        where=f"{method.name}, what it returns",
        expected=f"an entry for each of {of}",
        got=_count(got, "entry"),
        confidence=lowered(confidence, method, analysis.function.forward),
        path=method.owner.source.path,
    )


def _count(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def cotangents(analysis: Analysis) -> Iterator[Finding]:
    """PB111: backward can't take one grad_output for each output."""
    method, flow = analysis.function.backward, analysis.forward
    if method is None or flow is None or not concerns(analysis, "forward", "backward", "vjp"):
        return
    if is_twofold(analysis, "forward") or is_twofold(analysis, "backward") or is_twofold(analysis, "vjp"):
        return
    backward = analysis.backward
    if backward is not None and not backward.returns and not backward.falls_off:
        return  # it raises whatever it gets, which says: not to be differentiated
    least, most = len(method.required), None if method.vararg else len(method.positional)
    counts = [(one, _outputs(analysis, one.value)) for one in flow.returns]
    fitting = [n for _, n in counts if n is None or (least <= n and (most is None or n <= most))]
    if any(parameter.keyword_only and parameter.default is None for parameter in method.parameters):
        return
    for one, count in counts:
        if count is None or count in fitting:
            continue
        taken = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        yield analysis.finding(
            "PB111",
            method.node,
            f"forward returns {_count(count, 'output')} (line {one.node.lineno}), "
            f"and {method.name} takes {taken} {'grad_output' if taken == '1' else 'grad_outputs'}.",
            where=f"{method.name}, its parameters",
            expected=f"{_count(count, 'parameter')} after {method.ctx or 'ctx'}",
            got=taken,
            confidence=lowered("certain", method, analysis.function.forward) if not fitting else "possible",
            path=method.owner.source.path,
        )
        return


def _outputs(analysis: Analysis, value: Value) -> int | None:
    """How many outputs a returned value is."""
    if value.kinds == {"tensor"}:
        return 1
    if value.kinds != {"tuple"} or value.items is None:
        return None
    if analysis.function.ours and not all(item.is_tensor for item in value.items):
        return None  # a nest has a gradient for each of its leaves
    return len(value.items)
