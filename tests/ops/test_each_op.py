"""Each operation gives the values and gradients of its formula: any layout, dtype, order and transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual

import pullback
from tests.ops.kinds import Arguments, Kind, every
from tests.ops.runs import SEED, drawn, gradients, is_float, mapped, outputs_of, second, tracked
from tests.saved_bytes import bytes_kept

KINDS = every()
each = pytest.mark.parametrize("kind", KINDS, ids=str)


def close(got: Any, expected: Any, **tolerances: float) -> None:
    """The same numbers, up to the order of additions in float64."""
    torch.testing.assert_close(got, expected, **(tolerances or {"rtol": 1e-9, "atol": 1e-10}))


def transposed(tensor: Tensor) -> Tensor:
    """The same values with the memory's order of axes turned round."""
    return tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))


def sliced(tensor: Tensor) -> Tensor:
    """The same values as every second element of a longer memory, with an offset."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


def expanded(tensor: Tensor) -> Tensor:
    """Along the first axis one row with stride 0; other values, the same for operation and formula."""
    return tensor[:1].expand_as(tensor) if tensor.dim() > 1 else tensor


@each
@pytest.mark.parametrize("layout", [lambda t: t, transposed, sliced, expanded], ids=lambda f: f.__name__)
def test_values_and_gradients_in_any_layout(kind: Kind, layout: Callable[[Tensor], Tensor]) -> None:
    """In float64 they are the formula's, for contiguous, transposed, sliced and expanded arguments."""
    arguments = mapped(drawn(kind), layout)
    close(gradients(kind.call, arguments), gradients(kind.formula, arguments))


@each
def test_second_derivatives(kind: Kind) -> None:
    """The gradient's own gradients, by arguments and cotangents, are the formula's."""
    arguments = drawn(kind)
    close(second(kind.call, arguments), second(kind.formula, arguments))


@each
def test_each_subset_of_arguments(kind: Kind) -> None:
    """Where only one argument requires grad its gradient is the same, and so is the second derivative."""
    arguments = drawn(kind)
    for chosen in range(len(tracked(arguments))):
        counted = iter(range(len(tracked(arguments))))
        alone = tuple(
            a.detach().requires_grad_(next(counted) == chosen) if is_float(a) and a.requires_grad else a
            for a in arguments
        )
        close(gradients(kind.call, alone), gradients(kind.formula, alone))
        close(second(kind.call, alone), second(kind.formula, alone))


@each
def test_bytes_kept_are_exact(kind: Kind) -> None:
    """The graph keeps what is promised beside the arguments, to the byte, in each dtype."""
    for dtype in kind.dtypes:
        arguments = mapped(drawn(kind), lambda t, dtype=dtype: t.to(dtype))
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        torch.manual_seed(SEED)
        assert bytes_kept(lambda args=arguments: kind.call(*args), tensors) == kind.beyond(*arguments), dtype


@each
def test_low_precision_is_no_worse_than_the_formula(kind: Kind) -> None:
    """Each result in a lower dtype is as close to float64 as the formula's own, within a rounding of its largest."""
    for dtype in kind.dtypes[1:]:
        low = mapped(drawn(kind), lambda t, dtype=dtype: t.to(dtype))
        exact = mapped(low, torch.Tensor.double)
        due, came, plain = (
            [*values, *firsts]
            for values, firsts in (
                gradients(kind.formula, exact),
                gradients(kind.call, low),
                gradients(kind.formula, low),
            )
        )
        for expected, got, other in zip(due, came, plain, strict=True):
            assert got.dtype == other.dtype, (dtype, got.dtype, other.dtype)
            room = 2 * torch.finfo(dtype).eps * float(expected.abs().max())
            error = float((got.double() - expected).abs().max())
            assert error <= float((other.double() - expected).abs().max()) + room, (dtype, error)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.empty is not None], ids=str)
def test_no_elements(kind: Kind) -> None:
    """An empty batch gives an empty result, or a sum of nothing, and zero gradients, as the formula does."""
    assert kind.empty is not None
    close(gradients(kind.call, kind.empty()), gradients(kind.formula, kind.empty()), rtol=0, atol=0, equal_nan=True)


def of_leaves(function: Callable[..., Any], arguments: Arguments) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A function of the tensors that require grad alone, with one output, and these tensors."""
    leaves = tracked(arguments)

    def called(*values: Tensor) -> Tensor:
        given = iter(values)
        full = tuple(next(given) if isinstance(a, Tensor) and a.requires_grad else a for a in arguments)
        return torch.cat([out.flatten() for out in outputs_of(function, full)])

    return called, [leaf.detach() for leaf in leaves]


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, n: torch.func.grad(lambda *v: f(*v).sin().sum(), tuple(range(n))),
    "jacrev": lambda f, n: torch.func.jacrev(f, tuple(range(n))),
    "jacfwd": lambda f, n: torch.func.jacfwd(f, tuple(range(n)), randomness="same"),
    "hessian": lambda f, n: torch.func.jacfwd(  # as torch.func.hessian does, which has no word for randomness
        torch.func.jacrev(lambda *v: f(*v).sin().sum(), tuple(range(n))), tuple(range(n)), randomness="same"
    ),
    "vmap of grad": lambda f, n: (
        lambda *v: torch.func.vmap(torch.func.grad(lambda *w: f(*w).sin().sum(), tuple(range(n))), randomness="same")(
            *[torch.stack([x, 2 * x]) for x in v]
        )
    ),
}


@each
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_torch_func(kind: Kind, transform: str) -> None:
    """Under the transforms of torch.func it gives what the formula gives."""
    arguments = drawn(kind)
    ours, leaves = of_leaves(kind.call, arguments)
    plain, _ = of_leaves(kind.formula, arguments)
    change = TRANSFORMS[transform]
    close(change(ours, len(leaves))(*leaves), change(plain, len(leaves))(*leaves))


@each
def test_forward_mode(kind: Kind) -> None:
    """The derivative along a direction, in dual numbers' terms, is the formula's."""
    ours, leaves = of_leaves(kind.call, drawn(kind))
    plain, _ = of_leaves(kind.formula, drawn(kind))
    directions = [torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view(x.shape) for x in leaves]
    got = torch.func.jvp(ours, tuple(leaves), tuple(directions))
    close(got, torch.func.jvp(plain, tuple(leaves), tuple(directions)))


@pytest.mark.parametrize("kind", [kind for kind in every() if kind.surrogate is None], ids=str)
def test_forward_mode_takes_the_formula(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is PyTorch's own function has PyTorch's own tangents, and not those of a transposed backward."""

    def refused(*arguments: Any) -> None:
        raise AssertionError("a Function was taken through forward mode")

    monkeypatch.setattr("pullback.function.transformed", refused)
    ours, leaves = of_leaves(kind.call, drawn(kind))
    torch.func.jvp(ours, tuple(leaves), tuple(leaves))
    with dual_level():
        ours(*[make_dual(leaf.detach(), leaf.detach()) for leaf in leaves])


@each
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled(kind: Kind, dynamic: bool) -> None:
    """Compiled in one piece, it gives eager's values and gradients."""
    torch._dynamo.reset()
    arguments = drawn(kind)
    call = torch.compile(kind.call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    close(gradients(call, arguments), gradients(kind.call, arguments))
    torch._dynamo.reset()


@each
def test_proven(kind: Kind) -> None:
    """The whole battery finds nothing."""
    torch.manual_seed(SEED)
    report = pullback.check(kind.call, drawn(kind), surrogate=kind.surrogate)
    assert report.ok, str(report)
