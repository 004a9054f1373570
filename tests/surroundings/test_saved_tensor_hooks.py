"""F15: hooks on saved tensors see all that is saved, once, and what they bring back is taken for what was saved."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import pullback
from pullback.errors import PullbackError
from tests.surroundings.kind import Called, Kind, assert_right, derivatives
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch


def as_copies() -> Any:
    """Copy each saved tensor, and hand out the copy."""
    return saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda packed: packed)


def as_arrays() -> Any:
    """Keep NumPy arrays."""
    return saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy)


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Keep files, whose contents are new tensors each time they are read."""
    with tempfile.TemporaryDirectory() as directory:

        def pack(tensor: Tensor) -> Path:
            path = Path(directory) / str(uuid.uuid4())
            torch.save(tensor.detach(), path)
            return path

        with saved_tensors_hooks(pack, lambda path: torch.load(path)):
            yield


def within_hooks() -> Any:
    """Have two pairs of hooks, of which the inner one counts."""
    stack = contextlib.ExitStack()
    stack.enter_context(saved_tensors_hooks(_refused, _refused))
    stack.enter_context(as_copies())
    return stack


def _refused(tensor: Any) -> Any:
    raise AssertionError("the outer hooks ran")


HOOKS: dict[str, Callable[[], Any]] = {
    "save_on_cpu": save_on_cpu,
    "copies": as_copies,
    "arrays": as_arrays,
    "disk": on_disk,
    "hooks within hooks": within_hooks,
}


@pytest.mark.parametrize("hooks", HOOKS)
@each_kind
def test_values_and_derivatives_of_two_orders(kind: Kind, hooks: str) -> None:
    """With hooks that bring back other tensors, at all times, both orders are the formula's."""
    with HOOKS[hooks]():
        assert_right(kind, lambda function: function)


@pytest.mark.parametrize("hooks", [name for name in HOOKS if name != "disk"])
@each_kind
def test_hooks_around_forward_only(kind: Kind, hooks: str) -> None:
    """With hooks around forward alone, and backward outside of them, both orders are the formula's."""

    def around(function: Called) -> Called:
        def called(*leaves: Tensor) -> Any:
            with HOOKS[hooks]():
                return function(*(leaf * 2 / 2 for leaf in leaves))

        return called

    assert_right(kind, around)


@each_kind
def test_no_hooks_allowed(kind: Kind) -> None:
    """Nothing in pullback uses hooks of its own, so that forbidding them changes nothing."""
    with disable_saved_tensors_hooks("none here"):
        assert_right(kind, lambda function: function)


class Count:
    """Counts what hooks see."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.packed: list[Tensor] = []
        self.unpacked = 0

    def hooks(self) -> Any:
        """Return the hooks."""

        def pack(tensor: Tensor) -> int:
            self.packed.append(tensor.detach().clone())
            return len(self.packed) - 1

        def unpack(place: int) -> Tensor:
            self.unpacked += 1
            return self.packed[place]

        return saved_tensors_hooks(pack, unpack)


def seen(function: Called, leaves: list[Tensor], *, order: int) -> tuple[list[Tensor], int]:
    """Return what hooks around the call of a function packed, and how often they unpacked by the end."""
    count = Count()
    torch.manual_seed(3)
    with count.hooks():
        result = function(*leaves)
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if y.requires_grad]
    gradients = torch.autograd.grad(sum((y.sum() for y in outputs), torch.zeros(())), leaves, create_graph=order > 1)
    if order > 1:
        torch.autograd.grad(sum(((g**2).sum() for g in gradients), torch.zeros(())), leaves, allow_unused=True)
    return count.packed, count.unpacked


@each_on_torch
def test_everything_is_packed_and_unpacked_as_in_pytorch(kind: Kind) -> None:
    """The hooks get the tensors that torch's own Function would give them, in order, and each comes back once."""
    function, plain = kind.function(), kind.function(TorchFunction)
    for seed in range(3):
        got, unpacked = seen(function, kind.draw(seed), order=1)
        expected, times = seen(plain, kind.draw(seed), order=1)
        assert len(got) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
        assert unpacked == times


@each_kind
def test_each_saved_tensor_is_unpacked_once_for_a_second_derivative(kind: Kind) -> None:
    """Under create_graph one run of the node reads each of its tensors once, as a checkpoint allows no more."""
    function = kind.function()
    for seed in range(3):
        _, at_first = seen(function, kind.draw(seed), order=1)
        packed, in_all = seen(function, kind.draw(seed), order=2)
        assert at_first <= len(packed)
        # Kinds that are followed by an operation of PyTorch's unpack what that saved a second time.
        assert in_all - at_first <= (2 if kind.name == "writes_its_argument" else len(packed))


def test_saved_tensors_are_packed_when_the_node_is_made() -> None:
    """The hooks run after forward, not in it, and see arguments as those that they are."""
    events: list[str] = []

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            events.append("forward")
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            events.append("backward")
            return 2 * ctx.saved_tensors[0] * g

    for _ in range(2):
        events.clear()
        (x,) = KINDS["saves_output"].draw()
        held: list[Tensor] = []

        def pack(tensor: Tensor, held: list[Tensor] = held) -> Tensor:
            events.append("pack")
            held.append(tensor)
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda packed: (events.append("unpack"), packed)[1]):
            y = Square.apply(x)
        y.sum().backward()
        assert events == ["forward", "pack", "backward", "unpack"]
        assert held[0] is x


@pytest.mark.parametrize("base", [TorchFunction, pullback.Function], ids=["torch", "pullback"])
def test_hooks_that_keep_a_lower_precision(base: Any) -> None:
    """Tensors that come back in another dtype are handed to backward as they are, as in PyTorch."""
    function = KINDS["saves_inputs"].function(base)
    for seed in range(2):
        x, y = KINDS["saves_inputs"].draw(seed)
        with saved_tensors_hooks(lambda tensor: tensor.half(), lambda packed: packed.float()):
            z = function(x, y)
        gx, gy = torch.autograd.grad(z.sum(), (x, y))
        x, y = (tensor.detach().half().float() for tensor in (x, y))
        torch.testing.assert_close(gx, (2 * x * y).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(gy, (x * x).double(), rtol=1e-6, atol=0)


def rounded() -> Any:
    """Keep half the digits."""
    return saved_tensors_hooks(lambda tensor: (tensor.dtype, tensor.half()), lambda kept: kept[1].to(kept[0]))


@pytest.mark.parametrize("name", ["saves_inputs", "saves_output", "reference", "double_backward"])
def test_second_derivatives_over_rounded_tensors(name: str) -> None:
    """Where only arguments and outputs are saved, the second derivative is that of the rounded ones."""
    kind = KINDS[name]
    function = kind.function()
    for seed in range(2):
        with rounded():
            got = derivatives(function, kind.draw(seed))
        expected = derivatives(kind.formula, kind.draw(seed))
        for ours, theirs in zip(got, expected, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", ["saves_intermediates", "clears_on_access", "several_outputs"])
def test_intermediates_that_were_rounded(name: str) -> None:
    """First gradients come of what the hooks brought back; a second derivative of something else is never given."""
    kind = KINDS[name]
    function = kind.function()
    for seed in range(2):
        with rounded():
            first = derivatives(function, kind.draw(seed), 1)
        torch.testing.assert_close(first[1], derivatives(kind.formula, kind.draw(seed), 1)[1], rtol=5e-3, atol=5e-3)
        with rounded(), pytest.raises(PullbackError, match=r"PB2\d\d"):
            derivatives(function, kind.draw(seed), once=kind.once)


@pytest.mark.parametrize("base", [TorchFunction, pullback.Function], ids=["torch", "pullback"])
def test_an_error_in_a_hook_is_the_hooks(base: Any) -> None:
    """What a hook raises reaches the caller as it is."""

    def fails(value: Any) -> Any:
        raise LookupError("lost")

    function = KINDS["saves_intermediates"].function(base)
    for _ in range(2):
        (x,) = KINDS["saves_intermediates"].draw()
        with saved_tensors_hooks(fails, fails), pytest.raises(LookupError, match="lost"):
            function(x)
        with saved_tensors_hooks(lambda tensor: tensor, fails):
            y = function(x)
        for create_graph in (False, True):
            with pytest.raises(LookupError, match="lost"):
                torch.autograd.grad(y.sum(), x, create_graph=create_graph, retain_graph=True)


@pytest.mark.parametrize("base", [TorchFunction, pullback.Function], ids=["torch", "pullback"])
def test_hooks_on_one_saved_tensor(base: Any) -> None:
    """`register_hooks` on an entry of `grad_fn._raw_saved_tensors` works as it does in PyTorch."""
    function = KINDS["saves_intermediates"].function(base)
    for seed in range(2):
        (x,) = KINDS["saves_intermediates"].draw(seed)
        y = function(x)
        assert y.grad_fn is not None
        raw: Any = y.grad_fn
        assert len(raw._raw_saved_tensors) == 3
        raw._raw_saved_tensors[1].register_hooks(lambda tensor: tensor * 2, lambda packed: packed)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, (2 * x.exp() + (-x).exp()).detach() / 2)
