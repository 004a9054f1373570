"""Rules PB302, PB303 and PB306: what is kept on ctx."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found

ARGUMENTS = "x: torch.Tensor, w: torch.Tensor, k=2"


def forward(*lines: str, arguments: str = ARGUMENTS, backward: str = "return g * 1, None, None") -> str:
    """A Function with these lines in its forward."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}from torch import nn\nclass Kept(Function):\n"
        f"    @staticmethod\n    def forward(ctx, {arguments}):\n{body}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        {backward}\n"
    )


WRONG = {
    "an argument": ["ctx.x = x  # PB302", "return x * w"],
    "two at once": ["ctx.x, ctx.k = x, k  # PB302", "return x * w"],
    "in a tuple": ["ctx.args = (x, k)  # PB302", "return x * w"],
    "in a list": ["ctx.args = [k, w]  # PB302", "return x * w"],
    "a view": ["ctx.row = x[0]  # PB302", "return x * w"],
    "detached": ["ctx.x = x.detach()  # PB302", "return x * w"],
    "what may be no copy": ["ctx.x = x.contiguous()  # PB302", "return x * w"],
    "an output": ["y = x * w", "ctx.y = y  # PB302", "return y"],
    "one of two outputs": ["y = x.exp()", "ctx.y = y  # PB302", "return y, w * 2"],
    "an intermediate": ["ctx.e = x.exp()  # PB303", "return ctx.e * w"],
    "a mask": ["mask = x > 0", "ctx.mask = mask  # PB303", "return x * mask"],
    "a sum of two": ["ctx.s = x + w  # PB303", "return (x + w) ** 2"],
    "a function of an argument": ["ctx.pull = lambda g: g * x  # PB302", "return x * w"],
    "ctx in a function": ["ctx.read = lambda: ctx.saved_tensors[0]  # PB306", "return x * w"],
    "ctx itself": ["ctx.me = ctx  # PB306", "return x * w"],
}

RIGHT = {
    "a number": ["ctx.k = k", "ctx.n = x.shape[0]", "ctx.m = x.numel()", "return x * w"],
    "what is asked of a tensor": ["ctx.shape, ctx.dtype, ctx.device = x.shape, x.dtype, x.device", "return x * w"],
    "a flag": ["ctx.needed = x.requires_grad", "ctx.none = w is None", "ctx.wide = x.dim() > 2", "return x * w"],
    "a number from a tensor": ["ctx.total = x.sum().item()", "ctx.first = float(x[0])", "return x * w"],
    "unpacked sizes": ["ctx.rows, ctx.columns = x.shape", "return x * w"],
    "a name": ["ctx.kind = 'sum' if k else 'mean'", "return x * w"],
    "a function of a number": ["ctx.pull = lambda g: g * k", "return x * w"],
    "nobody knows": ["ctx.state = make(x)", "return x * w"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_on_ctx_is_found(name: str) -> None:
    """An argument or output is PB302, an intermediate PB303, ctx on ctx PB306."""
    text = forward(*WRONG[name])
    assert [one for one in found(text) if "PB30" in one] == expected(text)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_no_tensor_belongs_on_ctx(name: str) -> None:
    """Numbers, shapes, flags, and what may be anything."""
    assert [one for one in found(forward(*RIGHT[name])) if "PB30" in one] == []


def test_a_nested_function_may_hold_an_argument() -> None:
    """The name of a function of forward stands for what it holds."""
    text = forward("def pull(g):", "    return g * x", "ctx.pull = pull  # PB302", "return x * w")
    assert found(text) == expected(text)


def test_an_argument_that_gets_a_gradient_is_a_tensor() -> None:
    """Without an annotation, the gradient that backward returns for it shows what it is; without one, nobody knows."""
    text = forward("ctx.x = x", "return x * k", arguments="x, k", backward="return g * ctx.x, None")
    assert found(text) == ["7 PB302"]
    text = forward("ctx.k = k", "return x * k", arguments="x, k", backward="return g * ctx.k, None")
    assert found(text) == []
    text = forward("ctx.layer = layer", "return layer(x)", arguments="x, layer", backward="return g * 1, None")
    assert found(text) == []


def test_what_backward_does_with_it_shows_what_it_is() -> None:
    """A method that hardly anything but a tensor has, called on what was kept."""
    lines, arguments = ["ctx.index = index", "return x * 1"], "x, index"
    assert found(forward(*lines, arguments=arguments, backward="return g * ctx.index.unsqueeze(0), None")) == [
        "7 PB302"
    ]
    assert found(forward(*lines, arguments=arguments, backward="return g * ctx.index.get(0), None")) == []


def test_an_optional_argument_counts() -> None:
    """A tensor or None is a tensor."""
    text = forward("ctx.w = w", "return x * 1", arguments="x: torch.Tensor, w: torch.Tensor | None = None")
    assert found(text) == ["7 PB302"]


def test_setup_context_is_where_the_other_style_keeps_them() -> None:
    """inputs and output are the caller's there."""
    text = (
        f"{HEAD}class Kept(Function):\n"
        "    @staticmethod\n    def forward(x: torch.Tensor, k: int):\n        return x**k\n"
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
        "        ctx.x, ctx.k = inputs  # PB302\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.k * ctx.x ** (ctx.k - 1), None\n"
    )
    assert found(text) == expected(text)


def test_the_message_names_the_argument_and_the_remedy() -> None:
    """What is kept under which name, and what to write."""
    (finding,) = findings(forward("ctx.left = x", "return x * w"))
    assert finding.message == "ctx.left keeps the argument x."
    assert finding.expected == "ctx.save_for_backward(x)"
    assert finding.where == "forward, ctx.left"
    (cycle,) = findings(forward("y = x * w", "ctx.y = y", "return y"))
    assert "a cycle that only the garbage collector frees" in cycle.message


def test_what_stands_before_many_arguments_may_be_no_tensor() -> None:
    """The gradients come as one tuple, of which nobody knows what the first entry is."""
    text = (
        f"{HEAD}class A(Function):\n    @staticmethod\n    def forward(ctx, scale, *xs):\n        ctx.scale = scale\n"
        "        return tuple(x * scale for x in xs)\n    @staticmethod\n    def backward(ctx, *gs):\n"
        "        grads = [None]\n        for g in gs:\n            grads.append(g * ctx.scale)\n"
        "        return tuple(grads)\n"
    )
    assert found(text) == []


@pytest.mark.parametrize(
    ("forward", "codes"),
    [
        ("y, k = x\n        ctx.k = k\n        return y * k", []),
        ("ctx.room = [x.new_empty(0)]\n        return run(x, ctx.room[0])", []),
        ("ctx.room = [x.new_empty(3)]\n        return run(x, ctx.room[0])", ["PB303"]),
    ],
)
def test_parts_of_a_tuple_and_room_for_a_kernel_are_right(forward: str, codes: list[str]) -> None:
    """An argument that is unpacked is a tuple; an empty tensor is there for a kernel to resize, and nobody's value."""
    text = (
        f"{HEAD}class A(Function):\n    @staticmethod\n    def forward(ctx, x):\n        {forward}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n"
    )
    assert [one.split()[1] for one in found(text)] == codes
