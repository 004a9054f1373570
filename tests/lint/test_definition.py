"""Rules that see how a class is written: methods that don't go together, containers, state, names of torch."""

from __future__ import annotations

import textwrap

import pytest

from tests.lint.helper import findings, found

FORWARD = "    @staticmethod\n    def forward(ctx, x): return 2 * x\n"
BACKWARD = "    @staticmethod\n    def backward(ctx, g): return 2 * g\n"
SETUP = "    @staticmethod\n    def setup_context(ctx, inputs, output): pass\n"
HEAD = "import torch\nimport pullback\nfrom torch.autograd import Function\n"


def codes(body: str, *, base: str = "Function", head: str = "", hints: bool = False) -> list[str]:
    """The codes that are found in a class with this body."""
    return [line.split()[1] for line in found(f"{HEAD}{head}class A({base}):\n{body}", hints=hints)]


@pytest.mark.parametrize("base", ["Function", "pullback.Function"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (FORWARD + BACKWARD, []),
        ("    def forward(self, ctx, x): return 2 * x\n" + BACKWARD, ["PB101"]),
        ("    def forward(self, x): return 2 * x\n" + BACKWARD, []),
        ("    @classmethod\n    def forward(cls, ctx, x): return 2 * x\n" + BACKWARD, []),
        (FORWARD + BACKWARD + BACKWARD.replace("backward", "vjp"), ["PB102"]),
        (FORWARD + BACKWARD + SETUP, ["PB104"]),
        (FORWARD.replace("ctx, ", "") + BACKWARD + SETUP, []),
    ],
)
def test_methods_that_dont_go_together(base: str, body: str, expected: list[str]) -> None:
    """self beside ctx, two names of backward, setup_context beside ctx."""
    assert codes(body, base=base) == expected


def test_two_styles_in_one_class_are_right() -> None:
    """One of them for old releases: it isn't known which forward setup_context stands beside."""
    indented = textwrap.indent(SETUP + FORWARD.replace("ctx, ", ""), "    ")
    both = f"    if NEW:\n{indented}    else:\n{textwrap.indent(FORWARD, '    ')}"
    assert codes(both + BACKWARD) == []
    of_ctx = both.replace("return 2 * x", "ctx.k = 2; return x", 1)
    assert codes(of_ctx + BACKWARD.replace("2 * g", "ctx.k * g")) == []


DOUBLE = "    @staticmethod\n    def double_backward(ctx, gg): return 0 * gg\n"


@pytest.mark.parametrize(
    ("body", "base", "expected"),
    [
        (FORWARD + BACKWARD + DOUBLE, "Function", ["PB132"]),
        (FORWARD + BACKWARD + DOUBLE, "pullback.Function", []),
        (FORWARD + DOUBLE, "pullback.Function", ["PB103"]),
        (FORWARD + "    backward = made\n" + DOUBLE, "pullback.Function", []),
        (DOUBLE, "pullback.Function", []),
        (FORWARD + DOUBLE, "pullback.Function, Mixin", []),
        (FORWARD + BACKWARD.replace("return", "return A.double_backward(ctx, g) +") + DOUBLE, "Function", []),
    ],
)
def test_double_backward(body: str, base: str, expected: list[str]) -> None:
    """PyTorch never calls it, pullback needs backward beside it; one that the author calls is the author's own."""
    assert codes(body, base=base) == expected


AMP = "from torch.amp import custom_fwd, custom_bwd\n"
FWD, BWD = '    @custom_fwd(device_type="cuda")\n', '    @custom_bwd(device_type="cuda")\n'


def under(decorator: str, method: str) -> str:
    """A method with a decorator beneath its `@staticmethod`."""
    first, rest = method.split("\n", 1)
    return f"{first}\n{decorator}{rest}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (under(FWD, FORWARD) + under(BWD, BACKWARD), []),
        (under(FWD, FORWARD) + BACKWARD, []),
        (FORWARD + under(BWD, BACKWARD), ["PB521"]),
        (under("    @unknown\n", FORWARD) + under(BWD, BACKWARD), []),
        (under(FWD, FORWARD.replace("ctx, ", "")) + BACKWARD + SETUP, ["PB521"]),
    ],
)
def test_decorators_of_autocast(body: str, expected: list[str]) -> None:
    """custom_bwd needs custom_fwd, and that needs ctx."""
    assert codes(body, head=AMP) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("from torch.cuda.amp import custom_fwd, custom_bwd\n", ["PB540"]),
        ("from torch.cuda.amp.autocast_mode import custom_fwd, custom_bwd\n", ["PB540"]),
        ("from torch.amp import custom_fwd, custom_bwd\n", []),
        (
            "try:\n    from torch.amp import custom_fwd, custom_bwd\n"
            "except ImportError:\n    from torch.cuda.amp import custom_fwd, custom_bwd\n",
            [],
        ),
    ],
)
def test_decorators_that_are_deprecated(head: str, expected: list[str]) -> None:
    """Where a name has nothing but the old one."""
    assert codes(under("    @custom_fwd\n", FORWARD) + under("    @custom_bwd\n", BACKWARD), head=head) == expected


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("return [2 * x, x + 1]", ["PB502"]),
        ("return {'y': 2 * x}", ["PB502"]),
        ("return 2 * x, {'y': x + 1}", ["PB502"]),
        ("return [row * 2 for row in x]", ["PB502"]),
        ("y = [2 * x, x + 1]\n        return y", ["PB502"]),
        ("return tuple([2 * x, x + 1])", []),
        ("return 2 * x, x + 1", []),
        ("return 2 * x, [1, 2]", []),
        ("return 2 * x, list(x.shape)", []),
        ("return made(x)", []),
    ],
)
def test_containers_that_are_returned(returned: str, expected: list[str]) -> None:
    """A list or a dict of tensors is invisible to PyTorch, and a nest to pullback; one of numbers is neither."""
    body = f"    @staticmethod\n    def forward(ctx, x):\n        {returned}\n"
    body += "    @staticmethod\n    def backward(ctx, *g): return 2 * g[0]\n"
    assert codes(body) == expected
    assert codes(body, base="pullback.Function") == []


@pytest.mark.parametrize(
    ("before", "forward", "backward", "expected"),
    [
        ("", "A.n = n", "A.n", ["PB504"]),
        ("", "global n_\n        n_ = n", "n_", ["PB504"]),
        ("", "ctx.n = n", "ctx.n", []),
        ("    n = 2\n", "ctx.n = n", "ctx.n * A.n", []),
        ("    calls = 0\n", "ctx.n = n; A.calls += 1", "ctx.n", []),
        ("    n = None\n", "if A.n is None:\n            A.n = n", "A.n", []),
        ("", "A.fast = True; ctx.n = n", "ctx.n * A.fast", []),
        ("", "n_ = n; ctx.n = n", "ctx.n * n_", []),
    ],
)
def test_state_outside_of_the_call(before: str, forward: str, backward: str, expected: list[str]) -> None:
    """What backward reads and forward writes, but for what is made once, counts calls, or switches something on."""
    body = f"{before}    @staticmethod\n    def forward(ctx, x, n):\n        {forward}\n        return x * 2\n"
    body += f"    @staticmethod\n    def backward(ctx, g): return g * ({backward}), None\n"
    assert codes(body) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("torch.multiplied(x, 2)", ["PB133"]),
        ("torch.nn.functional.swishy(x)", ["PB133"]),
        ("torch.zeros_like(x).fill(1)", ["PB133"]),
        ("torch.multiply(x, 2)", []),
        ("torch.npu.made(x)", []),
        ("torch._private(x)", []),
        ("x.main_grad", []),
        ("torch.nn.functional.silu(x)", []),
        ("torch.cuda.anything(x)", []),
        ("torch.newest(x) if hasattr(torch, 'newest') else x", []),
    ],
)
def test_names_of_torch(expression: str, expected: list[str]) -> None:
    """Those that no release had, where nothing asks for them first; attributes of tensors may be anybody's."""
    body = f"    @staticmethod\n    def forward(ctx, x):\n        y = {expression}\n        return 2 * x\n"
    assert codes(body + BACKWARD) == expected


def test_a_name_in_a_try_is_tried() -> None:
    """As code for several releases does it."""
    text = "y = torch.newest(x)\n        except AttributeError:\n            y = x\n        return 2 * x\n"
    body = f"    @staticmethod\n    def forward(ctx, x):\n        try:\n            {text}"
    assert codes(body + BACKWARD) == []


def test_a_name_like_it_is_offered() -> None:
    """The finding says which name is close."""
    body = "    @staticmethod\n    def forward(ctx, x):\n        return torch.sigmoyd(x)\n"
    (one,) = findings(textwrap.dedent(HEAD) + f"class A(Function):\n{body}{BACKWARD}")
    assert one.message == ("torch has no sigmoyd in any release since 2.0: this line ends in an AttributeError.")
    assert one.expected == "torch.sigmoid, perhaps"
    assert one.got == "torch.sigmoyd"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("async def backward(ctx, g):\n        return g", ["PB113"]),
        ("def backward(ctx, g):\n        yield from (g,)", ["PB113"]),
        ("def backward(ctx, g):\n        def parts():\n            yield g\n        return sum(parts())", []),
        ("@gathered\n    def backward(ctx, g):\n        yield g", []),
    ],
)
def test_a_method_that_a_call_doesnt_run(method: str, expected: list[str]) -> None:
    """It is async, or a generator itself, and no decorator is there that may run it: nothing else is said of it."""
    body = "    @staticmethod\n    def forward(ctx, x):\n        return 2 * x\n"
    assert codes(f"{body}    @staticmethod\n    {method}\n") == expected


def test_a_setup_context_that_a_call_doesnt_run() -> None:
    """It is one all the same, so forward takes no ctx."""
    body = "    @staticmethod\n    def forward(x, y):\n        return x * y\n"
    body += (
        "    @staticmethod\n    async def setup_context(ctx, inputs, output):\n        ctx.save_for_backward(*inputs)\n"
    )
    body += (
        "    @staticmethod\n    def backward(ctx, g):\n        x, y = ctx.saved_tensors\n        return g * y, g * x\n"
    )
    assert codes(body) == ["PB113"]
