"""What the linter says of gradients and saved tensors, against PyTorch: wrong examples go wrong, right ones don't."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, gradcheck

EXAMPLES = Path(__file__).parent / "examples"


def leaf(*shape: int, needed: bool = True) -> Tensor:
    """A float64 leaf."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_(needed)


def pair() -> list[Any]:
    """Two square matrices."""
    return [leaf(2, 2), leaf(2, 2)]


def frozen() -> list[Any]:
    """Two of which only the second needs a gradient."""
    return [leaf(2, 2, needed=False), leaf(2, 2)]


def single() -> list[Any]:
    """One vector."""
    return [leaf(3)]


def scaled() -> list[Any]:
    """A vector and a number."""
    return [leaf(3), 2]


RAISE: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "PB111": (single, "takes 2 positional arguments but 3 were given"),
    "PB201": (scaled, r"incorrect number of gradients \(expected 2, got 1\)"),
    "PB202": (pair, "incorrect number of gradients|expected Variable or None"),
    "PB218": (scaled, "'input', which is no argument of forward"),
    "PB222": (pair, "which nondiff_argnames declares to have none"),
    "PB230": (scaled, "gradient different than None at position 2"),
    "PB231": (pair, "tuple index out of range"),
    "PB233": (frozen, "local variable|grad_x"),
    "PB234": (frozen, "does not require grad"),
    "PB236": (single, "not enough values to unpack"),
    "PB237": (scaled, "no attribute 'scale'"),
}
"""What is raised, where a first gradient is asked for."""


def example(code: str, name: str) -> type[Function]:
    """The Function of an example."""
    found = runpy.run_path(str(EXAMPLES / code / f"{name}.py"))
    classes = [one for one in found.values() if isinstance(one, type) and issubclass(one, Function)]
    (own,) = [one for one in classes if one.__module__ == "<run_path>"]
    return own


def differentiate(function: type[Function], arguments: list[Any]) -> None:
    """Ask for the gradients of each argument that needs one."""
    outputs = function.apply(*arguments)
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(one.sum() for one in several if one.requires_grad).backward()


@pytest.mark.parametrize("code", RAISE)
def test_a_wrong_example_raises(code: str) -> None:
    """And the right one beside it gives the derivative."""
    arguments, message = RAISE[code]
    with pytest.raises(
        (RuntimeError, TypeError, IndexError, ValueError, AttributeError, UnboundLocalError), match=message
    ):
        differentiate(example(code, "wrong"), arguments())
    if code != "PB222":  # its gradient for base is None on purpose
        assert gradcheck(example(code, "right").apply, arguments())


def test_the_flag_of_another_argument_loses_a_gradient() -> None:
    """PB208: frozen x, no gradient for w."""
    for name, lost in (("wrong", True), ("right", False)):
        x, w = frozen()
        differentiate(example("PB208", name), [x, w])
        assert (w.grad is None) is lost


def test_gradients_in_another_order_are_wrong() -> None:
    """PB232: where the shapes agree, in silence."""
    for name, right in (("wrong", False), ("right", True)):
        x, w = pair()
        differentiate(example("PB232", name), [x, w])
        assert torch.equal(x.grad, w) is right


def test_an_unused_output_gives_none() -> None:
    """PB210: the first gradient alone."""
    for name in ("wrong", "right"):
        x = leaf(3)
        first, _ = example("PB210", name).apply(x)
        if name == "wrong":
            with pytest.raises(TypeError, match="NoneType"):
                first.sum().backward()
        else:
            first.sum().backward()
            assert torch.equal(x.grad, torch.full_like(x, 2.0))


def test_an_output_that_is_ignored_gives_another_gradient() -> None:
    """PB209: the cosine's part is lost."""
    assert gradcheck(example("PB209", "right").apply, single())
    assert not gradcheck(example("PB209", "wrong").apply, single(), raise_exception=False)


def test_a_second_mark_replaces_the_first() -> None:
    """PB235: an index is an integer, so only the marks themselves tell."""

    class Marks(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            a, b = x + 1, x + 2
            ctx.mark_non_differentiable(a)
            ctx.mark_non_differentiable(b)
            return a, b

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
            return g + h

    assert [one.requires_grad for one in Marks.apply(leaf(3))] == [True, False]


@pytest.mark.filterwarnings("ignore:'saved_variables' is deprecated:DeprecationWarning")
def test_the_old_name_still_works() -> None:
    """PB238: so that it is only a warning."""
    for name in ("wrong", "right"):
        assert gradcheck(example("PB238", name).apply, single())


def test_what_is_marked_dirty_has_to_be_returned() -> None:
    """PB240: a view won't do."""
    with pytest.raises(RuntimeError, match="marked as dirty during the forward method were not returned"):
        example("PB240", "wrong").apply(leaf(3) * 1)
    assert gradcheck(lambda x: example("PB240", "right").apply(x * 1), single())


def test_a_mark_on_an_intermediate_has_no_effect() -> None:
    """PB241: the copy that is returned requires grad."""
    assert [one.requires_grad for one in example("PB241", "wrong").apply(leaf(3))] == [True, True]
    assert [one.requires_grad for one in example("PB241", "right").apply(leaf(3))] == [True, False]


def test_what_is_saved_for_nothing_is_kept() -> None:
    """PB304: until backward."""
    outputs = [example("PB304", name).apply(leaf(3)) for name in ("wrong", "right")]
    assert [len(one.grad_fn.saved_tensors) for one in outputs] == [1, 0]


def test_a_jvp_finds_no_saved_tensors() -> None:
    """PB508: save_for_backward isn't for it."""
    for name in ("wrong", "right"):
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(leaf(3, needed=False), torch.ones(3, dtype=torch.float64))
            if name == "wrong":
                with pytest.raises(ValueError, match="not enough values to unpack"):
                    example("PB508", name).apply(x)
            else:
                assert torch.autograd.forward_ad.unpack_dual(example("PB508", name).apply(x)).tangent is not None
