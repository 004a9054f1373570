"""The probe `hidden`: tensors in containers and modules, in returned containers, and captured ones."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from pullback.battery.probes import hidden
from pullback.finding import Status
from tests.battery.running import leaf, rules, run_probe

WEIGHT = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
CONSTANT = torch.tensor([2.0, 3.0], dtype=torch.float64)


class Doubled(Function):
    """2x, for subclasses that hide something."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return 2 * g[0]


class Nested(Function):
    """The sum of what is in a container, which PyTorch takes for one opaque argument."""

    @staticmethod
    def forward(ctx: Any, xs: Any) -> Tensor:
        return sum(xs.values() if isinstance(xs, dict) else xs, torch.zeros((), dtype=torch.float64))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


@pytest.mark.parametrize("container", [[leaf(2), leaf(2)], (leaf(2),), {"a": leaf(2)}])
def test_a_container_is_named_with_the_tensor_in_it(container: object) -> None:
    """PB501 for lists, tuples and dicts: once for each argument, naming a tensor in it."""
    _, findings = run_probe(hidden.PROBE, Nested, (container,))
    assert rules(findings) == ["PB501"]
    assert findings[0].evidence["argument"] == "xs"
    assert "xs[" in findings[0].message


def test_a_container_that_does_not_matter_is_left_alone() -> None:
    """The result doesn't vary with what is in it."""

    class Ignores(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, options: list[Tensor]) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *g: Any) -> Any:
            return 2 * g[0], None

    _, findings = run_probe(hidden.PROBE, Ignores, (leaf(2), [leaf(2)]))
    assert findings == ()


def test_parameters_of_a_module_argument_are_hidden_and_stay_as_they_are() -> None:
    """PB501 for the module; neither its values nor its flags are changed by the experiment."""

    class Layer(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
            return x @ layer.weight.detach()

        @staticmethod
        def backward(ctx: Any, *g: Any) -> Any:
            return g[0], None

    layer = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    before = layer.weight.detach().clone()
    _, findings = run_probe(hidden.PROBE, Layer, (leaf(2), layer))
    assert rules(findings) == ["PB501"]
    assert "layer.weight" in findings[0].message
    assert torch.equal(layer.weight, before)
    assert layer.weight.requires_grad


@pytest.mark.parametrize("kind", [list, lambda items: {"out": items[0]}])
def test_a_returned_container_is_found(kind: Any) -> None:
    """PB502 for lists and dicts."""

    class Returns(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return kind([2 * x])

    _, findings = run_probe(hidden.PROBE, Returns, (leaf(2),))
    assert rules(findings) == ["PB502"]
    assert "requires_grad is False" in findings[0].got


def test_a_returned_tuple_and_a_list_of_constants_are_fine() -> None:
    """PyTorch tracks a tuple; and what doesn't vary with the arguments has no gradient."""

    class Returns(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return 2 * x, [CONSTANT.clone()]

    _, findings = run_probe(hidden.PROBE, Returns, (leaf(2),))
    assert findings == ()


def test_a_captured_global_is_named() -> None:
    """PB503 with the name by which forward knows the tensor."""

    class Captures(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * WEIGHT

    _, (finding,) = run_probe(hidden.PROBE, Captures, (leaf(2),))
    assert finding.rule == "PB503"
    assert "WEIGHT" in finding.message


def test_captures_by_closure_default_and_module_are_found() -> None:
    """However the tensor gets into forward, it is found and named."""
    weight, layer = leaf(2), nn.Linear(2, 2, dtype=torch.float64)

    class Closure(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * weight

    class Default(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: Tensor = weight) -> Tensor:
            return x * scale

    class Module(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            result: Tensor = layer(x)
            return result

    names = {}
    for function in (Closure, Default, Module):
        _, findings = run_probe(hidden.PROBE, function, (leaf(2),))
        assert set(rules(findings)) == {"PB503"}
        names[function.__name__] = [finding.where.split(", ")[0] for finding in findings]
    assert names["Closure"] == ["weight"]
    assert names["Default"] == ["default 0"]
    assert sorted(names["Module"]) == ["layer.bias", "layer.weight"]


def test_what_is_cut_off_on_purpose_or_made_inside_is_no_capture() -> None:
    """A constant, a detached parameter, and a graph that forward builds for itself."""

    class Honest(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                value = (inner * CONSTANT * WEIGHT.detach()).sin()
            return value.detach() if WEIGHT.requires_grad and WEIGHT.shape else value

    _, findings = run_probe(hidden.PROBE, Honest, (leaf(2),))
    assert findings == ()


def test_plain_code_may_capture_what_it_likes() -> None:
    """Autograd sees all of it: skipped with a reason."""
    outcome, _ = run_probe(hidden.PROBE, lambda x: x * WEIGHT, (leaf(2),))
    assert outcome.status is Status.SKIPPED
