"""F15: eight threads on one class, forward and backward, from its first call on, in calls unlike each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.surroundings.kind import Kind, assert_same, derivatives
from tests.surroundings.kinds import KINDS

THREADS = 8

# What draws random numbers draws them from one generator for all threads, here as in PyTorch.
each_steady_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items() if name != "random"]
)


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads take turns a thousand times as often as Python does, so that races are run."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def at_once(works: list[Callable[[], None]]) -> None:
    """Run all, each in a thread of its own, from one moment on; raise what one of them raised."""
    barrier, failures = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(60)
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def expected_of(kind: Kind, order: int = 2) -> list[Any]:
    """What the formula gives for each seed, found before threads start."""
    return [derivatives(kind.formula, kind.draw(seed), order, once=kind.once) for seed in range(THREADS)]


@each_steady_kind
def test_first_calls_and_those_after_them(kind: Kind) -> None:
    """New classes, each applied first by eight threads at once, are right in every one, to second order."""
    expected = expected_of(kind)
    for _ in range(4):
        function = kind.function()

        def work(seed: int, function: Any = function) -> None:
            for _ in range(3):
                assert_same(derivatives(function, kind.draw(seed), once=kind.once), expected[seed])

        at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])


def test_random_numbers() -> None:
    """Where each thread draws its own numbers, what a replay draws is what its call drew."""

    class Noisy(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, seed: int) -> Tensor:
            noise = torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
            ctx.save_for_backward(x, noise, x * noise)
            return (x * noise) ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            _, noise, scaled = ctx.saved_tensors
            return 2 * g * scaled * noise, None

    def formula(x: Tensor, seed: int) -> Tensor:
        noise = torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
        return (x * noise) ** 2

    leaf = KINDS["saves_output"].draw

    def taken(called: Any, seed: int) -> list[Tensor]:
        (x,) = leaf(seed)
        (first,) = torch.autograd.grad(called(x, seed).sum(), x, create_graph=True)
        return [first.detach(), *torch.autograd.grad((first**3).sum(), x)]

    expected = [taken(formula, seed) for seed in range(THREADS)]

    def work(seed: int) -> None:
        for _ in range(10):
            assert_same([taken(Noisy.apply, seed)], [expected[seed]])

    at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])


def branching() -> Any:
    """Make a class that saves otherwise as a flag, a number of arguments, and their needs have it."""

    class Branch(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, way: str, *others: Tensor) -> Tensor:
            ctx.way, ctx.count = way, len(others)
            if way == "inputs":
                ctx.save_for_backward(x, *others)
            elif way == "intermediate":
                ctx.save_for_backward(x.exp(), x, *others)
            elif way == "on ctx":
                ctx.kept = x.exp()
                ctx.save_for_backward(x, *others)
            total = x.exp()
            for other in others:
                total = total * other
            return total

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            if ctx.way == "inputs":
                e, others = saved[0].exp(), saved[1:]
            elif ctx.way == "intermediate":
                e, others = saved[0], saved[2:]
            else:
                e, others = ctx.kept, saved[1:]
            gradients = []
            for place in range(-1, ctx.count):
                part = g * e
                for at, other in enumerate(others):
                    part = part * (other if at != place else 1)
                gradients.append(part)
            return gradients[0], None, *gradients[1:]

    return Branch


def plain_branch(x: Tensor, way: str, *others: Tensor) -> Tensor:
    """Return its formula."""
    total = x.exp()
    for other in others:
        total = total * other
    return total


def test_layouts_that_differ() -> None:
    """Calls that save otherwise, in every thread another one, are never taken for each other."""
    ways = ("inputs", "intermediate", "on ctx")

    def leaves(seed: int) -> list[Tensor]:
        return Kind("", lambda base: base, torch.exp, 1 + seed % 3).draw(seed)

    def taken(function: Any, seed: int, way: str) -> Any:
        own = leaves(seed)
        return derivatives(lambda x, *others: function(x, way, *others), own)

    expected = [taken(plain_branch, seed, "") for seed in range(THREADS)]
    for _ in range(4):
        made = branching()

        def work(seed: int, made: Any = made) -> None:
            for turn in range(6):
                assert_same(taken(made.apply, seed, ways[(seed + turn) % 3]), expected[seed])

        at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])


def nested_sum() -> Any:
    """Make a class of nests of any structure, with an intermediate saved."""

    class Total(pullback.Function):
        @staticmethod
        def forward(ctx: Any, n: Any, *, power: int = 2) -> Any:
            flat, ctx.spec = torch.utils._pytree.tree_flatten(n)
            ctx.power = power
            ctx.save_for_backward(*flat, *[x ** (power - 1) for x in flat])
            return {"each": [x**power for x in flat]}

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            saved = ctx.saved_tensors
            lower = saved[len(saved) // 2 :]
            flat = [ctx.power * x * h for x, h in zip(lower, g["each"], strict=True)]
            return {"n": torch.utils._pytree.tree_unflatten(flat, ctx.spec)}

    return Total


NESTS: list[Callable[[list[Tensor]], Any]] = [
    lambda t: [t[0], t[1]],
    lambda t: {"a": t[0], "b": t[1]},
    lambda t: {"b": t[0], "a": t[1]},
    lambda t: [t[0], {"a": t[1]}],
    lambda t: ([t[0]], [t[1]]),
    lambda t: [[[t[0]]], t[1]],
    lambda t: {"a": (t[0], (t[1],))},
    lambda t: [{"a": t[0]}, {"a": t[1]}],
]


def test_nests_of_distinct_structures() -> None:
    """Eight structures at once through one class, with keyword arguments: each thread gets its own gradients."""
    draw = KINDS["saves_inputs"].draw

    def taken(seed: int, called: Callable[[list[Tensor]], list[Tensor]]) -> Any:
        return derivatives(lambda *leaves: tuple(called(list(leaves))), draw(seed))

    powers = [2 + seed % 2 for seed in range(THREADS)]

    def formula(seed: int) -> Any:
        return lambda t: [x ** powers[seed] for x in torch.utils._pytree.tree_leaves(NESTS[seed](t))]

    expected = [taken(seed, formula(seed)) for seed in range(THREADS)]
    for _ in range(3):
        made = nested_sum()

        def work(seed: int, made: Any = made) -> None:
            for _ in range(3):
                called = lambda t: made.apply(NESTS[seed](t), power=powers[seed])["each"]  # noqa: E731  # one line beside its use
                assert_same(taken(seed, called), expected[seed])

        at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])


def test_more_structures_than_are_kept() -> None:
    """Lists of any length, of which plans are thrown away while other threads use them, stay right."""
    made = nested_sum()

    def work(seed: int) -> None:
        for turn in range(20):
            length = 1 + (turn * THREADS + seed) % 150
            x = torch.full((2,), 1.5, dtype=torch.float64, requires_grad=True)
            result = made.apply([x] * length)["each"]
            (gradient,) = torch.autograd.grad(sum(y.sum() for y in result), x)
            assert gradient.tolist() == [3.0 * length] * 2

    at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])


def test_one_graph_differentiated_by_many_threads() -> None:
    """A graph that is retained can be differentiated by several threads at once, to second order."""
    for name in ("saves_inputs", "saves_intermediates", "keeps_on_ctx", "double_backward", "reference", "nests"):
        kind = KINDS[name]
        function, leaves = kind.function(), kind.draw()
        for _ in range(2):
            result = function(*leaves)
            output = result[0] if isinstance(result, tuple) else result
            plain = kind.formula(*leaves)
            formula = plain[0] if isinstance(plain, tuple) else plain

            def second(y: Tensor, leaves: list[Tensor] = leaves) -> list[Tensor]:
                firsts = torch.autograd.grad(y.sum(), leaves, create_graph=True)
                return list(torch.autograd.grad(sum((g**2).sum() for g in firsts), leaves, retain_graph=True))

            expected = second(formula)

            def work(y: Tensor = output, second: Any = second, expected: Any = expected) -> None:
                for _ in range(3):
                    assert_same([second(y)], [expected])

            at_once([work] * THREADS)


def test_a_class_that_is_first_used_in_a_thread() -> None:
    """A class that a thread applied first, and which has ended since, is as good as any."""
    for kind in KINDS.values():
        function = kind.function()
        expected = derivatives(kind.formula, kind.draw(), once=kind.once)

        def work(function: Any = function, kind: Kind = kind, expected: Any = expected) -> None:
            assert_same(derivatives(function, kind.draw(), once=kind.once), expected)

        at_once([work])
        work()


def test_a_graph_of_one_thread_differentiated_in_another() -> None:
    """forward in one thread and backward in another, as pipelines have it, agree on each kind."""
    for kind in KINDS.values():
        function = kind.function()
        for seed in range(2):
            leaves, made = kind.draw(seed), list[Tensor]()

            def forwards(function: Any = function, leaves: Any = leaves, made: list[Tensor] = made) -> None:
                torch.manual_seed(3)
                result = function(*leaves)
                made.append(result[0] if isinstance(result, tuple) else result)

            at_once([forwards])
            expected = derivatives(lambda *xs, kind=kind: _first(kind.formula(*xs)), kind.draw(seed), 1, once=True)
            assert_same([torch.autograd.grad(made[0].sum(), leaves)], [expected[1]])


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def test_decorated_functions_and_modules_in_threads() -> None:
    """A module whose layer is passed as a nest is trained by eight threads on copies of its own."""

    class Affine(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: torch.nn.Linear) -> Tensor:
            ctx.save_for_backward(x, layer.weight)
            return layer(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g @ w, {"weight": g.t() @ x, "bias": g.sum(0)}

    def work(seed: int) -> None:
        layer = torch.nn.Linear(3, 2, dtype=torch.float64)
        x = torch.linspace(0, 1 + seed, 12, dtype=torch.float64).view(4, 3)
        for _ in range(4):
            got = torch.autograd.grad(Affine.apply(x, layer).square().sum(), [*layer.parameters()])
            expected = torch.autograd.grad(layer(x).square().sum(), [*layer.parameters()])
            assert_same([got], [expected])

    at_once([lambda seed=seed: work(seed) for seed in range(THREADS)])
