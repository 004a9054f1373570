"""Rules PB405 and PB406: a backward that takes each grad_output to be contiguous."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def backward(*lines: str, above: str = "", declared: str = "") -> str:
    """A Function with these lines in its backward, a decorator above it, and a declaration in its body."""
    body = "\n".join(f"        {line}" for line in lines)
    decorator = f"    {above}\n" if above else ""
    return (
        f"{HEAD}import pullback\nfrom elsewhere import kernel, ensure_contiguous\n"
        f"class Scaled({'pullback.Function' if declared else 'Function'}):\n    {declared or 'pass'}\n"
        "    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n"
        "        ctx.shape = x.shape\n        ctx.n = x.shape[-1]\n        return x * 2\n"
        f"    @staticmethod\n{decorator}    def backward(ctx, g):\n        shape, n = ctx.shape, ctx.n\n{body}\n"
    )


WRONG = {
    "flattened": ["return (g.view(-1) * 3).view(shape)  # PB406"],
    "to rows": ["return g.view(-1, n)  # PB406"],
    "to a tuple of sizes": ["return g.view((-1, n))  # PB406"],
    "to a product of sizes": ["return g.view(2 * n, n, 3)  # PB406"],
    "transposed": ["return g.t().view(-1, n)  # PB406"],
    "by another name": ["h = g", "return h.view(-1)  # PB406"],
    "an address": ["gx = torch.empty_like(g)", "kernel(g.data_ptr(), gx)  # PB405", "return gx"],
    "addresses in a list": ["kernel(args=[g.data_ptr(), n])  # PB405", "return g * 1"],
    "an address, wrapped": ["kernel(pointer(g.data_ptr()))  # PB405", "return g * 1"],
    "an address by name": ["gx = torch.empty_like(g)", "kernel(into=gx, of=g.data_ptr())  # PB405", "return gx"],
}

RIGHT = {
    "reshape": ["return g.reshape(-1, n)"],
    "contiguous before": ["g = g.contiguous()", "return g.view(-1, n)"],
    "contiguous at once": ["return g.contiguous().view(-1, n)"],
    "asked for": ["if not g.is_contiguous():", "    g = g.clone()", "return g.view(-1, n)"],
    "its own shape": ["return g.view(g.shape)"],
    "its own size": ["return g.view(g.size())"],
    "dimensions of size 1 behind": ["return g.view(-1, 1, 1)"],
    "another dtype": ["return g.view(torch.int32).float()"],
    "computed": ["return (g * 3).view(-1, n)"],
    "strides are handed on": ["gx = torch.empty_like(g)", "kernel(g.data_ptr(), g.stride(), gx)", "return gx"],
    "an address that is compared": ["return g * 3 if g.data_ptr() == 0 else g * 2"],
    "an address that is kept": ["seen = [0]", "seen.append(g.data_ptr())", "print(g.data_ptr())", "return g * 2"],
    "an address of its own": ["h = g.clone()", "kernel(h.data_ptr())", "return h"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_takes_a_gradient_to_be_contiguous_is_found(name: str) -> None:
    """A view of it raises for the gradients of t and sum; its address says nothing of its strides."""
    text = backward(*WRONG[name])
    assert found(text) == expected(text)


PERHAPS = {
    "a dimension taken apart": ["return g.view(2, n, 3, 4)  # PB406"],
    "the last one, with what is left of it": ["return g.view(2, n, 3, -1)  # PB406"],
    "a kept shape, perhaps its own": ["return g.view(shape)  # PB406"],
    "sizes from elsewhere": ["return g.view(*shape[:-1]).unsqueeze(-1)  # PB406"],
}


@pytest.mark.parametrize("name", PERHAPS)
def test_a_view_that_may_only_take_apart_is_a_hint(name: str) -> None:
    """Strides never forbid to take a dimension apart, and whether sizes do that or join, nobody says."""
    text = backward(*PERHAPS[name])
    assert found(text) == []
    assert found(text, hints=True) == expected(text)


@pytest.mark.parametrize("name", RIGHT)
def test_what_works_for_every_layout_is_right(name: str) -> None:
    """reshape, contiguous, a test, or a tensor that backward made."""
    assert found(backward(*RIGHT[name])) == []


def test_somebody_else_may_see_to_the_layout() -> None:
    """A decorator that isn't known may make gradients contiguous, and contiguous_grads does."""
    line = "return g.view(-1, n)"
    assert found(backward(line, above="@ensure_contiguous")) == []
    assert found(backward(line, declared="contiguous_grads = True")) == []
    assert found(backward(line, above="@torch.autograd.function.once_differentiable")) == ["16 PB406"]


def test_a_launched_kernel_is_hinted_at() -> None:
    """Whether it takes strides, its own source says; strides that are handed on, or contiguous, settle it."""
    launch = ["gx = torch.empty_like(g)", "kernel[(n,)](g, gx)  # PB405", "return gx"]
    text = backward(*launch)
    assert found(text) == []
    assert found(text, hints=True) == expected(text)
    strides = ["gx = torch.empty_like(g)", "kernel[(n,)](g, g.stride(0), gx)", "return gx"]
    assert found(backward(*strides), hints=True) == []
    assert found(backward("g = g.contiguous()", *launch), hints=True) == []


def test_the_message_gives_the_line_to_write() -> None:
    """reshape in place of view."""
    (finding,) = findings(backward("return g.view(-1, n)"))
    assert finding.message == "view is asked of g as it came; view refuses a gradient that isn't contiguous."
    assert (finding.got, finding.expected) == ("g.view(-1, n)", "g.reshape(-1, n)")
