"""The probe `jacobian`: a batch of cotangents gives what a loop over them gives."""

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.check import check, make_subject
from pullback.battery.cotangents import Watched, pulled
from pullback.battery.probes import jacobian
from pullback.battery.subject import BackwardRaised
from pullback.finding import Finding, Status
from pullback.rules import Severity
from tests.battery.repros import shown, shows_the_fault
from tests.battery.running import leaf, run_probe


class Cube(Function):
    """x³."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * g


def cube(made: Any) -> type[Function]:
    """Cube, whose gradient is what `made` makes of the right one."""

    class Other(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return made(Cube.backward(ctx, g))

    return Other


def the_finding(function: Any, *samples: Any) -> Finding:
    """The one finding of the probe."""
    _, (finding,) = run_probe(jacobian.PROBE, function, *samples)
    return finding


@pytest.mark.parametrize("function", [Cube, torch.sin, lambda x, y: (x * y, x.sum(), y.exp())])
def test_what_can_be_batched_passes(function: Any) -> None:
    """Of one output or several, by a Function or by PyTorch."""
    arguments = (leaf(3, 2), leaf(3, 2))[: 1 if function in (Cube, torch.sin) else 2]
    outcome, findings = run_probe(jacobian.PROBE, function, arguments)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_a_cached_gradient_is_another_for_a_batch() -> None:
    """PB509 where backward looks at the values of grad_output without looking at each: a norm that it keeps."""

    class Summed(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            plain = ctx.saved_tensors[0].new_zeros(g.shape) + g.sum() / g.numel()
            return Cube.backward(ctx, g if _is_plain(g) else plain)

    finding = the_finding(Summed, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.ERROR)
    assert finding.message == (
        "the gradient of x for a batch of cotangents (is_grads_batched=True) differs from that of a loop"
    )
    assert shows_the_fault(finding, Summed=Summed)


def _is_plain(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize(
    ("name", "made", "remedy"),
    [
        ("detach", lambda g: g.detach(), "Leave detach out"),
        ("flatten", lambda g: g.flatten().view(g.shape), "Write reshape in place of flatten."),
        ("flatten", lambda g: torch.flatten(g, 0, -1).view(g.shape), "Write reshape in place of flatten."),
        ("unflatten", lambda g: g.unflatten(-1, (2, 1)).view(g.shape), "Write reshape in place of unflatten."),
        ("swapaxes", lambda g: g.swapaxes(0, 1).transpose(0, 1), "Write transpose in place of swapaxes."),
    ],
)
def test_an_operator_that_needs_not_be_there_is_named(name: str, made: Any, remedy: str) -> None:
    """The same numbers come for a batch by another operator, which the remedy names; only detach hides a graph too."""
    function = cube(made)
    finding = the_finding(function, (leaf(3, 2),))
    severity = Severity.WARNING if name == "detach" else Severity.HINT
    assert (finding.rule, finding.severity) == ("PB509", severity)
    assert finding.message.startswith(f"backward calls {name} on grad_output or what it makes of it, which PyTorch")
    assert finding.remedy.startswith(remedy)
    assert "Batching rule not implemented" in shown(finding, Other=function)


@pytest.mark.parametrize(
    "made",
    [
        lambda g: torch.from_numpy(g.detach().numpy() * 1.0),
        lambda g: torch.einsum("ij->ij", g),
    ],
)
def test_what_nobody_batches_is_noted(made: Any) -> None:
    """NumPy and operators without a batched form are limits of PyTorch: no finding."""
    outcome, findings = run_probe(jacobian.PROBE, cube(made), (leaf(3, 2),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert outcome.reason.startswith("refused: sample 0: 2 cotangents at once: RuntimeError: ")


@pytest.mark.parametrize(
    ("made", "how"),
    [
        (lambda g: g * g.sum().item() / g.sum(), "item()"),
        (lambda g: g if g.any() else g * 0, "bool()"),
        (lambda g: g * float(g.sum()) / g.sum(), "float()"),
        (lambda g: g if torch.equal(g, g) else g * 0, "equal()"),
        (lambda g: g.reshape(-1)[g.reshape(-1) != 0].reshape(3, 2), "a mask in brackets"),
    ],
)
def test_a_question_about_the_values_of_grad_output_is_found(made: Any, how: str) -> None:
    """PB509 as a warning: right one by one, and an error for a batch; with what asks, the line, and what to do."""
    function = cube(made)
    finding = the_finding(function, (leaf(3, 2),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.WARNING)
    assert finding.message.startswith(f"backward asks for a value of grad_output, by {how} (")
    assert "test_jacobian.py:" in finding.message
    assert finding.remedy.startswith("Decide nothing by the values of grad_output, but compute: torch.where")
    assert "RuntimeError" in shown(finding, Other=function)


def iterated(g: Tensor) -> Tensor:
    """g, found by halving the distance until nothing changes."""
    found = torch.zeros_like(g)
    for _ in range(100):
        new = (found + g) / 2
        if torch.allclose(new, found, rtol=0, atol=1e-15):
            break
        found = new
    return found


def beside_a_loop(g: Tensor) -> Tensor:
    """g, after a loop that asks nothing."""
    for _ in range(2):
        g = 2 * g / 2
    return g if g.any() else g * 0


def test_an_iteration_that_asks_whether_it_has_converged_is_a_hint() -> None:
    """No shortcut: it has to stop somewhere, and PyTorch refuses a batch loudly."""
    function = cube(iterated)
    finding = the_finding(function, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.HINT)
    assert "by allclose() (" in finding.message
    assert "converged" in finding.remedy
    assert "shortcut" not in finding.remedy
    assert "RuntimeError" in shown(finding, Other=function)


def test_a_question_beside_a_loop_is_a_warning() -> None:
    """It could be left out."""
    finding = the_finding(cube(beside_a_loop), (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.WARNING)


def test_values_that_are_listed_for_people_are_noted() -> None:
    """What is written down decides nothing, and a batch is refused aloud: a note, and no finding."""
    noted: list[Any] = []

    def listed(g: Tensor) -> Tensor:
        noted.append(g.tolist())
        return g

    outcome, findings = run_probe(jacobian.PROBE, cube(listed), (leaf(3),))
    assert findings == ()
    assert "2 cotangents at once: backward lists the values of grad_output (" in str(outcome)


def test_a_question_about_what_was_saved_is_none() -> None:
    """The values of an argument are there for a batch of cotangents too."""

    class Asks(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g if x.any() else g * x

    outcome, findings = run_probe(jacobian.PROBE, Asks, (leaf(3),))
    assert (outcome.status, findings) == (Status.PASSED, ())


def test_a_question_by_a_backward_that_draws_is_found_too() -> None:
    """Its numbers can't be compared with those of a loop, and it raises all the same."""

    class Draws(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            asked = Cube.backward(ctx, g) if g.any() else g * 0
            return asked + 0 * torch.rand(())

    finding = the_finding(Draws, (leaf(3),))
    assert finding.message.startswith("backward asks for a value of grad_output, by bool() (")


def test_a_batch_is_tried_in_lower_dtypes() -> None:
    """PB509, by the dtype: wrong for a batch in bfloat16, an error for one in float16, and right in float64."""

    def wrong(g: Tensor) -> Tensor:
        return g * 2 if g.dtype is torch.bfloat16 and not _is_plain(g) else g

    def raising(g: Tensor) -> Tensor:
        return g.reshape(7) if g.dtype is torch.float16 and not _is_plain(g) else g

    finding = the_finding(cube(wrong), (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.ERROR)
    assert finding.where == "argument x, 2 cotangents at once, sample 0 in bfloat16"
    function = cube(raising)
    finding = the_finding(function, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.WARNING)
    assert finding.message.startswith(
        "backward raises for a batch of cotangents in float16, and not in float64, nor one by one: RuntimeError"
    )
    assert "shape '[2, 7]' is invalid" in shown(finding, Other=function)


def test_data_of_a_batch_is_found_and_doesnt_end_the_process() -> None:
    """PB509 as an error; without the watch the next line wouldn't be reached."""
    function = cube(lambda g: g.data)
    finding = the_finding(function, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.ERROR)
    assert finding.message == (
        "backward reads .data of a batch of cotangents: torch.autograd.grad(is_grads_batched=True) then ends the "
        "process"
    )
    assert "accessing `data` under vmap transform is not allowed" in shown(finding, Other=function)


def test_data_of_a_saved_tensor_is_no_matter() -> None:
    """It isn't batched, and has its own memory."""

    class SavedData(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 3 * ctx.saved_tensors[0].data ** 2 * g

    assert run_probe(jacobian.PROBE, SavedData, (leaf(3),))[1] == ()


def test_detach_is_no_fault_where_nobody_differentiates_backward() -> None:
    """Beside a double_backward, or once_differentiable, a gradient is cut off on purpose, as a kernel's is: a note."""

    class Opaque(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Cube.backward(ctx, g).detach()

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Any:
            return 6 * ctx.saved_tensors[0] * gg

    class Once(Cube):
        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return Cube.backward(ctx, g).detach()

    for function in (Opaque, Once):
        outcome, findings = run_probe(jacobian.PROBE, function, (leaf(3),))
        assert (outcome.status, findings) == (Status.SKIPPED, ())
        assert outcome.reason.endswith("its own derivative is written by hand, or ruled out")


@pytest.mark.parametrize("made", [lambda g: g.detach(), lambda g: g.data])
def test_one_cause_is_told_once(made: Any) -> None:
    """Where the graph is lost by it, PB207 alone tells of detach and .data; the other probe notes that."""
    report = check(cube(made), (leaf(3),), only=("second_order", "jacobian"))
    assert [finding.rule for finding in report.findings] == ["PB207"]
    assert report.outcomes["jacobian"].reason.startswith("sample 0: backward ")
    assert "PB207 tells" in report.outcomes["jacobian"].reason


def test_a_nonlinear_backward_has_no_jacobian() -> None:
    """It is skipped with that reason."""

    class Clipped(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clamp(-1, 1)

    outcome, _ = run_probe(jacobian.PROBE, Clipped, (leaf(3),))
    assert outcome.reason == "backward is declared not to be linear, so that there is no Jacobian"


def test_a_nonlinear_backward_asks_for_values_where_its_author_can_say_it_without() -> None:
    """A batch is tried where expected_backward takes one: a shortcut is found, and what isn't one passes."""

    class Clipped(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clamp(-1, 1)

        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grads: Any) -> Any:
            return grads[0].clamp(-1, 1)

    class Shortcut(Clipped):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.clamp(-1, 1) if g.abs().max() > 1 else g

    class SaysItSo(Shortcut):
        @staticmethod
        def expected_backward(inputs: Any, outputs: Any, grads: Any) -> Any:
            return Shortcut.backward(None, *grads)

    outcome, findings = run_probe(jacobian.PROBE, Clipped, (leaf(3),))
    assert (outcome.status, findings) == (Status.PASSED, ())
    finding = the_finding(Shortcut, (leaf(3),))
    assert (finding.rule, finding.severity, finding.evidence["asked"]) == ("PB509", Severity.WARNING, "bool()")
    assert run_probe(jacobian.PROBE, SaysItSo, (leaf(3),))[1] == ()


def test_a_watch_is_over_once_backward_has_raised() -> None:
    """Whatever ended backward, no mode is left behind."""

    class Raises(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            raise RuntimeError("no")

    subject = make_subject(Raises, (leaf(3),))
    (case,) = subject.all_cases
    inputs, watched = subject.fresh(case), Watched()
    outputs = subject.call(inputs)
    with pytest.raises(BackwardRaised):
        pulled(subject, outputs, [torch.ones(2, 3, dtype=torch.float64)], inputs.varying, watched)
    before = watched.calls
    torch.ones(1)
    assert watched.calls == before


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda g: g if g.data_ptr() % 16 == 0 else g.clone(), "data_ptr"),
        (lambda g: g if g.data_ptr() > 0 else g.clone(), "data_ptr"),
        (lambda g: g if g.untyped_storage().nbytes() >= g.numel() * g.element_size() else g.clone(), "untyped_storage"),
        (lambda g: g if len(g.untyped_storage()) and g.untyped_storage().data_ptr() else g.clone(), "untyped_storage"),
    ],
)
def test_an_address_that_is_only_looked_at_is_found(made: Any, name: str) -> None:
    """PB509 as a warning: a batch lies nowhere, and nothing of the gradient is computed from the address."""
    finding = the_finding(cube(made), (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.WARNING)
    assert finding.message.startswith(f"backward calls {name} on grad_output or what it makes of it, which PyTorch")
    assert finding.remedy.startswith("Don't ask where a gradient lies")


def test_an_address_that_a_kernel_gets_is_a_refusal() -> None:
    """What reads memory by its address takes no batch; it gets none in the place of one, and isn't run."""

    def by_a_kernel(g: Tensor) -> Tensor:
        first = ctypes.c_double.from_address(g.data_ptr())
        return g * 1.0 if first.value else g

    outcome, findings = run_probe(jacobian.PROBE, cube(by_a_kernel), (leaf(3),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert "Cannot access data pointer" in outcome.reason


def test_a_buffer_without_room_for_a_batch_is_found() -> None:
    """PB509, as a hint where nobody said that there can be batches: a batch is written into what holds one entry."""
    function = cube(lambda g: torch.zeros(g.shape, dtype=g.dtype).copy_(g))
    claiming = type("Claiming", (function,), {"generate_vmap_rule": True})
    assert the_finding(claiming, (leaf(3),)).severity is Severity.WARNING
    ours = type(
        "Ours",
        (pullback.Function,),
        {"forward": staticmethod(function.forward), "backward": staticmethod(function.backward)},
    )
    assert the_finding(ours, (leaf(3),)).severity is Severity.WARNING  # of which torch.func takes every one
    finding = the_finding(function, (leaf(3),))
    assert (finding.rule, finding.severity) == ("PB509", Severity.HINT)
    assert finding.message.startswith(
        "backward writes what it makes of grad_output, by copy_, into a tensor that isn't made of it ("
    )
    assert "grad_output.new_zeros(...)" in finding.remedy
    assert "is not possible because there exists a Tensor" in shown(finding, Other=function)
    assert run_probe(jacobian.PROBE, cube(lambda g: g.new_zeros(g.shape).copy_(g)), (leaf(3),))[1] == ()
