"""What an expression may be, given what the names in it may be."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from pullback.lint import tensors
from pullback.lint.calls import called
from pullback.lint.functions import Method
from pullback.lint.names import canonical
from pullback.lint.narrow import Env, narrowed
from pullback.lint.parts import attribute_of, index_makes, integer, sliced
from pullback.lint.record import CtxCall, Facts, Guard
from pullback.lint.values import BOOL, LONGEST, NONE, NUMBER, UNBOUND, UNKNOWN, Kind, Origin, Value, a, joined

_FAMILIES = {"saved_tensors": "saved", "saved_variables": "saved", "needs_input_grad": "needs"}
_HANDLERS: dict[type[ast.expr], str] = {}  # which method evaluates a kind of expression


def site(node: ast.expr) -> tuple[int, ...]:
    """Where an expression begins and ends: ``a.b()`` begins where ``a`` does, and ``a + b`` ends where ``b`` does."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


class Evaluator:
    """Evaluates the expressions of one method, and remembers what each of them was.

    Args:
        method: The method.
        facts: What is known of ctx and the arguments.

    Attributes:
        values: What each expression was, by the id of its node.
        guards: What each expression stands under, by the id of its node.
        ctx_calls: The calls of methods of ctx, in order.
    """

    def __init__(self, method: Method, facts: Facts) -> None:
        self.method = method
        self.facts = facts
        self.values: dict[int, Value] = {}
        self.guards: dict[int, tuple[Guard, ...]] = {}
        self.ctx_calls: list[CtxCall] = []
        self.standing: list[Guard] = []
        self._locals = frozenset(method.scope.bindings)

    def value(self, node: ast.expr, env: Env) -> Value:
        """What an expression may be; remembered, joined with what it was in earlier rounds of a loop."""
        kind = node.__class__
        if kind not in _HANDLERS:
            _HANDLERS[kind] = f"_{kind.__name__.lower()}" if hasattr(self, f"_{kind.__name__.lower()}") else "_children"
        handler: Callable[[ast.expr, Env], Value] = getattr(self, _HANDLERS[kind])
        found = handler(node, env)
        before = self.values.get(id(node))
        self.values[id(node)] = found if before is None else joined((before, found))
        self.guards.setdefault(id(node), tuple(self.standing))
        return found

    def _children(self, node: ast.AST, env: Env) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, env)
            elif isinstance(child, (ast.keyword, ast.FormattedValue)):
                self.value(child.value, env)
        return UNKNOWN

    def _constant(self, node: ast.Constant, env: Env) -> Value:
        if node.value is None:
            return NONE
        if isinstance(node.value, bool):
            return BOOL
        if isinstance(node.value, (int, float, complex)):
            return NUMBER
        return a("text") if isinstance(node.value, (str, bytes)) else UNKNOWN

    def _joinedstr(self, node: ast.JoinedStr, env: Env) -> Value:
        self._children(node, env)
        return a("text")

    def _name(self, node: ast.Name, env: Env) -> Value:
        if node.id in env:
            return env[node.id]
        if node.id in self._locals:
            return UNBOUND
        dotted = self.method.scope.qualified(node, node.lineno)
        if not dotted and self.method.scope.binding(node.id) is None:
            dotted = f"builtins.{node.id}"
        return a("unknown", dotted=dotted)

    def _attribute(self, node: ast.Attribute, env: Env) -> Value:
        base = self.value(node.value, env)
        if base.kinds == {"ctx"}:
            return self._of_ctx(node.attr, env)
        if base.dotted:
            name = canonical(f"{base.dotted}.{node.attr}")
            return a("dtype") if base.dotted == "torch" and node.attr in tensors.DTYPES else a("unknown", dotted=name)
        return attribute_of(base, node.attr)

    def _of_ctx(self, name: str, env: Env) -> Value:
        if f"ctx.{name}" in env:
            return env[f"ctx.{name}"]
        if name in _FAMILIES:
            kind = _FAMILIES[name]
            if kind == "saved" and self.facts.saved is not None:
                items = tuple(
                    Value(value.kinds, frozenset((Origin("saved", index=index),)))
                    for index, value in enumerate(self.facts.saved)
                )
                return Value(frozenset(("tuple",)), items=items)
            return Value(frozenset(("tuple",)), family=(kind, 0))
        here = frozenset((Origin("ctx", name),))
        known = self.facts.attributes.get(name)
        return Value(frozenset(("unknown",)), here) if known is None else replace(known, origins=here, items=None)

    def _subscript(self, node: ast.Subscript, env: Env) -> Value:
        base = self.value(node.value, env)
        index = self.value(node.slice, env)
        number = integer(node.slice)
        if base.items is not None or base.family is not None:
            if number is not None:
                return base.item(number)
            if isinstance(node.slice, ast.Slice):
                return sliced(base, node.slice)
            return replace(base.each(), items=None) if base.items or base.family else UNKNOWN
        if base.kinds == {"shape"}:
            return a("shape") if isinstance(node.slice, ast.Slice) else NUMBER
        if base.is_tensor is False:
            return UNKNOWN if isinstance(node.slice, ast.Slice) or not base.elements else base.each()
        how = index_makes(node.slice, index, self.values)
        if how == "copy":
            return self.fresh(node, base.kinds)
        return base.seen_as("view" if how == "view" and base.is_tensor else "unsure")

    def _slice(self, node: ast.Slice, env: Env) -> Value:
        self._children(node, env)
        return a("unknown")

    def _starred(self, node: ast.Starred, env: Env) -> Value:
        return self.value(node.value, env)

    def _tuple(self, node: ast.Tuple | ast.List, env: Env) -> Value:
        kind: Kind = "list" if isinstance(node, ast.List) else "tuple"
        items, whole = self.spread(node.elts, env)
        return Value(frozenset((kind,)), items=items if whole else None)

    _list = _tuple

    def spread(self, elements: list[ast.expr], env: Env) -> tuple[tuple[Value, ...], bool]:
        """What elements are, stars spread; and whether it was known what each star holds."""
        items: list[Value] = []
        whole = True
        for element in elements:
            value = self.value(element, env)
            if not isinstance(element, ast.Starred):
                items.append(value)
            elif value.items is not None:
                items += value.items
            else:
                whole = False
        return tuple(items), whole

    def _dict(self, node: ast.Dict, env: Env) -> Value:
        self._children(node, env)
        return a("dict")

    def _set(self, node: ast.Set, env: Env) -> Value:
        self._children(node, env)
        return a("set")

    def _lambda(self, node: ast.Lambda, env: Env) -> Value:
        inner = {**env, **{name: UNKNOWN for name in (arg.arg for arg in node.args.args)}}
        self.standing.append(Guard("def", None))
        self.value(node.body, inner)
        self.standing.pop()
        return a("function")

    def _namedexpr(self, node: ast.NamedExpr, env: Env) -> Value:
        value = self.value(node.value, env)
        env[node.target.id] = value
        self.values[id(node.target)] = value
        return value

    def _ifexp(self, node: ast.IfExp, env: Env) -> Value:
        self.value(node.test, env)
        found = []
        for branch, holds in ((node.body, True), (node.orelse, False)):
            self.standing.append(Guard("if", node.test, holds))
            found.append(self.value(branch, narrowed(env, node.test, holds)))
            self.standing.pop()
        return joined(found)

    def _boolop(self, node: ast.BoolOp, env: Env) -> Value:
        holds = isinstance(node.op, ast.And)
        found, inner = [], env
        for part in node.values:
            found.append(self.value(part, inner))
            inner = narrowed(inner, part, holds)
            self.standing.append(Guard("if", part, holds))
        del self.standing[-len(node.values) :]
        return joined(found)

    def _unaryop(self, node: ast.UnaryOp, env: Env) -> Value:
        value = self.value(node.operand, env)
        if isinstance(node.op, ast.Not):
            return BOOL
        return self._computed(node, value)

    def _binop(self, node: ast.BinOp, env: Env) -> Value:
        left, right = self.value(node.left, env), self.value(node.right, env)
        if isinstance(node.op, ast.Add) and left.items is not None and right.items is not None:
            return Value(left.kinds, items=(*left.items, *right.items))
        if isinstance(node.op, ast.Mult):
            for several, times in ((left, node.right), (right, node.left)):
                number = integer(times)
                if several.items is not None and number is not None and len(several.items) * max(number, 0) <= LONGEST:
                    return Value(several.kinds, items=several.items * max(number, 0))
        if left.kinds <= {"tuple", "list"} or right.kinds <= {"tuple", "list"}:
            return Value(left.kinds if left.kinds <= {"tuple", "list"} else right.kinds)
        if left.kinds == {"text"}:
            return a("text")
        return self._computed(node, left, right)

    def _compare(self, node: ast.Compare, env: Env) -> Value:
        values = [self.value(node.left, env), *(self.value(one, env) for one in node.comparators)]
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return BOOL
        found = self._computed(node, *values)
        return BOOL if found.kinds == {"number"} else found

    def _computed(self, node: ast.expr, *values: Value) -> Value:
        """What arithmetic gives: never one of its operands."""
        if any(value.is_tensor for value in values):
            return self.fresh(node, frozenset(("tensor",)))
        if all(value.is_tensor is False for value in values):
            return NUMBER
        return self.fresh(node, frozenset(("unknown",)))

    def fresh(self, node: ast.expr, kinds: frozenset[Kind] = frozenset(("tensor",))) -> Value:
        """A value that this expression makes, in memory of its own."""
        return Value(kinds, frozenset((Origin("fresh", site=site(node)),)))

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, env: Env) -> Value:
        inner = dict(env)
        length = self._generators(node.generators, inner)
        element = self.value(node.elt, inner)
        kind: Kind = "set" if isinstance(node, ast.SetComp) else "list"
        known = length is not None and length <= LONGEST and kind == "list"
        return Value(frozenset((kind,)), items=(element,) * length if known and length is not None else None)

    _generatorexp = _listcomp
    _setcomp = _listcomp

    def _dictcomp(self, node: ast.DictComp, env: Env) -> Value:
        inner = dict(env)
        self._generators(node.generators, inner)
        self.value(node.key, inner)
        self.value(node.value, inner)
        return a("dict")

    def _generators(self, generators: list[ast.comprehension], inner: Env) -> int | None:
        lengths: list[int | None] = []
        for generator in generators:
            iterable = self.value(generator.iter, inner)
            self.bind(generator.target, self.each(generator.iter, iterable), inner)
            for condition in generator.ifs:
                self.value(condition, inner)
                inner.update(narrowed(inner, condition, True))
            lengths.append(None if generator.ifs or iterable.items is None else len(iterable.items))
        return lengths[0] if len(lengths) == 1 else None

    def each(self, node: ast.expr, iterable: Value) -> Value:
        """What a loop over an expression gets in each round."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inner = [self.each(one, self.values.get(id(one), UNKNOWN)) for one in node.args]
            if node.func.id == "zip" and inner and not any(isinstance(one, ast.Starred) for one in node.args):
                return Value(frozenset(("tuple",)), items=tuple(inner))
            if node.func.id == "enumerate" and inner:
                return Value(frozenset(("tuple",)), items=(NUMBER, inner[0]))
            if node.func.id == "range":
                return NUMBER
            if node.func.id in ("reversed", "list", "tuple", "sorted") and len(inner) == 1:
                return inner[0]
        return iterable.each()

    def bind(self, target: ast.expr, value: Value, env: Env) -> None:
        """Gives a target its value; what isn't a name is left to whoever looks at assignments."""
        self.values[id(target)] = value
        self.guards.setdefault(id(target), tuple(self.standing))
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, env)
        elif isinstance(target, (ast.Tuple, ast.List)):
            stars = [n for n, element in enumerate(target.elts) if isinstance(element, ast.Starred)]
            behind = len(target.elts) - stars[0] - 1 if stars else 0
            for number, element in enumerate(target.elts):
                if not stars or number < stars[0]:
                    self.bind(element, self._unpacked(value, number), env)
                elif number == stars[0]:
                    self.bind(element, value.rest(number, behind), env)
                else:
                    self.bind(element, self._unpacked(value, number - len(target.elts)), env)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value, env)
            if base.kinds == {"ctx"}:
                env[f"ctx.{target.attr}"] = value
        elif isinstance(target, ast.Subscript):
            self.value(target.value, env)
            self.value(target.slice, env)

    def _unpacked(self, value: Value, number: int) -> Value:
        if value.items is None and value.family is None:
            return NUMBER if value.kinds == {"shape"} else value.each()
        return value.item(number)

    def _call(self, node: ast.Call, env: Env) -> Value:
        return called(self, node, env)
