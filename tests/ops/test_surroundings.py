"""Each operation where values aren't there, cotangents come in a batch, or its result is changed in place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pullback.ops import layer_norm, swiglu
from tests.ops.kinds import Arguments, Kind, every
from tests.ops.runs import cotangents, differentiable, drawn, gradients, mapped, outputs_of, tracked

KINDS = every()
each = pytest.mark.parametrize("kind", KINDS, ids=str)


def on_meta(arguments: Arguments) -> Arguments:
    """The arguments without their values."""
    return tuple(
        a.detach().to("meta").requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments
    )


@each
def test_shapes_without_values(kind: Kind) -> None:
    """On the meta device results and gradients have the shapes and dtypes that they have on a CPU."""
    values = gradients(kind.call, drawn(kind))
    arguments = on_meta(drawn(kind))
    outputs = outputs_of(kind.call, arguments)
    ends, _ = differentiable(outputs, outputs)
    sent = [torch.empty_like(end) for end in ends]
    found = torch.autograd.grad(ends, tracked(arguments), sent, allow_unused=True, materialize_grads=True)
    for got, expected in zip((*outputs, *found), (*values[0], *values[1]), strict=True):
        assert got.is_meta
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


@each
def test_fake_tensors(kind: Kind) -> None:
    """Nothing reads a value on the way forward or back, so tensors that have none do."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        arguments = tuple(
            mode.from_tensor(a.detach()).requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
            for a in drawn(kind)
        )
        outputs = [out for out in tree_leaves(kind.call(*arguments)) if out.requires_grad]
        sent = [torch.empty_like(out) for out in outputs]
        found = torch.autograd.grad(outputs, tracked(arguments), sent, allow_unused=True, materialize_grads=True)
    assert [g.shape for g in found] == [leaf.shape for leaf in tracked(arguments)]


@each
def test_a_batch_of_cotangents(kind: Kind) -> None:
    """With is_grads_batched each cotangent of a batch gives what it gives alone, in each dtype."""
    for dtype in kind.dtypes:
        arguments = mapped(drawn(kind), lambda t, dtype=dtype: t.to(dtype))
        outputs = outputs_of(kind.call, arguments)
        ends, sent = differentiable(outputs, cotangents(outputs))
        options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
        batch = [torch.stack((g, -2 * g)) for g in sent]
        got = torch.autograd.grad(ends, tracked(arguments), batch, is_grads_batched=True, **options)
        for index in range(2):
            alone = torch.autograd.grad(ends, tracked(arguments), [g[index] for g in batch], **options)
            for gradient, expected in zip(got, alone, strict=True):
                room = 8 * torch.finfo(dtype).eps
                torch.testing.assert_close(
                    gradient[index], expected, rtol=room, atol=room * float(expected.abs().max())
                )


VIEWS = ("straight_through", "reverse_gradient", "reverse_gradient, scaled", "scale_gradient")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.name.startswith((*VIEWS, "clip_"))], ids=str)
def test_a_result_may_be_changed_in_place(kind: Kind) -> None:
    """``loss /= steps`` works, as with PyTorch's own: only what is documented as a view of its input is one."""
    arguments = drawn(kind)
    outputs = outputs_of(kind.call, arguments)
    first = outputs[0]
    first.mul_(2)
    (found,) = torch.autograd.grad(first, tracked(arguments)[0], torch.ones_like(first))
    arguments = drawn(kind)
    plain = outputs_of(kind.call, arguments)[0] * 2
    assert torch.equal(found, torch.autograd.grad(plain, tracked(arguments)[0], torch.ones_like(plain))[0])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
def test_a_compiled_result_may_be_changed_in_place() -> None:
    """Compiled in one piece, too."""
    torch._dynamo.reset()
    results = []

    def doubled(x: Tensor) -> Tensor:
        return layer_norm(x, 4).mul_(2)

    for call in (doubled, torch.compile(doubled, backend="aot_eager", fullgraph=True)):
        x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = call(x)
        results.append((y.detach(), *torch.autograd.grad(y.sin().sum(), x)))
    torch.testing.assert_close(*results)
    torch._dynamo.reset()


def test_devices_that_differ_raise() -> None:
    """A product on the CPU with a tensor of another device raises, and doesn't leave the factor out."""
    x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match="device"):
        swiglu(x, x.to("meta"))
