"""Lines that fail by themselves: what the templates print as got and expected, as an assertion.

The templates of the lines that show a fault say what they look at by two prints, ``print("got, …:", …)`` and
``print("expected, …:", …)``. Here these become variables that are compared, so that the lines end in an AssertionError
with both numbers, and in nothing once the fault is mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from pullback.battery.tolerances import shown_within

_PRINTED = re.compile(r'^(?P<indent> *)print\("(?P<kind>got|expected)(?P<label>[^":]*):", (?P<value>.*)\)$')
_IMPORT = re.compile(r"^import (\w+(?:, \w+)*)$")
_ASSIGNED = re.compile(r"^(\w+(?:, \w+)*) = (.*)$")
_NAME = re.compile(r"\w+")
_APART = ("got", "expected", "output", "total")
_MOST_LINES = 15
_WIDTHS = (112, 120, 160, 1000)
_WEIGHTED = re.compile(r"torch\.linspace\(0\.5, 1\.5|output(\[\w+\])?\.sum\(\)")
_OTHER = "  # with another grad_output than above, so other numbers"
_SEEDED = {"random": re.compile(r"(?<![\w.])random\.seed\("), "numpy": re.compile(r"numpy\.random\.seed\(")}
_SEED = re.compile(r"^ *(torch\.manual_seed|random\.seed|numpy\.random\.seed)\(\d+\)$")
_DIFFERENTIATES = re.compile(r"^(?!\s*def ).*(autograd\.grad\(|\.backward\(|grad_fn\.apply\()")
_ASSERTS = ("assert ", "torch.testing.", "raise ")


def failing(repro: str, dtypes: Iterable[torch.dtype]) -> str:
    """The lines with an assertion in the place of what they print.

    Args:
        repro: Lines of code that print ``got`` and ``expected``, or end in an error of their own.
        dtypes: Those of the arguments, which say how closely numbers can agree.
    """
    lines, kinds = [], set()
    for line in repro.splitlines():
        printed = _PRINTED.match(line)
        if printed is None:
            lines.append(line)
            continue
        kinds.add(printed["kind"])
        note = printed["label"].strip(" ,")
        comment = f"  # {note}" if note else ""
        lines.append(f"{printed['indent']}{printed['kind']} = {printed['value']}{comment}")
    if kinds == {"got", "expected"} and not lines[-1].startswith(_ASSERTS):
        lines.append(compared(dtypes))
    lines = [*(f"import {module}" for module, call in _SEEDED.items() if any(map(call.search, lines))), *lines]
    widths = (width for width in _WIDTHS if len(_shorter(lines, width)) <= _MOST_LINES)
    short = _shorter(lines, next(widths, _WIDTHS[-1]))
    first, *rest = (short if len(short) <= _MOST_LINES else _with_seeds_beside(short)) or [""]
    if kinds == {"got", "expected"} and _IMPORT.match(first) and any(map(_WEIGHTED.search, rest)):
        first += _OTHER
    return "\n".join([first, *rest])


def with_seeds(repro: str, seeds: Sequence[str]) -> str:
    """The lines with generators seeded before each that differentiates, so that what backward draws is the same.

    Args:
        repro: The lines of a template.
        seeds: The lines that seed; none for a backward that draws nothing.
    """
    lines = []
    for line in repro.splitlines():
        if seeds and _DIFFERENTIATES.search(line) and "total()" not in line:  # which seeds before it calls
            lines.append(line[: len(line) - len(line.lstrip())] + "; ".join(seeds))
        lines.append(line)
    return "\n".join(lines)


def _shorter(lines: list[str], width: int) -> list[str]:
    """The same lines, with plain imports on one and neighbouring assignments on one where they fit in a width."""
    modules = sorted({name for line in lines if (found := _IMPORT.match(line)) for name in found[1].split(", ")})
    kept = [f"import {', '.join(modules)}", *(line for line in lines if not _IMPORT.match(line))] if modules else lines
    shorter: list[str] = []
    names: list[str] = []
    for line in kept:
        found = _ASSIGNED.match(line)
        last = _ASSIGNED.match(shorter[-1]) if shorter and names else None
        apart = found is None or found[1] in _APART or "  #" in line or ("runpy." in line and width < _WIDTHS[-1])
        if found is None or apart:
            names = []
        elif last is not None and not set(names) & set(_NAME.findall(found[2])) and found[1] not in names:
            joined = f"{last[1]}, {found[1]} = {last[2]}, {found[2]}"
            if len(joined) <= width:
                shorter[-1] = joined
                names.append(found[1])
                continue
            names = [found[1]]
        else:
            names = [found[1]]
        shorter.append(line)
    return shorter


def _with_seeds_beside(lines: list[str]) -> list[str]:
    """The lines with each seed on the line of the statement that follows it, if that is a simple one."""
    kept: list[str] = []
    for line in lines:
        last = kept[-1] if kept else ""
        indent = line[: len(line) - len(line.lstrip())]
        simple = not line.rstrip().endswith(":") and "  # " not in last
        if _SEED.match(last) and last.startswith(indent) and not last[len(indent) :].startswith(" ") and simple:
            kept[-1] = f"{last}; {line.lstrip()}"
        else:
            kept.append(line)
    return kept


def compared(dtypes: Iterable[torch.dtype]) -> str:
    """The line that compares ``got`` with ``expected``, and raises AssertionError with the numbers."""
    near = shown_within(dtypes)
    how = f"rtol={near.rtol:g}, atol={near.atol:g}, check_dtype=False"
    told = 'msg=lambda text: f"{text}\\ngot {got}\\nexpected {expected}"'
    return f"torch.testing.assert_close(got, expected, {how}, {told})"


DECLARED = "this difference stays where a declaration says that it is meant"


def with_remark(repro: str, remark: str = DECLARED) -> str:
    """The lines, as a template has them or `failing` makes them, with a remark where they show what was expected."""
    return "\n".join(_remarked(line, remark) for line in repro.splitlines())


def _remarked(line: str, remark: str) -> str:
    if line.lstrip().startswith("expected = "):
        code, hash_, label = line.partition("  # ")
        return f"{code}  # {label}{'; ' if hash_ else ''}{remark}"
    printed = _PRINTED.match(line)
    if printed is None or printed["kind"] != "expected":
        return line
    label = printed["label"].strip(" ,")
    return f'{printed["indent"]}print("expected, {f"{label}; " if label else ""}{remark}:", {printed["value"]})'


def equal(got: str, expected: str) -> list[str]:
    """Lines that compare two things that aren't numbers, and raise AssertionError with both."""
    return [f"got, expected = {got}, {expected}", 'assert got == expected, f"got {got}, expected {expected}"']
