"""What a method writes into: in place methods, augmented assignments, ``out=``, index assignments and their like."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from pullback.lint import tensors
from pullback.lint.flow import Flow
from pullback.lint.helpers import COLLECTIVES, NO_WRITES, RESHAPERS, helper
from pullback.lint.values import Origin, Value

_FUNCTIONS = ("numpy.copyto", "numpy.add.at", "numpy.put", "numpy.place", "numpy.putmask", "numpy.fill_diagonal")
_ARRAY_METHODS = frozenset("fill sort partition put itemset byteswap resize".split())
_DUNDERS = frozenset(
    f"__{name}__"
    for name in "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift setitem".split()
)


class Write(NamedTuple):
    """One write into a tensor or array.

    Attributes:
        node: The expression or statement that writes.
        target: The expression of what is written into.
        value: What that is.
        shown: The write as a message shows it: ``mul_``, ``+=``, ``out=``.
        of: ``elements``, or ``object`` where only the tensor object changes, and none of its elements.
        read: Whether somebody goes on with what the write gives back.
        always: Whether it is made whenever its line is reached.
    """

    node: ast.expr | ast.stmt
    target: ast.expr
    value: Value
    shown: str
    of: str = "elements"
    read: bool = False
    always: bool = True

    def into(self, kind: str) -> tuple[Origin, ...]:
        """The origins of one kind whose elements it changes, or whose object where it changes an object."""
        found = self.value.of(kind)
        return found if self.of == "elements" else tuple(o for o in found if o.how not in ("view", "apart", "unsure"))


def writes(flow: Flow) -> list[Write]:
    """Every write of a method that can be reached, in order of its lines.

    Of a chain such as ``x.mul_(2).add_(1)`` it is the first; whoever reads the last reads it.
    """
    found = [*_calls(flow), *_augmented(flow), *_assigned(flow), *_by_helpers(flow)]
    behind = {id(write.target): write for write in found}
    firsts = []
    for write in found:
        if all(write.target is not other.node for other in found):
            last = write
            while id(last.node) in behind:
                last = behind[id(last.node)]
            firsts.append(write._replace(read=last.read))
    return sorted(firsts, key=lambda write: (write.node.lineno, write.node.col_offset))


def _calls(flow: Flow) -> Iterator[Write]:
    dropped = {id(node.value) for node in flow.nodes(ast.Expr)}
    for node in flow.nodes(ast.Call):
        if not flow.reached(node):
            continue
        write = _method(flow, node) or _function(flow, node)
        if write is not None:
            target, shown, of = write
            yield Write(node, target, flow.value(target), shown, of, read=id(node) not in dropped)
        for keyword in node.keywords:
            if keyword.arg == "out" and _fills_out(flow, node):
                for part in keyword.value.elts if isinstance(keyword.value, ast.Tuple) else [keyword.value]:
                    yield Write(node, part, flow.value(part), "out=", read=id(node) not in dropped)


def _method(flow: Flow, node: ast.Call) -> tuple[ast.expr, str, str] | None:
    """The target of a method that writes into what it is called on."""
    if not isinstance(node.func, ast.Attribute):
        return None
    name, target = node.func.attr, node.func.value
    value = flow.value(target)
    if value.dotted or not value.origins:
        return None
    if value.kinds == {"array"} and name in _ARRAY_METHODS:
        return target, name, "elements"
    if name in _DUNDERS:
        return target, name, "elements"
    if not tensors.is_in_place(name) or name in NO_WRITES or value.is_tensor is False:
        return None
    if name == "copy_" and node.args and ast.dump(node.args[0]) == ast.dump(target):
        return None  # onto itself
    return target, name, "object" if name in RESHAPERS else "elements"


def _function(flow: Flow, node: ast.Call) -> tuple[ast.expr, str, str] | None:
    """The target of a function that writes into its first argument."""
    dotted = flow.value(node.func).dotted
    first = _first(node)
    if not dotted or first is None:
        return None
    name = dotted.rpartition(".")[2]
    if dotted in COLLECTIVES or dotted in _FUNCTIONS:
        return first, name, "elements"
    if not dotted.startswith("torch."):
        return None
    in_place = name.endswith("_") and not name.startswith("_") and name not in NO_WRITES
    if in_place and (tensors.is_in_place(name) or dotted.startswith(("torch.nn.init.", "torch.nn.functional."))):
        return first, name, "object" if name in RESHAPERS else "elements"
    if dotted.startswith("torch.nn.functional.") and _is_true(node, "inplace"):
        return first, "inplace=True", "elements"
    return None


def _first(node: ast.Call) -> ast.expr | None:
    if node.args:
        return None if isinstance(node.args[0], ast.Starred) else node.args[0]
    return next((one.value for one in node.keywords if one.arg in ("input", "tensor")), None)


def _is_true(node: ast.Call, name: str) -> bool:
    return any(
        one.arg == name and isinstance(one.value, ast.Constant) and one.value.value is True for one in node.keywords
    )


def _fills_out(flow: Flow, node: ast.Call) -> bool:
    """Whether a call is of PyTorch or NumPy, whose ``out=`` is filled."""
    dotted = flow.value(node.func).dotted
    return dotted.startswith(("torch.", "numpy.")) and not dotted.startswith("torch.ops.")


def _augmented(flow: Flow) -> Iterator[Write]:
    for node in flow.nodes(ast.AugAssign):
        if isinstance(node.target, ast.Subscript):
            yield from _items(flow, node, node.target)
            continue
        value = flow.value(node.target)
        surely = value.is_tensor or value.kinds == {"array"}
        if surely and (isinstance(node.target, ast.Name) or _is_data(node.target)):
            yield Write(node, node.target, value, _operator(node.op))


def _assigned(flow: Flow) -> Iterator[Write]:
    for node in flow.nodes(ast.Assign):
        for target in node.targets:
            for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if isinstance(part, ast.Subscript):
                    yield from _items(flow, node, part)
                elif _is_data(part) and isinstance(part, ast.Attribute):
                    yield Write(node, part.value, flow.value(part.value), ".data =", "object")


def _items(flow: Flow, node: ast.stmt, target: ast.Subscript) -> Iterator[Write]:
    value = flow.value(target.value)
    if value.is_tensor or value.kinds == {"array"}:
        yield Write(node, target.value, value, "[…] =" if isinstance(node, ast.Assign) else _operator(node.op))  # type: ignore[attr-defined]  # an AugAssign


def _by_helpers(flow: Flow) -> Iterator[Write]:
    """The calls of functions of the same file that write into what they are given."""
    dropped = {id(node.value) for node in flow.nodes(ast.Expr)}
    for node in flow.nodes(ast.Call):
        if not flow.reached(node) or any(flow.value(one).kinds == {"ctx"} for one in node.args):
            continue  # who gets ctx may mark it there
        found = helper(flow.method.owner.source, flow.method.scope, node.func)
        for target, always in found.written(node) if found is not None else ():
            value = flow.value(target)
            if value.is_tensor:
                shown = f"in {ast.unparse(node.func)}"
                yield Write(node, target, value, shown, read=id(node) not in dropped, always=always)


def _is_data(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "data"


_OPERATORS = {
    ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/=", ast.FloorDiv: "//=", ast.Mod: "%=", ast.Pow: "**=",
    ast.BitAnd: "&=", ast.BitOr: "|=", ast.BitXor: "^=", ast.MatMult: "@=", ast.LShift: "<<=", ast.RShift: ">>=",
}  # fmt: skip


def _operator(operator: ast.operator) -> str:
    return _OPERATORS[type(operator)]
