"""F15: tensor subclasses and modes over torch's functions: as in PyTorch, or right where it isn't, or a clear error."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function as TorchFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import pullback
from tests.surroundings.kind import Called, Kind, assert_right, assert_same, derivatives
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch

# -- Subclasses --------------------------------------------------------------------------------------------------------


class Named(Tensor):
    """A subclass that torch's functions hand on: the class of a result is that of its arguments."""


class Logged(Tensor):
    """A subclass with a `__torch_function__` of its own, which counts calls."""

    calls: list[Any] = []  # noqa: RUF012  # one list for all of them

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call, and run it."""
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(Tensor):
    """A wrapper of another tensor, below autograd."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        """Wrap a tensor."""
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation on what is wrapped, and wrap what comes."""
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, cls, func(*args, **kwargs))


def unwrapped(tensor: Tensor) -> Tensor:
    """The plain tensor in a subclass."""
    return tensor.inner if isinstance(tensor, Wrapper) else tensor.as_subclass(Tensor)


MADE: dict[str, Any] = {
    "parameter": nn.Parameter,
    "buffer": lambda t: nn.Buffer(t).requires_grad_(),
    "subclass": lambda t: t.detach().as_subclass(Named).requires_grad_(),
    "__torch_function__": lambda t: t.detach().as_subclass(Logged).requires_grad_(),
    "__torch_dispatch__": lambda t: Wrapper(t.detach()).requires_grad_(),
}

# NumPy can't see into a wrapper; random numbers are drawn anew where a subclass isn't watched.
UNWRITTEN = ("reference", "double_backward")


@pytest.mark.parametrize("subclass", MADE)
@each_kind
def test_subclasses(kind: Kind, subclass: str) -> None:
    """Values and derivatives of two orders are the formula's, and no later call of plain tensors is misled."""
    if kind.name in UNWRITTEN and subclass == "__torch_dispatch__":
        return
    function = kind.function()
    for seed in range(2):
        leaves = [MADE[subclass](leaf) for leaf in kind.draw(seed)]
        got = derivatives(function, leaves, once=kind.once)
        expected = derivatives(kind.formula, kind.draw(seed), once=kind.once)
        assert_same([[unwrapped(tensor) for tensor in level] for level in got], expected)
    assert_right(kind, lambda _: function)


@pytest.mark.parametrize("subclass", MADE)
@each_on_torch
def test_the_classes_of_what_comes_out(kind: Kind, subclass: str) -> None:
    """Outputs and gradients are of the same classes as torch's own Function returns."""
    if kind.name in UNWRITTEN and subclass == "__torch_dispatch__":
        return
    seen = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaves = [MADE[subclass](leaf) for leaf in kind.draw(seed)]
            result = function(*leaves)
            outputs = result if isinstance(result, tuple) else (result,)
            total = sum((y.sum() for y in outputs if y.requires_grad), torch.zeros(()))
            seen.append([type(t).__name__ for t in (*outputs, *torch.autograd.grad(total, leaves))])
    assert seen[:2] == seen[2:]


class Rate:
    """An object that forward needs, of which nobody knows how large it is."""

    value = 3.0


@pytest.mark.parametrize("order", [("inputs", "intermediate"), ("intermediate",)], ids=" then ".join)
def test_objects_that_a_replay_needs(order: tuple[str, ...]) -> None:
    """A call that isn't watched, or isn't like the first one, keeps the arguments that a replay of it takes."""

    class Wave(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, rate: Rate, way: str) -> Tensor:
            ctx.way, ctx.value = way, rate.value
            ctx.save_for_backward(x, *([(x * rate.value).cos()] if way == "intermediate" else []))
            return (x * rate.value).sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
            x, *rest = ctx.saved_tensors
            return g * ctx.value * (rest[0] if rest else (x * ctx.value).cos()), None, None

    rate = Rate()
    for way in (*order, *order):
        for made in (MADE["subclass"], lambda leaf: leaf):
            (leaf,) = KINDS["saves_output"].draw()
            got = derivatives(lambda x, way=way: Wave.apply(x, rate, way), [made(leaf)])
            expected = derivatives(lambda x: (x * 3.0).sin(), [leaf])
            assert_same([[unwrapped(tensor) for tensor in level] for level in got], expected)


def product(base: Any) -> Called:
    """Make a Function that saves its argument."""

    class Double(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _ = ctx.saved_tensors
            return g * 2

    return Double.apply


def sparse() -> Tensor:
    """A sparse tensor."""
    return torch.eye(3, dtype=torch.float64).to_sparse().requires_grad_()


def compressed() -> Tensor:
    """A sparse tensor in compressed rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.eye(3, dtype=torch.float64).to_sparse_csr().requires_grad_()


def jagged() -> Tensor:
    """A nested tensor."""
    parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def strided_nested() -> Tensor:
    """A nested tensor of the older kind."""
    parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage")
        return torch.nested.nested_tensor(parts, requires_grad=True)


def masked() -> Tensor:
    """A masked tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of MaskedTensors is in prototype stage")
        mask = torch.tensor([True, False, True])
        made: Tensor = torch.masked.masked_tensor(torch.ones(3, dtype=torch.float64), mask, requires_grad=True)
        return made


def quantised() -> Tensor:
    """A quantised tensor, which nothing can be differentiated by."""
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 10, torch.quint8)


def written(tensor: Tensor | None) -> str:
    """A tensor as text, in which each ragged size is called alike."""
    assert tensor is not None
    tensor = tensor.detach()
    values = str(tensor.values()) if tensor.layout is torch.jagged else ""
    return re.sub(r"\bj\d+", "j", str(tensor)) + values


LAYOUTS = {f.__name__: f for f in (sparse, compressed, jagged, strided_nested, masked, quantised)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts(layout: str) -> None:
    """What torch's own Function makes of them, values, gradients or an error, pullback makes of them."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = product(base)
        for _ in range(2):
            x = LAYOUTS[layout]()
            try:
                y = function(x)
                entry = [type(y).__name__, str(y.layout), y.requires_grad, written(y)]
                if y.requires_grad:
                    y.backward(torch.ones_like(y.detach()))
                    entry += [type(x.grad).__name__, written(x.grad)]
                told.append(entry)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                told.append([type(error).__name__, str(error).splitlines()[0]])
    assert told[:2] == told[2:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["sparse", "jagged"])
def test_second_derivatives_of_other_layouts(layout: str) -> None:
    """Under create_graph both derivatives of a square are those of the plain product."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    for _ in range(2):
        found = []
        for called in (Square.apply, lambda x: x * x):
            x = LAYOUTS[layout]()
            y = called(x)
            (first,) = torch.autograd.grad(y, x, y.detach(), create_graph=True)
            (second,) = torch.autograd.grad(first, x, first.detach())
            found.append([written(first), written(second)])
        assert found[0] == found[1]


# -- Modes -------------------------------------------------------------------------------------------------------------


class Functions(TorchFunctionMode):
    """Sees calls of torch's functions."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call, and run it."""
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Sees operations."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the operation, and run it."""
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Operations, lambda: FlopCounterMode(display=False)])
@each_kind
def test_modes(kind: Kind, mode: Any) -> None:
    """With a mode active, all is the formula's."""
    with mode():
        assert_right(kind, lambda function: function)


@each_on_torch
def test_operations_that_a_mode_sees(kind: Kind) -> None:
    """From the second call on, a dispatch mode sees what the author's methods run, and nothing of pullback's."""
    seen = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        derivatives(function, kind.draw(), 1, once=kind.once)
        leaves = kind.draw(1)
        with Operations() as mode:
            result = function(*leaves)
            total = sum((y.sum() for y in (result if isinstance(result, tuple) else (result,)) if y.requires_grad), 0)
            torch.autograd.grad(total, leaves)
        seen.append(mode.seen)
    assert seen[0] == seen[1]


def test_operations_of_a_first_call() -> None:
    """Nor does it on the first call, which is watched, where forward makes no tensors behind PyTorch's back."""
    seen = []
    for base in (TorchFunction, pullback.Function):
        for name in ("saves_inputs", "saves_intermediates", "keeps_on_ctx", "clears_on_access", "random"):
            function, leaves = KINDS[name].function(base), KINDS[name].draw()
            with Operations() as mode:
                torch.autograd.grad(function(*leaves).sum(), leaves)
            seen.append(mode.seen)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_flops_are_counted_as_in_pytorch() -> None:
    """FlopCounterMode counts the author's products, in both directions, once."""
    counts = []
    for base in (TorchFunction, pullback.Function):

        class Matmul(base):
            @staticmethod
            def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
                a, b = ctx.saved_tensors
                return g @ b.t(), a.t() @ g

        for _ in range(2):
            a, b = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
            with FlopCounterMode(display=False) as mode:
                Matmul.apply(a, b).sum().backward()
            counts.append(mode.get_total_flops())
    assert set(counts) == {3 * 2 * 4**3}


def test_apply_is_no_overridable_function() -> None:
    """A subclass or a mode sees what forward runs; apply itself is handed to nobody, as in PyTorch."""
    for base in (TorchFunction, pullback.Function):
        function = product(base)
        for _ in range(2):
            with Functions() as mode:
                function(torch.ones(2, requires_grad=True))
            assert "apply" not in mode.seen
            assert mode.seen.count("mul") == 1
        assert not torch.overrides.is_tensor_method_or_property(function)


@pytest.fixture(autouse=True)
def _forget_calls() -> Iterator[None]:
    Logged.calls.clear()
    yield
    Logged.calls.clear()
