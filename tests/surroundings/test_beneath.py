"""F15: what PyTorch itself gets wrong around any Function is as the document says, with pullback and without."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from pullback import ops
from tests.surroundings.beneath import each_base, leaf, statements, still, tenfold

TESTS = (Path(__file__), Path(__file__).parents[1] / "compiled" / "test_beneath.py")


def test_each_row_is_held() -> None:
    """No row of the document is without a test, and each says where PyTorch speaks of it and what the battery says."""
    tests = "".join(path.read_text("utf-8") for path in TESTS)
    rows = {about: row for about, row in statements().items() if about not in {"about", "---"}}
    assert len(rows) > 20
    assert [about for about in rows if about not in tests] == []
    for about, row in rows.items():
        _, issue, reported = row.rsplit(" | ", 2)
        assert "pytorch/pytorch#" in issue or issue == "no issue found", about
        assert reported.startswith(("PB", "a note", "no")), about


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@each_base
def test_export_that_is_not_strict(base: Any) -> None:
    """What torch.export writes down without strict has forward's own derivative; with it, it has none."""
    function = tenfold(base)

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function.apply(x)

    x = leaf()
    exported = torch.export.export(Layer(), (leaf(),), strict=False).module()
    (gradient,) = torch.autograd.grad(exported(x).sum(), x)
    strictly = torch.export.export(Layer(), (leaf(),), strict=True).module()
    still("torch.export", torch.allclose(gradient, x.cos()) and not strictly(x).requires_grad)


@each_base
def test_checkpoint_that_draws_anew(base: Any) -> None:
    """Without preserve_rng_state, the gradient is that of another draw than the value."""

    class Half(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = torch.rand_like(x) < 0.5
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (mask,) = ctx.saved_tensors
            return g * mask

    x = torch.ones(64, dtype=torch.float64, requires_grad=True)
    for preserve in (True, False):
        torch.manual_seed(0)
        y = checkpoint(Half.apply, x, use_reentrant=False, preserve_rng_state=preserve)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        same = torch.equal(gradient, y.detach())
        still("checkpoint with `preserve_rng_state=False`", same is preserve)


@each_base
def test_reentrant_checkpoint_of_what_needs_no_gradient(base: Any) -> None:
    """A parameter inside gets no gradient where no input requires one."""
    function, weight, x = tenfold(base), leaf(), leaf().detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = checkpoint(lambda x: function.apply(weight * x), x, use_reentrant=True)
    still("reentrant checkpoint", not y.requires_grad)


def exponential(base: Any, *, output: bool) -> Any:
    """Make exp, or the square, that keeps its output, or its argument, on ctx."""

    class Kept(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = x.exp() if output else x
            return ctx.kept if output else x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.kept * (1 if output else 2)

    return Kept


@each_base
def test_argument_on_ctx_that_is_written_to(base: Any) -> None:
    """The gradient is that of the new values, and nothing raises."""
    x = leaf()
    h = x * 1
    y = exponential(base, output=False).apply(h)
    with torch.no_grad():
        h.mul_(5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    still("a tensor kept on `ctx`", torch.allclose(gradient, 5 * 2 * x))


@each_base
def test_output_on_ctx(base: Any) -> None:
    """The output outlives its last reference until the garbage collector runs."""
    gc.collect()
    gc.disable()
    try:
        y = exponential(base, output=True).apply(leaf())
        alive = weakref.ref(y)
        y.sum().backward()
        del y
        held = alive() is not None
    finally:
        gc.enable()
        gc.collect()
    still("an output kept on `ctx`", held and alive() is None)


@each_base
def test_gradients_that_are_not_asked_for(base: Any) -> None:
    """needs_input_grad tells what requires a gradient, not what was asked for."""
    seen = []

    class Product(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(tuple(ctx.needs_input_grad))
            x, y = ctx.saved_tensors
            return g * y, g * x

    x, y = leaf(), leaf()
    torch.autograd.grad(Product.apply(x, y).sum(), x)
    still("`ctx.needs_input_grad`", seen == [(True, True)])


@each_base
def test_attributes_of_saved_tensors(base: Any) -> None:
    """What Python put on a tensor is lost where a hook packs it, even one that does nothing."""
    seen = []

    class Tagged(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.tag = "here"
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            seen.append(getattr(x, "tag", None))
            return g * 2

    Tagged.apply(leaf()).sum().backward()
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        y = Tagged.apply(leaf())
    y.sum().backward()
    still("Python attributes of saved tensors", seen == ["here", None])


@each_base
def test_nested_tensors(base: Any) -> None:
    """Strided ones end in an internal error; jagged ones have their gradient."""
    function = tenfold(base)
    parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    y = function.apply(jagged)
    y.backward(torch.ones_like(y))
    assert jagged.grad is not None
    torch.testing.assert_close(jagged.grad.values(), 10 * torch.ones(5, dtype=torch.float64).cos())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strided = torch.nested.nested_tensor(parts, requires_grad=True)
    try:
        function.apply(strided)
    except RuntimeError as error:
        still("strided nested tensors", "doesn't support sizes" in str(error))
    else:
        still("strided nested tensors", False)


@each_base
def test_quantised_outputs(base: Any) -> None:
    """A quantised output doesn't require grad, whatever backward says."""

    class Quantise(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = Quantise.apply(torch.ones(3, requires_grad=True))
    still("quantised outputs", not y.requires_grad)


@each_base
def test_second_backward_through_a_selective_checkpoint(base: Any) -> None:
    """What a selective checkpoint has kept is given out once."""
    policy = checkpoints.CheckpointPolicy.MUST_SAVE
    contexts = functools.partial(checkpoints.create_selective_checkpoint_contexts, lambda ctx, op, *a, **k: policy)
    x = leaf()
    y = checkpoint(tenfold(base).apply, x, use_reentrant=False, context_fn=contexts)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    try:
        torch.autograd.grad(y.sum(), x)
    except RuntimeError as error:
        still("selective checkpoint", "only allowed to backward once" in str(error))
    else:
        still("selective checkpoint", False)


@each_base
def test_traced_operation_in_place(base: Any) -> None:
    """torch.jit.trace records it, and can't run what it recorded."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(lambda x: Triple.apply(x * 1), (torch.ones(3),), check_trace=False)
    try:
        traced(torch.ones(3))
    except RuntimeError as error:
        still("torch.jit.trace", "inplace Triple not supported" in str(error))
    else:
        still("torch.jit.trace", False)


@each_base
def test_inference_mode_inside_forward(base: Any) -> None:
    """What comes out requires grad, and some operations on it lose that without a word."""

    class Inferred(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with torch.inference_mode():
                return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * x.cos()

    y = Inferred.apply(leaf())
    still("inference mode inside forward", y.requires_grad and y.is_inference() and not y.sum().requires_grad)


def test_medians_of_expanded_tensors() -> None:
    """Along an expanded dimension, torch.median reads what isn't its own."""
    numbers = torch.tensor([3.0, 1.0, 2.0])
    found = [numbers.clone().unsqueeze(1).expand(3, 5).median(1).values for _ in range(20)]
    still("torch.median", not all(torch.equal(values, numbers) for values in found))
    assert torch.equal(numbers.unsqueeze(1).expand(3, 5).contiguous().median(1).values, numbers)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_with_a_strided_weight(training: bool) -> None:
    """Backward takes the weight to be contiguous, so that the gradient of a matrix of samples is another."""
    weight, gradients = torch.tensor([1.0, 7.0, 2.0, 7.0, 3.0, 7.0], dtype=torch.float64)[::2], []
    for given in (weight, weight.contiguous()):
        x = torch.linspace(-1, 2, 12, dtype=torch.float64).sin().reshape(4, 3).requires_grad_()
        mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        y = functional.batch_norm(x, mean, var, given, None, training)
        gradients.append(torch.autograd.grad((y * x.detach().exp()).sum(), x)[0])
    still("F.batch_norm", not torch.allclose(gradients[0], gradients[1]))


def test_layer_norm_beyond_the_first_order() -> None:
    """Its third derivative, and its second by weight and input where it is batched, are wrong; ops has them right."""
    x, w = (torch.linspace(-1, 2, n, dtype=torch.float64).sin() for n in (6, 3))

    def by_hand(x: Tensor, w: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * (variance + 1e-5).rsqrt() * w

    def mixed(norm: Any) -> Tensor:
        second = torch.func.hessian(lambda x, w: norm(x.view(2, 3), w).square().sum(), argnums=(0, 1))(x, w)
        found: Tensor = second[1][0]
        return found

    def third(norm: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        value = (norm(leaf.view(2, 3), w) * x.view(2, 3).exp()).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
            value = (gradient * x.cos()).sum()
        return value

    theirs, ours = (lambda x, w: functional.layer_norm(x, [3], w)), (lambda x, w: ops.layer_norm(x, [3], w))
    for derivative in (mixed, third):
        due = derivative(by_hand)
        still("F.layer_norm", not torch.allclose(derivative(theirs), due))
        assert torch.allclose(derivative(ours), due)
