"""What a method returns on each path, as the linter reads it from source."""

from __future__ import annotations

import ast
import textwrap

import pytest

from pullback.lint.alternatives import Alternatives, Flag, Flags, Made, Missing, Nothing, Rest, Several
from pullback.lint.returned import Walk

CASES = {
    "an expression": ("return g * 2", ["g * 2"]),
    "nothing": ("return", ["None"]),
    "no return": ("h = g", ["None"]),
    "a name": ("h = g * 2\nreturn h", ["g * 2"]),
    "a tuple": ("h = g * 2\nreturn h, None", ["(g * 2, None)"]),
    "a list": ("return [g]", ["[g]"]),
    "an item": ("hs = (g * 1, g * 2)\nreturn hs[1], hs[-2]", ["(g * 2, g * 1)"]),
    "a slice": ("hs = (g * 1, g * 2, g * 3)\nreturn hs[1:]", ["(g * 2, g * 3)"]),
    "unpacked": ("a, b = g * 1, g * 2\nreturn b, a", ["(g * 2, g * 1)"]),
    "unpacked from a call": ("a, b = f(g)\nreturn b, a", ["(f(g)[1], f(g)[0])"]),
    "swapped": ("a, b = g * 1, g * 2\na, b = b, a\nreturn a, b", ["(g * 2, g * 1)"]),
    "added": ("return (g,) + (None,) * 2", ["(g, None, None)"]),
    "in a list": ("hs = [None] * 2\nhs[1] = g * 2\nreturn tuple(hs)", ["(None, g * 2)"]),
    "appended": ("hs = [g * 1]\nhs.append(g * 2)\nhs.extend((None, None))\nreturn hs", ["[g * 1, g * 2, None, None]"]),
    "a star": ("return g * 1, *rest(g), None", ["(g * 1, *, None)"]),
    "a star that is known": ("hs = (None, None)\nreturn g * 1, *hs", ["(g * 1, None, None)"]),
    "Nones by an unknown number": ("return g * 1, *[None] * n", ["(g * 1, *None)"]),
    "a loop": ("hs = []\nfor h in g:\n    hs.append(h)\nreturn hs", ["hs"]),
    "if else": ("return g * 1 if n else None", ["g * 1 [+n] | None [-n]"]),
    "a flag": ("return g * 1 if ctx.needs_input_grad[1] else None", ["g * 1 [+1] | None [-1]"]),
    "two branches": ("if n:\n    h = g * 1\nelse:\n    h = g * 2\nreturn h", ["g * 1 [+n] | g * 2 [-n]"]),
    "a branch that ends": ("h = g * 1\nif n:\n    raise ValueError\nreturn h", ["g * 1"]),
    "two returns": ("if n:\n    return g * 1\nreturn g * 2", ["g * 1", "g * 2"]),
    "what can't be": ("h = None\nif n:\n    h = g * 1\nif n:\n    return h\nreturn g", ["g * 1 [+n]", "g"]),
    "by its flag": (
        "h = None\nif ctx.needs_input_grad[0]:\n    h = g * 1\nif h is not None:\n    h = h.t()\nreturn h",
        ["h.t() [+0 -h is None] | g * 1 [+0 +h is None] | None [+h is None -0]"],
    ),
    "not where all are left out": (
        "if n is None and m is None:\n    return None\nh = 0\nif n is not None:\n    h = n * g\n"
        "if m is not None:\n    h = m * g\nreturn h",
        ["None", "m * g [-m is None] | n * g [+m is None -n is None]"],
    ),
    "grown in place": ("h = g * 1\nif n:\n    h += 1\nreturn h", ["h + 1 [+n] | g * 1 [-n]"]),
    "any of the flags": ("if any(ctx.needs_input_grad):\n    return g * 1", ["g * 1"]),
    "never": ("while True:\n    g = f(g)", []),
    "by assignment in a test": ("if (h := f(g)) is not None:\n    return h", ["f(g)", "None"]),
    "in passing": ("h = None\nuse(h := f(g))\nreturn h", ["f(g)"]),
    "in try": ("try:\n    h = f(g)\nexcept ValueError:\n    h = None\nreturn h", ["f(g) | None"]),
    "deleted": ("h = g * 1\ndel h\nreturn f()", ["f()"]),
    "a match": ("match n:\n    case 1:\n        h = g * 1\n    case _:\n        h = None\nreturn h", ["g * 1 | None"]),
}


def shown(alternatives: Alternatives) -> str:
    """Alternatives in one line, each with what has to hold for it."""
    several = []
    for one in alternatives:
        holds = sorted(
            f"{'+' if c.on else '-'}{c.text or ','.join(map(str, sorted(c.flags)))}"
            for c in one.conditions
            if c.flags != frozenset((-1,))
        )
        several.append(thing(one.thing) + (f" [{' '.join(holds)}]" if holds else ""))
    return " | ".join(several)


def thing(value: Nothing | Missing | Made | Flag | Flags | Several) -> str:
    """One of them, as source would have it."""
    if isinstance(value, Several):
        entries = [f"*{'None' * entry.nothing}" if isinstance(entry, Rest) else shown(entry) for entry in value.entries]
        return f"[{', '.join(entries)}]" if value.is_list else f"({', '.join(entries)})"
    if isinstance(value, Made):
        text = "?" if value.node is None else ast.unparse(value.node)
        return text if value.part is None else f"{text}[{value.part}]"
    return "None" if isinstance(value, Nothing) else type(value).__name__


def walked(body: str) -> Walk:
    """A method with this body, walked through."""
    (node,) = ast.parse(f"def backward(ctx, g, n):\n{textwrap.indent(body, '    ')}").body
    assert isinstance(node, ast.FunctionDef)
    return Walk("ctx", 2).method(node)


@pytest.mark.parametrize("name", CASES)
def test_what_is_returned(name: str) -> None:
    """At each return, with the conditions for what it may be."""
    body, expected = CASES[name]
    assert [shown(one.what) for one in walked(body).returns] == expected


def test_a_name_that_may_have_no_value() -> None:
    """With what has to hold for that."""
    (unset,) = walked("if ctx.needs_input_grad[0]:\n    h = g\nreturn h").unset
    assert unset.node.id == "h"
    assert [(one.flags, one.on) for one in unset.conditions - unset.path] == [(frozenset((0,)), False)]


def test_many_alternatives_are_unknown() -> None:
    """So that no method takes for ever."""
    body = "\n".join(f"if n == {i}:\n    h{i} = g * {i}\n    h = h{i}" for i in range(60))
    (returned,) = walked(f"h = None\n{body}\nreturn h").returns
    assert len(returned.what) <= 8
    assert "h [" in shown(returned.what)
