"""What calls under torch.func and in forward mode stand on: the levels, their wrappers, and the dual numbers.

These trials enter transforms, so they are made in a thread without any (`pullback.torch_probes.apart`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from pullback import torch_private as private


def _seen_by(transform: Callable[..., Any], look: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """What `look` returns of the argument of a function that `transform` runs on `x`."""
    seen: list[Any] = []

    def runs(x: torch.Tensor) -> torch.Tensor:
        seen.append(look(x))
        return x.sum()

    transform(runs, x)
    return seen[0]


def _grad(function: Callable[..., Any], x: torch.Tensor) -> Any:
    return torch.func.grad(function)(x)


def _jvp(function: Callable[..., Any], x: torch.Tensor) -> Any:
    return torch.func.jvp(function, (x,), (x,))


def _vmap(function: Callable[..., Any], x: torch.Tensor) -> Any:
    return torch.func.vmap(function, in_dims=1)(x)


def _active() -> bool:
    inside = _seen_by(_grad, lambda x: private.transforms_active(), torch.ones(1))
    return inside is True and not private.transforms_active()


def _wrapped() -> bool:
    plain = torch.ones(1)
    return private.is_wrapped(_seen_by(_grad, lambda x: x, plain)) and not private.is_wrapped(plain)


def _unwraps_what_leaked() -> bool:
    plain = torch.ones(1)
    leaked = _seen_by(_grad, lambda x: x, plain)
    alive = _seen_by(_grad, lambda x: private.unwrap_if_dead(x) is x, plain)
    return private.unwrap_if_dead(leaked) is plain and private.unwrap_if_dead(plain) is plain and alive


def _tells_its_level() -> bool:
    def look(x: torch.Tensor) -> Any:
        top = private.top_interpreter()
        with top.lower():
            below = private.transforms_active()
        return top.key().name, top.level(), below, private.transforms_active()

    # PyTorch can't enter forward mode while it is on.
    may_enter = private.FORWARD_AD is forward_ad and private.dual_level() < 0
    kinds = {"Grad": _grad, "Vmap": _vmap} | ({"Jvp": _jvp} if may_enter else {})
    x = torch.ones(1, 1)
    nested = _seen_by(_grad, lambda y: _seen_by(_vmap, lambda z: private.top_interpreter().level(), x), x)
    return nested == 2 and all(
        _seen_by(transform, look, x) == (kind, 1, False, True) for kind, transform in kinds.items()
    )


def _wraps() -> bool:
    plain = torch.ones(1)

    def look(x: torch.Tensor) -> bool:
        level = private.top_interpreter().level()
        inner = private.unwrap_at(x, level)
        again = private.wrap_at(inner, level)
        there = inner is plain and private.unwrap_at(inner, level) is inner
        return there and again is not inner and private.unwrap_at(again, level) is inner

    return _seen_by(_grad, look, plain) is True


def _batches() -> bool:
    plain = torch.arange(6.0).reshape(2, 3)

    def look(x: torch.Tensor) -> Any:
        top = private.top_interpreter()
        value, dim = private.unbatch_at(x, top.level())
        alone, no_dim = private.unbatch_at(plain, top.level())
        entry = private.batch_at(plain, 1, top.level())
        same = value is plain and alone is plain and private.unbatch_at(entry, top.level())[0] is plain
        return same, dim, no_dim, tuple(entry.shape), top.batch_size(), top.randomness()

    return bool(_seen_by(_vmap, look, plain) == (True, 1, None, (2,), 3, "error"))


def _has_nodes_of_one_level() -> bool:
    class Sevenfold(private.SingleLevelFunction):  # type: ignore[misc]  # whatever it is, it is tried
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            top = private.top_interpreter()
            with top.lower():
                result = private.unwrap_at(x, top.level()).clone()
            return private.wrap_at(result, top.level())

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return 7 * grad

    def applied(x: torch.Tensor) -> Any:
        with private.allow_single_level():
            return Sevenfold.apply(x).sum()

    return bool(_grad(applied, torch.ones(1)) == 7)


def _has_forward_mode() -> bool:
    if private.FORWARD_AD is not forward_ad:
        return False
    before = private.dual_level()
    # PyTorch can't enter forward mode while it is on.
    with forward_ad.dual_level() if before < 0 else nullcontext():
        inside = private.dual_level()
        x = forward_ad.make_dual(torch.ones(1), torch.full((1,), 3.0))
        with private.forward_grad(False):
            off = forward_ad.unpack_dual(2 * x).tangent
            with private.forward_grad(True):
                on = forward_ad.unpack_dual(2 * x).tangent
    followed = on is not None and on.item() == 6.0
    return inside >= 0 and off is None and followed and private.dual_level() == before


def _takes_hooks_away() -> bool:
    x = torch.ones(1, requires_grad=True)
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    if private.top_saved_hooks(False) is not None:
        return False
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pair = private.top_saved_hooks(False)
        private.pop_saved_hooks()
        without = (x * x, private.top_saved_hooks(False))[1] is None and not packed
        private.push_saved_hooks(*pair)
        x * x
    return without and len(packed) == 2


def _tells_the_base() -> bool:
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        view = x[None]
    return private.base_of(view) is x and view.requires_grad and private.base_of(x.detach().requires_grad_()) is None


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("torch._C._are_functorch_transforms_active", _active),
    ("torch._C._functorch.is_functorch_wrapped_tensor", _wrapped),
    ("torch._C._functorch.unwrap_if_dead", _unwraps_what_leaked),
    (
        "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter, its key().name, level() and lower()",
        _tells_its_level,
    ),
    ("torch._C._functorch._wrap_for_grad, _unwrap_for_grad", _wraps),
    ("torch._C._functorch._add_batch_dim, _unwrap_batched, and a level's batch_size() and randomness()", _batches),
    (
        "torch.autograd.function._SingleLevelFunction, torch._functorch.utils.enable_single_level_autograd_function",
        _has_nodes_of_one_level,
    ),
    (
        "torch._C._autograd._top_saved_tensors_default_hooks, _pop_saved_tensors_default_hooks, "
        "_push_saved_tensors_default_hooks",
        _takes_hooks_away,
    ),
    ("Tensor._base", _tells_the_base),
    ("torch.autograd.forward_ad._current_level, _set_fwd_grad_enabled", _has_forward_mode),
)
"""Names, and the trial of what they do."""
