"""F15: retained graphs, memory, torch.autograd.functional, batched cotangents, and tensors leaked from torch.func."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd import functional

import pullback
from tests.surroundings.kind import Called, Kind, assert_same
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch
from tests.transforms.derivatives import outputs_of

# PyTorch's own functions that differentiate a gradient's linear map run a node twice.
each_reusable_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items() if not kind.once]
)

# Those whose forward vmap and batched cotangents can go through: NumPy can't take a batch.
OPAQUE = ("reference", "double_backward")


def one_output(function: Called) -> Called:
    """Sum the squares of all outputs, from the same random numbers each time."""

    def called(*leaves: Tensor) -> Any:
        torch.manual_seed(3)
        return torch.stack([(y**2).sum() for y in outputs_of(function(*leaves))]).sum()

    return called


# -- Graphs that are kept ----------------------------------------------------------------------------------------------


@each_reusable_kind
def test_a_graph_that_is_retained(kind: Kind) -> None:
    """It can be differentiated as often as one likes, at both orders in any sequence, and gives the same each time."""
    function = one_output(kind.function())
    for seed in range(2):
        leaves = kind.draw(seed)
        y, z = function(*leaves), one_output(kind.formula)(*leaves)
        expected = torch.autograd.grad(z, leaves, create_graph=True)
        found = []
        for create in (False, True, False, True):
            firsts = torch.autograd.grad(y, leaves, retain_graph=True, create_graph=create)
            found.append([g.detach() for g in firsts])
            if create:
                seconds = torch.autograd.grad(firsts[0].sum(), leaves, retain_graph=True, allow_unused=True)
                theirs = torch.autograd.grad(expected[0].sum(), leaves, retain_graph=True, allow_unused=True)
                assert_same([[s for s in seconds if s is not None]], [[s for s in theirs if s is not None]])
        for gradients in found:
            assert_same([gradients], [[g.detach() for g in expected]])


@each_on_torch
def test_backward_twice(kind: Kind) -> None:
    """Without retain_graph the second time is PyTorch's error, or its second gradient, as torch's own class has it."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            (y, *_), leaves = (None,), kind.draw(seed)
            torch.manual_seed(3)
            y = outputs_of(function(*leaves))[0]
            torch.autograd.grad(y.sum(), leaves)
            try:
                told.append([g.tolist() for g in torch.autograd.grad(y.sum(), leaves)])
            except RuntimeError as error:
                told.append(str(error))
    assert told[:2] == told[2:]


@each_on_torch
def test_clearing_happens_as_in_pytorch(kind: Kind) -> None:
    """retain_graph has the effect on saved tensors that it has on torch's own class."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaves = kind.draw(seed)
            torch.manual_seed(3)
            y = outputs_of(function(*leaves))[0]
            node: Any = y.grad_fn
            torch.autograd.grad(y.sum(), leaves, retain_graph=True)
            told.append(_saved(node))
            torch.autograd.grad(y.sum(), leaves, retain_graph=not kind.once) if not kind.once else None
            told.append(_saved(node))
    assert told[:4] == told[4:]


def _saved(node: Any) -> Any:
    try:
        return len(node.saved_tensors)
    except (RuntimeError, AttributeError) as error:
        return type(error).__name__


# -- Memory ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _collector_off() -> Iterator[None]:
    """Collect what earlier tests have left, and nothing during this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_collector_off")
@each_kind
def test_memory_is_freed(kind: Kind) -> None:
    """After backward, and after a graph that nobody used, no argument, output or saved tensor is alive."""
    function = kind.function()
    for use in ("nothing", "backward", "create_graph"):
        for _ in range(2):
            leaves = kind.draw()
            inner = [leaf * 1 for leaf in leaves]
            outputs = outputs_of(function(*inner))
            alive = [weakref.ref(tensor) for tensor in (*inner, *outputs)]
            total = torch.stack([y.sum() for y in outputs]).sum()
            if use != "nothing":
                gradients = torch.autograd.grad(total, leaves, create_graph=use == "create_graph")
                alive += [weakref.ref(gradient) for gradient in gradients]
                del gradients
            del inner, outputs, total
            assert [reference() for reference in alive] == [None] * len(alive)


@pytest.mark.usefixtures("_collector_off")
@each_kind
def test_saved_tensors_are_freed_by_backward(kind: Kind) -> None:
    """An argument that only the graph keeps is gone when backward has run, though outputs live on."""
    function = kind.function()
    for _ in range(3):
        leaves = kind.draw()
        inner = [leaf * 1 for leaf in leaves]
        alive = [weakref.ref(tensor) for tensor in inner]
        outputs = outputs_of(function(*inner))
        del inner
        torch.autograd.grad(torch.stack([y.sum() for y in outputs]).sum(), leaves)
        if kind.name != "writes_its_argument":  # where the argument is the output
            assert [reference() for reference in alive] == [None] * len(alive)


# -- torch.autograd.functional -----------------------------------------------------------------------------------------

FUNCTIONAL: dict[str, Any] = {
    "jacobian": lambda f, xs: functional.jacobian(f, xs),
    "jacobian, with a graph": lambda f, xs: functional.jacobian(f, xs, create_graph=True),
    "jacobian, vectorised": lambda f, xs: functional.jacobian(f, xs, vectorize=True),
    "hessian": lambda f, xs: functional.hessian(f, xs),
    "hessian, vectorised": lambda f, xs: functional.hessian(f, xs, vectorize=True),
    "vjp": lambda f, xs: functional.vjp(f, xs)[1],
    "jvp": lambda f, xs: functional.jvp(f, xs, tuple(x.cos() for x in xs))[1],
    "vhp": lambda f, xs: functional.vhp(f, xs, tuple(x.cos() for x in xs))[1],
    "hvp": lambda f, xs: functional.hvp(f, xs, tuple(x.cos() for x in xs))[1],
}


@pytest.mark.parametrize("taken", FUNCTIONAL)
@each_reusable_kind
def test_autograd_functional(kind: Kind, taken: str) -> None:
    """jacobian, hessian, vjp, jvp, vhp and hvp are those of the formula, or the batch is refused by name."""
    function = one_output(kind.function())
    for seed in range(2):
        leaves = tuple(leaf.detach() for leaf in kind.draw(seed))
        expected = FUNCTIONAL[taken](one_output(kind.formula), leaves)
        if "vectorised" in taken and kind.name in OPAQUE:
            with pytest.raises(RuntimeError):
                FUNCTIONAL[taken](function, leaves)
            continue
        got = FUNCTIONAL[taken](function, leaves)
        for one, other in zip(_flat(got), _flat(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def _flat(nest: Any) -> list[Tensor]:
    return [nest] if isinstance(nest, Tensor) else [tensor for part in nest for tensor in _flat(part)]


@each_reusable_kind
def test_batches_of_cotangents(kind: Kind) -> None:
    """is_grads_batched gives each row what one call gives, and NumPy's refusal where there is none to be given."""
    function = kind.function()
    for seed in range(2):
        leaves = kind.draw(seed)
        torch.manual_seed(3)
        y = outputs_of(function(*leaves))[0]
        rows = torch.eye(4, dtype=torch.float64)
        if kind.name in OPAQUE:
            with pytest.raises(RuntimeError):
                torch.autograd.grad(y, leaves, rows, is_grads_batched=True)
            continue
        got = torch.autograd.grad(y, leaves, rows, is_grads_batched=True, retain_graph=True, allow_unused=True)
        for row, cotangent in enumerate(rows):
            expected = torch.autograd.grad(y, leaves, cotangent, retain_graph=True, allow_unused=True)
            assert_same([[g[row] for g in got if g is not None]], [[g for g in expected if g is not None]])


# -- Tensors that leaked -----------------------------------------------------------------------------------------------


@each_on_torch
def test_tensors_that_leaked_from_a_transform(kind: Kind) -> None:
    """A tensor that outlived its transform is what it was in there, as for torch's own Function."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaked: list[Tensor] = []

            def leaks(x: Tensor, leaked: list[Tensor] = leaked) -> Tensor:
                leaked.append(x)
                return x.sum()

            leaves = []
            for leaf in kind.draw(seed):
                torch.func.grad(leaks)(leaf.detach())
                leaves.append(leaked.pop())
            torch.manual_seed(3)
            result = function(*leaves)
            outputs = result if isinstance(result, tuple) else (result,)
            told.append([(y.requires_grad, y.tolist(), y.grad_fn is None) for y in outputs])
    assert told[:2] == told[2:]


def test_tensors_that_leaked_and_require_grad() -> None:
    """One that leaked from within a graph outside is still in that graph, to both orders."""
    for name in ("saves_inputs", "saves_intermediates", "saves_output"):
        kind = KINDS[name]
        function = kind.function()
        for seed in range(2):
            found = []
            for called in (function, kind.formula):
                leaked: list[Tensor] = []

                def leaks(x: Tensor, leaked: list[Tensor] = leaked) -> Tensor:
                    leaked.append(x)
                    return x.sum()

                leaves = kind.draw(seed)
                for leaf in leaves:
                    torch.func.grad(leaks)(leaf)
                y = called(*leaked)
                firsts = torch.autograd.grad(y.sum(), leaves, create_graph=True)
                seconds = torch.autograd.grad(sum((g**3).sum() for g in firsts), leaves)
                found.append([*(g.detach() for g in firsts), *seconds])
            assert_same([found[0]], [found[1]])
