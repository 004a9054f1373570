"""A rerun finds modules, captured tensors and generators as the call did, or says that it can't."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pullback
from pullback.errors import OperationError, SavedTensorError
from tests.memory.recompute_kinds import DTYPE, drawn

COUNTED = nn.BatchNorm1d(4, dtype=DTYPE)
"""A module that a function knows as a global."""


def gradient(y: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a function of y that isn't linear."""
    return torch.autograd.grad(y.sin().sum(), x)[0]


def counts(make: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> int:
    """Return how many batches a batch norm counts in one recomputed step."""
    norm = nn.BatchNorm1d(4, dtype=DTYPE)
    make(norm)(drawn(5, 4)).sum().backward()
    return int(norm.num_batches_tracked)


class Keeps:
    """An object, no module, that has one."""

    def __init__(self, norm: nn.Module) -> None:
        """Keep it."""
        self.parts = {"norm": norm}

    def run(self, x: Tensor) -> Tensor:
        """Return a function of x."""
        return self.parts["norm"](x).sin()


def by_keyword(x: Tensor, *, norm: nn.Module) -> Tensor:
    """Return a function of x."""
    return norm(x).sin()


def in_a_list(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """Have a function capture a list."""
    layers = [norm, nn.Tanh()]
    return lambda x: functools.reduce(lambda y, layer: layer(y), layers, x).sin()


def through_a_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """Have a function capture one that captures it."""

    def inner(x: Tensor) -> Tensor:
        return norm(x)

    return lambda x: inner(x).sin()


def by_default(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """Have it as the default of an argument."""

    def run(x: Tensor, norm: nn.Module = norm) -> Tensor:
        return norm(x).sin()

    return run


@pytest.mark.parametrize(
    "make",
    [
        lambda norm: pullback.recompute(in_a_list(norm)),
        lambda norm: pullback.recompute(through_a_function(norm)),
        lambda norm: pullback.recompute(by_default(norm)),
        lambda norm: pullback.recompute(Keeps(norm).run),
        lambda norm: pullback.recompute(functools.partial(by_keyword, norm=norm)),
        lambda norm: functools.partial(pullback.recompute(by_keyword), norm=norm),
    ],
    ids=["list", "function", "default", "object", "partial", "keyword"],
)
def test_a_batch_is_counted_once(make: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
    """Wherever a function has its batch norm from, one step counts one batch."""
    assert counts(make) == 1


def test_a_global_module_counts_once() -> None:
    """A function that names a module of its file counts a batch once."""
    before = int(COUNTED.num_batches_tracked)
    pullback.recompute(lambda x: COUNTED(x).sin())(drawn(5, 4)).sum().backward()
    assert int(COUNTED.num_batches_tracked) == before + 1


@pytest.mark.parametrize("where", ["argument", "closure", "attribute"])
def test_generators_draw_the_same(where: str) -> None:
    """A generator of the function's own is in the same state for the rerun, and goes on from where it was."""
    own = torch.Generator()

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = own

        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.rand(4, generator=self.own, dtype=DTYPE)).sin().exp()

    def noisy(x: Tensor, generator: torch.Generator = own) -> Tensor:
        return (x * torch.rand(4, generator=generator, dtype=DTYPE)).sin().exp()

    calls: dict[str, Any] = {
        "argument": (noisy, lambda x: pullback.recompute(noisy)(x, own)),
        "closure": (noisy, pullback.recompute(lambda x: noisy(x, own))),
        "attribute": (Noisy(), pullback.recompute(Noisy())),
    }
    plain, recomputed = calls[where]
    x = drawn(4)
    expected = gradient(plain(x), x) if own.manual_seed(1) else x
    y = recomputed(x) if own.manual_seed(1) else x
    after = own.get_state()
    assert torch.equal(gradient(y, x), expected)
    assert torch.equal(own.get_state(), after)


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_a_captured_tensor_that_was_written_to_raises(saved: bool) -> None:
    """A write to what a function captures is an error, whether or not an operation saves it; no wrong gradient."""
    c = drawn(4).detach()
    x = drawn(4)
    y = pullback.recompute((lambda x: (x * c).sin()) if saved else (lambda x: (x + c).sin()))(x)
    c.add_(1)
    with pytest.raises(SavedTensorError, match="a captured tensor as the call read it"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("module", "x", "name"),
    [
        (nn.Sequential(nn.Linear(4, 4, dtype=DTYPE), nn.Softplus()), torch.ones(3, 4, dtype=DTYPE), "bias of Linear"),
        (nn.Sequential(nn.Embedding(4, 4), nn.Softplus()), torch.tensor([0, 1]), "weight of Embedding"),
    ],
)
def test_an_optimiser_between_forward_and_backward_raises(module: nn.Module, x: Tensor, name: str) -> None:
    """A parameter that no operation saves, and that was written to, is named instead of giving wrong gradients."""
    y = pullback.recompute(module)(x)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    with pytest.raises(SavedTensorError, match=f"the parameter {name} as the call read it"):
        y.sum().backward()


def test_a_write_that_the_rerun_does_not_read_is_none_of_its_business() -> None:
    """Of a module with two parts, the one that a method doesn't use may be trained in between."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4, dtype=DTYPE), nn.Linear(4, 4, dtype=DTYPE)

        def half(self, x: Tensor) -> Tensor:
            return self.one(x).sin()

    module, x = Two(), drawn(3, 4)
    y = pullback.recompute(module.half)(x)
    with torch.no_grad():
        module.other.weight.add_(1)
    assert torch.equal(gradient(y, x), gradient(module.half(x), x))


def test_a_tensor_that_the_function_counts_in_is_left_alone() -> None:
    """A function may count its calls in a captured tensor, and be called twice before backward."""
    count, x = torch.zeros(()), drawn(4)

    def counted(x: Tensor) -> Tensor:
        count.add_(1)
        return x.exp().sin()

    run = pullback.recompute(counted)
    y = run(x) + run(x)
    assert torch.equal(gradient(y, x), gradient(counted(x) + counted(x), x))


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm1d(4, dtype=DTYPE)])
def test_the_mode_of_the_call_is_that_of_the_rerun(layer: nn.Module) -> None:
    """A module that is switched to eval() in between is run again in training mode, and stays in the other."""
    module, x = nn.Sequential(nn.Linear(4, 4, dtype=DTYPE), layer.train(), nn.Tanh()), drawn(5, 4)
    torch.manual_seed(0)
    expected = gradient(module(x), x)
    torch.manual_seed(0)
    y = pullback.recompute(module)(x)
    module.eval()
    assert torch.equal(gradient(y, x), expected)
    assert not any(part.training for part in module.modules())


@pytest.mark.parametrize("frozen", [True, False])
def test_a_parameter_that_was_frozen_or_unfrozen_is_as_it_was(frozen: bool) -> None:
    """Square weights save tensors of one shape, so that a rerun with one more or less of them would mix them up."""
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()).to(DTYPE), drawn(4, 4)
    module[0].requires_grad_(not frozen)
    expected = gradient(module(x), x)
    y = pullback.recompute(module)(x)
    module[0].requires_grad_(frozen)
    assert torch.equal(gradient(y, x), expected)
    assert module[0].weight.requires_grad == frozen


@pytest.mark.parametrize("inner", [True, False])
def test_functional_call(inner: bool) -> None:
    """Parameters that functional_call put in for the call are there for the rerun, and gradients flow to them."""
    plain = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Softplus()).to(DTYPE)
    module = nn.Sequential(pullback.recompute(plain[0]), plain[1]) if inner else pullback.recompute(plain)
    w, x = drawn(1), drawn(3, 4)

    def run(module: nn.Module) -> tuple[Tensor, ...]:
        given = {name: 2 * value.detach() + w for name, value in module.named_parameters()}
        return torch.autograd.grad(torch.func.functional_call(module, given, x).sin().sum(), (x, w))

    own = [*plain.parameters()]
    assert all(map(torch.equal, run(module), run(plain)))
    assert all(one is other for one, other in zip(plain.parameters(), own, strict=True))


class Follows(nn.Module):
    """Forward reads a buffer, then moves it; by assignment or in place."""

    def __init__(self, in_place: bool) -> None:
        """Make the buffer."""
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.ones(4, dtype=DTYPE))

    def forward(self, x: Tensor) -> Tensor:
        """Return a function of both."""
        y = (x * self.mean.clone()).sin()
        with torch.no_grad():
            moved = 0.9 * self.mean + x.mean()
            if self.in_place:
                self.mean.copy_(moved)
            else:
                self.mean = moved
        return y


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_forward_moves_is_read_as_the_call_read_it(in_place: bool) -> None:
    """The first call and later ones have the gradients of the plain module, and the buffer moves once a call."""
    module, x = Follows(in_place), drawn(4)
    twin = pullback.recompute(copy.deepcopy(module))
    for _ in range(3):
        plain, recomputed = module(x) + module(x), twin(x) + twin(x)
        assert torch.equal(gradient(recomputed, x), gradient(plain, x))
        assert torch.equal(twin.mean, module.mean)


def test_a_buffer_that_something_else_moves_raises() -> None:
    """In eval mode nothing is copied, and a write between forward and backward is named."""
    module, x = Follows(True).eval(), drawn(4)
    module.forward = lambda x: (x + module.mean).sin()
    y = pullback.recompute(module)(x)
    module.mean.add_(1)
    with pytest.raises(SavedTensorError, match="the buffer mean of Follows as the call read it"):
        y.sum().backward()


def test_buffers_that_forward_leaves_alone_cost_nothing() -> None:
    """The copies of a first call are let go of, unless forward moves the buffer."""

    def kept(module: nn.Module) -> int:
        with pullback.saved_memory() as ledger:
            y = pullback.recompute(module)(2 * drawn(4))
        del y
        return sum(entry.bytes for entry in ledger.entries if entry.argument.startswith("state of"))

    still = Follows(True).eval()
    assert kept(still) == 0
    masked = nn.Sequential(nn.Tanh())
    masked.register_buffer("mask", torch.ones(1000))
    assert kept(masked) == 0
    assert kept(Follows(True)) == 4 * 8


def test_forms_of_attention_are_those_of_the_call() -> None:
    """Backward outside of sdpa_kernel runs again what ran inside."""
    x = drawn(2, 3, 4, 4)

    def attends(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x).sin()

    with sdpa_kernel(SDPBackend.MATH):
        y, expected = pullback.recompute(attends)(x), attends(x)
    assert torch.equal(gradient(y, x), gradient(expected, x))


@pytest.mark.parametrize("kind", ["function", "module"])
def test_torchscript_is_refused(kind: str) -> None:
    """Its second run saves other tensors than its first, of the same shapes: gradients were wrong, and nothing said."""

    def waves(x: Tensor) -> Tensor:
        return x.exp().sin().cos()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted: Any = torch.jit.script(waves if kind == "function" else nn.Sequential(nn.Tanh(), nn.Softplus()))
    with pytest.raises(OperationError, match="TorchScript, which saves other tensors in its second run"):
        pullback.recompute(scripted)


def test_static_methods_class_methods_and_properties() -> None:
    """The decorator works above another one, as below it."""

    class Waves:
        scale = 2.0

        @pullback.recompute
        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x.exp().sin()

        @pullback.recompute
        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return (cls.scale * x).exp().sin()

        def __init__(self, x: Tensor) -> None:
            self.x = x

        @pullback.recompute
        @property
        def own(self) -> Tensor:
            return self.x.exp().sin()

    x = drawn(4)
    for y, expected in (
        (Waves.static(x), x.exp().sin()),
        (Waves(x).static(x), x.exp().sin()),
        (Waves.of_class(x), (2 * x).exp().sin()),
        (Waves(x).of_class(x), (2 * x).exp().sin()),
        (Waves(x).own, x.exp().sin()),
    ):
        assert torch.equal(gradient(y, x), gradient(expected, x))


def test_objects_whose_call_is_no_function_are_refused() -> None:
    """What a call of them returns has computed nothing yet."""

    class Later:
        async def __call__(self, x: Tensor) -> Tensor:
            return x.exp()

    class Bits:
        def __call__(self, x: Tensor) -> Any:
            yield x.exp()

    with pytest.raises(OperationError, match="an asynchronous function can't be recomputed"):
        pullback.recompute(Later())
    with pytest.raises(OperationError, match="a generator can't be recomputed"):
        pullback.recompute(Bits())


def test_a_lazy_module_is_refused_until_it_was_called() -> None:
    """Its first call gives it another class, which would no longer recompute."""
    module = nn.LazyLinear(4)
    with pytest.raises(OperationError, match="LazyLinear has no parameters yet, and gets another class"):
        pullback.recompute(module)
    module(torch.ones(2, 3))
    assert isinstance(pullback.recompute(module), nn.Linear)


def test_a_function_that_makes_another_error_of_what_ends_the_rerun() -> None:
    """As TorchScript does, called within; the slots are filled by then, and the gradients are right."""

    def wraps(x: Tensor) -> Tensor:
        try:
            return x.exp().sin()
        except BaseException as error:
            raise RuntimeError("mine") from error

    x = drawn(4)
    assert torch.equal(gradient(pullback.recompute(wraps)(x), x), gradient(wraps(x), x))
