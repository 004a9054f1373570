"""The private names of PyTorch: all listed, all as expected on this torch, each told where it behaves otherwise."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import pullback
import pullback.function
from pullback import torch_private
from pullback.errors import SavedTensorError
from pullback.torch_private import dual_level, status, usable, usable_in_errors, usable_in_ledger, usable_in_transforms

SOURCE = Path(pullback.function.__file__).parent

# What begins with an underscore and is documented all the same.
DOCUMENTED = {"_make", "_fields", "_replace", "_asdict"}

# Not remembered.
FRESH: Callable[[], tuple[tuple[str, bool, str], ...]] = status.__wrapped__
FRESHLY_USABLE: Callable[[], bool] = usable_in_transforms.__wrapped__


def trees(root: Path) -> Iterator[ast.Module]:
    """Return the syntax tree of each module under `root`."""
    for path in sorted(root.rglob("*.py")):
        yield ast.parse(path.read_text("utf-8"))


def other_modules(tree: ast.Module) -> set[str]:
    """Return the names of modules, other than torch's, that a module imports."""
    names = [
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    ]
    return {name for name in names if not name.startswith("torch")}


def private_names(root: Path) -> set[str]:
    """Return the attributes with an underscore that code under `root` reads and doesn't define itself."""
    read: set[str] = set()
    defined = {*DOCUMENTED}
    for tree in trees(root):
        elsewhere = other_modules(tree)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
                mine = ast.unparse(node.value) in ("self", "cls")
                if mine and isinstance(node.ctx, ast.Store):
                    defined.add(node.attr)
                elif ast.unparse(node.value) not in elsewhere:
                    read.add(node.attr)
    return read - defined


def looked_up(root: Path) -> set[str]:
    """Return the names that `_found` is asked for, with their modules."""
    return {
        ".".join(ast.literal_eval(argument) for argument in node.args[:2])
        for tree in trees(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_found"
    }


def spelt_out(entry: str) -> set[str]:
    """Return the names in an entry of the list, each with its module: those after a comma are of the same one."""
    first, *others = entry.split(", ")
    module = first.rpartition(".")[0]
    return {first, *(name if "." in name else f"{module}.{name}" for name in others)}


def test_all_names_are_as_expected() -> None:
    """On the torch that is installed every name behaves, so calls run on pullback's own path."""
    assert [(name, detail) for name, works, detail in status() if not works] == []
    assert {detail for _, _, detail in status()} == {"as expected"}
    assert usable()
    assert usable_in_transforms()
    assert pullback.function._USABLE


def test_every_private_name_is_listed() -> None:
    """Each private name that is used anywhere is among those that `status` tries."""
    listed = " ".join(name for name, _, _ in status())
    used = private_names(SOURCE)
    assert {"_version", "_raw_saved_tensors", "_schema", "_FunctionBase", "_current_level", "_forward_cls"} <= used
    assert {name for name in used if not re.search(rf"\b{name}\b", listed)} <= {"_C", "_raw_saved_self"}
    assert looked_up(SOURCE) - {name for entry, _, _ in status() for name in spelt_out(entry)} == set()


def test_unlisted_names_are_seen(tmp_path: Path) -> None:
    """The scan above finds a name that is read, and passes over those that the code defines or a module owns."""
    (tmp_path / "module.py").write_text(
        "import os\nos._exit(0)\nx._hidden\ncls._own = 3\nother._own\nself._held = x._fields\n"
        "_found('torch._C', '_name')\n"
    )
    assert private_names(tmp_path) == {"_hidden"}
    assert looked_up(tmp_path) == {"torch._C._name"}
    assert spelt_out("torch.a.b, c, torch.d.e") == {"torch.a.b", "torch.a.c", "torch.d.e"}


def wrong(name: str) -> list[str]:
    """Return what a fresh look says of the listed entry that has `name` in it, if it doesn't behave."""
    return [detail for listed, works, detail in FRESH() if name in listed and not works]


def nothing(*_: Any, **__: Any) -> Any:
    """Stand for a name that does something else."""


# The name: where it is found, as what, and something that isn't it.
MISBEHAVING: dict[str, tuple[Any, str, Any]] = {
    "_FunctionBase.apply": (torch_private, "bound_apply", lambda cls: nothing),
    "_backward_cls": (torch_private, "FunctionMeta", lambda name, bases, body: bases[0]),
    "_forward_cls": (torch_private, "FunctionMeta", lambda name, bases, body: type(name, (), {"_backward_cls": len})),
    "to_save": (torch_private, "tensors_to_save", nothing),
    "dirty_tensors": (torch.autograd.function.FunctionCtx, "mark_dirty", nothing),
    "next_functions": (torch_private, "leaf_behind", nothing),
    "_raw_saved_tensors": (torch_private, "raw_saved_tensors", lambda ctx: ()),
    "TorchDispatchMode": (torch_private, "TorchDispatchMode", object),
    "tree_leaves": (torch_private, "tree_leaves", lambda nest: []),
    "tree_flatten": (torch_private, "tree_flatten", lambda nest, is_leaf: ([nest], None)),
    "tree_unflatten": (torch_private, "tree_unflatten", lambda leaves, spec: leaves),
    "SUPPORTED_NODES": (torch_private, "pytree_nodes", {}),
    "needs_input_grad": (torch_private, "move_context", nothing),
    "Module.__dict__": (torch_private, "MODULE_TABLES", ("_buffers", "_parameters", "_modules")),
    "_set_grad_enabled": (torch_private, "set_grad_enabled", nothing),
    "untyped_storage": (torch.Tensor, "untyped_storage", lambda tensor: object()),
    "_backward_hooks": (torch_private, "has_hooks", lambda tensor: False),
}


class Elsewhere:
    """A transform that is running, and isn't the innermost one."""

    def key(self) -> Any:
        """Return what has the kind as its name."""
        return SimpleNamespace(name="Grad")

    def level(self) -> int:
        """Return the level, wherever it is asked."""
        return 1

    def lower(self) -> Any:
        """Return a context that goes nowhere."""
        return contextlib.nullcontext()


# The same for the names that only calls under transforms stand on.
MISBEHAVING_IN_TRANSFORMS: dict[str, tuple[Any, str, Any]] = {
    "_are_functorch_transforms_active": (torch_private, "transforms_active", lambda: True),
    "is_functorch_wrapped_tensor": (torch_private, "is_wrapped", lambda tensor: False),
    "unwrap_if_dead": (torch_private, "unwrap_if_dead", lambda tensor: tensor),
    "retrieve_current_functorch_interpreter": (torch_private, "top_interpreter", Elsewhere),
    "_wrap_for_grad": (torch_private, "wrap_at", lambda tensor, level: tensor),
    "_unwrap_for_grad": (torch_private, "unwrap_at", lambda tensor, level: tensor),
    "_add_batch_dim": (torch_private, "batch_at", lambda tensor, dim, level: tensor),
    "_unwrap_batched": (torch_private, "unbatch_at", lambda tensor, level: (tensor, None)),
    "_SingleLevelFunction": (torch_private, "SingleLevelFunction", torch.autograd.Function),
    "enable_single_level_autograd_function": (torch_private, "allow_single_level", contextlib.nullcontext),
    "_top_saved_tensors_default_hooks": (torch_private, "top_saved_hooks", nothing),
    "_pop_saved_tensors_default_hooks": (torch_private, "pop_saved_hooks", nothing),
    "_push_saved_tensors_default_hooks": (torch_private, "push_saved_hooks", nothing),
    "_set_fwd_grad_enabled": (torch_private, "forward_grad", lambda on: contextlib.nullcontext()),
    "_current_level": (torch_private, "dual_level", lambda: -1),
    "Tensor._base": (torch_private, "base_of", nothing),
}
MISBEHAVING |= MISBEHAVING_IN_TRANSFORMS

# The same for the names that only the words of an error stand on.
MISBEHAVING_IN_ERRORS: dict[str, tuple[Any, str, Any]] = {
    "SavedTensor.data": (torch_private, "saved_data", lambda raw: torch.zeros(1)),
    ".unpack": (torch_private, "unpacked", nothing),
}
MISBEHAVING |= MISBEHAVING_IN_ERRORS

STRATEGY, ACTION = torch_private.FrameStrategy, torch_private.FrameAction

# The same for the names that only compiled code stands on.
MISBEHAVING |= {
    "set_code_exec_strategy": (torch_private, "set_strategy", nothing),
    "_FrameExecStrategy": (torch_private, "FrameStrategy", lambda *_: STRATEGY(ACTION.DEFAULT, ACTION.DEFAULT)),
    "_FrameAction": (torch_private, "FrameAction", SimpleNamespace(SKIP=0, DEFAULT=0)),
}

# The same for the name that only recompute stands on.
MISBEHAVING |= {"_len_torch_function_stack": (torch_private, "function_modes", lambda: 0)}

# The same for the names that only the ledger of saved memory stands on.
MISBEHAVING_IN_LEDGER: dict[str, tuple[Any, str, Any]] = {
    "_get_sequence_nr": (torch_private, "next_sequence_number", lambda: 0),
    "Node._sequence_nr": (torch_private, "sequence_number", lambda node: 0),
    "_autograd.SavedTensor": (torch_private, "SavedVariable", type(None)),
    "SavedTensor.unpack_hook": (torch_private, "unpack_hook_of", nothing),
    "_raw_saved_self": (torch_private, "raw_names", lambda kind: ()),
    "_forward_cls, of a node": (torch_private, "author_of", nothing),
}
MISBEHAVING |= MISBEHAVING_IN_LEDGER


@pytest.mark.parametrize("name", MISBEHAVING)
def test_a_name_that_behaves_otherwise_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` tries what a name does, so it sees one that is there and does something else."""
    assert wrong(name) == []
    monkeypatch.setattr(*MISBEHAVING[name])
    (detail,) = wrong(name)
    assert detail != "as expected"


def test_every_listed_entry_can_be_wrong() -> None:
    """Each entry of the list, and each name that is looked up, is among those that the test above makes misbehave."""
    names = [*looked_up(SOURCE), *(listed for listed, _, _ in status())]
    assert [name for name in names if not any(wrong in name for wrong in MISBEHAVING)] == []


def test_a_name_that_raises_is_told_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detail is the exception, for a bug report."""

    def gone(ctx: Any) -> Any:
        return ctx._no_such_name

    monkeypatch.setattr(torch_private, "raw_saved_tensors", gone)
    (detail,) = wrong("_raw_saved_tensors")
    assert detail.startswith("AttributeError: ")
    assert "_no_such_name" in detail


class Doubled(pullback.Function):
    """In the form that PyTorch's own apply refuses under torch.func."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return twice x."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return twice the cotangent."""
        return 2 * grad


@pytest.mark.parametrize("name", MISBEHAVING_IN_TRANSFORMS)
def test_a_name_that_misbehaves_in_transforms_takes_only_those_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One such name is enough for calls under transforms to be PyTorch's own; others stay on pullback's path."""
    x = torch.ones(2, requires_grad=True)
    with monkeypatch.context() as patched:
        patched.setattr(*MISBEHAVING_IN_TRANSFORMS[name])
        in_transforms = FRESHLY_USABLE()
    assert not in_transforms
    monkeypatch.setattr(pullback.function, "usable_in_transforms", lambda: in_transforms)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: Doubled.apply(x).sum())(x)
    assert "pullback_call" in vars(Doubled._backward_cls)
    assert torch.autograd.grad(Doubled.apply(x).sum(), x)[0].tolist() == [2, 2]


class Square(pullback.Function):
    """With a saved tensor that can be changed before it is read."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return x²."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return 2 x times the cotangent."""
        return 2 * ctx.saved_tensors[0] * grad


@pytest.mark.parametrize("name", MISBEHAVING_IN_ERRORS)
def test_a_name_that_misbehaves_in_errors_takes_only_their_words_away(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls stay on pullback's path, and a saved tensor that was changed is PyTorch's to report."""
    monkeypatch.setattr(*MISBEHAVING_IN_ERRORS[name])
    in_errors = usable_in_errors.__wrapped__()
    assert not in_errors
    assert usable.__wrapped__()
    assert FRESHLY_USABLE()
    monkeypatch.setattr("pullback.call.gradients.usable_in_errors", lambda: in_errors)
    x = torch.ones(2, requires_grad=True) * 1
    y = Square.apply(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        y.sum().backward()
    assert not isinstance(caught.value, SavedTensorError)


@pytest.mark.parametrize("name", MISBEHAVING_IN_LEDGER)
def test_a_name_that_misbehaves_in_the_ledger_takes_only_that_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls stay on pullback's path, and saved_memory raises in place of a wrong ledger."""
    monkeypatch.setattr(*MISBEHAVING_IN_LEDGER[name])
    in_ledger = usable_in_ledger.__wrapped__()
    assert not in_ledger
    assert usable.__wrapped__()
    monkeypatch.setattr("pullback.memory.ledger.usable_in_ledger", lambda: in_ledger)
    with pytest.raises(RuntimeError, match="don't show what they keep"):
        pullback.saved_memory()


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "vmap of grad", "dual numbers"])
def test_the_first_look_can_come_from_a_transform(transform: str) -> None:
    """The names are as expected wherever the first call under a transform stands, and it goes on as before."""
    x = torch.ones(2, 2)
    seen: list[bool] = []

    def looks(x: torch.Tensor) -> torch.Tensor:
        level = dual_level()
        seen.append(FRESHLY_USABLE())
        seen.append(dual_level() == level)
        return (3 * x).sum()

    if transform == "grad":
        assert torch.func.grad(looks)(x).tolist() == [[3, 3], [3, 3]]
    elif transform == "vmap":
        assert torch.func.vmap(looks)(x).tolist() == [6, 6]
    elif transform == "jvp":
        assert torch.func.jvp(looks, (x,), (x,))[1].item() == 12
    elif transform == "vmap of grad":
        assert torch.func.vmap(torch.func.grad(looks))(x).tolist() == [[3, 3], [3, 3]]
    else:
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(looks(forward_ad.make_dual(x, x))).tangent.item() == 12
    assert seen == [True, True]


def test_a_warning_is_no_fault() -> None:
    """Where warnings are errors, those that PyTorch gives of itself aren't taken for a name that misbehaves."""
    program = (
        "import warnings, torch, pullback.torch_private as private\n"
        "assert private.usable()\n"  # imports what sets filters of its own
        "warnings.simplefilter('error')\n"
        "assert private.usable_in_transforms(), private.status()\n"
        "assert warnings.filters[0][0] == 'error'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_looking_changes_nothing() -> None:
    """Trying the names leaves grad mode, autocast and the random state as they were."""
    before = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state()
    with torch.no_grad():
        assert all(works for _, works, _ in FRESH())
        assert not torch.is_grad_enabled()
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_the_first_import_may_come_from_inside_a_transform() -> None:
    """`pullback.custom_vjp` loads the rest when it is first used; inside torch.func the names are judged as outside."""
    program = """
import torch, pullback

def cube(x):
    @pullback.custom_vjp
    def f(x):
        return x**3

    f.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    return f(x).sum()

print(torch.func.vmap(torch.func.grad(cube))(torch.ones(2)).tolist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[3.0, 3.0]"
