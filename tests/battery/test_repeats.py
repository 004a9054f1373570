"""The probe `repeats`: the same call again, twice differentiated, and among other calls."""

import itertools
import random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import repeats
from pullback.battery.samples import Sample
from pullback.finding import Status
from pullback.rules import Severity
from tests.battery.repros import shows_the_fault
from tests.battery.running import Square, leaf, rules, run_probe


def test_a_pure_function_passes() -> None:
    """No state, no finding."""
    outcome, findings = run_probe(repeats.PROBE, Square, (leaf(2),))
    assert outcome.status is Status.PASSED
    assert findings == ()


def test_state_of_the_last_call_is_found_between_forward_and_backward() -> None:
    """Two calls in flight share an attribute of the class: PB504 says in which order it shows."""

    class LastOne(Square):
        stack: ClassVar[list[Tensor]] = []

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            LastOne.stack[:] = [x.detach().clone()]
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * LastOne.stack[0] * g

    _, (finding,) = run_probe(repeats.PROBE, LastOne, (leaf(2),))
    assert finding.rule == "PB504"
    assert "first in, first out" in finding.message


def test_a_stack_that_only_suits_nested_calls_is_found_by_reordering() -> None:
    """Last in, first out works; the other order doesn't."""

    class Stack(Square):
        stack: ClassVar[list[Tensor]] = []

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if ctx.needs_input_grad[0]:
                Stack.stack.append(x.detach().clone())
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * Stack.stack[-1] * g if len(Stack.stack) == 1 else 2 * Stack.stack.pop() * g

    _, findings = run_probe(repeats.PROBE, Stack, (leaf(2),))
    assert "PB504" in rules(findings)


def test_a_shared_buffer_that_the_next_call_overwrites_is_found() -> None:
    """PyTorch's version check raises, which is loud, and still a call that spoils another."""
    buffer = torch.zeros(2, dtype=torch.bool)

    class Shared(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            torch.gt(x, 0.5, out=buffer)
            ctx.save_for_backward(buffer)
            return x * buffer

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (mask,) = ctx.saved_tensors
            return g * mask

    _, (finding,) = run_probe(repeats.PROBE, Shared, (leaf(2),))
    assert finding.rule == "PB504"
    assert "another call came between" in finding.message


def test_an_attribute_that_backward_uses_up_is_a_warning() -> None:
    """A second backward through the same call raises: that is loud, and retain_graph promises otherwise."""

    class UsesUp(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = x.detach().clone()
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            kept = ctx.kept
            del ctx.kept
            return 2 * kept * g

    _, (finding,) = run_probe(repeats.PROBE, UsesUp, (leaf(2),))
    assert (finding.rule, finding.severity) == ("PB125", Severity.WARNING)
    assert "retain_graph=True" in finding.repro


def test_an_attribute_that_backward_changes_is_found() -> None:
    """The second backward through the same call gives another gradient, a fresh call doesn't: PB404."""

    class Scratch(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = x.detach().clone()
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.kept.mul_(g)

    _, (finding,) = run_probe(repeats.PROBE, Scratch, (leaf(2),))
    assert finding.rule == "PB404"


def test_saved_tensors_cleared_on_access_are_not_asked_for_twice() -> None:
    """What the class declares to free is free: a note says that backward wasn't repeated."""

    class Clears(Square):
        clear_saved_tensors_on_access = True

    outcome, findings = run_probe(repeats.PROBE, Clears, (leaf(2),))
    assert findings == ()
    assert any("not repeated" in note for note in outcome.notes)


def raising(bad: Any) -> Any:
    """A square whose backward raises where `bad` says so of the cotangent."""

    class Picky(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            if bad(g):
                raise RuntimeError("no fixed point was found")
            return Square.backward(ctx, g)

    return Picky


def test_a_backward_that_raises_for_some_cotangents_depends_on_no_state() -> None:
    """It raises whenever it is repeated, and for others it doesn't: as where an iteration doesn't converge."""
    given = list[float]()

    def second_of_all(g: Tensor) -> bool:
        given.append(float(g[0]))
        return len(given) > 1 and given[1] == float(g[0])  # the first comes before all probes

    outcome, findings = run_probe(repeats.PROBE, raising(second_of_all), (leaf(2),))
    assert findings == ()
    assert any("backward raises for some cotangents, repeated or not (RuntimeError" in note for note in outcome.notes)


def test_a_backward_that_raises_in_every_other_call_is_found() -> None:
    """PB504: the same call raises once, and then it doesn't."""
    calls = itertools.count()
    _, (finding,) = run_probe(repeats.PROBE, raising(lambda _: next(calls) % 2 == 1), (leaf(2),))
    assert (finding.rule, finding.severity) == ("PB504", Severity.ERROR)
    assert "backward raises when the same call is repeated: RuntimeError" in finding.message


def test_a_backward_that_raises_in_a_lower_dtype_alone_is_no_state() -> None:
    """It takes some cotangents there, and none that is tried here."""
    given = list[float]()

    def another(g: Tensor) -> bool:
        given.extend([float(g[0])] if g.dtype == torch.bfloat16 else [])
        return g.dtype == torch.bfloat16 and given[0] != float(g[0])

    _, findings = run_probe(repeats.PROBE, raising(another), Sample((leaf(2),), vary=("dtype",)))
    assert len(set(given)) > 1
    assert findings == ()


def test_random_forwards_are_repeatable_whatever_generator_they_use() -> None:
    """torch's, Python's and NumPy's generators are seeded before each call, and left as they were."""

    class Noisy(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.scale = random.random() + torch.rand(()).item()
            return ctx.scale * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return ctx.scale * g

    sample = (leaf(2),)
    before = random.getstate(), torch.get_rng_state()
    _, findings = run_probe(repeats.PROBE, Noisy, sample)
    assert findings == ()
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class FactorOnTheClass(Function):
    """The factor of the last call is everybody's."""

    factor: Any = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Any) -> Tensor:
        FactorOnTheClass.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * FactorOnTheClass.factor, None


@pytest.mark.parametrize("factor", [2.0, 0.0, 3, 1, 0, True, False])
def test_a_number_kept_on_the_class_is_found(factor: Any) -> None:
    """The call in between has another one."""
    _, findings = run_probe(repeats.PROBE, FactorOnTheClass, (leaf(3), factor))
    assert rules(findings) == ["PB504"]
    assert "another factor" in findings[0].message


def test_what_only_another_sample_changes_is_found() -> None:
    """Samples are mixed with one another, also where their values are not to be varied."""
    samples = [Sample((leaf(3), torch.nn.Flatten()), vary=()), Sample((leaf(2, 2), torch.nn.Identity()), vary=())]

    class LastShape(Function):
        shape = torch.Size(())

        @staticmethod
        def forward(ctx: Any, x: Tensor, module: Any) -> Tensor:
            LastShape.shape = x.shape
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.expand(LastShape.shape), None

    assert "PB504" in rules(run_probe(repeats.PROBE, LastShape, *samples)[1])
    assert rules(run_probe(repeats.PROBE, LastShape, samples[0])[1]) == []


def test_a_number_that_forward_refuses_is_noted() -> None:
    """It was not the author's."""

    def by_two(x: Tensor, by: int) -> Tensor:
        if by != 2:
            raise ValueError("only 2")
        return x * by

    outcome, findings = run_probe(repeats.PROBE, by_two, (leaf(3), 2))
    assert findings == ()
    assert any("refused: another by" in note for note in outcome.notes)


class MaskOnTheClass(Function):
    """The gradient passes where x is more than its mean; the mask is that of the latest call."""

    mask = torch.zeros(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        MaskOnTheClass.mask = x.detach() > x.mean()
        return x * MaskOnTheClass.mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * MaskOnTheClass.mask


def test_a_mask_on_the_class_is_found() -> None:
    """Larger numbers alone would have the same mask, so the other call has them in another order."""
    _, findings = run_probe(repeats.PROBE, MaskOnTheClass, (leaf(5),))
    assert rules(findings) == ["PB504"]
    assert shows_the_fault(findings[0], MaskOnTheClass=MaskOnTheClass)


class OfSymmetric(Function):
    """x + xᵀ over 2 for symmetric matrices, and an error for others; the scale is kept on the class."""

    scale = torch.zeros(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not torch.equal(x, x.t()):
            raise ValueError("not symmetric")
        OfSymmetric.scale = x.detach().norm()
        return x * OfSymmetric.scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * OfSymmetric.scale


def test_where_forward_wants_an_order_the_other_call_keeps_it() -> None:
    """What forward refuses isn't tried on it; larger numbers are."""
    x = torch.tensor([[1.0, 2.0], [2.0, 5.0]], dtype=torch.float64, requires_grad=True)
    _, findings = run_probe(repeats.PROBE, OfSymmetric, (x,))
    assert rules(findings) == ["PB504"]


class Dropout(Function):
    """A mask of the last call, kept on the class."""

    mask: ClassVar[Any] = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Dropout.mask = (torch.rand_like(x) < 0.5).to(x)
        return x * Dropout.mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * Dropout.mask


class DropoutOnCtx(Function):
    """The same, mended."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask = (torch.rand_like(x) < 0.5).to(x)
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.mask


def test_a_call_that_draws_is_mixed_with_one_that_draws_otherwise() -> None:
    """From one seed both calls would have the same mask; and the lines pass once it is kept on ctx."""
    _, (finding,) = run_probe(repeats.PROBE, Dropout, (leaf(4, 6),))
    assert (finding.rule, "other random numbers" in finding.message) == ("PB504", True)
    assert shows_the_fault(finding, Dropout=Dropout)
    mended = finding.repro.replace(f"from {__name__} import Dropout", "")
    assert "Dropout.apply" in mended
    exec(mended, {"Dropout": DropoutOnCtx})
    assert run_probe(repeats.PROBE, DropoutOnCtx, (leaf(4, 6),))[1] == ()


@pytest.mark.parametrize("made", [lambda: torch.Generator().manual_seed(3), lambda: np.random.default_rng(3)])
@pytest.mark.parametrize("remembers", [False, True])
def test_a_generator_among_the_arguments_begins_anew_at_each_call(made: Any, remembers: bool) -> None:
    """As the global ones do; what else moves from call to call is found."""
    calls: list[int] = []

    class Dropout(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, generator: Any) -> Tensor:
            if isinstance(generator, torch.Generator):
                keep = torch.rand(x.shape, generator=generator) > 0.5
            else:
                keep = torch.from_numpy(generator.random(tuple(x.shape)) > 0.5)
            ctx.save_for_backward(keep)
            calls.append(1)
            return x * keep * (1 + remembers * len(calls))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0], None

    _, findings = run_probe(repeats.PROBE, Dropout, (leaf(12), made()))
    assert bool(findings) == remembers
