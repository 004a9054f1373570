"""F15: torch.jit.trace, torch.export, make_fx and torch.profiler over Functions, as over torch's own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function as TorchFunction
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from tests.surroundings.kind import Called, Kind, derivatives
from tests.surroundings.kinds import each_kind, each_on_torch


class Layer(nn.Module):
    """Applies a function."""

    def __init__(self, function: Called) -> None:
        """Keep it."""
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Any:
        """Run it on twice the arguments."""
        return self.function(*(argument * 2 for argument in arguments))


def values(result: Any) -> list[Tensor]:
    """The tensors that came out."""
    return list(result) if isinstance(result, tuple) else [result]


NUMPY = ("reference", "double_backward")


@pytest.mark.filterwarnings("ignore")
@each_on_torch
def test_jit_trace(kind: Kind) -> None:
    """What torch.jit.trace records of a Function it records of pullback's, on the first call and after others."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaves = [leaf.detach() for leaf in kind.draw(seed)]
            torch.manual_seed(3)
            traced = torch.jit.trace(Layer(function), tuple(leaves), check_trace=False)
            torch.manual_seed(3)
            nodes = [node.kind() for node in traced.graph.nodes() if "Constant" not in node.kind()]
            try:
                told.append([nodes, *(y.tolist() for y in values(traced(*kind.draw(seed + 1))))])
            except RuntimeError as error:  # it records what writes to its argument, and can't run it
                told.append([nodes, "inplace SquareInPlace not supported in the JIT" in str(error)])
            derivatives(function, kind.draw(), 1, once=kind.once)
    assert told[:2] == told[2:]
    assert all(entry[1:] for entry in told)


@pytest.mark.filterwarnings("ignore")
@each_on_torch
def test_export(kind: Kind) -> None:
    """Exported without strictness, a module with a Function has the operations of torch's own, and its values."""
    if kind.name in NUMPY:
        for base in (TorchFunction, pullback.Function):
            with pytest.raises(Exception, match=r"numpy|Tensor|fake"):
                torch.export.export(Layer(kind.function(base)), tuple(kind.draw()), strict=False)
        return
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            program = torch.export.export(Layer(function), tuple(kind.draw(seed)), strict=False)
            nodes = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
            torch.manual_seed(3)
            told.append([nodes, *(y.tolist() for y in values(program.module()(*kind.draw(seed))))])
            derivatives(function, kind.draw(), 1, once=kind.once)
    assert told[:2] == told[2:]


@pytest.mark.filterwarnings("ignore")
@each_kind
def test_export_of_kinds_that_pytorch_has_not(kind: Kind) -> None:
    """Nests, keyword-only arguments and decorated functions can be exported, too."""
    if kind.on_torch:
        return
    function = kind.function()
    for seed in range(2):
        program = torch.export.export(Layer(function), tuple(kind.draw(seed)), strict=False)
        got = values(program.module()(*kind.draw(seed)))
        expected = values(Layer(kind.formula)(*kind.draw(seed)))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)


@each_on_torch
def test_operations_written_down(kind: Kind) -> None:
    """make_fx of a call and its backward writes down what the author's methods run, and no more."""
    if kind.name in NUMPY:
        return
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)

        def step(*leaves: Tensor, function: Called = function) -> Any:
            inner = [leaf.detach().requires_grad_() for leaf in leaves]
            outputs = [y for y in values(function(*inner)) if y.requires_grad]
            return torch.autograd.grad(torch.stack([y.sum() for y in outputs]).sum(), inner)

        for _ in range(2):
            graph = make_fx(step)(*[leaf.detach() for leaf in kind.draw()]).graph
            told.append([str(node.target) for node in graph.nodes if node.op == "call_function"])
    assert told[:2] == told[2:]


@each_on_torch
def test_profiler(kind: Kind) -> None:
    """The ranges of a call and of its backward bear the names that torch's own class gives them, and no others."""
    named = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        derivatives(function, kind.draw(), 1, once=kind.once)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                derivatives(function, kind.draw(), 1, once=kind.once)
        named.append({event.name: event.count for event in profile.events() if not event.name.startswith("aten::")})
    assert named[0] == named[1]
    assert any("Backward" in name for name in named[0])


def test_the_names_of_ranges() -> None:
    """forward's range is called after the class, backward's after its node, with those inside as their children."""

    class Visible(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            Visible.apply(x).sum().backward()
        names = [event.name for event in profile.events()]
        assert "Visible" in names
        assert "VisibleBackward" in names
