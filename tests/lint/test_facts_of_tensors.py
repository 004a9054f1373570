"""What the linter says of writes, of what is kept and of memory, against PyTorch: the wrong examples do go wrong."""

from __future__ import annotations

import copy
import gc
import runpy
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, gradcheck, gradgradcheck

EXAMPLES = Path(__file__).parent / "examples"


def example(code: str, name: str) -> type[Function]:
    """The Function of an example."""
    found = runpy.run_path(str(EXAMPLES / code / f"{name}.py"))
    classes = [one for one in found.values() if isinstance(one, type) and issubclass(one, Function)]
    (own,) = [one for one in classes if one.__module__ == "<run_path>"]
    return own


def leaf(*shape: int, needed: bool = True) -> Tensor:
    """A float64 leaf, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_(needed)


@pytest.mark.parametrize("code", ["PB206", "PB207"])
def test_a_second_derivative_is_lost(code: str) -> None:
    """A saved intermediate, and what is detached, are constants to whoever differentiates backward."""
    x = leaf(3)
    for name in ("wrong", "right"):
        assert gradcheck(example(code, name).apply, (x,))
    assert not gradgradcheck(example(code, "wrong").apply, (x,), raise_exception=False)
    assert gradgradcheck(example(code, "right").apply, (x,))


def test_an_argument_on_ctx_goes_round_the_version_check() -> None:
    """Changed after the call it gives the gradient at another point, in silence; saved, it raises."""
    for name, expectation in (("wrong", None), ("right", "modified by an inplace operation")):
        x = leaf(3, needed=True)
        y = example("PB302", name).apply(x)
        with torch.no_grad():
            x.mul_(5)
        if expectation is None:
            y.sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach())  # of the x that is there now, not of the one squared
        else:
            with pytest.raises(RuntimeError, match=expectation):
                y.sum().backward()


def test_a_tensor_on_ctx_is_seen_by_no_hook() -> None:
    """Offloading and compression go by saved-tensor hooks."""
    for name, count in (("wrong", 0), ("right", 1)):
        packed: list[Tensor] = []

        def pack(tensor: Tensor, packed: list[Tensor] = packed) -> Tensor:
            packed.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            example("PB303", name).apply(leaf(3))
        assert len(packed) == count


def test_a_function_that_holds_ctx_is_a_cycle() -> None:
    """What is kept there outlives the output, until the collector comes."""
    gc.disable()
    try:
        y = example("PB306", "wrong").apply(leaf(3))
        kept = weakref.ref(y.grad_fn.read)
        del y
        assert kept() is not None
    finally:
        gc.enable()
    gc.collect()
    assert kept() is None


def test_a_frozen_argument_starts_to_require_grad() -> None:
    """The saved tensor is the caller's own."""
    for name, changed in (("wrong", True), ("right", False)):
        x, w = leaf(3), leaf(3, needed=False)
        example("PB330", name).apply(x, w).sum().backward()
        assert w.requires_grad is changed


def test_what_was_saved_first_is_replaced() -> None:
    """backward gets the product where it wants the factor: another gradient, and no error."""
    arguments = (leaf(3), leaf(3))
    assert not gradcheck(example("PB331", "wrong").apply, arguments, raise_exception=False)
    assert gradcheck(example("PB331", "right").apply, arguments)


def test_a_list_cant_be_saved() -> None:
    """PyTorch says so in forward."""
    with pytest.raises(TypeError, match="can only save variables, but argument 0 is of type list"):
        example("PB332", "wrong").apply(leaf(3), leaf(3))
    assert gradcheck(example("PB332", "right").apply, (leaf(3), leaf(3)))


def test_a_bare_constant_is_refused() -> None:
    """By pullback.Function itself."""
    with pytest.raises(TypeError, match="PB110"):
        example("PB110", "wrong").apply(leaf(3))
    assert gradcheck(example("PB110", "right").apply, (leaf(3),))


def test_an_argument_is_changed_without_a_word() -> None:
    """A leaf is doubled, which PyTorch refuses where the change is declared."""
    x = leaf(3)
    before = x.detach().clone()
    example("PB401", "wrong").apply(x)
    torch.testing.assert_close(x.detach(), 2 * before)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        example("PB401", "right").apply(x)


def test_a_write_through_data_is_seen_by_no_version_counter() -> None:
    """exp saved its result, which was doubled behind its back: the gradient is doubled, too."""
    for name, factor in (("wrong", 2.0), ("right", 1.0)):
        x = leaf(3)
        correct = 2 * x.detach().exp()
        example("PB402", name).apply(x.exp()).sum().backward()
        torch.testing.assert_close(x.grad, factor * correct)


def test_the_callers_gradient_is_changed() -> None:
    """grad_output is the very tensor that was given to backward."""
    for name, expected in (("wrong", 3.0), ("right", 1.0)):
        gradient = torch.ones(3, dtype=torch.float64)
        example("PB403", name).apply(leaf(3)).backward(gradient)
        torch.testing.assert_close(gradient, torch.full_like(gradient, expected))


def test_a_second_backward_meets_a_changed_tensor() -> None:
    """PyTorch notices, and refuses to go on."""
    x = leaf(3)
    for name in ("wrong", "right"):
        y = example("PB404", name).apply(x).sum()
        y.backward(retain_graph=True)
        if name == "right":
            y.backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()


def test_a_transposed_gradient_cant_be_viewed() -> None:
    """As it comes from whoever transposes the output."""
    for name in ("wrong", "right"):
        x, w = leaf(2, 3, 4), leaf(4, 5)
        y = example("PB406", name).apply(x, w).transpose(0, 1)
        loss = (y.contiguous() * torch.rand(3, 2, 5, dtype=torch.float64)).sum()
        if name == "right":
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                loss.backward()


def test_a_seed_outlives_the_call() -> None:
    """What is drawn afterwards is drawn from that seed."""
    for name, kept in (("wrong", False), ("right", True)):
        y = example("PB522", name).apply(leaf(3)).sum()
        before = copy.copy(torch.get_rng_state())
        y.backward()
        assert torch.equal(before, torch.get_rng_state()) is kept


def test_a_gradient_on_the_default_device_is_refused_elsewhere() -> None:
    """The meta device stands for any that isn't the CPU."""
    for name in ("wrong", "right"):
        x = torch.empty(3, 2, device="meta", requires_grad=True)
        y = example("PB550", name).apply(x).sum()
        if name == "right":
            y.backward()
        else:
            with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
                y.backward()
