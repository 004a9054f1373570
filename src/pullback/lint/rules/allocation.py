"""PB550: a gradient or an output that is made in the default dtype, or on the default device."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.evaluate import site
from pullback.lint.flow import Flow
from pullback.lint.parts import integer
from pullback.lint.values import Value

Site: TypeAlias = "tuple[int, ...]"

_MAKERS = frozenset(f"torch.{name}" for name in "zeros ones empty full eye rand randn linspace logspace".split())
"""Functions whose dtype and device are the defaults unless they are given, and never those of an argument."""


def defaults(analysis: Analysis) -> Iterator[Finding]:
    """PB550: what is returned as a gradient or as an output was made without a dtype or a device."""
    for flow in (analysis.forward, analysis.backward):
        made = _made(flow) if flow is not None and analysis.owns(flow) else {}
        if flow is None or not made or (flow is analysis.forward and not _takes_tensors(flow)):
            continue
        what = "gradient" if flow is analysis.backward else "output"
        for one in flow.returns:
            for value in one.value.items if one.value.items is not None else (one.value,):
                for call in _makers(value, made):
                    yield from _returned(analysis, flow, made.pop(site(call)), what)
        for node, call in _combined(flow, made):
            yield from _joined(analysis, flow, node, made.pop(site(call)))


def _made(flow: Flow) -> dict[Site, ast.Call]:
    """The calls of a method that make memory, by where they stand."""
    calls = (one for one in flow.nodes(ast.Call) if flow.value(one.func).dotted in _MAKERS and flow.reached(one))
    return {site(one): one for one in calls if not _makes_others(one)}


def _makes_others(call: ast.Call) -> bool:
    """Whether a call gives a tensor that is no float, or fills one that it is given; or isn't known well enough."""
    if any(keyword.arg in (None, "out", "names") for keyword in call.keywords):
        return True
    if call.args and integer(call.args[0]) == 0:
        return True  # only to be given other memory
    is_full = isinstance(call.func, ast.Attribute) and call.func.attr == "full"
    fill = call.args[1] if is_full and len(call.args) > 1 else None
    return is_full and not (isinstance(fill, ast.Constant) and isinstance(fill.value, float))


def _takes_tensors(flow: Flow) -> bool:
    """Whether forward surely has a tensor among its arguments, whose dtype and device the output could have."""
    if any(parameter.annotation.rpartition(".")[2].startswith("Tensor") for parameter in flow.method.parameters):
        return True
    values = (flow.value(node) for node in flow.nodes(ast.Name))
    return any(value.is_tensor and value.of("input") for value in values)


def _makers(value: Value, made: Mapping[Site, ast.Call]) -> list[ast.Call]:
    """The calls that made a value, where nothing converted it on the way."""
    sites = {one.site for one in value.of("fresh") if one.how in ("same", "view")}
    return [made[site] for site in sorted(sites) if site in made]


def _missing(flow: Flow, call: ast.Call) -> list[str]:
    """What a call doesn't say, and nothing around it says in its place."""
    given = {keyword.arg for keyword in call.keywords}
    missing = [name for name in ("dtype", "device") if name not in given]
    if any(guard.kind == "with" and _sets_device(flow, guard.test) for guard in flow.guards(call)):
        missing = [name for name in missing if name != "device"]
    if _is_on_the_cpu(flow):
        missing = [name for name in missing if name != "device"]
    return missing


def _is_on_the_cpu(flow: Flow) -> bool:
    """Whether the Function can only take what is on the CPU: it asks a tensor for NumPy's array, and copies none."""
    function = flow.method.owner
    methods = [one for one in (function.forward, function.setup_context, function.backward) if one is not None]
    names = {node.attr for one in methods for node in one.nodes if isinstance(node, ast.Attribute)}
    words = {node.value for one in methods for node in one.nodes if isinstance(node, ast.Constant)}
    return "numpy" in names and "cpu" not in names | words


def _returned(analysis: Analysis, flow: Flow, call: ast.Call, what: str) -> Iterator[Finding]:
    missing = _missing(flow, call)
    if missing:
        # An output in float32 may be meant, whatever comes in; a gradient is never free in its dtype.
        confidence: Confidence = "possible" if what == "output" and missing == ["dtype"] else "likely"
        message = (
            f"{flow.method.name} returns an {what}" if what == "output" else f"{flow.method.name} returns a {what}"
        )
        yield _finding(analysis, flow, call, f"{message} that is made without {' and '.join(missing)}.", confidence)


def _combined(flow: Flow, made: Mapping[Site, ast.Call]) -> Iterator[tuple[ast.BinOp, ast.Call]]:
    """Arithmetic between memory on the default device and an argument, a saved tensor or a grad_output."""
    seen: set[Site] = set()
    for node in flow.nodes(ast.BinOp) if made else ():
        for mine, other in ((node.left, node.right), (node.right, node.left)):
            value, against = flow.value(mine), flow.value(other)
            calls = _makers(value, made) if value.fresh and len(value.origins) == 1 else []
            given = against.is_tensor and any(one.kind in ("input", "grad", "saved") for one in against.origins)
            if calls and given and site(calls[0]) not in seen:
                seen.add(site(calls[0]))
                yield node, calls[0]


def _joined(analysis: Analysis, flow: Flow, node: ast.BinOp, call: ast.Call) -> Iterator[Finding]:
    if "device" in _missing(flow, call) and not _is_scalar(call):
        message = f"{flow.method.name} combines a tensor on the default device with one that may be elsewhere."
        yield _finding(analysis, flow, call, message, "likely", got=ast.unparse(node))


def _is_scalar(call: ast.Call) -> bool:
    """Whether a tensor has no dimensions: it goes together with those of any device."""
    first = call.args[0] if call.args else None
    return isinstance(first, (ast.Tuple, ast.List)) and not first.elts


def _finding(
    analysis: Analysis, flow: Flow, call: ast.Call, message: str, confidence: Confidence, *, got: str = ""
) -> Finding:
    expected = ", ".join(f"{name}=….{name}" for name in _missing(flow, call))
    return analysis.finding(
        "PB550",
        call,
        message,
        where=flow.method.name,
        expected=expected,
        got=got or ast.unparse(call),
        confidence=confidence,
    )


def _sets_device(flow: Flow, test: ast.expr | None) -> bool:
    if test is None:
        return False
    function = test.func if isinstance(test, ast.Call) else test
    return "device" in flow.value(test).kinds or "device" in flow.value(function).dotted
