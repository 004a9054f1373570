"""pullback on a torch that lacks one of the private names: it is told, and calls run on PyTorch's own apply."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.torch_features import KEYWORDS

# Hides names, one after the other, while pullback is loaded anew, as on a torch that doesn't have them.
PROGRAM = """
import json, sys, traceback, torch, torch.func, torch._dynamo.compiled_autograd
import torch.autograd.forward_ad as forward_ad

KEYWORDS = json.loads(sys.argv[2])  # whether PyTorch's own apply takes arguments by name

def check(pullback):
    class Product(pullback.Function):
        @staticmethod
        def forward(ctx, x, w, k=3.0):
            ctx.save_for_backward(x, w)
            ctx.k = k
            return x * w * k

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return (g * w * ctx.k, g * x * ctx.k, None)[: len(ctx.needs_input_grad)]

    class Square(pullback.Function):
        @staticmethod
        def forward(x, scale=1.0):
            return x * x * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * ctx.scale * g, None

    class Triple(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

        @staticmethod
        def jvp(ctx, tangent):
            return 3 * tangent

    x, w = (torch.tensor([value, 3.0], dtype=torch.float64, requires_grad=True) for value in (2.0, 5.0))
    calls = [lambda: Product.apply(x, w)]
    if KEYWORDS or pullback.function._USABLE:
        calls += [lambda: Product.apply(w=w, x=x), lambda: Product.apply(x, w, k=3.0)]
    for call in calls:
        y = call()
        assert y.tolist() == [30, 27], y
        assert [gradient.tolist() for gradient in torch.autograd.grad(y.sum(), (x, w))] == [[15, 9], [6, 9]]
    calls = [lambda: Square.apply(x)]
    if KEYWORDS or pullback.function._USABLE:
        calls.append(lambda: Square.apply(scale=1.0, x=x))
    for call in calls:
        assert torch.autograd.grad(call().sum(), x)[0].tolist() == [4, 6]
    assert torch.func.grad(lambda x: Square.apply(x).sum())(x.detach()).tolist() == [4, 6]
    assert torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)[0].tolist() == [4, 6]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), w.detach())
        assert forward_ad.unpack_dual(Triple.apply(dual)).tangent.tolist() == [15, 9]
    try:  # which PyTorch's own apply refuses, for want of setup_context
        gradient = torch.func.grad(lambda x: Product.apply(x, w).sum())(x.detach()).tolist()
    except RuntimeError as error:
        assert "setup_context" in str(error)
        assert not pullback.torch_private.usable_in_transforms()
    else:
        assert gradient == [15, 9]
        assert pullback.torch_private.usable_in_transforms()
    try:
        type("Both", (pullback.Function,), {"backward": staticmethod(len), "vjp": staticmethod(len)})
    except TypeError as error:
        assert "PB102" in str(error)
    else:
        raise AssertionError("definitions aren't judged")

def without(owner, name, replaced):
    for module in [module for module in sys.modules if module.partition(".")[0] == "pullback"]:
        del sys.modules[module]
    inherited, kept = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, lambda *_: None) if replaced else delattr(owner, name)
    try:
        import pullback.torch_private
        wrong = [name for name, works, _ in pullback.torch_private.status() if not works]
        usable = pullback.torch_private.usable()
        in_transforms = pullback.torch_private.usable_in_transforms()
    finally:
        delattr(owner, name) if inherited else setattr(owner, name, kept)
    import pullback.function
    assert pullback.function._USABLE == usable
    check(pullback)
    return usable, in_transforms, wrong

owners = {"FunctionCtx": torch.autograd.function.FunctionCtx, "Tensor": torch.Tensor, "math": sys.modules["math"]}
found = {}
for owner, name, replaced in json.loads(sys.argv[1]):
    try:
        found[name] = without(owners.get(owner) or sys.modules[owner], name, replaced)
    except BaseException:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""

# The listed name: where it is, under which name, and whether another thing stands there instead of nothing.
HIDDEN = {
    "_FunctionBase.apply": ("torch._C", "_FunctionBase", False),
    "_are_functorch_transforms_active": ("torch._C", "_are_functorch_transforms_active", False),
    "is_functorch_wrapped_tensor": ("torch._C._functorch", "is_functorch_wrapped_tensor", False),
    "unwrap_if_dead": ("torch._C._functorch", "unwrap_if_dead", False),
    "_current_level": ("torch.autograd.forward_ad", "_current_level", False),
    "to_save": ("FunctionCtx", "save_for_backward", True),
    "dirty_tensors": ("FunctionCtx", "mark_dirty", True),
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode", False),
    "tree_leaves": ("torch.utils._pytree", "tree_leaves", False),
    "untyped_storage": ("Tensor", "untyped_storage", True),
}

# The same for the names that only calls under transforms stand on.
_INTERPRETER, _SINGLE_LEVEL = "retrieve_current_functorch_interpreter", "enable_single_level_autograd_function"
HIDDEN_IN_TRANSFORMS = {
    _INTERPRETER: ("torch._functorch.pyfunctorch", _INTERPRETER, False),
    "_wrap_for_grad": ("torch._C._functorch", "_wrap_for_grad", False),
    "_unwrap_for_grad": ("torch._C._functorch", "_unwrap_for_grad", True),
    "_add_batch_dim": ("torch._C._functorch", "_add_batch_dim", False),
    "_unwrap_batched": ("torch._C._functorch", "_unwrap_batched", True),
    "_SingleLevelFunction": ("torch.autograd.function", "_SingleLevelFunction", False),
    _SINGLE_LEVEL: ("torch._functorch.utils", _SINGLE_LEVEL, False),
    "_set_fwd_grad_enabled": ("torch.autograd.forward_ad", "_set_fwd_grad_enabled", False),
}

NOTHING = ("math", "tau", False)  # not torch's: all is there


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """What became of pullback without each name: whether its path is used, in transforms too, and the names told."""
    request = json.dumps([*HIDDEN.values(), *HIDDEN_IN_TRANSFORMS.values(), NOTHING])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request, json.dumps(KEYWORDS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", HIDDEN)
def test_without_a_name_calls_run_on_torchs_apply(name: str, outcomes: Any) -> None:
    """Where a name is missing or misbehaves, it is told, and values and first gradients are right all the same."""
    outcome = outcomes[HIDDEN[name][1]]
    assert not isinstance(outcome, str), outcome
    used, used_in_transforms, told = outcome
    assert not used
    assert not used_in_transforms
    assert any(name in listed for listed in told), told


@pytest.mark.parametrize("name", HIDDEN_IN_TRANSFORMS)
def test_without_a_name_calls_in_transforms_run_on_torchs_apply(name: str, outcomes: Any) -> None:
    """Where what is missing is needed under transforms alone, calls there go to PyTorch, and all others don't."""
    outcome = outcomes[HIDDEN_IN_TRANSFORMS[name][1]]
    assert not isinstance(outcome, str), outcome
    used, used_in_transforms, told = outcome
    assert used
    assert not used_in_transforms
    assert any(name in listed for listed in told), told


def test_with_all_names_calls_run_on_pullbacks_path(outcomes: Any) -> None:
    """The same program finds nothing wrong where nothing is hidden, so it can tell the difference."""
    assert outcomes["tau"] == [True, True, []]
