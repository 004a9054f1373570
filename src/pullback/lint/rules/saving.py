"""What is saved in forward against what backward and jvp read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.ctx import SAVED, Reading, attributes, escapes, is_closed, keeper_name, methods, readings
from pullback.lint.functions import Method
from pullback.lint.record import CtxCall
from pullback.lint.rules.counts import gradients as counted
from pullback.lint.walks import concerns, is_plain, is_twofold


def counts(analysis: Analysis) -> Iterator[Finding]:
    """PB236: saved tensors are unpacked into another number than were saved, or read behind their end."""
    known = _counts(analysis)
    if not known or not concerns(analysis, "forward", "setup_context", "backward", "vjp"):
        return
    shown = " or ".join(map(str, sorted(known)))
    for method in _readers(analysis):
        for reading in readings(method):
            got = _misread(reading, known)
            if got:
                yield analysis.finding(
                    "PB236",
                    reading.node,
                    f"{method.name} {got}, and {shown} {'is' if shown == '1' else 'are'} saved.",
                    where=f"{method.name}, saved_tensors",
                    expected=f"{shown} saved tensor{'' if shown == '1' else 's'}",
                    got=got,
                    confidence="certain" if is_plain(analysis.function.forward) else "likely",
                    path=method.owner.source.path,
                )


def _counts(analysis: Analysis) -> set[int]:
    """How many tensors may have been saved; empty where that isn't known."""
    function = analysis.function
    if not is_closed(analysis) or any(is_twofold(analysis, name) for name in ("forward", "setup_context", "backward")):
        return set()
    if function.setup_context is not None and function.forward is not None and function.forward.ctx:
        return set()
    if any(not call.whole or call.node.keywords for call in analysis.saves) or analysis.keeper is None:
        return set()
    if not analysis.saves:
        unseen = any(
            node.attr in ("save_for_backward", "to_save") for one in methods(analysis) for node in attributes(one)
        )
        return set() if unseen else {0}
    return {len(call.values) for call in analysis.saves}


def _readers(analysis: Analysis) -> list[Method]:
    """The methods that read what was saved for backward."""
    names = ("backward", "vjp", "double_backward")
    return [method for name in names if (method := analysis.function.method(name)) is not None]


def _misread(reading: Reading, known: set[int]) -> str:
    """How more or less is read than was saved; empty where it isn't."""
    if reading.names is not None:
        count = len(reading.names)
        if reading.star is not None:
            return f"takes at least {count - 1} saved tensors" if count - 1 > max(known) else ""
        return f"takes saved_tensors apart into {count}" if count not in known else ""
    if reading.at is not None:
        most = reading.at + 1 if reading.at >= 0 else -reading.at
        return f"reads saved_tensors[{reading.at}]" if most > max(known) else ""
    return ""


def unread(analysis: Analysis) -> Iterator[Finding]:
    """PB304: a tensor is saved that nothing reads."""
    function, method = analysis.function, analysis.function.backward
    if method is None or analysis.saved is None or not concerns(analysis, "backward", "vjp"):
        return
    if len(_counts(analysis)) != 1 or len(analysis.saves) != 1 or not is_closed(analysis):
        return
    if any(True for _ in counted(analysis)):
        return  # what is saved for a gradient that is missing isn't read, of course
    others = [one for one in methods(analysis) if one.name not in ("forward", "setup_context")]
    if any(node.attr in SAVED for one in methods(analysis) if one not in others for node in attributes(one)):
        return
    if any(escapes(one) for one in others) or not _returns(method):
        return
    unused = set(range(len(analysis.saved)))
    for one in others:
        for reading in readings(one):
            unused -= _read(reading, len(analysis.saved))
    if any(kwargs.arg for kwargs in analysis.saves[0].node.keywords) or function.declares(
        "clear_saved_tensors_on_access"
    ):
        return
    for index in sorted(unused):
        # A pullback.Function reads what it was called with from there, to connect a second derivative.
        if function.ours and not analysis.saved[index].surely("fresh"):
            continue
        name = _written(analysis.saves[0], index)
        if analysis.saved[index].kinds == {"none"} or name.startswith("torch.tensor("):
            continue  # which cost nothing: a number, or what there is to save something
        yield analysis.finding(
            "PB304",
            analysis.saves[0].node,
            f"{name} is saved, and {method.name} never reads it.",
            where=f"saved tensor {index}",
            expected="only tensors that are read",
            got=name,
            confidence="likely",
            path=analysis.keeper.method.owner.source.path if analysis.keeper else "",
        )


def _returns(method: Method) -> bool:
    return any(isinstance(node, ast.Return) for node in method.nodes)


def _written(call: CtxCall, index: int) -> str:
    plain = not any(isinstance(one, ast.Starred) for one in call.node.args)
    return ast.unparse(call.node.args[index]) if plain and index < len(call.node.args) else f"saved tensor {index}"


def _read(reading: Reading, count: int) -> set[int]:
    """The indices of the saved tensors that one place reads."""
    everything = set(range(count))
    if reading.at is not None:
        return {reading.at % count} if count else set()
    if reading.names is None or (reading.star is None and len(reading.names) != count):
        return everything
    star = reading.star if reading.star is not None else count
    found: set[int] = set()
    for position, target in enumerate(reading.names):
        name = target.value if isinstance(target, ast.Starred) else target
        if isinstance(name, ast.Name) and not _is_loaded(reading.method, name.id):
            continue
        if position < star:
            found.add(position)
        elif position == star:
            found |= set(range(star, count - (len(reading.names) - star - 1)))
        else:
            found.add(count - (len(reading.names) - position))
    return found


def _is_loaded(method: Method, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in method.nodes
    )


def tangents(analysis: Analysis) -> Iterator[Finding]:
    """PB508: jvp reads saved tensors, and nothing was saved for it."""
    method = analysis.function.method("jvp")
    if method is None or not is_closed(analysis) or not concerns(analysis, "jvp", "forward", "setup_context"):
        return
    if any(
        node.attr in ("save_for_forward", "saved_for_forward") for one in methods(analysis) for node in attributes(one)
    ):
        return
    for reading in readings(method):
        if reading.names is None and reading.at is None:
            continue
        yield analysis.finding(
            "PB508",
            reading.node,
            f"jvp reads saved tensors, and {keeper_name(analysis)} saves none for it: "
            "save_for_backward is for backward.",
            where="jvp, saved_tensors",
            expected="ctx.save_for_forward, with what jvp reads",
            got="no saved tensor",
            confidence="certain" if is_plain(analysis.function.forward) else "likely",
            path=method.owner.source.path,
        )
        return


def old_name(analysis: Analysis) -> Iterator[Finding]:
    """PB238: saved_variables."""
    for name, method in analysis.function.own.items():
        for node in attributes(method):
            if node.attr == SAVED[1] and isinstance(node.ctx, ast.Load):
                yield analysis.finding(
                    "PB238",
                    node,
                    f"{name} reads {method.ctx}.saved_variables, an old name of saved_tensors.",
                    where=name,
                    expected=f"{method.ctx}.saved_tensors",
                    got=f"{method.ctx}.saved_variables",
                )
