"""The private names of PyTorch: all listed, all as expected on this torch, and missed without harm on another."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pullback.function
from pullback import torch_private
from pullback.torch_private import status, usable

SOURCE = Path(pullback.function.__file__).parent

# What begins with an underscore and is documented all the same.
DOCUMENTED = {"_make", "_fields", "_replace", "_asdict"}

FRESH: Callable[[], tuple[tuple[str, bool, str], ...]] = status.__wrapped__  # status, not remembered


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


def test_all_names_are_as_expected() -> None:
    """On the torch that is installed every name behaves, so calls run on pullback's own path."""
    assert [(name, detail) for name, works, detail in status() if not works] == []
    assert {detail for _, _, detail in status()} == {"as expected"}
    assert usable()
    assert pullback.function._USABLE


def test_every_private_name_is_listed() -> None:
    """Each private name that is used anywhere is among those that `status` tries."""
    listed = " ".join(name for name, _, _ in status())
    used = private_names(SOURCE)
    assert {"_version", "_raw_saved_tensors", "_schema", "_FunctionBase"} <= used
    assert {name for name in used if not re.search(rf"\b{name}\b", listed)} <= {"_C", "_raw_saved_self"}
    assert {name for name in looked_up(SOURCE) if name not in listed} == set()


def test_unlisted_names_are_seen(tmp_path: Path) -> None:
    """The scan above finds a name that is read, and passes over those that the code defines or a module owns."""
    (tmp_path / "module.py").write_text(
        "import os\nos._exit(0)\nx._hidden\ncls._own = 3\nother._own\nself._held = x._fields\n"
        "_found('torch._C', '_name')\n"
    )
    assert private_names(tmp_path) == {"_hidden"}
    assert looked_up(tmp_path) == {"torch._C._name"}


def wrong(name: str) -> list[str]:
    """Return what a fresh look says of the listed entry that has `name` in it, if it doesn't behave."""
    return [detail for listed, works, detail in FRESH() if name in listed and not works]


def nothing(*_: Any, **__: Any) -> Any:
    """Stand for a name that does something else."""


MISBEHAVING: dict[str, tuple[Any, str, Any]] = {
    "_FunctionBase.apply": (torch_private, "bound_apply", lambda cls: nothing),
    "_are_functorch_transforms_active": (torch_private, "transforms_active", lambda: True),
    "is_functorch_wrapped_tensor": (torch_private, "is_wrapped", lambda tensor: False),
    "_backward_cls": (torch_private, "FunctionMeta", lambda name, bases, body: bases[0]),
    "to_save": (torch_private, "tensors_to_save", nothing),
    "dirty_tensors": (torch.autograd.function.FunctionCtx, "mark_dirty", nothing),
    "next_functions": (torch_private, "leaf_behind", nothing),
    "_raw_saved_tensors": (torch_private, "raw_saved_tensors", lambda ctx: ()),
    "TorchDispatchMode": (torch_private, "TorchDispatchMode", object),
    "tree_leaves": (torch_private, "tree_leaves", lambda nest: []),
    "_set_grad_enabled": (torch_private, "set_grad_enabled", nothing),
    "untyped_storage": (torch.Tensor, "untyped_storage", lambda tensor: object()),
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_a_name_that_behaves_otherwise_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` tries what a name does, so it sees one that is there and does something else."""
    assert wrong(name) == []
    monkeypatch.setattr(*MISBEHAVING[name])
    (detail,) = wrong(name)
    assert detail != "as expected"


def test_every_listed_entry_can_be_wrong() -> None:
    """Each entry of the list is among those that the test above makes misbehave."""
    assert [listed for listed, _, _ in status() if not any(name in listed for name in MISBEHAVING)] == []


def test_a_name_that_raises_is_told_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detail is the exception, for a bug report."""

    def gone(ctx: Any) -> Any:
        return ctx._no_such_name

    monkeypatch.setattr(torch_private, "raw_saved_tensors", gone)
    (detail,) = wrong("_raw_saved_tensors")
    assert detail.startswith("AttributeError: ")
    assert "_no_such_name" in detail


# Hides names, one after the other, while pullback is loaded anew, as on a torch that doesn't have them.
PROGRAM = """
import json, sys, traceback, torch, torch.func, torch._dynamo.compiled_autograd

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

    x, w = (torch.tensor([value, 3.0], dtype=torch.float64, requires_grad=True) for value in (2.0, 5.0))
    for call in (lambda: Product.apply(x, w), lambda: Product.apply(w=w, x=x), lambda: Product.apply(x, w, k=3.0)):
        y = call()
        assert y.tolist() == [30, 27], y
        assert [gradient.tolist() for gradient in torch.autograd.grad(y.sum(), (x, w))] == [[15, 9], [6, 9]]
    for call in (lambda: Square.apply(x), lambda: Square.apply(scale=1.0, x=x)):
        assert torch.autograd.grad(call().sum(), x)[0].tolist() == [4, 6]
    assert torch.func.grad(lambda x: Square.apply(x).sum())(x.detach()).tolist() == [4, 6]
    assert torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)[0].tolist() == [4, 6]
    try:
        type("Both", (pullback.Function,), {"backward": staticmethod(len), "vjp": staticmethod(len)})
    except TypeError as error:
        assert "PB102" in str(error)
    else:
        raise AssertionError("definitions aren't judged")

def without(owner, name, replaced):
    for module in [module for module in sys.modules if module.partition(".")[0] == "pullback"]:
        del sys.modules[module]
    kept = vars(owner)[name]
    setattr(owner, name, lambda *_: None) if replaced else delattr(owner, name)
    try:
        import pullback.torch_private
        wrong = [name for name, works, _ in pullback.torch_private.status() if not works]
        usable = pullback.torch_private.usable()
    finally:
        setattr(owner, name, kept)
    import pullback.function
    assert pullback.function._USABLE == usable
    check(pullback)
    return usable, wrong

owners = {"FunctionCtx": torch.autograd.function.FunctionCtx, "Tensor": torch.Tensor, "math": sys.modules["math"]}
found = {}
for owner, name, replaced in json.loads(sys.argv[1]):
    try:
        found[name] = without(owners.get(owner) or sys.modules[owner], name, replaced)
    except BaseException:
        found[name] = False, [traceback.format_exc()]
print(json.dumps(found))
"""

HIDDEN = {
    # The listed name: where it is, under which name, and whether another thing stands there instead of nothing.
    "_FunctionBase.apply": ("torch._C", "_FunctionBase", False),
    "_are_functorch_transforms_active": ("torch._C", "_are_functorch_transforms_active", False),
    "is_functorch_wrapped_tensor": ("torch._C._functorch", "is_functorch_wrapped_tensor", False),
    "to_save": ("FunctionCtx", "save_for_backward", True),
    "dirty_tensors": ("FunctionCtx", "mark_dirty", True),
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode", False),
    "tree_leaves": ("torch.utils._pytree", "tree_leaves", False),
    "untyped_storage": ("Tensor", "untyped_storage", True),
    "nothing": ("math", "tau", False),  # not torch's: all is there
}


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """What became of pullback without each name: whether its own path is used, and the names that are told."""
    request = json.dumps(list(HIDDEN.values()))
    done = subprocess.run([sys.executable, "-c", PROGRAM, request], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name in HIDDEN if name != "nothing"])
def test_without_a_name_calls_run_on_torchs_apply(name: str, outcomes: Any) -> None:
    """Where a name is missing or misbehaves, it is told, and values and first gradients are right all the same."""
    used, told = outcomes[HIDDEN[name][1]]
    assert not used
    assert any(name in listed for listed in told), told


def test_with_all_names_calls_run_on_pullbacks_path(outcomes: Any) -> None:
    """The same program finds nothing wrong where nothing is hidden, so it can tell the difference."""
    assert outcomes["tau"] == [True, []]


def test_looking_changes_nothing() -> None:
    """Trying the names leaves grad mode, autocast and the random state as they were."""
    before = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state()
    with torch.no_grad():
        assert all(works for _, works, _ in FRESH())
        assert not torch.is_grad_enabled()
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
