"""F15: tensors without values (meta, fake), default devices and dtypes, and deterministic algorithms."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import pullback
from tests.surroundings.kind import Called, Kind, assert_right, derivatives
from tests.surroundings.kinds import KINDS, each_kind

# NumPy has nothing to compute with where there are no values.
VALUELESS = [
    pytest.param(kind, id=name) for name, kind in KINDS.items() if name not in ("reference", "double_backward")
]
each_valueless_kind = pytest.mark.parametrize("kind", VALUELESS)


def shapes(function: Called, leaves: list[Tensor], kind: Kind) -> list[Any]:
    """Return shapes, dtypes and devices of values and of derivatives of two orders."""
    result = function(*leaves)
    outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if y.requires_grad]
    firsts = torch.autograd.grad([y.sum() for y in outputs], leaves, create_graph=True)
    seconds = torch.autograd.grad([g.square().sum() for g in firsts if g.requires_grad], leaves, allow_unused=True)
    return [(g.shape, g.dtype, g.device, type(g)) for g in (*outputs, *firsts, *(g for g in seconds if g is not None))]


@each_valueless_kind
def test_meta_tensors(kind: Kind) -> None:
    """On the meta device shapes go through, to second order, on the first calls and after calls with values."""
    function, used = kind.function(), kind.function()
    derivatives(used, kind.draw(), once=kind.once)
    for called in (function, function, used):
        leaves = [leaf.detach().to("meta").requires_grad_() for leaf in kind.draw()]
        assert shapes(called, leaves, kind) == shapes(kind.formula, leaves, kind)


@each_valueless_kind
def test_fake_tensors(kind: Kind) -> None:
    """Fake tensors go through, to second order, and what they taught misleads no call with values."""
    function, used = kind.function(), kind.function()
    derivatives(used, kind.draw(), once=kind.once)
    for called in (function, function, used):
        with FakeTensorMode() as mode:
            leaves = [mode.from_tensor(leaf) for leaf in kind.draw()]
            seen = shapes(called, leaves, kind)
            assert seen == shapes(kind.formula, leaves, kind)
            assert all(entry[3] is FakeTensor for entry in seen)
    assert_right(kind, lambda _: function)
    assert_right(kind, lambda _: used)


@each_valueless_kind
def test_values_after_meta_tensors(kind: Kind) -> None:
    """A class that was first applied on the meta device is right on values."""
    function = kind.function()
    function(*[leaf.detach().to("meta").requires_grad_() for leaf in kind.draw()])
    assert_right(kind, lambda _: function)


class Layer(nn.Module):
    """A weight and a function of two tensors."""

    def __init__(self, function: Called) -> None:
        """Keep the function."""
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(4, dtype=torch.float64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight."""
        nn.init.uniform_(self.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to both."""
        result: Tensor = self.function(x, self.weight)
        return result


def test_a_module_that_is_initialised_later() -> None:
    """A module made and run on the meta device, and then given memory and values, trains as the formula does."""
    kind = KINDS["saves_inputs"]
    found = []
    for called in (kind.function(), kind.formula):
        with torch.device("meta"):
            layer = Layer(called)
            assert layer(torch.ones(4, dtype=torch.float64)).device.type == "meta"
        layer.to_empty(device="cpu")
        torch.manual_seed(0)
        layer.reset_parameters()
        layer(kind.draw()[0]).sum().backward()
        found.append(layer.weight.grad)
    assert torch.equal(*found)


@pytest.fixture
def _default_device() -> Iterator[None]:
    """Make the meta device the default one for a while."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("_default_device")
@each_kind
def test_a_default_device(kind: Kind) -> None:
    """pullback makes no tensor of its own on the default device: on another one, calls and replays are right."""
    with torch.device("cpu"):
        leaves = [kind.draw(seed) for seed in range(2)]
    function = kind.function()
    for own in leaves:
        outputs = function(*own)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        firsts = torch.autograd.grad([y.sum() for y in outputs if y.requires_grad], own, create_graph=True)
        seconds = torch.autograd.grad([(g**2).sum() for g in firsts if g.requires_grad], own, allow_unused=True)
        for tensor in (*outputs, *firsts, *seconds):
            assert tensor is None or tensor.device.type == "cpu"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@each_kind
def test_device_contexts(kind: Kind, device: str) -> None:
    """Within `with torch.device(…)`, a mode of torch functions, all is the formula's."""

    def around(function: Called) -> Called:
        def called(*leaves: Tensor) -> Any:
            with torch.device(device):
                return function(*leaves)

        return called

    assert_right(kind, around)


@pytest.fixture(params=[torch.float16, torch.float64], ids=str)
def _default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    """Change the default dtype for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("_default_dtype")
@each_kind
def test_default_dtypes(kind: Kind) -> None:
    """Derivatives in float64 lose nothing where the default dtype is a lower one."""
    assert_right(kind, lambda function: function)


@each_kind
def test_deterministic_algorithms(kind: Kind) -> None:
    """With use_deterministic_algorithms, which also fills new memory, nothing warns and all is the formula's."""
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_right(kind, lambda function: function)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_kernel_on_tensors_without_values() -> None:
    """What needs values is refused by PyTorch's own error, and a reference isn't put in its place unasked."""
    for base in (torch.autograd.Function, pullback.Function):
        function = KINDS["reference"].function(base)
        for _ in range(2):
            x = torch.ones(4, dtype=torch.float64, device="meta", requires_grad=True)
            with pytest.raises((RuntimeError, TypeError), match="meta"):
                function(x)
