"""Everything that is known of one Function: what the rules are given."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pullback.finding import Finding
from pullback.lint.arguments import parameter_value, tensors_by_use
from pullback.lint.flow import CtxSet, Flow
from pullback.lint.functions import FunctionClass, Method
from pullback.lint.narrow import Env
from pullback.lint.record import CtxCall, Facts
from pullback.lint.uses import Use
from pullback.lint.values import UNKNOWN, Origin, Value, a, family_item, joined
from pullback.rules import Severity

Confidence = Literal["certain", "likely", "possible"]
"""How sure a finding is: ``possible`` ones are hints, which are shown only where they are asked for."""


@dataclass(eq=False)
class Analysis:
    """One Function with the flow of its methods.

    Attributes:
        function: The Function.
        uses: Where it is called in the files of the run.
    """

    function: FunctionClass
    uses: Sequence[Use] = field(default_factory=tuple)

    @cached_property
    def forward(self) -> Flow | None:
        """What happens in ``forward``; None where that isn't known."""
        method = self.function.forward
        if method is None:
            return None
        return Flow(method, Facts(), _inputs(method, self._tensors))

    @cached_property
    def setup_context(self) -> Flow | None:
        """What happens in ``setup_context``; None where there is none."""
        method = self.function.setup_context
        if method is None or len(method.positional) != 2:
            return None
        given, output = (parameter.name for parameter in method.positional)
        forward = self.function.forward
        items = tuple(self._argument(parameter.name) for parameter in forward.positional) if forward else ()
        whole = forward is not None and not forward.vararg
        inputs = Value(frozenset(("tuple",)), items=items if whole else None, family=None if whole else ("input", 0))
        several = Value(frozenset(("unknown",)), frozenset((Origin("output"),)), family=("output", 0))
        return Flow(method, Facts(), {method.ctx: a("ctx"), given: inputs, output: several, **_receiver(method)})

    @cached_property
    def backward(self) -> Flow | None:
        """What happens in ``backward`` (or ``vjp``); None where that isn't known."""
        return self._derivative(self.function.backward, "grad")

    @cached_property
    def jvp(self) -> Flow | None:
        """What happens in ``jvp``; None where there is none."""
        return self._derivative(self.function.method("jvp"), "tangent")

    @cached_property
    def keeper(self) -> Flow | None:
        """The flow that fills ctx: of ``setup_context``, or of ``forward``."""
        return self.setup_context if self.function.setup_context is not None else self.forward

    @cached_property
    def saves(self) -> list[CtxCall]:
        """Every call of ``save_for_backward`` in `keeper`."""
        return self.keeper.calls("save_for_backward") if self.keeper else []

    @cached_property
    def saved(self) -> tuple[Value, ...] | None:
        """What was saved, in order, in terms of forward; None if its number isn't the same or known on every path."""
        if not self.saves or not all(call.whole for call in self.saves):
            return None
        if len({len(call.values) for call in self.saves}) != 1 or any(call.node.keywords for call in self.saves):
            return None
        return tuple(joined(column) for column in zip(*(call.values for call in self.saves), strict=True))

    @cached_property
    def kept(self) -> dict[str, list[CtxSet]]:
        """What `keeper` assigns to attributes of ctx, by name."""
        found: dict[str, list[CtxSet]] = {}
        for one in self.keeper.ctx_sets if self.keeper else ():
            found.setdefault(one.name, []).append(one)
        return found

    def came_from(self, origin: Origin) -> Value:
        """What forward saved or kept where backward reads ``saved`` or ``ctx``, in terms of forward; else unknown."""
        if origin.kind == "saved" and self.saved is not None and 0 <= origin.index < len(self.saved):
            return self.saved[origin.index]
        if origin.kind == "ctx" and origin.name in self.kept:
            return joined(one.value for one in self.kept[origin.name])
        return UNKNOWN

    def flows(self) -> list[Flow]:
        """The flows of forward, setup_context, backward and jvp that are known."""
        return [one for one in (self.forward, self.setup_context, self.backward, self.jvp) if one is not None]

    def own_flows(self) -> list[Flow]:
        """Those of methods that stand in this very class, so that what is wrong in a base is said of the base alone."""
        return [flow for flow in self.flows() if flow.method.owner is self.function]

    def owns(self, flow: Flow | None) -> bool:
        """Whether a flow is of a method that stands in this very class."""
        return flow is not None and flow.method.owner is self.function

    def finding(
        self,
        rule: str,
        node: ast.AST,
        message: str,
        *,
        where: str = "",
        expected: str = "",
        got: str = "",
        confidence: Confidence = "certain",
        severity: Severity | None = None,
        remedy: str = "",
        path: str = "",
    ) -> Finding:
        """A finding at a node of the Function's file.

        Args:
            rule: The code.
            node: What is at fault: its line and column are told.
            message: What is wrong, in one sentence.
            where: Which part of the Function: ``backward, gradient of x``.
            expected: What should stand there.
            got: What stands there; a short piece of source.
            confidence: How sure it is; what is only ``possible`` becomes a hint.
            severity: The rule's own unless given.
            remedy: The rule's own unless given.
            path: The file, for call sites elsewhere.
        """
        if confidence == "possible":
            severity = Severity.HINT
        place = f"{path or self.function.source.path}:{getattr(node, 'lineno', 1)}"
        evidence = {"confidence": confidence, "column": getattr(node, "col_offset", 0) + 1}
        extra = {} if severity is None else {"severity": severity}
        return Finding(
            rule=rule,
            function=self.function.name,
            where=where,
            message=message,
            expected=expected,
            got=got,
            remedy=remedy,
            probe="lint",
            evidence=evidence,
            location=place,
            **extra,
        )

    @cached_property
    def _tensors(self) -> frozenset[str]:
        """Arguments of forward that are surely tensors, by what is done with them and by the gradients they get."""
        method = self.function.forward
        if method is None:
            return frozenset()
        known = tensors_by_use(method) | self._saved_names
        return known | self._with_gradients(method, known)

    def _with_gradients(self, forward: Method, known: frozenset[str]) -> frozenset[str]:
        """Arguments for which backward returns a tensor, told without knowing what was saved."""
        backward = self.function.backward
        # An annotation or a default says more: that it is a number, or may be None; `x, k = pair`, that it is a tuple.
        pairs = [n.value for n in forward.inside if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple)]
        unpacked = {one.id for one in pairs if isinstance(one, ast.Name)}
        plain = {one.name for one in forward.positional if not one.annotation and one.default is None}
        plain -= unpacked | known
        if backward is None or not plain:
            return frozenset()
        found = set()
        for one in Flow(backward, Facts(), _cotangents(backward, "grad")).returns:
            items = one.value.items if one.value.items is not None else (one.value,)
            if len(items) < len(forward.required):
                continue  # one is missing, so that nobody knows whose the others are
            found |= {p.name for p, item in zip(forward.positional, items, strict=False) if item.is_tensor}
        return frozenset(found & plain)

    @cached_property
    def _saved_names(self) -> frozenset[str]:
        """Arguments of forward that are saved by name in forward itself, so that they are tensors (or None)."""
        method = self.function.forward
        if method is None or not method.ctx:
            return frozenset()
        names = {
            p.name for p in method.parameters if not (isinstance(p.default, ast.Constant) and p.default.value is None)
        }
        names -= {p.name for p in method.parameters if "Optional" in p.annotation or "None" in p.annotation}
        names -= {p.name for p in method.parameters if p.annotation in ("int", "float", "bool", "str")}
        stored = {n.id for n in method.inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        found: set[str] = set()
        for node in method.inside:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "save_for_backward" and isinstance(node.func.value, ast.Name):
                    found |= {one.id for one in node.args if isinstance(one, ast.Name)}
        return frozenset(found & names - stored)

    def _argument(self, name: str) -> Value:
        forward = self.function.forward
        if forward is None:
            return UNKNOWN
        parameter = next(one for one in forward.parameters if one.name == name)
        return parameter_value(parameter, self._tensors)

    def _derivative(self, method: Method | None, kind: str) -> Flow | None:
        if method is None:
            return None
        attributes = {name: joined(one.value for one in several) for name, several in self.kept.items()}
        saved = None
        if self.saved is not None:
            saved = tuple(_as_saved(value) for value in self.saved)
        return Flow(method, Facts(attributes, saved), _cotangents(method, kind))


def _as_saved(value: Value) -> Value:
    """What comes back of a saved value: a tensor, or None where None was saved."""
    return (
        a("tensor", "none")
        if value.may_be_none and value.is_tensor is not False
        else (a("none") if value.kinds == {"none"} else a("tensor"))
    )


def _receiver(method: Method) -> Env:
    return {method.receiver: a("class" if method.bound == "class" else "unknown")} if method.receiver else {}


def _cotangents(method: Method, kind: str) -> Env:
    """What the parameters of backward or jvp are."""
    env: Env = {method.ctx: a("ctx"), **_receiver(method)} if method.ctx else _receiver(method)
    for index, parameter in enumerate(method.positional):
        env[parameter.name] = family_item(kind, index)
    if method.vararg:
        env[method.vararg] = Value(frozenset(("tuple",)), family=(kind, len(method.positional)))
    if method.kwarg:
        env[method.kwarg] = a("dict")
    return env


def _inputs(method: Method, tensors_known: frozenset[str]) -> Env:
    env: Env = {method.ctx: a("ctx"), **_receiver(method)} if method.ctx else _receiver(method)
    for parameter in method.parameters:
        env[parameter.name] = parameter_value(parameter, tensors_known)
    if method.vararg:
        env[method.vararg] = Value(frozenset(("tuple",)), family=("input", len(method.positional)))
    if method.kwarg:
        env[method.kwarg] = a("dict")
    return env
