"""Rules PB302 and PB303, where what is kept on ctx is let go in time, is more than a tensor, or has its reason told."""

from __future__ import annotations

import textwrap

import pytest

from pullback.lint.remarks import explains
from pullback.lint.source import Source, parse
from tests.lint.helper import HEAD, findings, found


def function(forward: str, backward: str = "return g * 1", takes: str = "x: torch.Tensor") -> str:
    """A Function with these lines, parted by semicolons, in its methods."""
    first, second = ("\n".join(f"        {line.strip()}" for line in body.split(";")) for body in (forward, backward))
    return (
        f"{HEAD}class Kept(Function):\n"
        f"    @staticmethod\n    def forward(ctx, {takes}):\n{first}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n{second}\n"
    )


LET_GO = {
    "something else is put there": ("ctx.xs = [x]; y = run(ctx); ctx.xs = []; return y", "return g * 1"),
    "taken off again": ("ctx.x = x; y = run(ctx); del ctx.x; return y", "return g * 1"),
    "dropped by backward": ("ctx.x = x; return x * 2", "gx = g * ctx.x; ctx.x = None; return gx"),
    "deleted by backward": ("ctx.x = x; return x * 2", "gx = g * ctx.x; del ctx.x; return gx"),
    "an intermediate, dropped": ("ctx.e = x.exp(); return ctx.e * 2", "ge = g * ctx.e; ctx.e = None; return ge"),
}


@pytest.mark.parametrize("name", LET_GO)
def test_what_is_let_go_in_time_is_right(name: str) -> None:
    """Nothing holds it behind forward, or behind backward, as if it had been saved."""
    assert found(function(*LET_GO[name])) == []


@pytest.mark.parametrize(
    "forward",
    [
        "ctx.x = None; ctx.x = x; return x * 2",
        "ctx.x = x; ctx.k = None; return x * 2",
        "ctx.x = x; ctx.x = None if x.dim() else ctx.x; return x * 2",
    ],
)
def test_what_is_kept_in_the_end_is_found(forward: str) -> None:
    """The last thing that is put there counts."""
    assert [one.split()[1] for one in found(function(forward))] == ["PB302"]


def test_what_only_one_branch_replaces_is_found() -> None:
    """Where the other branch leads, it stays."""
    text = function("ctx.x = x;if x.dim():;    ctx.x = None;return x * 2").replace(
        "        ctx.x = None", "            ctx.x = None"
    )
    assert [one.split()[1] for one in found(text)] == ["PB302"]


REASONS = [
    "ctx.x = x  # not by save_for_backward, whose hooks would copy it",
    "# Kept as the same object: the optimizer looks it up by identity; ctx.x = x",
    "# A subclass that hooks of saved tensors; # would take apart; ctx.x = x",
    "ctx.x = x  # noqa: PB302",
    "ctx.x = x  # on purpose",
]


@pytest.mark.parametrize("lines", REASONS)
def test_a_comment_that_gives_a_reason_is_believed(lines: str) -> None:
    """On the line or above it: its author knows what would be usual."""
    assert found(function(f"{lines}; return x * 2")) == []


@pytest.mark.parametrize(
    "lines", ["ctx.x = x  # for backward", "# the input; ctx.x = x", "# no reason why not; y = 1; ; ctx.x = x"]
)
def test_any_other_comment_changes_nothing(lines: str) -> None:
    """One that says what it is, or that stands further away."""
    assert [one.split()[1] for one in found(function(f"{lines}; return x * 2"))] == ["PB302"]


def test_comments_are_read_to_the_edge_of_the_file() -> None:
    """A node on the first line has nothing above it, and a carriage return ends a line too."""
    source = parse("ops.py", b"x = 1\r# because it must be\ry = 2\r\n\r\nz = 3\n")
    assert isinstance(source, Source)
    assert [explains(source, node) for node in source.tree.body] == [False, True, False]


def test_a_comment_holds_for_its_paragraph() -> None:
    """To the next empty line, and not from outside of the block."""
    reason = "# Not saved, since hooks would copy it."
    assert found(function(f"{reason}; ctx.k = 1; ctx.x = x; return x * 2")) == []
    text = function(f"{reason}; if x.dim():; INctx.x = x; return x * 2").replace("        IN", "            ")
    assert [one.split()[1] for one in found(text)] == ["PB302"]


def test_what_is_asked_for_more_than_a_tensor_has_may_have_to_stay_an_object() -> None:
    """An operator may have methods of tensors too, and a subclass of Tensor has attributes of its own."""
    takes = "x: torch.Tensor, A"
    operator = function(
        "ctx.A = A; return x * 2", "return g * ctx.A.uselinopparams(1) * ctx.A.unsqueeze(0), None", takes
    )
    assert found(operator) == []
    prepared = function("ctx.A = A; A.prepare(x); return x * 2", "return ctx.A.unsqueeze(0), None", takes)
    assert found(prepared) == []
    plain = function("ctx.A = A; return x * 2", "return ctx.A.unsqueeze(0), None", takes)
    assert [one.split()[1] for one in found(plain)] == ["PB302"]
    attribute = function("ctx.A = A; return x * 2", "return ctx.A.mT @ g, None", takes)  # an operator has one, too
    assert found(attribute) == []
    weight = function("ctx.w = w; return x @ w", "ctx.w.main_grad += g; return g @ ctx.w, g * 2", "x, w: torch.Tensor")
    assert [one for one in found(weight) if "PB302" in one] == []


@pytest.mark.parametrize("annotation", ["torch.Tensor | float", "Union[int, Tensor]", "Any"])
def test_an_annotation_with_more_than_a_tensor_makes_it_a_hint(annotation: str) -> None:
    """Most often the argument is a number then, which belongs on ctx."""
    text = function("ctx.k = k; return x * k", "return g * ctx.k, (g * 3).sum()", f"x: torch.Tensor, k: {annotation}")
    assert [one for one in found(text) if "PB302" in one] == []
    (finding,) = [one for one in findings(text, hints=True) if one.rule == "PB302"]
    assert finding.evidence["confidence"] == "possible"


def test_where_a_gradient_is_missing_none_shows_what_an_argument_is() -> None:
    """The first gradient may be that of the second argument: that their number is wrong is all that is said."""
    takes, forward = "group, q, k", "ctx.group = group; ctx.save_for_backward(q, k); return q * k"
    text = function(forward, "q, k = ctx.saved_tensors; return g * k, g * q", takes)
    assert [one.split()[1] for one in found(text)] == ["PB201"]
    whole = function(forward, "q, k = ctx.saved_tensors; return g * 2, g * k, g * q", takes)
    assert [one.split()[1] for one in found(whole)] == ["PB302"]


def test_the_lines_of_a_source_are_those_that_ast_counts() -> None:
    """A form feed or another separator of Unicode ends no line of a program."""
    text = textwrap.dedent('x = "a\x0cb\u2028c"\ny = 2\n')
    source = parse("ops.py", text.encode())
    assert isinstance(source, Source)
    assert source.lines[source.tree.body[1].lineno - 1] == "y = 2"
