"""Rule PB550: memory in the default dtype, or on the default device."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def function(forward: str = "return x * 1", backward: str = "return g * 1") -> str:
    """A Function with these lines, parted by semicolons, in its methods."""
    first, second = ("\n".join(f"        {line.strip()}" for line in body.split(";")) for body in (forward, backward))
    return (
        f"{HEAD}from torch import zeros as make\nclass Makes(Function):\n"
        f"    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n        ctx.n = x.shape[0]\n{first}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n{second}\n"
    )


WRONG = {
    "a gradient": {"backward": "return torch.zeros(ctx.n)  # PB550"},
    "a gradient that is filled": {"backward": "gx = torch.zeros(ctx.n)  # PB550; gx[0] = g; return gx"},
    "written in place": {"backward": "return torch.zeros(ctx.n).scatter_(0, g.long(), g)  # PB550"},
    "without a device": {"backward": "return torch.zeros(ctx.n, dtype=g.dtype)  # PB550"},
    "without a dtype": {"backward": "return torch.zeros(ctx.n, device=g.device)  # PB550"},
    "by another name": {"backward": "return make(ctx.n)  # PB550"},
    "an output": {"forward": "y = torch.empty(ctx.n)  # PB550; y[:] = x; return y"},
    "full of a float": {"backward": "return torch.full((ctx.n,), 0.5)  # PB550"},
    "in arithmetic": {"backward": "return torch.ones(ctx.n) * g  # PB550"},
    "in arithmetic, by name": {"backward": "eye = torch.eye(ctx.n)  # PB550; return g @ eye"},
    "without a dtype, on the CPU": {"backward": "gx = torch.zeros(ctx.n)  # PB550; gx[0] = g.numpy()[0]; return gx"},
    "NumPy by way of a copy": {
        "forward": "ctx.a = x.detach().cpu().numpy(); return x * 1",
        "backward": "return torch.zeros(ctx.n, dtype=g.dtype)  # PB550",
    },
    "random": {"forward": "return x * torch.rand(ctx.n)  # PB550"},
}

RIGHT = {
    "both said": {"backward": "return torch.zeros(ctx.n, dtype=g.dtype, device=g.device)"},
    "like another": {"backward": "return torch.zeros_like(g)"},
    "new": {"backward": "return g.new_zeros(ctx.n)"},
    "converted": {"backward": "return torch.zeros(ctx.n).to(g)"},
    "converted by type": {"backward": "return torch.zeros(ctx.n).type_as(g)"},
    "on the device in force": {
        "backward": "with torch.device(g.device):;    gx = torch.zeros(ctx.n, dtype=g.dtype);return gx"
    },
    "an index": {"backward": "i = torch.arange(ctx.n); return g[i]"},
    "neither returned nor combined": {"backward": "scratch = torch.zeros(ctx.n); print(scratch); return g * 1"},
    "a scalar": {"backward": "return g * torch.ones(())"},
    "keywords that aren't known": {"backward": "return torch.zeros(ctx.n, **ctx.options)"},
    "on the CPU, since NumPy takes it": {
        "forward": "ctx.a = x.detach().numpy(); return x * 1",
        "backward": "return torch.zeros(ctx.n, dtype=g.dtype)",
    },
    "an empty tensor that gets other memory": {"backward": "return g * torch.empty(0).set_(g.untyped_storage())"},
}


def mine(text: str) -> list[str]:
    """What this rule finds."""
    return [one for one in found(text) if "PB550" in one]


@pytest.mark.parametrize("name", WRONG)
def test_memory_that_doesnt_follow_the_arguments_is_found(name: str) -> None:
    """Returned as a gradient or an output, or combined with one of the caller's tensors."""
    text = function(**WRONG[name])
    assert mine(text) == expected(text)


@pytest.mark.parametrize("name", RIGHT)
def test_memory_that_follows_them_is_right(name: str) -> None:
    """Both are said, taken over, or set afterwards; or it doesn't matter."""
    text = (
        function(**RIGHT[name])
        .replace("        with", "        with")
        .replace("        gx = torch.zeros(ctx.n, dtype=g.dtype)", "            gx = torch.zeros(ctx.n, dtype=g.dtype)")
    )
    assert mine(text) == []


def test_an_output_in_float32_may_be_meant() -> None:
    """With a device and without a dtype it's a hint, of forward alone."""
    text = function("return torch.zeros(ctx.n, device=x.device)")
    assert mine(text) == []
    (finding,) = [one for one in findings(text, hints=True) if one.rule == "PB550"]
    assert finding.evidence["confidence"] == "possible"
    assert finding.message == "forward returns an output that is made without dtype."


def test_a_function_without_tensors_makes_what_it_likes() -> None:
    """Where no argument is a tensor, there is no dtype and no device to follow."""
    text = function("return torch.zeros(3)").replace("x: torch.Tensor", "x").replace("ctx.n = x.shape[0]", "pass")
    assert mine(text) == []


def test_the_message_says_what_is_missing() -> None:
    """dtype, device, or both."""
    (finding,) = [one for one in findings(function(backward="return torch.zeros(ctx.n)")) if one.rule == "PB550"]
    assert finding.message == "backward returns a gradient that is made without dtype and device."
    assert finding.expected == "dtype=….dtype, device=….device"
    assert finding.got == "torch.zeros(ctx.n)"
