"""Rules PB206 and PB207 as hints: what may cost the second derivative."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def function(
    forward: str, backward: str = "return g * sum(ctx.saved_tensors)", above: str = "", base: str = "Function"
) -> str:
    """A Function with these lines, parted by semicolons, in its methods."""
    first, second = ("\n".join(f"        {line.strip()}" for line in body.split(";")) for body in (forward, backward))
    decorator = f"    {above}\n" if above else ""
    return (
        f"{HEAD}import pullback\nfrom torch.autograd.function import once_differentiable\nclass Second({base}):\n"
        f"    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n{first}\n"
        f"    @staticmethod\n{decorator}    def backward(ctx, g):\n{second}\n"
    )


def hints(text: str) -> list[str]:
    """What these rules hint at."""
    return [one for one in found(text, hints=True) if "PB206" in one or "PB207" in one]


SAVED = "ctx.save_for_backward(x); return x**2"

WRONG = {
    "an intermediate": ("e = x.exp(); ctx.save_for_backward(e)  # PB206; return e / (1 + e)",),
    "arithmetic": ("ctx.save_for_backward(2 * x)  # PB206; return x**2",),
    "NumPy": (SAVED, "(x,) = ctx.saved_tensors; return torch.from_numpy(g.numpy() * 2)  # PB207"),
    "a number": (SAVED, "(x,) = ctx.saved_tensors; return g * x.sum().item() + x.item()  # PB207"),
    "detached": (SAVED, "(x,) = ctx.saved_tensors; return 2 * g * x.detach()  # PB207"),
    ".data": (SAVED, "(x,) = ctx.saved_tensors; return 2 * g * x.data  # PB207"),
}

RIGHT = {
    "an argument": (SAVED, "(x,) = ctx.saved_tensors; return 2 * g * x"),
    "an output": ("y = x.exp(); ctx.save_for_backward(y); return y",),
    "a mask": ("mask = x > 0; ctx.save_for_backward(mask); return x * mask",),
    "indices": ("i = x.argmax(-1); ctx.save_for_backward(i); return x.max()",),
    "what is drawn": ("kept = torch.rand_like(x); ctx.save_for_backward(kept); return x * kept",),
    "recomputed": (SAVED, "x = ctx.saved_tensors[0].detach(); return torch.autograd.grad(x, x, g)[0]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_may_lose_the_second_derivative_is_hinted_at(name: str) -> None:
    """A saved intermediate, and whatever leaves the graph in backward."""
    text = function(*WRONG[name])
    assert hints(text) == expected(text)
    assert [one for one in found(text) if "PB20" in one] == []


@pytest.mark.parametrize("name", RIGHT)
def test_what_keeps_it_is_right(name: str) -> None:
    """Arguments, outputs, masks and indices; and a backward that differentiates by itself."""
    assert hints(function(*RIGHT[name])) == []


def test_a_block_and_a_decorator_without_graph_count() -> None:
    """torch.no_grad around the computation, or around backward."""
    text = function(SAVED, "with torch.no_grad():  # PB207;    (x,) = ctx.saved_tensors;return 2 * g * x")
    text = text.replace("        (x,)", "            (x,)")
    assert hints(text) == expected(text)
    assert hints(function(SAVED, above="@torch.no_grad()")) == ["12 PB207"]


def test_who_refuses_a_second_derivative_has_nothing_to_lose() -> None:
    """once_differentiable raises; pullback.Function reconnects, or raises."""
    forward = "e = x.exp(); ctx.save_for_backward(e); return e / (1 + e)"
    assert hints(function(forward, above="@once_differentiable")) == []
    assert hints(function(forward, base="pullback.Function")) == []


def test_a_hint_says_that_only_a_run_can_tell() -> None:
    """If it varies, it is lost: whether it does is for the check."""
    text = function("e = x.exp(); ctx.save_for_backward(e); return e / (1 + e)")
    (finding,) = [one for one in findings(text, hints=True) if one.rule == "PB206"]
    assert "if that varies with an argument" in finding.message
    assert finding.severity.value == "hint"
