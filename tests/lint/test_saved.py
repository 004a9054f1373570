"""Rules PB330 to PB332: requires_grad on others' tensors, and calls of save_for_backward."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def backward(*lines: str, forward: str = "ctx.save_for_backward(x)") -> str:
    """A Function that saves its argument, with these lines in its backward."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}class Again(Function):\n"
        "    @staticmethod\n    def forward(ctx, x: torch.Tensor, y: torch.Tensor):\n"
        f"        {forward}\n        return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        if not any(ctx.needs_input_grad):\n"
        f"            return None, None\n{body}\n"
    )


REQUIRES_GRAD = {
    "a method": ["(x,) = ctx.saved_tensors", "x.requires_grad_()  # PB330"],
    "a chain": ["x = ctx.saved_tensors[0].requires_grad_(True)  # PB330"],
    "an assignment": ["(x,) = ctx.saved_tensors", "x.requires_grad = True  # PB330"],
    "every one": ["xs = [t.requires_grad_() for t in ctx.saved_tensors]  # PB330", "x = xs[0]"],
    "in a loop": ["for t in ctx.saved_tensors:", "    t.requires_grad = True  # PB330", "x = t"],
    "a cast that may be no copy": ["x = ctx.saved_tensors[0].float().requires_grad_()  # PB330"],
    "grad_output": ["g.requires_grad_()  # PB330", "(x,) = ctx.saved_tensors"],
}

OWN = {
    "detached": ["x = ctx.saved_tensors[0].detach().requires_grad_()"],
    "detached, and named": ["(x,) = ctx.saved_tensors", "x = x.detach()", "x.requires_grad_(True)"],
    "detached, by assignment": ["x = ctx.saved_tensors[0].detach()", "x.requires_grad = True"],
    "cast and detached": ["x = ctx.saved_tensors[0].to('cpu').detach()", "x.requires_grad_()"],
    "cloned": ["x = ctx.saved_tensors[0].clone()", "x.requires_grad_()"],
    "put back, by assignment": ["(x,) = ctx.saved_tensors", "x.requires_grad = ctx.had_grad"],
    "put back, by a method": ["(x,) = ctx.saved_tensors", "x.requires_grad_(ctx.needs_input_grad[0])"],
    "each detached": ["(x,) = [t.detach().requires_grad_() for t in ctx.saved_tensors]"],
}

TAIL = ["with torch.enable_grad():", "    y = x * 2", "return torch.autograd.grad(y, x, g)[0], None"]


@pytest.mark.parametrize("name", REQUIRES_GRAD)
def test_requires_grad_on_anothers_tensor_is_found(name: str) -> None:
    """A saved argument is the caller's own tensor, by whatever way it is reached."""
    text = backward(*REQUIRES_GRAD[name], *TAIL)
    assert [one for one in found(text) if "PB33" in one] == expected(text)


@pytest.mark.parametrize("name", OWN)
def test_a_detached_tensor_may_require_grad(name: str) -> None:
    """Detached or cloned it is backward's own; a flag that was kept puts back what it was."""
    assert [one for one in found(backward(*OWN[name], *TAIL)) if "PB33" in one] == []


def test_an_intermediate_may_require_grad() -> None:
    """What forward computed belongs to nobody else."""
    text = backward("(x,) = ctx.saved_tensors", "x.requires_grad_()", *TAIL, forward="ctx.save_for_backward(x.exp())")
    assert [one for one in found(text) if "PB33" in one] == []


def test_forward_may_not_set_it_on_an_argument() -> None:
    """There it is the caller's tensor itself: nothing is likelier than certain."""
    (finding,) = findings(backward("return g * 1, None", forward="x.requires_grad_()"))
    assert (finding.rule, finding.evidence["confidence"]) == ("PB330", "certain")
    assert finding.message == "forward sets requires_grad on the argument x."
    assert finding.expected == "x.detach().requires_grad_()"


def calls(*lines: str) -> str:
    """A Function with these lines in its forward, whose backward reads all that was saved."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}class Saves(Function):\n"
        f"    @staticmethod\n    def forward(ctx, x: torch.Tensor, w: torch.Tensor, k: int):\n{body}\n"
        "        return x * w\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return sum(ctx.saved_tensors) * g, None, None\n"
    )


TWICE = {
    "one after the other": ["ctx.save_for_backward(x)", "ctx.save_for_backward(w)  # PB331"],
    "on the same way": ["if k:", "    ctx.save_for_backward(x)", "    ctx.save_for_backward(x, w)  # PB331"],
    "the first under a condition": ["if k:", "    ctx.save_for_backward(x)", "ctx.save_for_backward(w)  # PB331"],
}

ONCE = {
    "one call": ["ctx.save_for_backward(x, w)"],
    "on two ways": ["if k:", "    ctx.save_for_backward(x)", "else:", "    ctx.save_for_backward(w)"],
    "a default first": ["ctx.save_for_backward(None)", "if k:", "    ctx.save_for_backward(w)"],
    "behind a return": ["if k:", "    ctx.save_for_backward(x)", "    return x", "ctx.save_for_backward(w)"],
    "for both modes": ["ctx.save_for_backward(x)", "ctx.save_for_forward(w)"],
}


@pytest.mark.parametrize("name", TWICE)
def test_a_call_that_replaces_another_is_found(name: str) -> None:
    """Where the first one is made, the second one is made too."""
    text = calls(*TWICE[name])
    assert [one for one in found(text) if "PB331" in one] == expected(text)


@pytest.mark.parametrize("name", ONCE)
def test_calls_on_ways_of_their_own_are_right(name: str) -> None:
    """What one call saved is still there where the other isn't made."""
    assert [one for one in found(calls(*ONCE[name])) if "PB331" in one] == []


NOT_TENSORS = {
    "a list": ["ctx.save_for_backward([x, w])  # PB332"],
    "a tuple by name": ["both = (x, w)", "ctx.save_for_backward(both)  # PB332"],
    "a number": ["ctx.save_for_backward(x, k)  # PB332"],
    "a shape": ["ctx.save_for_backward(x, x.shape)  # PB332"],
    "a size": ["ctx.save_for_backward(x, x.shape[0])  # PB332"],
    "a name": ["ctx.save_for_backward(x, 'mean')  # PB332"],
    "by keyword": ["ctx.save_for_backward(x, constants=(w,))  # PB332"],
    "for tangents": ["ctx.save_for_forward([x])  # PB332"],
}


@pytest.mark.parametrize("name", NOT_TENSORS)
def test_what_is_no_tensor_cant_be_saved(name: str) -> None:
    """A list, a number, a shape, an unknown keyword."""
    text = calls(*NOT_TENSORS[name])
    assert [one for one in found(text) if "PB332" in one] == expected(text)


@pytest.mark.parametrize(
    "arguments", ["x, None", "*[x, w]", "*both", "x if k else None", "make(x)", "solver().lu(x)", "k.lu(x)", ""]
)
def test_tensors_none_and_what_isnt_known_may_be_saved(arguments: str) -> None:
    """Stars are spread; what a call gives isn't known."""
    text = calls("both = (x, w)", f"ctx.save_for_backward({arguments})")
    assert [one for one in found(text) if "PB332" in one] == []


def test_constants_are_pullbacks_own() -> None:
    """pullback.Function takes constants by name; PyTorch's Function doesn't."""
    text = calls("ctx.save_for_backward(x, constants=(w,))").replace("(Function)", "(pullback.Function)")
    assert [one for one in found(f"import pullback\n{text}") if "PB332" in one] == []
    (finding,) = [one for one in findings(calls("ctx.save_for_backward(x, k)")) if one.rule == "PB332"]
    assert finding.message == "ctx.save_for_backward is given a number."
