"""Every private name of PyTorch that pullback uses, in one place, each with what it is expected to do.

PyTorch promises nothing about these. `status()` looks at the installed torch and tries each one; where one is missing
or behaves otherwise, `pullback.Function` falls back to PyTorch's own ``apply``, without pullback's guards, and
``pullback env`` says so. Seen on torch 2.13.0.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.autograd.function import BackwardCFunction, Function, FunctionMeta
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

tree_leaves: Callable[[Any], list[Any]] = pytree.tree_leaves
"""The leaves of a nest of lists, tuples and dicts, and of what is registered beside them."""


def _absent(*_: Any) -> bool:
    return False


def bound_apply(cls: type) -> Callable[..., Any]:
    """The C++ ``apply`` of `cls`: what ``Function.apply`` calls once its own checks are done."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)
    return apply


transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", _absent)
"""Whether a torch.func transform is running in this thread."""

is_wrapped: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", _absent
)
"""Whether a tensor is a functorch wrapper; outside a transform it is one that leaked from one that has ended."""

any_autocast_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _absent)
"""Whether autocast is on for some device; `torch.is_autocast_enabled` asks for one and is slower."""


def tensors_to_save(ctx: Any) -> tuple[Any, ...] | None:
    """What forward has handed to ``ctx.save_for_backward`` so far."""
    saved: tuple[Any, ...] | None = ctx.to_save
    return saved


def marked_dirty(ctx: Any) -> tuple[torch.Tensor, ...]:
    """What forward has handed to ``ctx.mark_dirty``."""
    return ctx.dirty_tensors or ()


def raw_saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """The saved variables of a node, each to be unpacked by itself."""
    return tuple(ctx._raw_saved_tensors)


def leaf_behind(node: Any) -> torch.Tensor | None:
    """The leaf tensor that the node accumulates into, or None where it isn't such a node."""
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, torch.Tensor) else None


@lru_cache(maxsize=1)
def status() -> tuple[tuple[str, bool, str], ...]:
    """Try each private name on the installed torch: (name, whether it behaves as expected, what was seen)."""
    return tuple((name, *_tried(probe)) for name, probe in _PROBES)


@lru_cache(maxsize=1)
def usable() -> bool:
    """Whether pullback's own call path can be used: the names it stands on behave, those it only asks are there.

    Transforms and autocast are not entered for this, since it runs when `pullback.function` is imported.
    """
    asked = (transforms_active, is_wrapped, any_autocast_enabled)
    return _absent not in asked and all(_tried(probe)[0] for _, probe in _PROBES if probe not in _ENTERS_A_MODE)


def _tried(probe: Callable[[], bool]) -> tuple[bool, str]:
    try:
        return (True, "as expected") if probe() else (False, "behaves otherwise")
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


class _Probe(Function):
    """Records what a node shows of itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.mark_dirty(x)
        ctx.seen = (tensors_to_save(ctx), marked_dirty(ctx))
        return x.mul_(k)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad, None


def _node() -> tuple[Any, torch.Tensor, torch.Tensor]:
    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        x = leaf.clone()
        y = bound_apply(_Probe)(x, 2)
    return y.grad_fn, leaf, x


def _applies() -> bool:
    node, leaf, _ = _node()
    return type(node) is _Probe._backward_cls and leaf.requires_grad  # type: ignore[attr-defined]


def _records() -> bool:
    node, _, x = _node()
    saved, dirty = node.seen
    return len(saved) == 1 and saved[0] is x and len(dirty) == 1 and dirty[0] is x


def _finds_leaf() -> bool:
    node, leaf, _ = _node()
    clone = node.next_functions[0][0]
    return leaf_behind(clone) is None and leaf_behind(clone.next_functions[0][0]) is leaf


def _unpacks_one_by_one() -> bool:
    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True).clone()
        node: Any = (x * x).grad_fn
    raw = node._raw_saved_self
    return bool(torch.equal(raw.data, x)) and all(hasattr(raw, name) for name in ("unpack", "data"))


def _metaclass() -> bool:
    cls = FunctionMeta("Made", (Function,), {"forward": staticmethod(lambda ctx, x: x.clone())})
    return issubclass(cls._backward_cls, BackwardCFunction) and cls._backward_cls.__name__ == "MadeBackward"  # type: ignore[attr-defined]


def _wrapped() -> bool:
    plain = torch.ones(1)
    seen: list[torch.Tensor] = []

    def leak(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.sum()

    torch.func.grad(leak)(plain)
    return is_wrapped(seen[0]) and not is_wrapped(plain)


def _active() -> bool:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(transforms_active())
        return x.sum()

    torch.func.grad(look)(torch.ones(1))
    return seen == [True] and not transforms_active()


def _autocast() -> bool:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = any_autocast_enabled()
    return inside and not any_autocast_enabled()


def _storage() -> bool:
    x = torch.ones(2)
    alive = weakref.ref(x.untyped_storage())
    kept = alive() is not None and alive() is x[1:].untyped_storage()
    del x
    return kept and alive() is None


_PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("torch._C._FunctionBase.apply", _applies),
    ("torch._C._are_functorch_transforms_active", _active),
    ("torch._C._functorch.is_functorch_wrapped_tensor", _wrapped),
    ("torch._C._is_any_autocast_enabled", _autocast),
    ("torch.autograd.function.FunctionMeta", _metaclass),
    ("FunctionCtx.to_save, .dirty_tensors", _records),
    ("Node.next_functions, AccumulateGrad.variable", _finds_leaf),
    ("SavedTensor.data, .unpack", _unpacks_one_by_one),
    ("Tensor.untyped_storage, one object for as long as it lives", _storage),
)

_ENTERS_A_MODE = (_active, _wrapped, _autocast)
