"""Rules PB401 to PB404: who writes into whose tensor, through which aliases, and who may."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def backward(*lines: str, parameters: str = "ctx, g", forward: str = "return x * 2") -> str:
    """A Function of x and y with these lines in its backward; x is saved where they read what was saved."""
    body = "\n".join(f"        {line}" for line in lines)
    saved = "x" if "saved_tensors" in body else ""
    return (
        f"{HEAD}import numpy\nimport torch.distributed as dist\nimport torch.nn.functional as F\n"
        "class Scaled(Function):\n"
        "    @staticmethod\n    def forward(ctx, x: torch.Tensor, y: torch.Tensor):\n"
        f"        ctx.save_for_backward({saved})\n        {forward}\n"
        f"    @staticmethod\n    def backward({parameters}):\n{body}\n"
    )


def forward(*lines: str, gradients: str = "g, g", style: str = "ctx, ") -> str:
    """A Function of x and y with these lines in its forward."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}import numpy as np\nimport torch.nn.functional as F\n"
        "class Scaled(Function):\n"
        f"    @staticmethod\n    def forward({style}x: torch.Tensor, y: torch.Tensor):\n{body}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        return {gradients}\n"
    )


GRADIENTS = {
    "a method": ["return g.mul_(3), None  # PB403"],
    "an operator": ["g *= 3  # PB403", "return g, None"],
    "an index": ["g[0] = 0  # PB403", "return g, None"],
    "a mask": ["(x,) = ctx.saved_tensors", "g[x < 0] = 0  # PB403", "return g, None"],
    "an operator on an index": ["g[:, 0] += 1  # PB403", "return g, None"],
    "a name for it": ["gx = g", "gx.neg_()  # PB403", "return gx, None"],
    "one of two names": ["gx, gy = g, None", "gx.neg_()  # PB403", "return gx, gy"],
    "a view": ["flat = g.view(g.shape)", "flat.zero_()  # PB403", "return g, None"],
    "a transposed view": ["g.t().fill_diagonal_(0)  # PB403", "return g, None"],
    "a column": ["g[:, 1].mul_(2)  # PB403", "return g, None"],
    "rows in a loop": ["for row in g:", "    row.div_(2)  # PB403", "return g, None"],
    "detached": ["g.detach().mul_(2)  # PB403", "return g, None"],
    "by .data": ["g.data.mul_(2)  # PB403", "return g, None"],
    "in NumPy": ["raw = g.numpy()", "raw *= 2  # PB403", "return torch.from_numpy(raw), None"],
    "out=": ["torch.mul(g, 2, out=g)  # PB403", "return g, None"],
    "a function": ["torch.relu_(g)  # PB403", "return g, None"],
    "inplace=True": ["return F.relu(g, inplace=True), None  # PB403"],
    "all processes": ["dist.all_reduce(g)  # PB403", "return g, None"],
    "a cast that may be no copy": ["g = g.float()", "g.mul_(2)  # PB403", "return g, None"],
    "contiguous": ["g = g.contiguous()", "g += 1  # PB403", "return g, None"],
    "on one way": ["gx = g if ctx.needs_input_grad[0] else g * 2", "gx.mul_(2)  # PB403", "return gx, None"],
    "the object": ["g.squeeze_(0)  # PB403", "return g, None"],
    "a copy that is written as an assignment": ["(g := g).copy_(g * 2)  # PB403", "return g, None"],
    "an item of the loop": ["gx = [g][0]", "gx.mul_(2)  # PB403", "return gx, None"],
    "with no_grad": ["with torch.no_grad():", "    g.mul_(2)  # PB403", "return g, None"],
    "chained": ["g.mul_(2).add_(1)  # PB403", "return g, None"],
    "parts in a loop": ["for part in torch.split(g, 2):", "    part.div_(2)  # PB403", "return g, None"],
    "one part of two": ["first, second = g.chunk(2)", "first.div_(2)  # PB403", "return g, None"],
    "a part by its number": ["g.unbind()[0].div_(2)  # PB403", "return g, None"],
    "under another flag": ["if ctx.needs_input_grad[0]:", "    g.mul_(2)  # PB403", "return g, None"],
}

RIGHT_GRADIENTS = {
    "out of place": ["g = g.mul(3)", "g.mul_(2)", "return g, None"],
    "a clone": ["gx = g.clone()", "gx.mul_(2)", "gx[0] = 0", "gx += 1", "return gx, None"],
    "computed": ["gx = 2 * g", "gx.mul_(2)", "return gx, None"],
    "advanced indexing": ["gx = g[[0, 1]]", "gx.mul_(2)", "return gx, None"],
    "a copying cast": ["gx = g.to(torch.float32, copy=True)", "gx.mul_(2)", "return gx, None"],
    "a shape alone": ["g = g.unsqueeze(-1)", "g.unsqueeze_(-1)", "return g, None"],
    "a list of gradients": ["gs = [g, None]", "gs[0] = g * 2", "return tuple(gs)"],
    "an index of unknown kind": ["gx = g[ctx.rows]", "gx.mul_(2)", "return gx, None"],
    "indices in a loop": [
        "out = []",
        "for rows in torch.split(torch.arange(9), 3):",
        "    part = g[rows]",
        "    part[part < 0] = 0",
        "    out.append(part)",
        "return torch.cat(out), None",
    ],
    "a result of several": ["u, s, v = torch.svd(g)", "s.mul_(2)", "return u @ s.diag() @ v, None"],
    "a number": ["scale = 2", "scale *= 3", "return g * scale, None"],
    "read, and written elsewhere": ["gx = torch.empty_like(g)", "gx.copy_(g)", "gx[g > 0] = 1", "return gx, None"],
    "out= of its own": ["gx = torch.empty_like(g)", "torch.mul(g, 2, out=gx)", "return gx, None"],
    "inplace=False": ["return F.relu(g, inplace=False), None"],
    "onto itself": ["g.copy_(g)", "return g, None"],
    "a name that was given away": ["gx = g", "gx = gx * 2", "gx.mul_(3)", "return gx, None"],
    "requires_grad isn't a write": ["g.retain_grad()", "return g * 1, None"],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_write_into_grad_output_is_found_on_its_line(name: str) -> None:
    """Whatever the way: a method, an operator, out=, an index; through names, views, and casts that may be no copy."""
    text = backward(*GRADIENTS[name])
    assert found(text) == expected(text)


@pytest.mark.parametrize("name", RIGHT_GRADIENTS)
def test_a_write_into_memory_of_its_own_is_right(name: str) -> None:
    """What was computed, cloned or copied belongs to backward; and a list isn't a tensor."""
    assert [one for one in found(backward(*RIGHT_GRADIENTS[name])) if "PB40" in one] == []


def test_the_message_says_which_gradient_and_how() -> None:
    """It names the parameter, the operation, and shows the source."""
    (finding,) = findings(backward("return a.mul_(3), None", parameters="ctx, a", forward="return x * y"))
    assert finding.message == "backward changes a in place (mul_)."
    assert finding.where == "backward, a"
    assert finding.got == "a.mul_(3)"
    assert finding.evidence["confidence"] == "certain"
    assert finding.evidence["column"] == 16


def test_how_sure_it_is_depends_on_the_way() -> None:
    """A cast may be a copy, and of two ways one may lead elsewhere: that is likely; under a condition it's a hint."""
    (cast,) = findings(backward("g = g.double()", "g.mul_(2)", "return g, None"))
    assert cast.evidence["confidence"] == "likely"
    assert "unless it is a copy by then" in cast.message
    (mixed,) = findings(
        backward("gx = g if ctx.k else 2 * g", "gx.mul_(2)", "return gx, None", forward="ctx.k = 1; return x")
    )
    assert mixed.evidence["confidence"] == "likely"
    assert "on one of the ways that lead here" in mixed.message
    lines = ["gx = g if ctx.k else 2 * g", "if not ctx.k:", "    gx.mul_(2)", "return gx, None"]
    (hint,) = [
        one for one in findings(backward(*lines, forward="ctx.k = 1; return x"), hints=True) if one.rule == "PB403"
    ]
    assert hint.evidence["confidence"] == "possible"


def test_a_gradient_among_several_is_found() -> None:
    """*grads is a tuple of gradients, and a loop over it goes through them."""
    text = backward("for g in grads:", "    g.zero_()  # PB403", "return grads[0], None", parameters="ctx, *grads")
    assert found(text) == expected(text)


SAVED = {
    "a mask is turned round": ["(x,) = ctx.saved_tensors", "x.logical_not_()  # PB404", "return g * x, None"],
    "by index": ["ctx.saved_tensors[0].zero_()  # PB404", "return g, None"],
    "by .data": ["(x,) = ctx.saved_tensors", "x.data.zero_()  # PB404", "return g, None"],
    "an alias": ["(x,) = ctx.saved_tensors", "gx = x", "gx *= g  # PB404", "return gx, None"],
    "a view": ["(x,) = ctx.saved_tensors", "x.view(-1)[0] = 1  # PB404", "return g * x, None"],
    "out=": ["(x,) = ctx.saved_tensors", "torch.mul(x, g, out=x)  # PB404", "return x, None"],
}


@pytest.mark.parametrize("name", SAVED)
def test_a_write_into_a_saved_tensor_is_found(name: str) -> None:
    """A second backward would get what the first one left."""
    text = backward(*SAVED[name])
    assert found(text) == expected(text)


def test_a_copy_of_a_saved_tensor_is_free() -> None:
    """What is computed from it, or cloned, belongs to backward."""
    assert found(backward("(x,) = ctx.saved_tensors", "y = x.clone()", "y.mul_(g)", "return y, None")) == []


def test_an_argument_on_ctx_is_somebody_elses_too() -> None:
    """Kept on ctx it is the caller's tensor all the same."""
    text = backward("ctx.w.mul_(2)  # PB404", "return g, None", forward="ctx.w = y  # PB302\n        return x * y")
    assert found(text) == expected(text)


ARGUMENTS = {
    "a method": ["x.mul_(2)  # PB401", "return x"],
    "an operator": ["x += y  # PB401", "return x.clone()"],
    "an index": ["x[0] = 0  # PB401", "return x * 1"],
    "a frozen one, read": ["return y.add_(x).clone()  # PB401"],
    "by .data": ["x.data.mul_(2)  # PB402", "return x * 1"],
    "an assignment to .data": ["x.data = y  # PB402", "return x * 1"],
    "in NumPy": ["raw = x.detach().numpy()", "raw *= 2  # PB402", "return x * 1"],
    "in NumPy, by a function": ["np.copyto(x.numpy(), 0)  # PB402", "return x * 1"],
    "by the name of the operator": ["x.detach().numpy().__imul__(2)  # PB402", "return x * 1"],
    "a cast that may be no copy": ["x = x.to(torch.float32)", "x.exp_()  # PB401", "return x.sum()"],
    "contiguous": ["z = x.contiguous()", "z.mul_(2)  # PB401", "return z"],
    "reshaped": ["x.reshape(-1).mul_(2)  # PB401", "return x * 1"],
    "inplace=True": ["return F.relu(x, inplace=True)  # PB401"],
    "one marked, one not": ["ctx.mark_dirty(x)", "x.mul_(2)", "y.mul_(2)  # PB401", "return x"],
}

RIGHT_ARGUMENTS = {
    "marked dirty": ["x.mul_(2)", "ctx.mark_dirty(x)", "return x"],
    "marked before": ["ctx.mark_dirty(x, y)", "x.mul_(2)", "y[0] = 1", "return x, y"],
    "marked with a star": ["dirty = [x]", "ctx.mark_dirty(*dirty)", "x.mul_(2)", "return x"],
    "marked by what came of it": ["z = x.mul_(2)", "ctx.mark_dirty(z)", "return z"],
    "a clone": ["z = x.clone()", "z.mul_(2)", "return z"],
    "an output": ["z = torch.empty_like(x)", "z[0] = 1", "torch.mul(x, 2, out=z)", "return z"],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_write_into_an_argument_is_found(name: str) -> None:
    """The caller's tensor changes and autograd isn't told; behind the version counter's back it is another fault."""
    text = forward(*ARGUMENTS[name])
    assert found(text) == expected(text)


@pytest.mark.parametrize("name", RIGHT_ARGUMENTS)
def test_a_write_that_is_declared_is_right(name: str) -> None:
    """Marked dirty, or into memory of its own."""
    assert [one for one in found(forward(*RIGHT_ARGUMENTS[name])) if "PB40" in one] == []


def test_a_running_statistic_is_left_alone() -> None:
    """A buffer that gets no gradient, and on which no result depends, may be updated; one that is read may not."""
    buffer = ["mean = x.mean(0)", "y.mul_(0.9).add_(0.1 * mean)", "return x - mean"]
    assert found(forward(*buffer, gradients="g - g.mean(0), None")) == []
    read = ["y.mul_(0.9).add_(0.1 * x.mean(0))  # PB401", "return x - y"]
    text = forward(*read, gradients="g, None")
    assert found(text) == expected(text)
    trained = ["y.mul_(0.9)  # PB401", "return x * 1"]
    text = forward(*trained, gradients="g, g")
    assert found(text) == expected(text)


def test_the_other_style_marks_in_setup_context() -> None:
    """forward writes, setup_context marks: the output is the argument."""
    text = forward("x.mul_(2)", "return x", style="") + (
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        ctx.mark_dirty(MARKED)\n"
    )
    for marked in ("output", "inputs[0]"):
        assert found(text.replace("MARKED", marked)) == []
    unmarked = text.replace("ctx.mark_dirty(MARKED)", "pass").replace("x.mul_(2)", "x.mul_(2)  # PB401")
    assert found(unmarked) == expected(unmarked)


def test_an_inherited_method_is_judged_once() -> None:
    """The fault is said of the class in which the method stands."""
    text = backward("return g.mul_(3), None  # PB403") + "class Heir(Scaled):\n    pass\n"
    assert found(text) == expected(text)
