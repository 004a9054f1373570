"""What a method returns: on each path, how many entries, what each is, and which flags were asked before it was made.

The method is walked through statement by statement; nothing is run. Loops are walked once, and what they change is
unknown after them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pullback.lint.alternatives import (
    UNKNOWN,
    Alternative,
    Alternatives,
    Made,
    Missing,
    Nothing,
    Several,
    State,
    join,
    possible,
)
from pullback.lint.changes import changed_in, loads, set_in, untracked
from pullback.lint.conditions import CALLED, Conditions, of_test, together
from pullback.lint.execution import Execution
from pullback.lint.names import parameter_names
from pullback.lint.trees import walk


class Returned(NamedTuple):
    """One ``return``, or the end of the method.

    Attributes:
        node: The statement; the method's last one where there is no ``return``.
        what: What is returned there.
        path: What holds where it is reached.
        explicit: Whether there is a ``return``.
    """

    node: ast.stmt
    what: Alternatives
    path: Conditions
    explicit: bool = True


class Unset(NamedTuple):
    """A name that is read where, under `conditions`, nothing has set it."""

    node: ast.Name
    conditions: Conditions
    path: Conditions


@dataclass(eq=False)
class Walk:
    """A method, walked through.

    Args:
        ctx: The name of its ctx; empty if it has none.
        count: How many flags needs_input_grad has; None if that varies.

    Attributes:
        returns: What it returns, in order.
        unset: Names that may be read before they are set.
        untracked: Names that aren't followed.
        sets_in_passing: Whether it has a ``:=``.
    """

    ctx: str
    count: int | None
    returns: list[Returned] = field(default_factory=list)
    unset: list[Unset] = field(default_factory=list)
    untracked: frozenset[str] = frozenset()
    sets_in_passing: bool = False

    def method(self, node: ast.FunctionDef, nodes: Sequence[ast.AST] | None = None) -> Walk:
        """Walks through a method from its first statement; `nodes` are all that are in it."""
        names = dict.fromkeys(parameter_names(node.args), UNKNOWN)
        nodes = tuple(walk(node)) if nodes is None else nodes
        self.untracked = untracked(node, nodes)
        self.sets_in_passing = any(isinstance(one, ast.NamedExpr) for one in nodes)
        end = self.block(node.body, State(names, CALLED))
        if end is not None:
            self.returns.append(Returned(node.body[-1], (Alternative(Nothing()),), end.path, explicit=False))
        return self

    def block(self, body: Sequence[ast.stmt], state: State | None) -> State | None:
        """Walks through statements; None if their end isn't reached."""
        for statement in body:
            if state is None:
                return None
            state = self._statement(statement, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        evaluate = Execution(self.ctx, self.count, state)
        if isinstance(node, (ast.If, ast.While)):
            return self._branch(node, state)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._read(node.iter, state)
            return self._loop(node, state)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._read(item.context_expr, state)
                if item.optional_vars is not None:
                    evaluate.assign(item.optional_vars, None)
            return self.block(node.body, state)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node, state)
        if isinstance(node, ast.Match):
            self._read(node.subject, state)
            return self._match(node, state)
        self._read(node, state)
        if isinstance(node, ast.Return):
            what = (Alternative(Nothing()),) if node.value is None else evaluate(node.value)
            self.returns.append(Returned(node, possible(what, state.path), state.path))
            return None
        if isinstance(node, (ast.Raise, ast.Continue, ast.Break)):
            return None
        if isinstance(node, ast.Assert):
            return self._narrow(state, node.test, True)
        evaluate.statement(node)
        for name in self.untracked & state.names.keys():
            state.names[name] = UNKNOWN
        return state

    def _narrow(self, state: State, test: ast.expr, on: bool) -> State | None:
        """The state where a test came out as `on`; None where it can't."""
        inner = state.copy()
        path = together(state.path, of_test(test, on, Execution(self.ctx, self.count, state)))
        if path is None:
            return None
        inner.path = path
        found = _none_test(test, on)
        if found is not None and found[0] in inner.names:
            self._compared(inner, *found)
        return inner

    def _compared(self, state: State, name: str, nothing: bool) -> None:
        """Takes in that a name is None, or isn't: whatever had to hold for that holds from here on."""
        kept = tuple(
            one for one in state.names[name] if isinstance(one.thing, Made) or isinstance(one.thing, Nothing) == nothing
        )
        state.names[name] = kept or UNKNOWN
        if kept and not (nothing and any(isinstance(one.thing, Made) for one in kept)):
            state.path |= frozenset.intersection(*(one.conditions for one in kept))

    def _branch(self, node: ast.If | ast.While, state: State) -> State | None:
        self._read(node.test, state)
        if isinstance(node, ast.While):
            return self._loop(node, state)
        before = state.path
        constant = node.test.value if isinstance(node.test, ast.Constant) else None
        then = None if constant is False else self.block(node.body, self._narrow(state, node.test, True))
        if constant is True:
            return then
        other = self.block(node.orelse, self._narrow(state, node.test, False))
        return join(before, (then, other))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State | None:
        """The state after a loop: whatever its body sets is unknown, and set."""
        inner = self._unsure(state, node)
        self.block(node.body, inner.copy())
        endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value is True
        if endless and not any(isinstance(one, ast.Break) for one in ast.walk(node)):
            return None
        return self.block(node.orelse, inner)

    def _unsure(self, state: State, node: ast.stmt) -> State:
        """The state where a statement may have run in part, or any number of times."""
        inner = state.copy()
        for name in set_in(node):
            inner.names[name] = UNKNOWN
        for name in changed_in(node) & inner.names.keys():
            # Whatever is written into a tensor, it stays what it was.
            if any(isinstance(one.thing, Several) for one in inner.names[name]):
                inner.names[name] = UNKNOWN
        return inner

    def _try(self, node: ast.stmt, state: State) -> State | None:
        """The state after a ``try``: what it sets is unknown where a handler goes on after it."""
        assert isinstance(node, ast.Try) or type(node).__name__ == "TryStar"
        handlers: list[ast.ExceptHandler] = node.handlers  # type: ignore[attr-defined]  # TryStar has them too
        body, orelse, final = node.body, node.orelse, node.finalbody  # type: ignore[attr-defined]  # as above
        after = self.block(orelse, self.block(body, state.copy()))
        broken = self._unsure(state, node)
        ends = [after, *(self.block(handler.body, broken.copy()) for handler in handlers)]
        return self.block(final, join(state.path, ends))

    def _match(self, node: ast.Match, state: State) -> State | None:
        ends: list[State | None] = []
        total = False
        for case in node.cases:
            inner = state.copy()
            for name in set_in(case.pattern):
                inner.names[name] = UNKNOWN
            total = total or (
                case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            )
            ends.append(self.block(case.body, inner))
        for name in () if total else set_in(node):
            state.names.setdefault(name, UNKNOWN)  # perhaps the cases are all that there are
        return join(state.path, ends if total else [*ends, state.copy()])

    def _read(self, node: ast.AST, state: State) -> None:
        """Notes the names that may have no value where they are read, and takes in those that are set by ``:=``."""
        for name in loads(node):
            for one in state.names.get(name.id, ()):
                if isinstance(one.thing, Missing) and possible((one,), state.path):
                    self.unset.append(Unset(name, one.conditions, state.path))
        if self.sets_in_passing:
            for part in ast.walk(node):
                if isinstance(part, ast.NamedExpr):
                    Execution(self.ctx, self.count, state).assign(part.target, part.value)


def _none_test(test: ast.expr, on: bool) -> tuple[str, bool] | None:
    """The name that a test compares with None, and whether it is None where the test comes out as `on`."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name)):
        return None
    right, operator = test.comparators[0], test.ops[0]
    if not (isinstance(right, ast.Constant) and right.value is None and isinstance(operator, (ast.Is, ast.IsNot))):
        return None
    return test.left.id, isinstance(operator, ast.Is) == on
