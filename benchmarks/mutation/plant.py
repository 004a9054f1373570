"""Mutants: the sources that the kinds make of the right Functions, each in a file of its own."""

from __future__ import annotations

import ast
import difflib
import hashlib
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation import (
    approximate,
    arithmetic,
    bookkeeping,
    calls,
    claims,
    computed,
    habits,
    history,
    kept,
    leftovers,
    reckoning,
    shapes,
    state,
    surroundings,
    transforms,
    usage,
)
from benchmarks.mutation.kinds import KINDS, Edit, Kind, Place, Target
from benchmarks.mutation.originals import ROOT, Original

# isort: split
from benchmarks.mutation import mended, slips  # after the others: of two kinds with one text the earlier one keeps it

# isort: split
from benchmarks.mutation import derived, ported, reported

# isort: split
from benchmarks.mutation import (
    late_derivations,
    late_kernels,
    late_mechanics,
    late_mechanics_more,
    late_threads,
    late_upkeep,
)

assert all(
    (
        approximate,
        arithmetic,
        bookkeeping,
        calls,
        claims,
        computed,
        derived,
        habits,
        history,
        kept,
        late_derivations,
        late_kernels,
        late_mechanics,
        late_mechanics_more,
        late_threads,
        late_upkeep,
        leftovers,
        mended,
        ported,
        reckoning,
        reported,
        shapes,
        slips,
        state,
        surroundings,
        transforms,
        usage,
    )
)  # importing them registers their kinds

METHODS = ("forward", "setup_context", "backward", "vjp", "double_backward", "jvp", "vmap")
"""The methods that faults are planted in."""

STATEMENTS = ("reference", "surrogate", "expected_backward", "samples")
"""The methods that say what is right: no fault is planted in them, nor in what they call."""

EACH = 3
"""At most so many mutants of one kind in one Function, drawn by their names: large ones would outnumber the others."""


@dataclass(frozen=True)
class Mutant:
    """A right Function with one fault.

    Attributes:
        id: Its name, the same in every run: ``sign/swiglu.SwiGLU/1f0a2b``.
        kind: The kind of fault.
        original: The right Function.
        source: The text of the whole module.
        diff: The lines that differ, in the functions that were rewritten.
    """

    id: str
    kind: str
    original: Original
    source: str
    diff: str

    def write(self, folder: Path) -> Path:
        """Write it to a file in `folder`, for inspect to read."""
        path = folder / f"{Path(self.original.path).stem}_{digest(self.id)[:12]}.py"
        path.write_text(self.source, encoding="utf-8")
        return path


def target_of(original: Original) -> Target:
    """Parse a right Function, and find the functions that faults may be planted in."""
    tree = ast.parse(original.source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == original.name)
    methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    owned = "reference" in methods  # a surrogate says what backward is, and forward alone what the values are
    stated = [methods[name] for name in (*STATEMENTS, *(() if owned else ("forward",))) if name in methods]
    right = _reached(stated, functions)
    derived = _reached([node for name, node in methods.items() if name in METHODS], functions)
    places = [Place(methods[name], name, owned) for name in METHODS if name in methods]
    places += [Place(functions[name], "helper", owned) for name in functions if name in derived - right]
    return Target(original.name, tuple(places), tuple(cls.body))


def _reached(roots: Iterable[ast.FunctionDef], functions: dict[str, ast.FunctionDef]) -> set[str]:
    """The names of the module's functions that some functions call, directly or not."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(roots)
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id in functions and node.id not in found:
                found.add(node.id)
                waiting.append(functions[node.id])
    return found


def mutants_of(original: Original, kinds: Iterable[Kind] | None = None, each: int | None = EACH) -> Iterator[Mutant]:
    """The mutants of a Function: at most `each` of a kind, and no two with one source."""
    target = target_of(original)
    seen: set[str] = set()
    for kind in KINDS.values() if kinds is None else kinds:
        made: list[tuple[str, Edit]] = []
        for edit in kind.edits(target):
            text = "\n".join(["" if new is None else ast.unparse(new) for _, new in edit.functions])
            same = all(new is not None and text == ast.unparse(place.function) for place, new in edit.functions)
            if not same and text not in seen:
                seen.add(text)
                made.append((f"{kind.name}/{original.id}/{digest(text)[:6]}", edit))
        made.sort(key=lambda pair: digest(pair[0]))
        for name, edit in made[:each]:
            yield Mutant(name, kind.name, original, rewritten(original.source, edit), _diff(edit))


def digest(text: str) -> str:
    """What mutants are named and drawn by: one more or less of them changes neither name nor place of the others."""
    return hashlib.sha256(text.encode()).hexdigest()


def rewritten(source: str, edit: Edit) -> str:
    """The module's text with the edited functions in the place of the old ones."""
    lines = source.splitlines()
    for place, function in sorted(edit.functions, key=lambda pair: -pair[0].function.lineno):
        old = place.function
        first = min([old.lineno, *(decorator.lineno for decorator in old.decorator_list)])
        new = "" if function is None else textwrap.indent(ast.unparse(function), " " * old.col_offset)
        lines[first - 1 : old.end_lineno] = new.splitlines()
    return "\n".join([*lines, *edit.epilogue.splitlines()]) + "\n"


def _diff(edit: Edit) -> str:
    """What differs, without context: the lines of both functions as the parser writes them."""
    found = []
    for place, function in edit.functions:
        old = ast.unparse(place.function).splitlines()
        new = [] if function is None else ast.unparse(function).splitlines()
        lines = [
            line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        ]
        found += [f"{place.function.name}:", *lines]
    return "\n".join([*found, *(f"+{line}" for line in edit.epilogue.splitlines())])


def prepared(folder: Path) -> Path:
    """Make the folder for mutants, with what the examples look for beside themselves."""
    place = folder / "mutants"
    place.mkdir(parents=True, exist_ok=True)
    kernel = place / "chapter_elementwise.cpp"
    if not kernel.exists():
        kernel.symlink_to(ROOT / "examples" / "chapter_elementwise.cpp")
    return place
