"""Rules PB302, PB303, PB304, PB401 and PB404, where memory is lent to a Function, or where nothing need be saved."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, findings


def function(forward: str, backward: str, takes: str = "x: torch.Tensor, room: torch.Tensor") -> str:
    """A Function with these lines, parted by semicolons, in its methods."""
    first, second = ("\n".join(f"        {line.strip()}" for line in body.split(";")) for body in (forward, backward))
    return (
        f"{HEAD}import kernels\n\n\nclass Lent(Function):\n"
        f"    @staticmethod\n    def forward(ctx, {takes}):\n{first}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n{second}\n"
    )


def codes(text: str, *, hints: bool = False) -> list[str]:
    """What is found, in order of lines."""
    return sorted(one.rule for one in findings(text, hints=hints) if one.rule not in ("PB206", "PB207"))


LENT = {
    "filled by backward": ("ctx.room = room; return x * 2", "ctx.room.copy_(g); return ctx.room * 2, None"),
    "out of backward": ("ctx.room = room; return x * 2", "torch.mul(g, 2, out=ctx.room); return ctx.room * 1, None"),
    "filled by forward": ("room.copy_(x); ctx.room = room; return room * 2", "return g * 2, None"),
    "handed to a kernel": ("ctx.room = room; return x * 2", "gx = kernels.run(g, ctx.room); return gx, None"),
    "handed by name": ("ctx.room = room; return x * 2", "gx = kernels.run(g, out=[ctx.room]); return gx, None"),
    "launched": ("ctx.room = room; return x * 2", "gx = g * 1; kernels.run[3](gx, ctx.room); return gx, None"),
    "of custom operators": ("ctx.room = room; return x * 2", "return torch.ops.mine.run(g, ctx.room), None"),
}


@pytest.mark.parametrize("name", LENT)
def test_memory_that_may_be_lent_is_a_hint(name: str) -> None:
    """It gets no gradient, and is overwritten, or handed to somebody who may fill it."""
    text = function(*LENT[name])
    assert codes(text) == []
    assert "PB302" in codes(text, hints=True)


KEPT = {
    "it gets a gradient": ("ctx.w = w; return x * w", "return kernels.run(g, ctx.w), g * 2", "x, w"),
    "it is only read": ("ctx.i = i; return x[i]", "return g[ctx.i], None", "x: torch.Tensor, i: torch.Tensor"),
    "PyTorch reads it": (
        "ctx.i = i; return x[i]",
        "return torch.index_select(g, 0, ctx.i), None",
        "x: torch.Tensor, i: torch.Tensor",
    ),
    "a method reads it": (
        "ctx.i = i; return x[i]",
        "return g.index_select(0, ctx.i), None",
        "x: torch.Tensor, i: torch.Tensor",
    ),
    "nobody does": ("ctx.i = i; return x * 2", "return g * 2, None", "x: torch.Tensor, i: torch.Tensor"),
}


@pytest.mark.parametrize("name", KEPT)
def test_an_argument_that_is_kept_to_be_read_is_found(name: str) -> None:
    """Nobody fills it, so that it could have been saved."""
    assert codes(function(*KEPT[name])) == ["PB302"]


def test_an_argument_that_is_changed_and_not_filled_is_found() -> None:
    """What was in it before is asked for, or it is what forward gives back."""
    assert codes(function("room.add_(x); return room * 2", "return g * 2, None")) == ["PB401"]
    assert codes(function("room.copy_(x); return room", "return g * 2, None")) == ["PB401"]
    assert codes(function("x.copy_(room); return x * 2", "return g * 2, None")) == ["PB401"]
    text = function("ctx.room = room; return x * 2", "ctx.room.add_(g); return g * 2, None")
    assert codes(text) == ["PB302", "PB404"]


def test_an_output_without_graph_makes_no_cycle() -> None:
    """Marked as non-differentiable, it doesn't hold the ctx that holds it."""
    forward = "y, m = x * 2, x.sign(); ctx.mark_non_differentiable(m); ctx.m = m; return y, m"
    text = function(forward, "return g * ctx.m", "x: torch.Tensor").replace("backward(ctx, g)", "backward(ctx, g, h)")
    assert codes(text) == []
    assert codes(text.replace("        ctx.mark_non_differentiable(m)\n", "")) == ["PB302"]


def test_numbers_as_a_tensor_need_not_be_saved() -> None:
    """Nor need a dummy be read."""
    assert codes(function("ctx.n = torch.tensor([2, 3]); return x * 2", "return g * ctx.n[0]", "x: torch.Tensor")) == []
    dummy = "ctx.save_for_backward(x, {}); return x * 2"
    backward = "x, _ = ctx.saved_tensors; return g * x"
    assert codes(function(dummy.format("torch.tensor([0])"), backward, "x: torch.Tensor")) == []
    assert codes(function(dummy.format("x.exp()"), backward, "x: torch.Tensor")) == ["PB304"]


def test_what_an_output_is_a_view_of_holds_no_ctx() -> None:
    """The view has the graph, and what it was taken from is an intermediate."""
    assert codes(function("y = x * 2; ctx.y = y; return y[0]", "return g * ctx.y", "x: torch.Tensor")) == ["PB303"]
    assert codes(function("y = x * 2; ctx.y = y; return y", "return g * ctx.y", "x: torch.Tensor")) == ["PB302"]
