"""A result doesn't depend on who asks for it, on an earlier backward, nor does a call set things for everybody."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import repeats
from pullback.finding import Finding
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


def made(forward: Any = None, backward: Any = None) -> type[Function]:
    """x³, whose value and gradient are what `forward` and `backward` make of ctx, what came, and the right ones."""

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3 if forward is None else forward(ctx, x, x**3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            right = 3 * ctx.saved_tensors[0] ** 2 * g
            return right if backward is None else backward(ctx, g, right)

    return Cube


def the_finding(function: type[Function], *samples: Any) -> Finding:
    """The one finding of the probe, whose lines show the fault."""
    _, (finding,) = run_probe(repeats.PROBE, function, *(samples or ((leaf(3),),)))
    assert finding.rule == "PB504"
    assert shows_the_fault(finding, Cube=function)
    return finding


def test_a_plain_function_passes() -> None:
    """Whatever is asked of it."""
    assert run_probe(repeats.PROBE, made(), (leaf(3),))[1] == ()


@pytest.mark.parametrize(
    ("asks", "when"),
    [
        (lambda x: not x.requires_grad, "no argument requires grad"),
        (lambda x: x.requires_grad and not torch.is_grad_enabled() and _outside(), "it runs under torch.no_grad()"),
        (lambda x: torch.is_inference_mode_enabled(), "it runs under torch.inference_mode()"),
    ],
)
def test_another_value_where_nobody_differentiates_is_found(asks: Any, when: str) -> None:
    """A shortcut for inference that gives other numbers; named by what switches it on."""
    function = made(lambda ctx, x, y: y + 1 if asks(ctx.given if hasattr(ctx, "given") else x) else y)
    if "no_grad" in when:  # forward always runs without grad mode: what is asked is what the caller has on
        function = _by_the_caller()
    assert the_finding(function).message == f"the value is another one when {when}"


def _outside() -> bool:
    return True


def _by_the_caller() -> type[Function]:
    """Looks at the caller's grad mode, as an `apply` of one's own may."""

    class Cube(made()):
        @classmethod
        def apply(cls, x: Tensor) -> Any:
            return super().apply(x) + (0 if torch.is_grad_enabled() or not x.requires_grad else 1)

    return Cube


@pytest.mark.parametrize(
    ("asks", "when"),
    [
        (lambda x: isinstance(x, torch.nn.Parameter), "arguments are parameters of a module"),
        (lambda x: not x.is_leaf, "arguments are results of other operations"),
    ],
)
def test_another_gradient_for_another_kind_of_argument_is_found(asks: Any, when: str) -> None:
    """Both are what real arguments are, and leaves that are no parameters what tests pass."""

    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.twice = asks(x)
        return y

    finding = the_finding(made(forward, lambda ctx, _, right: right * 2 if ctx.twice else right))
    assert finding.message == f"the gradient is another one when {when}"


def test_a_gradient_made_under_inference_mode_is_found() -> None:
    """An optimiser's clip in place raises on it."""

    class Cube(made()):  # type: ignore[misc]  # made by a function
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.inference_mode(not torch.is_grad_enabled()):
                return 3 * x**2 * g

    finding = the_finding(Cube)
    assert finding.message.startswith("the gradient of x is an inference tensor")


def test_an_output_made_under_inference_mode_is_found() -> None:
    """Where nobody differentiates: what is made of it later can't be differentiated either."""

    class Cube(made()):  # type: ignore[misc]  # made by a function
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with torch.inference_mode(not ctx.needs_input_grad[0]):
                return x**3

    finding = the_finding(Cube)
    assert finding.message.startswith("output, when no argument requires grad, is an inference tensor")


def test_what_raises_under_inference_mode_is_found() -> None:
    """An error of its own."""

    def forward(_: Any, __: Tensor, y: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            raise ValueError("not for inference")
        return y

    finding = the_finding(made(forward))
    assert finding.message == "forward raises when it runs under torch.inference_mode(): ValueError: not for inference"


def test_what_tensors_lack_under_inference_mode_is_pytorchs_matter() -> None:
    """Such as a version counter."""
    assert run_probe(repeats.PROBE, made(lambda ctx, x, y: y + 0 * x._version), (leaf(3),))[1] == ()


def test_an_answer_kept_for_the_next_backward_is_found() -> None:
    """The first gradient, kept on ctx, whatever comes the second time."""

    def backward(ctx: Any, _: Tensor, right: Tensor) -> Tensor:
        ctx.kept = getattr(ctx, "kept", right)
        return ctx.kept

    finding = the_finding(made(None, backward))
    assert finding.message == (
        "a later backward through one call, along another grad_output, gives another gradient, and not by itself"
    )


def test_a_gradient_in_memory_that_is_used_again_is_found() -> None:
    """The next backward overwrites it in the hands of whoever has it."""

    def backward(ctx: Any, _: Tensor, right: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return right
        if not hasattr(ctx, "room") or ctx.room.shape != right.shape:
            ctx.room = torch.empty_like(right)
        return ctx.room.copy_(right)

    finding = the_finding(made(None, backward))
    assert finding.message == "a gradient changes when backward runs again: both lie in the same memory"


def test_a_gradient_kept_for_the_same_cotangent_is_found_where_that_is_changed() -> None:
    """The tensor is the same, and what it holds isn't."""

    def backward(ctx: Any, g: Tensor, right: Tensor) -> Tensor:
        if torch.is_grad_enabled() or getattr(ctx, "came", None) is not g:
            ctx.came, ctx.found = g, right
        return ctx.found

    finding = the_finding(made(None, backward))
    assert "along the grad_output of the first, changed in place" in finding.message


def test_a_third_backward_after_create_graph_is_tried() -> None:
    """What a backward with create_graph=True leaves behind."""

    def backward(ctx: Any, _: Tensor, right: Tensor) -> Tensor:
        ctx.spent = getattr(ctx, "spent", False) or torch.is_grad_enabled()
        return right * 2 if ctx.spent and not torch.is_grad_enabled() else right

    finding = the_finding(made(None, backward))
    assert "after one with create_graph=True, gives another gradient" in finding.message


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        (lambda: torch.set_float32_matmul_precision("medium"), "torch.get_float32_matmul_precision()"),
        (lambda: torch.use_deterministic_algorithms(True), "torch.are_deterministic_algorithms_enabled()"),
        (lambda: torch.set_default_dtype(torch.float64), "torch.get_default_dtype()"),
    ],
)
def test_a_setting_of_the_process_that_is_left_changed_is_found_and_put_back(change: Any, setting: str) -> None:
    """Named by the code that asks for it."""

    def backward(_: Any, __: Tensor, right: Tensor) -> Tensor:
        change()
        return right

    before = (torch.get_default_dtype(), torch.get_float32_matmul_precision())
    try:
        _, (finding,) = run_probe(repeats.PROBE, made(None, backward), (leaf(3),))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert finding.message == (
        f"a call and its backward leave {setting} changed, for all that the process does from then on"
    )
    assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == before


def test_a_value_in_memory_that_the_next_call_uses_is_found() -> None:
    """The next call overwrites it in the hands of whoever has it."""
    rooms: dict[Any, Tensor] = {}

    def forward(_: Any, __: Tensor, y: Tensor) -> Tensor:
        return rooms.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y).detach()

    _, (finding,) = run_probe(repeats.PROBE, made(forward), (leaf(3),))
    assert (finding.rule, finding.message) == (
        "PB504",
        "a value changes when the function is called again: both lie in the same memory",
    )


def added_to_its_grad(_: Any, x: Tensor, right: Tensor) -> Tensor:
    """The engine adds: a backward that does too adds twice."""
    return right if x.grad is None else right + x.grad.detach()


def added_there(_: Any, x: Tensor, right: Tensor) -> Tensor | None:
    """A fused addition, for which nothing is returned: who asks torch.autograd.grad for the gradient gets none."""
    if x.grad is None:
        return right
    x.grad.add_(right.detach())
    return None


@pytest.mark.parametrize("adds", [added_to_its_grad, added_there])
def test_what_goes_by_the_gradient_that_lies_there_is_found(adds: Any) -> None:
    """The gradient is the same whatever an argument's .grad holds."""
    function = made(None, lambda ctx, _, right: adds(ctx, ctx.saved_tensors[0], right))
    finding = the_finding(function)
    assert finding.message == (
        "the gradient is another one when arguments hold a .grad already, as where gradients are added up"
    )


def test_what_adds_twice_to_a_leaf_that_is_no_parameter_is_found() -> None:
    """By two backwards: where a .grad lies there already, parameters are tried."""

    def backward(ctx: Any, _: Tensor, right: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return right if isinstance(x, torch.nn.Parameter) else added_to_its_grad(ctx, x, right)

    finding = the_finding(made(None, backward))
    assert finding.message == "two backwards leave on .grad another sum than that of their gradients"


def test_a_result_of_another_operation_that_is_written_to_is_found() -> None:
    """Memory is saved where x is no leaf, though whoever made it may need it, or others: PB402."""

    def forward(_: Any, x: Tensor, y: Tensor) -> Tensor:
        if not x.is_leaf:
            x.data.copy_(y)
        return y

    class Cube(made(forward)):  # type: ignore[misc]  # made by a function
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    _, (finding,) = run_probe(repeats.PROBE, Cube, (leaf(3),))
    assert (finding.rule, finding.message) == (
        "PB402",
        "forward changes x in place when arguments are results of other operations, and otherwise it doesn't",
    )
    assert shows_the_fault(finding, Cube=Cube)


def test_a_call_that_raises_when_it_is_repeated_is_found() -> None:
    """As it would be passed over by each probe that calls it."""
    runs: list[int] = []

    def forward(_: Any, __: Tensor, y: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) > 3:
            raise ValueError("worn out")
        return y

    _, (finding,) = run_probe(repeats.PROBE, made(forward), (leaf(3),))
    assert (finding.rule, finding.message) == (
        "PB504",
        "forward raises when the same call is repeated: ValueError: worn out",
    )


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_forward_that_differentiates_may_need_a_graph(elsewhere: bool) -> None:
    """Under inference_mode PyTorch has none, and says so; an error of another kind is found."""

    def slope(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        if elsewhere and torch.is_inference_mode_enabled():
            raise RuntimeError("not here")
        with torch.enable_grad():
            leaf_of = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((leaf_of**4).sum() / 4, leaf_of)
        return found.detach()

    _, findings = run_probe(repeats.PROBE, made(slope), (leaf(3),))
    assert [finding.rule for finding in findings] == (["PB504"] if elsewhere else [])
