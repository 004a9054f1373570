"""What statements make of names."""

from __future__ import annotations

import ast
from dataclasses import replace

from pullback.lint.alternatives import (
    UNKNOWN,
    Alternative,
    Alternatives,
    Entries,
    Flag,
    Flags,
    Made,
    Missing,
    Nothing,
    Rest,
    Several,
)
from pullback.lint.entries import Evaluation, integer, one_several, sequence


class Execution(Evaluation):
    """Carries simple statements out in one state, as far as names are concerned."""

    def statement(self, node: ast.stmt) -> None:
        """Takes in what a simple statement makes of names."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                self._augmented(node, node.target.id)
        elif isinstance(node, ast.Expr):
            if not self._mutation(node.value):
                self(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.state.names[node.name] = UNKNOWN
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                self.state.names[(alias.asname or alias.name).partition(".")[0]] = UNKNOWN
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.state.names.pop(target.id, None)

    def _augmented(self, node: ast.AugAssign, name: str) -> None:
        """``name += …``: a tuple or list gets longer; anything else stays under the conditions that it was under."""
        operation = ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)
        ast.fix_missing_locations(ast.copy_location(operation, node))
        result = self(operation)
        if one_several(result) is None:
            before = self.state.names.get(name, UNKNOWN)
            kept = [one.conditions for one in before if not isinstance(one.thing, (Nothing, Missing))]
            result = tuple(Alternative(Made(operation), conditions) for conditions in dict.fromkeys(kept)) or result
        self.state.names[name] = result

    def assign(self, target: ast.expr, value: ast.expr | None) -> None:
        """Takes in an assignment; `value` is None where it isn't known."""
        if isinstance(target, ast.Name):
            self.state.names[target.id] = UNKNOWN if value is None else self(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._set_item(target.value.id, target.slice, UNKNOWN if value is None else self(value))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, None)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr | None) -> None:
        things = [one.thing for one in self(value)] if value is not None else []
        thing = things[0] if len(things) == 1 else None
        starred = any(isinstance(element, ast.Starred) for element in target.elts)
        if isinstance(thing, Flags) and value is not None:
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    starred = False
                    for other in target.elts[index:]:
                        self.assign(other, None)
                    break
                if isinstance(element, ast.Name):
                    self.state.names[element.id] = (Alternative(Flag(thing.start + index)),)
            return
        if isinstance(thing, Several) and thing.count == len(target.elts) and not starred:
            for element, entry in zip(target.elts, thing.entries, strict=True):
                if isinstance(element, ast.Name) and not isinstance(entry, Rest):
                    self.state.names[element.id] = entry
                else:
                    self.assign(element, None)
            return
        for index, element in enumerate(target.elts):
            if isinstance(element, ast.Name) and value is not None:
                self.state.names[element.id] = (Alternative(Made(value, index)),)
            else:
                self.assign(element, None)

    def _set_item(self, name: str, where: ast.expr, value: Alternatives) -> None:
        found = self.state.names.get(name)
        if found is None or not any(isinstance(one.thing, Several) for one in found):
            return
        several, index = one_several(found), integer(where)
        if several is None or several.count is None or index is None or not -several.count <= index < several.count:
            self.state.names[name] = UNKNOWN
            return
        entries = list(several.entries)
        entries[index] = value
        self.state.names[name] = (found[0]._replace(thing=replace(several, entries=tuple(entries))),)

    def _mutation(self, node: ast.expr) -> bool:
        """Takes in a call of a list's method on a name; False for anything else."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            return False
        name, method = node.func.value.id, node.func.attr
        found = self.state.names.get(name, ())
        if not any(isinstance(one.thing, Several) for one in found):
            return False
        several = one_several(found)
        if several is None or len(node.args) != 1 or method not in ("append", "extend"):
            self.state.names[name] = UNKNOWN
            return True
        added: list[Entries] = [self(node.args[0])] if method == "append" else self.spread(self(node.args[0]))
        self.state.names[name] = sequence([*several.entries, *added], is_list=several.is_list)
        return True
