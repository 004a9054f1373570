"""The probe `state`: caches and tables outside the call, full and empty."""

import functools
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import check
from pullback.battery.probes import state
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe

_means: dict[int, float] = {}
_ramps: dict[int, Tensor] = {}
_masks: dict[int, Tensor] = {}
_table = {"gain": 3.0}
_eyes: dict[int, Tensor] = {}


class Linear(Function):
    """2x, for subclasses with a memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Stale(Linear):
    """A mean that is cached by size alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x + _means.setdefault(x.numel(), float(x.detach().mean()))


class Fresh(Linear):
    """A cache of what depends on its key alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x + _ramps.setdefault(x.numel(), torch.arange(x.numel(), dtype=x.dtype))


class FromTable(Linear):
    """A table that calls read, and never fill."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x + _table.get("gain", 0.0)


@functools.lru_cache
def _remembered(size: int, _seen: list[float] | None = None) -> list[float]:
    return []


class Memoised(Linear):
    """A memoising helper whose result is filled in by the first caller."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        memory = _remembered(x.numel())
        if not memory:
            memory.append(float(x.detach().sum()))
        return 2 * x + memory[0]


class StaleMask(Linear):
    """A mask that is cached by size alone: of numbers that all lie on one side it is the same for larger ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * _masks.setdefault(x.numel(), (x.detach() > 0.5))


def test_a_cached_mask_is_found() -> None:
    """The call on other values has some that are so much smaller that the mask is another one."""
    _, (finding,) = run_probe(state.PROBE, StaleMask, (leaf(4).detach().add(0.3).requires_grad_(),))
    assert "_masks" in finding.where
    assert shows_the_fault(finding, StaleMask=StaleMask)


def test_a_stale_cache_is_found_and_named() -> None:
    """PB504 names the container, and what the value is with the container empty."""
    _, (finding,) = run_probe(state.PROBE, Stale, (leaf(3),))
    assert finding.rule == "PB504"
    assert "_means" in finding.where
    assert "with _means empty" in finding.expected


def test_a_cache_that_was_filled_before_is_found_and_put_back() -> None:
    """The probe sees through a warm cache, and leaves its contents as they were."""
    _means.clear()
    Stale.apply(leaf(3))
    before = dict(_means)
    _, findings = run_probe(state.PROBE, Stale, (leaf(3),))
    assert [finding.rule for finding in findings] == ["PB504"]
    assert before.items() <= _means.items()


def test_a_cache_of_constants_passes() -> None:
    """What is remembered depends on the key alone."""
    outcome, findings = run_probe(state.PROBE, Fresh, (leaf(3),))
    assert findings == ()
    assert outcome.status is Status.PASSED


def test_a_table_is_no_memory() -> None:
    """Emptied, it changes the result; but no call filled it, so it is a constant."""
    _, findings = run_probe(state.PROBE, FromTable, (leaf(3),))
    assert findings == ()
    assert _table == {"gain": 3.0}


def test_a_memoising_helper_is_within_reach() -> None:
    """functools.lru_cache is emptied too."""
    _, (finding,) = run_probe(state.PROBE, Memoised, (leaf(3),))
    assert finding.rule == "PB504"
    assert "_remembered" in finding.where


def test_without_state_it_is_skipped_with_a_reason() -> None:
    """Nothing outside is within reach: said, not passed."""
    outcome, _ = run_probe(state.PROBE, Linear, (leaf(3),))
    assert outcome.status is Status.SKIPPED
    assert outcome.reason == "no container, memoising function or variable outside the call is within reach"


class EyeBySize(Linear):
    """A matrix that is cached by size alone, and is read in backward: right where nothing else was called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.eye = _eyes.setdefault(len(x), torch.eye(len(x), dtype=x.dtype))
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * (ctx.eye @ g)


class EyeOnce(Linear):
    """The same, as an attribute that the first call makes."""

    eye: ClassVar[Any] = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if EyeOnce.eye is None:
            EyeOnce.eye = torch.eye(len(x), dtype=x.dtype)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * (EyeOnce.eye @ g)


_eye: Any = None
_eye_made, _counted = False, 0
_table_of_ones = torch.ones(3, 3, dtype=torch.float64)


class EyeOfModule(Linear):
    """The same, as a global."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _eye
        if _eye is None:
            _eye = torch.eye(len(x), dtype=x.dtype)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * (_eye @ g)


_scale = 0.0
_scale_is_known = False


class Scaled(Linear):
    """A number that the first call measures, beside a flag that says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _scale, _scale_is_known
        if not _scale_is_known:
            _scale, _scale_is_known = float(x.detach().mean()), True
        return 2 * x + _scale


class _Memory:
    """An object that keeps what it made."""

    def __init__(self) -> None:
        self.ramp: Any = None
        self.means: dict[int, float] = {}


_memory = _Memory()


class ByObject(Linear):
    """A tensor that an object keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if _memory.ramp is None:
            _memory.ramp = x.detach().clone()
        return 2 * x + _memory.ramp.sum()


class ByTable(Linear):
    """A table that an object keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x + _memory.means.setdefault(x.numel(), float(x.detach().mean()))


class Attached(Linear):
    """An attribute that isn't there before the first call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not hasattr(Attached, "shift"):
            Attached.shift = float(x.detach().mean())
        return 2 * x + Attached.shift


def _shift(x: Tensor) -> Any:
    if getattr(_shift, "known", None) is None:
        _shift.known = x.detach().mean()
    return _shift.known


class ByHelper(Linear):
    """An attribute of a helper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x + _shift(x)


def enclosed() -> type[Function]:
    """A class whose closure is the memory."""
    first: Any = None

    class Enclosed(Linear):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            nonlocal first
            if first is None:
                first = float(x.detach().mean())
            return 2 * x + first

    return Enclosed


Enclosed = enclosed()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (EyeOfModule, "_eye"),
        (Scaled, "_scale, _scale_is_known"),
        (ByObject, "_memory.ramp"),
        (ByTable, "_memory.means"),
        (Attached, "Attached.shift"),
        (ByHelper, "_shift.known"),
        (Enclosed, "first"),
    ],
)
def test_a_variable_that_the_first_call_fills_is_found_wherever_it_lies(function: Any, name: str) -> None:
    """Globals, flags, objects, helpers and closures: all is emptied, named, and put back, and the lines fail alone."""
    function.apply(leaf(3, 3))
    _, (finding,) = run_probe(state.PROBE, function, (leaf(3, 3),))
    assert (finding.rule, finding.where) == ("PB504", f"{name}, sample 0")
    assert shows_the_fault(finding, **{function.__name__: function})


_triangles: Any = None
_longest: Any = None


class Triangle(Linear):
    """A mask of the first call's size: all samples that forward takes after that are of this size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _triangles
        if _triangles is None:
            _triangles = torch.ones_like(x, dtype=torch.bool).tril()
        return x * _triangles


class FirstRows(Linear):
    """A ramp of the first call's length, of which shorter calls take their part, and longer ones can't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _longest
        if _longest is None:
            _longest = torch.arange(len(x), dtype=torch.float64)
        return 2 * x + _longest[: len(x), None].to(x)


def test_a_memory_of_the_first_call_s_size_is_found() -> None:
    """By a call in other sizes, larger and smaller, though no call after the first takes these."""
    for function, said in ((Triangle, "larger sizes (3 made "), (FirstRows, "smaller sizes")):
        _, (finding,) = run_probe(state.PROBE, function, (leaf(3, 3),))
        assert finding.rule == "PB504"
        assert finding.message.startswith(f"after a call on {said}")
        assert "forward raises, since _" in finding.message
        assert shows_the_fault(finding, **{function.__name__: function})


class Counts(Linear):
    """Writes a global that no result depends on, and reads a table that was made at import."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _counted
        _counted += 1
        return 2 * x + _table_of_ones


def test_what_is_written_and_never_read_and_what_is_read_and_never_written_pass() -> None:
    """A counter, and a tensor that was there before; both are as they were afterwards."""
    before = _table_of_ones
    _, findings = run_probe(state.PROBE, Counts, (leaf(3, 3),))
    assert findings == ()
    assert _table_of_ones is before


class EyeKeyed(EyeBySize):
    """The same, mended."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.eye = torch.eye(len(x), dtype=x.dtype)
        return 2 * x


@pytest.mark.parametrize(("function", "name"), [(EyeBySize, "_eyes"), (EyeOnce, "EyeOnce.eye")])
def test_a_cache_without_the_dtype_in_its_key_is_found_by_calls_in_two_dtypes(function: Any, name: str) -> None:
    """The lines make the other call first, so that they fail in a new process too."""
    _, (finding,) = run_probe(state.PROBE, function, (leaf(3, 3),))
    assert (finding.rule, finding.where) == ("PB504", f"{name}, sample 0")
    assert finding.message.startswith(f"after a call on float64 arguments, backward raises, since {name} remembers")
    assert shows_the_fault(finding, **{function.__name__: function})
    exec(finding.repro.replace(f"from {__name__} import {function.__name__}", ""), {function.__name__: EyeKeyed})


def test_its_consequences_are_not_told_beside_it() -> None:
    """That backward raises in float32, and under autocast, is the same fault."""
    report = check(EyeBySize, (leaf(3, 3),), only=("state", "precision", "autocast"))
    assert [finding.rule for finding in report.findings] == ["PB504"]


_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}


class ShapeByCotangent(Function):
    """The shape of the table is remembered by that of grad_output, which doesn't tell how many rows there are."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = tuple(table.shape)
        return table[rows]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        shape = _shapes.setdefault(tuple(g.shape), ctx.shape)
        return g.new_zeros(shape).index_add(0, rows, g), None


def test_a_memory_that_goes_by_another_size_than_it_depends_on_is_found() -> None:
    """A table with one row more has as many rows looked up, and its gradient has the other table's shape."""
    _, (finding,) = run_probe(state.PROBE, ShapeByCotangent, (leaf(4, 2), torch.tensor([0, 2, 2])))
    assert finding.rule == "PB504"
    assert "_shapes" in finding.message
    assert shows_the_fault(finding, ShapeByCotangent=ShapeByCotangent)
