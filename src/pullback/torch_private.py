"""Every private name of PyTorch that pullback uses, in one place, each with what it is expected to do.

PyTorch promises nothing about these. `status()` looks at the installed torch and tries each one; where one is missing
or behaves otherwise, `pullback.Function` falls back to PyTorch's own ``apply``, without pullback's guards, and
``pullback env`` says so. Seen on torch 2.13.0.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode


def _absent(*_: Any) -> Any:
    return False


def _found(module: str, name: str, otherwise: Any = _absent) -> Any:
    """The private `name` of `module`, or what stands for it where the installed torch doesn't have it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return otherwise


if TYPE_CHECKING:  # PyTorch leaves its own untyped
    from typing_extensions import Self

    class TorchDispatchMode:
        """Sees every operation while it is entered."""

        def __init__(self) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, *error: object) -> None: ...
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = ..., kwargs: Any = ...) -> Any: ...

else:
    TorchDispatchMode = _found("torch.utils._python_dispatch", "TorchDispatchMode", object)

FunctionMeta: Any = type(Function)
"""The metaclass that gives each Function the class of its nodes, ``_backward_cls``."""

set_grad_enabled: Any = _found("torch._C", "_set_grad_enabled")
"""What ``torch.no_grad`` and its like call; a TorchFunctionMode sees the call."""

tree_leaves: Callable[[Any], list[Any]] = _found("torch.utils._pytree", "tree_leaves")
"""The leaves of a nest of lists, tuples and dicts, and of what is registered beside them."""


def bound_apply(cls: type) -> Callable[..., Any]:
    """The C++ ``apply`` of `cls`: what ``Function.apply`` calls once its own checks are done."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)
    return apply


transforms_active: Callable[[], bool] = _found("torch._C", "_are_functorch_transforms_active")
"""Whether a torch.func transform is running in this thread."""

is_wrapped: Callable[[torch.Tensor], bool] = _found("torch._C._functorch", "is_functorch_wrapped_tensor")
"""Whether a tensor is a functorch wrapper; outside a transform it is one that leaked from one that has ended."""


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
    asked = (transforms_active, is_wrapped, tree_leaves)
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
    return type(node) is _Probe._backward_cls and leaf.requires_grad


def _records() -> bool:
    node, _, x = _node()
    saved, dirty = node.seen
    return len(saved) == 1 and saved[0] is x and len(dirty) == 1 and dirty[0] is x


def _finds_leaf() -> bool:
    node, leaf, _ = _node()
    clone = node.next_functions[0][0]
    return leaf_behind(clone) is None and leaf_behind(clone.next_functions[0][0]) is leaf


def _unpacks_one_by_one() -> bool:
    node, _, x = _node()  # x is the node's output now, as forward changed it in place
    (raw,) = raw_saved_tensors(node)
    version = x._version
    x.add_(1)
    with torch.enable_grad():
        plain = torch.ones(1, requires_grad=True)
        other: Any = (plain * plain).grad_fn
    unpacked = other._raw_saved_self.unpack()
    return unpacked is plain and torch.equal(raw.data, x) and x._version == raw.data._version == version + 1


def _metaclass() -> bool:
    cls: Any = FunctionMeta("Made", (Function,), {"forward": staticmethod(lambda ctx, x: x.clone())})
    node = cls._backward_cls
    return node.__name__ == "MadeBackward" and node is not Function._backward_cls and hasattr(node, "apply")


def _dispatches() -> bool:
    seen: list[str] = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    sees: Any = Sees
    with sees():
        torch.ones(1)
    return seen == ["aten::ones"]


def _flattens() -> bool:
    return tree_leaves([1, (2, {"a": 3})]) == [1, 2, 3]


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


def _tells_of_no_grad() -> bool:
    seen: list[Any] = []

    class Looks(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Looks(), torch.no_grad():
        pass
    return set_grad_enabled in seen


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
    ("torch.autograd.function.FunctionMeta, Function._backward_cls", _metaclass),
    ("FunctionCtx.to_save, .dirty_tensors", _records),
    ("Node.next_functions, AccumulateGrad.variable", _finds_leaf),
    ("Node._raw_saved_tensors, SavedTensor.data, .unpack, Tensor._version", _unpacks_one_by_one),
    ("torch.utils._python_dispatch.TorchDispatchMode, OpOverload._schema", _dispatches),
    ("torch._C._set_grad_enabled", _tells_of_no_grad),
    ("torch.utils._pytree.tree_leaves", _flattens),
    ("Tensor.untyped_storage, one object for as long as it lives", _storage),
)

_ENTERS_A_MODE = (_active, _wrapped)
