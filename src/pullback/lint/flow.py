"""Follows the values of one method through its statements: aliases, unpacking, branches, loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from pullback.lint.evaluate import Evaluator
from pullback.lint.functions import Method
from pullback.lint.narrow import Env, narrowed
from pullback.lint.record import CtxCall, Facts, Guard
from pullback.lint.trees import walk
from pullback.lint.values import NUMBER, UNBOUND, UNKNOWN, Value, a, joined

_Node = TypeVar("_Node", bound=ast.AST)

_Once = Callable[[Env], "Env | None"]
_ROUNDS = 3  # of a loop, until no name changes any more


class Return(NamedTuple):
    """One ``return`` of a method.

    Attributes:
        node: The statement.
        value: What it gives back.
        guards: What it stands under.
    """

    node: ast.Return
    value: Value
    guards: tuple[Guard, ...]


class CtxSet(NamedTuple):
    """``ctx.name = value``.

    Attributes:
        name: The attribute.
        node: The target, an attribute.
        value: What is kept there.
        guards: What it stands under.
    """

    name: str
    node: ast.Attribute
    value: Value
    guards: tuple[Guard, ...]


class Flow:
    """What happens in one method.

    Args:
        method: The method.
        facts: What is known of ctx and the arguments.
        env: What the parameters are.

    Attributes:
        method: The method.
        returns: Every return that can be reached, in order.
        ctx_sets: Every assignment to an attribute of ctx, in order.
        ctx_calls: Every call of a method of ctx, in order.
        falls_off: Whether its end can be reached, so that it returns None.
    """

    def __init__(self, method: Method, facts: Facts, env: Env) -> None:
        self.method = method
        self.returns: list[Return] = []
        self.ctx_sets: list[CtxSet] = []
        self._evaluator = Evaluator(method, facts)
        self.ctx_calls: list[CtxCall] = self._evaluator.ctx_calls
        self._parts: dict[type[ast.AST], list[ast.AST]] = {}
        self._leaves: list[list[Env]] = []  # of the loops around: the states of `break`
        self._again: list[list[Env]] = []  # of `continue`
        self._inside = 0  # how many functions deep
        self.falls_off = self._block(method.node.body, env) is not None

    def value(self, node: ast.expr | None) -> Value:
        """What an expression of the method may be, where it stands; unknown where that can't be reached."""
        return self._evaluator.values.get(id(node), UNKNOWN)

    def reached(self, node: ast.expr) -> bool:
        """Whether an expression can be reached."""
        return id(node) in self._evaluator.values

    def guards(self, node: ast.expr) -> tuple[Guard, ...]:
        """What an expression stands under, outermost first."""
        return self._evaluator.guards.get(id(node), ())

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        """Every node of a kind (a class of `ast` without subclasses) in the body, by lines; of functions in it, too."""
        if not self._parts:
            for node in self.method.inside:
                self._parts.setdefault(type(node), []).append(node)
            for nodes in self._parts.values():
                nodes.sort(key=_place)
        yield from self._parts.get(kind, ())  # type: ignore[misc]  # each list holds nodes of the kind that is its key

    def calls(self, name: str) -> list[CtxCall]:
        """The calls of one method of ctx, such as ``mark_dirty``."""
        return [call for call in self.ctx_calls if call.name == name]

    # Each of these gives the state behind a statement, None where nothing gets that far.

    def _block(self, body: list[ast.stmt], env: Env | None) -> Env | None:
        standing = self._evaluator.standing
        depth = len(standing)
        for statement in body:
            if env is None:
                break
            env = self._statement(statement, env)
            if isinstance(statement, ast.If) and env is not None:  # `if not needed: return` guards what follows
                for branch, holds in ((statement.body, False), (statement.orelse, True)):
                    if _ends(branch):
                        standing.append(Guard("if", statement.test, holds))
        del standing[depth:]
        return env

    def _statement(self, node: ast.stmt, env: Env) -> Env | None:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            after: Env | None = handler(node, env)
            return after
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._evaluator.value(child, env)
        return env

    def _return(self, node: ast.Return, env: Env) -> None:
        value = a("none") if node.value is None else self._evaluator.value(node.value, env)
        if not self._inside and all(one.node is not node for one in self.returns):
            self.returns.append(Return(node, value, tuple(self._evaluator.standing)))

    def _raise(self, node: ast.Raise, env: Env) -> None:
        if node.exc is not None:
            self._evaluator.value(node.exc, env)

    def _break(self, node: ast.Break, env: Env) -> None:
        if self._leaves:
            self._leaves[-1].append(env)

    def _continue(self, node: ast.Continue, env: Env) -> None:
        if self._again:
            self._again[-1].append(env)

    def _assign(self, node: ast.Assign, env: Env) -> Env:
        value = self._evaluator.value(node.value, env)
        env = dict(env)
        for target in node.targets:
            self._bind(target, value, env)
        return env

    def _annassign(self, node: ast.AnnAssign, env: Env) -> Env:
        if node.value is None:
            return env
        value = self._evaluator.value(node.value, env)
        env = dict(env)
        self._bind(node.target, value, env)
        return env

    def _augassign(self, node: ast.AugAssign, env: Env) -> Env:
        right = self._evaluator.value(node.value, env)
        if not isinstance(node.target, ast.Name):
            self._evaluator.value(node.target, env)
            return env
        before = env.get(node.target.id, UNKNOWN)
        self._evaluator.values[id(node.target)] = before  # what is written into
        self._evaluator.guards[id(node.target)] = tuple(self._evaluator.standing)
        if before.is_tensor or (before.is_tensor is None and before.origins):
            return env  # a tensor is changed in place, and stays the object that it was
        after = NUMBER if before.is_tensor is False and right.is_tensor is False else UNKNOWN
        if before.items is not None and right.items is not None and isinstance(node.op, ast.Add):
            after = Value(before.kinds, items=(*before.items, *right.items))
        elif before.kinds <= {"tuple", "list"}:
            after = Value(before.kinds)
        elif before.is_tensor is False and right.is_tensor:
            after = self._evaluator.fresh(node.value)
        return {**env, node.target.id: after}

    def _bind(self, target: ast.expr, value: Value, env: Env) -> None:
        self._evaluator.bind(target, value, env)
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for part in parts:
            if isinstance(part, ast.Attribute) and self.value(part.value).kinds == {"ctx"}:
                kept = self.value(part)
                if all(one.node is not part for one in self.ctx_sets):
                    self.ctx_sets.append(CtxSet(part.attr, part, kept, tuple(self._evaluator.standing)))

    def _expr(self, node: ast.Expr, env: Env) -> Env:
        env = dict(env)
        self._evaluator.value(node.value, env)
        call = node.value
        # `items.append(x)`: a list of known length is one longer, if this is where it stays.
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
        ):
            name, before = call.func.value.id, env.get(call.func.value.id)
            if before is not None and "list" in before.kinds and before.items is not None:
                grown = call.func.attr == "append" and len(call.args) == 1
                items = (*before.items, self.value(call.args[0])) if grown else None
                env[name] = Value(before.kinds, items=items)
        return env

    def _delete(self, node: ast.Delete, env: Env) -> Env:
        gone = {target.id for target in node.targets if isinstance(target, ast.Name)}
        return {name: UNBOUND if name in gone else value for name, value in env.items()}

    def _if(self, node: ast.If, env: Env) -> Env | None:
        env = dict(env)
        self._evaluator.value(node.test, env)
        ends = []
        for branch, holds in ((node.body, True), (node.orelse, False)):
            ends.append(self._under(Guard("if", node.test, holds), branch, narrowed(env, node.test, holds)))
        return together(ends)

    def _under(self, guard: Guard, body: list[ast.stmt], env: Env | None) -> Env | None:
        self._evaluator.standing.append(guard)
        after = self._block(body, env)
        self._evaluator.standing.pop()
        return after

    def _for(self, node: ast.For | ast.AsyncFor, env: Env) -> Env | None:
        iterable = self._evaluator.value(node.iter, env)
        each = self._evaluator.each(node.iter, iterable)
        guard = Guard("for", node.iter)

        def once(state: Env) -> Env | None:
            state = dict(state)
            self._bind(node.target, each, state)
            return self._under(guard, node.body, state)

        return self._loop(once, env, node.orelse, may_be_empty=not self._has_items(node.iter, iterable))

    def _has_items(self, node: ast.expr, iterable: Value) -> bool:
        """Whether a loop over this surely has a round."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("zip", "enumerate"):
            return bool(node.args) and all(self._has_items(one, self.value(one)) for one in node.args)
        return bool(iterable.items)

    _asyncfor = _for

    def _while(self, node: ast.While, env: Env) -> Env | None:
        def once(state: Env) -> Env | None:
            state = dict(state)
            self._evaluator.value(node.test, state)
            return self._under(Guard("if", node.test), node.body, narrowed(state, node.test, True))

        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return self._loop(once, env, node.orelse, may_be_empty=not forever, ends=not forever)

    def _loop(
        self, once: _Once, env: Env, orelse: list[ast.stmt], *, may_be_empty: bool, ends: bool = True
    ) -> Env | None:
        self._leaves.append([])
        self._again.append([])
        start, after = env, None
        for _ in range(_ROUNDS):
            after = together([once(start), *self._again[-1]])
            following = together([start, after]) or start
            if following == start:
                break
            start = following
        left = self._leaves.pop()
        self._again.pop()
        finished = (together([env, after]) if may_be_empty else after) if ends else None
        if finished is not None and orelse:
            finished = self._block(orelse, finished)
        return together([finished, *left])

    def _with(self, node: ast.With | ast.AsyncWith, env: Env) -> Env | None:
        env = dict(env)
        depth = len(self._evaluator.standing)
        for item in node.items:
            self._evaluator.value(item.context_expr, env)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, UNKNOWN, env)
            self._evaluator.standing.append(Guard("with", item.context_expr))
        after = self._block(node.body, env)
        del self._evaluator.standing[depth:]
        return after

    _asyncwith = _with

    def _try(self, node: ast.Try, env: Env) -> Env | None:
        after = self._under(Guard("try", None), node.body, env)
        broken = together([env, after]) or env
        ends = [self._block(node.orelse, after)]
        for handler in node.handlers:
            state = {**broken, **({handler.name: UNKNOWN} if handler.name else {})}
            ends.append(self._under(Guard("except", handler.type), handler.body, state))
        end = together(ends)
        if not node.finalbody:
            return end
        final = self._block(node.finalbody, end if end is not None else broken)
        return final if end is not None else None

    _trystar = _try

    def _match(self, node: ast.Match, env: Env) -> Env | None:
        self._evaluator.value(node.subject, env)
        ends: list[Env | None] = [env]
        for case in node.cases:
            caught = {
                name: UNKNOWN
                for part in ast.walk(case.pattern)
                for name in (getattr(part, "name", None), getattr(part, "rest", None))
                if name
            }
            state = {**env, **caught}
            if case.guard is not None:
                self._evaluator.value(case.guard, state)
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                ends[0] = None  # `case _` or `case name` takes all that is left
            ends.append(self._under(Guard("if", node.subject), case.body, state))
        return together(ends)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> Env:
        for default in (*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)):
            self._evaluator.value(default, env)
        env = {**env, node.name: a("function")}
        several = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bound = {one.arg for one in several if one is not None}
        bound |= {part.id for part in walk(*node.body) if isinstance(part, ast.Name) and _is_store(part)}
        self._inside += 1
        self._under(Guard("def", None), node.body, {**env, **{name: UNKNOWN for name in bound}})
        self._inside -= 1
        return env

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, env: Env) -> Env:
        return {**env, node.name: a("class")}

    def _import(self, node: ast.Import | ast.ImportFrom, env: Env) -> Env:
        names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        return {name: value for name, value in env.items() if name not in names} | {
            name: a("unknown", dotted=self.method.scope.qualified(ast.Name(name), node.lineno)) for name in names
        }

    _importfrom = _import


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _ends(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def together(states: list[Env | None]) -> Env | None:
    """What names are behind several ways; a name that one of them doesn't bind may be unbound."""
    alive = [state for state in states if state is not None]
    if len(alive) < 2:
        return alive[0] if alive else None
    names = dict.fromkeys(name for state in alive for name in state)
    missing = {name: UNBOUND for name in names if not name.startswith("ctx.")}
    found: Env = {}
    for name in names:
        values = [state.get(name, missing.get(name)) for state in alive]
        found[name] = joined(value if value is not None else UNKNOWN for value in values)
    return found
