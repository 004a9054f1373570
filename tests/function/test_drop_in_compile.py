"""F1: where torch.compile takes a torch Function whole, it takes a pullback.Function, and with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.function.kinds import Kind, assert_same, each, gradients, outputs_of
from tests.function.kinds_context import CONTEXT
from tests.function.kinds_surroundings import SURROUNDINGS
from tests.function.kinds_written import WRITTEN

# torch's own tracer instantiates a Function, which torch's Function warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

KINDS = [*WRITTEN, *CONTEXT, *SURROUNDINGS]

# What torch 2.13 doesn't compile as a whole, and why. Nothing is promised of these.
REFUSED_BY_TORCH = {
    "vjp_in_place_of_backward": "it doesn't trace a method named vjp",
    "vjp_with_setup_context": "it doesn't trace a method named vjp",
    "classmethods": "it passes ctx where the class is due",
    "overridden_backward": "a backward can't call another one with its ctx",
    "defaults_with_setup_context": "setup_context doesn't see a default that was left out",
    "containers_as_side_channels": "a list that is also in a dict can't leave the graph",
    "apply_overridden": "super().apply isn't traced",
    "marked_dirty_with_setup_context": "a tensor changed in place can't be saved in setup_context",
    "boxed_gradients": "the gradients aren't boxed",
    "boxed_and_cleared": "the gradients aren't boxed",
    "only_a_number_returned": "an output is taken for a tuple",
    "graph_within_backward": "torch.autograd.grad isn't traced by default",
}
COMPILED = [kind for kind in KINDS if kind.name not in REFUSED_BY_TORCH]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    """Start and end without compiled code."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(kind: Kind, base: type, backend: str) -> list[Any]:
    """Return outputs and gradients of the kind, compiled without a graph break."""
    torch._dynamo.reset()
    function = kind.make(base)
    arguments = kind.arguments()

    def call(*inputs: Any) -> Any:
        return kind.call(function, *inputs)

    outputs = outputs_of(torch.compile(call, backend=backend, fullgraph=True)(*arguments))
    seen = [(o.detach().clone(), o.requires_grad, o.dtype, o.stride()) if isinstance(o, Tensor) else o for o in outputs]
    differentiable = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
    if differentiable:
        seen += gradients(differentiable, arguments, accumulate=False)
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", each(COMPILED))
def test_fullgraph_compiles_wherever_torch_does(kind: Kind, backend: str) -> None:
    """F1: compiled as a whole, values and gradients are those of torch's class, compiled in the same way."""
    assert_same(compiled(kind, pullback.Function, backend), compiled(kind, torch.autograd.Function, backend))


@pytest.mark.parametrize("kind", each(kind for kind in KINDS if kind.name in REFUSED_BY_TORCH))
def test_the_rest_is_refused_by_torch(kind: Kind) -> None:
    """Each kind that is left out above really is refused by torch; one that another torch takes, pullback takes too."""
    try:
        expected = compiled(kind, torch.autograd.Function, "eager")
    except Exception:  # whatever torch's tracer runs into
        return
    assert_same(compiled(kind, pullback.Function, "eager"), expected)
    pytest.skip("this torch compiles it")
