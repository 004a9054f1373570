"""Every private name of PyTorch that pullback uses, in one place, each with what it is expected to do.

PyTorch promises nothing about these. `status()` looks at the installed torch and tries each one, by the trials in
`pullback.torch_probes`; where one is missing or behaves otherwise, `pullback.Function` falls back to PyTorch's own
``apply``, without pullback's guards, and ``pullback env`` says so. Where it is one that only calls under a transform
stand on, these calls alone fall back; where it is one that only names a saved tensor, the error is PyTorch's own; where
it is one of Dynamo's, that compiles frames of pullback too, which takes time and may fail; where it is one of
the ledger's, there is no ledger; where it is the one of recompute's, calls take a little longer.
Seen on torch 2.12.1, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import Function


def _absent(*_: Any) -> Any:
    return False


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _nothing(*_: Any) -> Any:
    return None


def _one(*_: Any) -> int:
    return 1


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

if TYPE_CHECKING:
    from torch.autograd.function import FunctionMeta as FunctionMeta
else:
    FunctionMeta = type(Function)
"""The metaclass that gives each Function the class of its nodes, ``_backward_cls``."""

set_grad_enabled: Any = _found("torch._C", "_set_grad_enabled")
"""What ``torch.no_grad`` and its like call; a TorchFunctionMode sees the call."""

tree_leaves: Callable[[Any], list[Any]] = _found("torch.utils._pytree", "tree_leaves")
"""The leaves of a nest of lists, tuples and dicts, and of what is registered beside them."""

tree_flatten: Callable[..., tuple[list[Any], Any]] = _found("torch.utils._pytree", "tree_flatten")
tree_unflatten: Callable[[list[Any], Any], Any] = _found("torch.utils._pytree", "tree_unflatten")
"""A nest taken apart, to its leaves and its structure, and put together again."""

pytree_nodes: Mapping[Any, Any] = _found("torch.utils._pytree", "SUPPORTED_NODES", {})
"""What each class of containers is taken apart and put together by."""

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Where in the ``__dict__`` of a module its parameters, buffers and submodules are, by name."""


def bound_apply(cls: type) -> Callable[..., Any]:
    """The C++ ``apply`` of `cls`: what ``Function.apply`` calls once its own checks are done."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)
    return apply


transforms_active: Callable[[], bool] = _found("torch._C", "_are_functorch_transforms_active")
"""Whether a torch.func transform is running in this thread."""

is_wrapped: Callable[[torch.Tensor], bool] = _found("torch._C._functorch", "is_functorch_wrapped_tensor")
"""Whether a tensor is a functorch wrapper; outside a transform it is one that leaked from one that has ended."""

unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = _found("torch._C._functorch", "unwrap_if_dead", _same)
"""The tensor within a wrapper that leaked from a transform; any other tensor as it is."""

top_interpreter: Callable[[], Any] = _found("torch._functorch.pyfunctorch", "retrieve_current_functorch_interpreter")
"""The innermost transform that is running: its ``key().name``, ``level()`` and ``lower()``."""

SingleLevelFunction: Any = _found("torch.autograd.function", "_SingleLevelFunction", Function)
"""The base of a Function whose nodes belong to one level of torch.func."""

allow_single_level: Callable[[], Any] = _found("torch._functorch.utils", "enable_single_level_autograd_function")
"""Lets a `SingleLevelFunction` be applied."""

wrap_at: Callable[[torch.Tensor, int], torch.Tensor] = _found("torch._C._functorch", "_wrap_for_grad")
unwrap_at: Callable[[torch.Tensor, int], torch.Tensor] = _found("torch._C._functorch", "_unwrap_for_grad")
"""Into, and out of, the wrapper that a level of grad or jvp puts around a tensor."""

batch_at: Callable[[torch.Tensor, int, int], torch.Tensor] = _found("torch._C._functorch", "_add_batch_dim")
unbatch_at: Callable[[torch.Tensor, int], tuple[torch.Tensor, int | None]] = _found(
    "torch._C._functorch", "_unwrap_batched"
)
"""Into, and out of, the wrapper that a level of vmap puts around a batch; out comes the batch's dimension too."""

top_saved_hooks: Callable[[bool], Any] = _found("torch._C._autograd", "_top_saved_tensors_default_hooks", _nothing)
pop_saved_hooks: Callable[[], None] = _found("torch._C._autograd", "_pop_saved_tensors_default_hooks")
push_saved_hooks: Callable[..., None] = _found("torch._C._autograd", "_push_saved_tensors_default_hooks")
"""The saved-tensor hooks that are active: the innermost pair of them, out, and in again."""

function_modes: Callable[[], int] = _found("torch._C", "_len_torch_function_stack", _one)
"""How many TorchFunctionModes are entered in this thread; a default device is one."""

forward_grad: Callable[[bool], Any] = _found("torch.autograd.forward_ad", "_set_fwd_grad_enabled")
"""Switches forward mode on or off, as ``torch.set_grad_enabled`` does for reverse mode."""

_NO_LEVEL = SimpleNamespace(_current_level=-1)
FORWARD_AD: Any = forward_ad if hasattr(forward_ad, "_current_level") else _NO_LEVEL
"""Where the level of dual numbers is found, for `pullback.Function.apply`, which has no time for a call."""


def dual_level() -> int:
    """The level of dual numbers that is entered; -1 outside forward mode."""
    level: int = FORWARD_AD._current_level
    return level


def boxes_gradients(cls: Any) -> bool:
    """Whether backward of `cls` gets its cotangents in one list; a torch that can't do so ignores the declaration."""
    return hasattr(Function, "boxed_grads_call") and bool(getattr(cls, "boxed_grads_call", False))


def clears_on_access(cls: Any) -> bool:
    """Whether the saved tensors of `cls` are freed as they are read; a torch that can't has no name for it."""
    return bool(getattr(cls, "clear_saved_tensors_on_access", False))


set_strategy: Any = _found("torch._C._dynamo.eval_frame", "set_code_exec_strategy", _nothing)
FrameStrategy: Any = _found("torch._C._dynamo.eval_frame", "_FrameExecStrategy", _nothing)
FrameAction: Any = _found("torch._C._dynamo.eval_frame", "_FrameAction", SimpleNamespace(SKIP=0, DEFAULT=0))


def leave_to_python(code: CodeType) -> None:
    """Tell Dynamo not to compile frames of `code`, which it may still meet, and follow, in code that it compiles."""
    set_strategy(code, FrameStrategy(FrameAction.SKIP, FrameAction.DEFAULT))


def tensors_to_save(ctx: Any) -> tuple[Any, ...] | None:
    """What forward has handed to ``ctx.save_for_backward`` so far."""
    saved: tuple[Any, ...] | None = ctx.to_save
    return saved


def marked_dirty(ctx: Any) -> tuple[torch.Tensor, ...]:
    """What forward has handed to ``ctx.mark_dirty``."""
    return ctx.dirty_tensors or ()


def move_context(ran: Any, ctx: Any) -> None:
    """Put on `ctx` what forward has left on `ran`, of which no node was made; but materialize_grads shows nowhere."""
    ctx.__dict__.update(ran.__dict__)
    ctx.to_save = ran.to_save
    ctx.dirty_tensors = ran.dirty_tensors
    ctx.non_differentiable = ran.non_differentiable
    ctx.saved_for_forward = ran.saved_for_forward


def of_dynamo(module: str, name: str, otherwise: Any = None) -> Any:
    """A part of TorchDynamo, imported when it is asked for, since that takes seconds; `otherwise` where it isn't there.

    Only the checker's probe of compiled code asks: without it, it says less, and leaves more behind.
    """
    try:
        return getattr(importlib.import_module(f"torch._dynamo.{module}"), name)
    except (ImportError, AttributeError):
        return otherwise


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` was written to, as far as PyTorch counts; -1 for a tensor that it doesn't count for."""
    return -1 if tensor.is_inference() else tensor._version


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a hook hangs on `tensor` itself, as `Tensor.register_hook` leaves one on a leaf."""
    return bool(tensor._backward_hooks)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that `tensor` is a view of, as far as autograd has to know; None for one that is no view."""
    base: torch.Tensor | None = tensor._base
    return base


def raw_saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """The saved variables of a node, each to be unpacked by itself."""
    return tuple(ctx._raw_saved_tensors)


def unpacked(raw: Any) -> Any:
    """One saved variable by itself, as backward would see it; it raises where that was changed in place."""
    return raw.unpack()


def saved_data(raw: Any) -> torch.Tensor:
    """The tensor of a saved variable as it is now, changed or not."""
    data: torch.Tensor = raw.data
    return data


def leaf_behind(node: Any) -> torch.Tensor | None:
    """The leaf tensor that the node accumulates into, or None where it isn't such a node."""
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, torch.Tensor) else None


SavedVariable: Any = _found("torch._C._autograd", "SavedTensor", type(None))
"""What stands for one saved tensor of a node; it is a view into the node, and not to be used without it."""

next_sequence_number: Callable[[], int] = _found("torch._C._autograd", "_get_sequence_nr")
"""The number that the next node of this thread gets."""


def sequence_number(node: Any) -> int:
    """The number of a node: those of one thread count up in the order in which they were made."""
    number: int = node._sequence_nr()
    return number


def raw_names(kind: type) -> tuple[str, ...]:
    """The attributes of the nodes of a class that hold their saved variables, or tuples of them."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def unpack_hook_of(raw: Any) -> Any:
    """The hook that brings a saved tensor back, or None where it is kept as it is."""
    return raw.unpack_hook


def author_of(node: Any) -> Any:
    """The Function whose node this is, as far as its class tells; None for PyTorch's own nodes."""
    return getattr(type(node), "_forward_cls", None)


@lru_cache(maxsize=1)
def status() -> tuple[tuple[str, bool, str], ...]:
    """Try each private name on the installed torch: (name, whether it behaves as expected, what was seen)."""
    from pullback.torch_probes import apart, calls, compiling, errors, ledger, rerun, transforms, tried

    parts = (calls, errors, transforms, compiling, ledger, rerun)
    probes = [probe for part in parts for probe in part.PROBES]
    return tuple(apart(lambda: [(name, *tried(probe)) for name, probe in probes]))


@lru_cache(maxsize=1)
def usable() -> bool:
    """Whether pullback's own call path can be used: the names it stands on behave, those it only asks are there.

    Transforms are not entered for this, since it runs when `pullback.function` is imported; that may happen inside one.
    """
    from pullback.torch_probes import apart, calls, tried

    asked = (transforms_active, is_wrapped, tree_leaves)
    there = _absent not in asked and unwrap_if_dead is not _same and FORWARD_AD is not _NO_LEVEL
    return there and apart(lambda: all(tried(probe)[0] for _, probe in calls.PROBES))


@lru_cache(maxsize=1)
def usable_in_transforms() -> bool:
    """Whether pullback's own path can be used under torch.func and in forward mode, too.

    It is asked by the first call that comes from there.
    """
    from pullback.torch_probes import apart, transforms, tried

    return usable() and apart(lambda: all(tried(probe)[0] for _, probe in transforms.PROBES))


@lru_cache(maxsize=1)
def usable_in_errors() -> bool:
    """Whether it can be found out which saved tensor was changed in place; else the error stays PyTorch's own."""
    from pullback.torch_probes import apart, errors, tried

    return apart(lambda: all(tried(probe)[0] for _, probe in errors.PROBES))


@lru_cache(maxsize=1)
def usable_in_ledger() -> bool:
    """Whether a node shows what it keeps, and when it was made; else there can be no ledger."""
    from pullback.torch_probes import apart, ledger, tried

    return apart(lambda: all(tried(probe)[0] for _, probe in ledger.PROBES))
