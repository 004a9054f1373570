"""Rules PB401, PB403 and PB404, where a function of the same file does the writing."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def module(helper: str, backward: str = "return scaled(g)  # PB403", above: str = "") -> str:
    """A file with a function `scaled` of these lines, parted by semicolons, and a Function whose backward calls it."""
    lines = "\n".join(f"    {line}" for line in helper.split(";"))
    return (
        f"{HEAD}import torch.distributed as dist\n\n{above}def scaled(t, k=2):\n{lines}\n\n"
        "class A(Function):\n    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n        return x * 2\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        {backward}\n"
    )


WRITES = {
    "a method": "t.mul_(k);return t",
    "a method, returned": "return t.mul_(k)",
    "an operator": "t *= k;return t",
    "an index": "t[0] = 0;return t",
    "an index and an operator": "t[0] += k;return t",
    "a function": "torch.relu_(t);return t",
    "out": "torch.mul(t, k, out=t);return t",
    "among the processes": "dist.all_reduce(t);return t",
    "without a graph": "with torch.no_grad():;    t.mul_(k);return t",
    "behind a statement": "print(k);t.mul_(k);return t",
    "behind a test of something else": "if k == 1:;    k = 2;t.mul_(k);return t",
    "before its name is given on": "t.mul_(k);t = t + 1;return t",
}

WRITES_NOT = {
    "a copy": "t = t.clone();t.mul_(k);return t",
    "a copy under a condition": "if k:;    t = t.clone();t.mul_(k);return t",
    "under a condition": "if k:;    t.mul_(k);return t",
    "in a loop": "for _ in range(k):;    t.mul_(k);return t",
    "a result": "s = t * 2;s.mul_(k);return s",
    "another argument": "k += 1;return t * k",
    "the object alone": "t.requires_grad_();t.unsqueeze_(0);return t",
    "behind the end": "return t * k;t.mul_(k)",
    "in a function inside": "def inner():;    t.mul_(k);return t * k",
    "of no tensor": "t.append_(k);return t",
}


@pytest.mark.parametrize("name", WRITES)
def test_a_function_that_writes_into_its_argument_is_followed(name: str) -> None:
    """The finding stands where backward hands grad_output to it."""
    text = module(WRITES[name])
    assert found(text) == expected(text)


@pytest.mark.parametrize("name", WRITES_NOT)
def test_one_that_doesnt_or_may_not_is_right(name: str) -> None:
    """Only what each call writes into the very thing that it was given is said."""
    assert found(module(WRITES_NOT[name], "return scaled(g)")) == []


@pytest.mark.parametrize(
    ("backward", "is_found"),
    [
        ("return scaled(g)", True),
        ("return scaled(t=g, k=3)", True),
        ("return scaled(g.view(-1))", True),
        ("return scaled(g.clone())", False),
        ("return scaled(g * 2)", False),
        ("return scaled(*[g])", False),
        ("return other.scaled(g)", False),
        ("scaled = print; return scaled(g)", False),
    ],
)
def test_what_it_is_given_counts(backward: str, is_found: bool) -> None:
    """A view shares the memory; a copy doesn't, and a name of backward's own is another function."""
    codes = [one.split()[1] for one in found(module("t.mul_(k);return t", backward)) if "PB403" in one]
    assert codes == (["PB403"] if is_found else [])


def test_the_message_names_the_function() -> None:
    """Who reads backward alone sees no write there."""
    (finding,) = findings(module("t.mul_(k);return t"))
    assert finding.message == "backward changes g in place (in scaled)."
    assert finding.got == "scaled(g)"
    assert finding.evidence["confidence"] == "certain"


def test_one_that_may_return_before_is_likely() -> None:
    """As where there is one process alone, and nothing to reduce."""
    (finding,) = findings(module("if k == 1:;    return t;dist.all_reduce(t);return t"))
    assert (finding.rule, finding.evidence["confidence"]) == ("PB403", "likely")


@pytest.mark.parametrize(
    "text",
    [
        module("t.mul_(k);return t", "return scaled(g)", above="@decorated\n"),
        module("t.mul_(k);return t", "return scaled(g)").replace("\nclass", "\nscaled = None\n\nclass"),
        module("t.mul_(k);return t", "return scaled(g)").replace("def scaled", "async def scaled"),
    ],
)
def test_one_that_may_be_another_isnt_followed(text: str) -> None:
    """By a decorator, by a second binding, or since a call of it only makes a coroutine."""
    assert found(text) == []


def test_an_argument_and_a_saved_tensor_count_too() -> None:
    """PB401 in forward, PB404 in backward."""
    text = (
        f"{HEAD}def add(t):\n    t += 1\n    return t\n\n"
        "class A(Function):\n    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n        y = add(x)  # PB401\n"
        "        ctx.save_for_backward(y)\n        return y * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        (y,) = ctx.saved_tensors\n"
        "        add(y)  # PB404\n        return g * y\n"
    )
    assert found(text) == expected(text)


def test_one_that_gets_ctx_may_mark_what_it_writes() -> None:
    """It calls mark_dirty, perhaps."""
    text = (
        f"{HEAD}def add(ctx, t):\n    ctx.mark_dirty(t)\n    t += 1\n    return t\n\n"
        "class A(Function):\n    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n        return add(ctx, x)\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n"
    )
    assert found(text) == []
