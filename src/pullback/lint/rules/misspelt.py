"""Names that are nearly those that autograd knows: a method that it never calls, an attribute that ctx doesn't have."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.ctx import attributes
from pullback.lint.rules.unset import OF_CTX, inside_try, is_set_from_outside, strings

_ALIKE = 0.85  # of 1, as difflib counts: `backwards`, `backwrad` and `foward` are, `backward_impl` isn't

_SETUP_GIVEN = r"\.setup_context\s*=|[\"']setup_context[\"']"  # to the class somewhere

_LIKE_CONTEXT = 0.8  # `setup_ctx` and `set_context` are, `save_context` isn't


def methods(analysis: Analysis) -> Iterator[Finding]:
    """PB107 and PB109: no forward or no backward, and a method that was to be it."""
    function = analysis.function
    text = function.source.text
    if function.is_open or function.node.decorator_list:
        return
    missing = {"forward": "PB107", "backward": "PB109"}
    for name, code in missing.items():
        if function.method(name) is not None or any(name in one.assigned for one in function.lineage()):
            continue
        if name == "backward" and (function.backward is not None or function.forward is None):
            continue
        if re.search(rf"\.{name}\s*=|[\"']{name}[\"']", text):  # given to the class somewhere
            continue
        for other, node in function.others.items():
            if not other.isalpha() or difflib.SequenceMatcher(None, other.lower(), name).ratio() < _ALIKE:
                continue
            if len(re.findall(rf"\b{other}\b", text)) > 1:  # somebody calls it by that name
                continue
            yield analysis.finding(
                code,
                node,
                f"PyTorch never calls {other}, and there is no {name}.",
                where=other,
                expected=f"def {name}",
                got=f"def {other}",
                confidence="likely",
            )


def contexts(analysis: Analysis) -> Iterator[Finding]:
    """PB111: a method that was to be setup_context, so that forward is called with a ctx that it doesn't take."""
    function, forward = analysis.function, analysis.function.forward
    if function.is_open or function.node.decorator_list or forward is None or function.setup_context is not None:
        return
    text = function.source.text
    if forward.ctx in ("", "ctx", "context", "self", "cls") or re.search(_SETUP_GIVEN, text):
        return
    for other, node in function.others.items():
        names = [one.arg for one in node.args.args]
        if len(names) != 3 or names[0] not in ("ctx", "context") or len(re.findall(rf"\b{other}\b", text)) > 1:
            continue
        if difflib.SequenceMatcher(None, other.lower().replace("_", ""), "setupcontext").ratio() < _LIKE_CONTEXT:
            continue
        yield analysis.finding(
            "PB111",
            node,
            f"PyTorch never calls {other}, so that forward is called with ctx where it takes {forward.ctx}.",
            where=other,
            expected="def setup_context",
            got=f"def {other}",
            confidence="likely",
            remedy="Call it setup_context.",
        )


def of_ctx(analysis: Analysis) -> Iterator[Finding]:
    """PB133: forward or setup_context asks ctx for a name that is nearly one that it has."""
    own = analysis.function.own
    for method in [own[name] for name in ("forward", "setup_context") if name in own]:
        read = [node for node in attributes(method) if isinstance(node.ctx, ast.Load)]
        written = {node.attr for one in own.values() for node in attributes(one) if not isinstance(node.ctx, ast.Load)}
        strange = [node for node in read if node.attr not in written | OF_CTX and not node.attr.startswith("_")]
        if not strange:
            continue
        excused = inside_try(method) | strings([method])
        for node in strange:
            close = difflib.get_close_matches(node.attr, sorted(OF_CTX), n=1, cutoff=_ALIKE)
            if not close or node.attr in excused or is_set_from_outside(analysis, node.attr):
                continue
            yield analysis.finding(
                "PB133",
                node,
                f"{method.ctx} has no {node.attr}: this line ends in an AttributeError.",
                where=method.name,
                expected=f"{method.ctx}.{close[0]}, perhaps",
                got=ast.unparse(node),
                confidence="likely",
            )
