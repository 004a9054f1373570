"""What every call stands on: the Function's ``apply``, its node and its ctx, and what the guards look at."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from pullback import torch_private as private


class _Probe(Function):
    """Records what a node shows of itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.mark_dirty(x)
        ctx.seen = (private.tensors_to_save(ctx), private.marked_dirty(ctx))
        return x.mul_(k)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad, None


def node_of_a_write() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The node of a call that saved its argument and wrote to it, the leaf behind the argument, and the argument."""
    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        x = leaf.clone()
        y = private.bound_apply(_Probe)(x, 2)
    return y.grad_fn, leaf, x


def _applies() -> bool:
    node, leaf, _ = node_of_a_write()
    return type(node) is _Probe._backward_cls and leaf.requires_grad


def _records() -> bool:
    node, _, x = node_of_a_write()
    saved, dirty = node.seen
    return len(saved) == 1 and saved[0] is x and len(dirty) == 1 and dirty[0] is x


def _finds_leaf() -> bool:
    node, leaf, _ = node_of_a_write()
    clone = node.next_functions[0][0]
    return private.leaf_behind(clone) is None and private.leaf_behind(clone.next_functions[0][0]) is leaf


def _counts_saved_and_written() -> bool:
    node, _, x = node_of_a_write()
    version = x._version
    x.add_(1)
    return len(private.raw_saved_tensors(node)) == 1 and x._version == version + 1


def _metaclass() -> bool:
    cls: Any = private.FunctionMeta("Made", (Function,), {"forward": staticmethod(lambda ctx, x: x.clone())})
    node = cls._backward_cls
    own = node.__name__ == "MadeBackward" and node is not Function._backward_cls and node._forward_cls is cls
    return own and hasattr(node, "apply")


def _dispatches() -> bool:
    seen: list[str] = []

    class Sees(private.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    sees: Any = Sees
    with sees():
        torch.ones(1)
    return seen == ["aten::ones"]


def _flattens() -> bool:
    nest = [1, (2, {"a": 3})]
    leaves, spec = private.tree_flatten(nest, is_leaf=lambda part: isinstance(part, dict))
    return (
        private.tree_leaves(nest) == [1, 2, 3]
        and leaves == [1, 2, {"a": 3}]
        and private.tree_unflatten(leaves, spec) == nest
    )


def _registers() -> bool:
    known = private.pytree_nodes[dict]
    children, context = known.flatten_fn({"a": 1, "b": 2})
    labels = [str(key) for key, _ in known.flatten_with_keys_fn({"a": 1})[0]]
    made = known.unflatten_fn([3, 4], context)
    return (
        list(children) == [1, 2] and made == {"a": 3, "b": 4} and labels == ["['a']"] and list in private.pytree_nodes
    )


def _keeps_tables() -> bool:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    inner = module[0]
    tables = (
        [module.__dict__[name] for name in private.MODULE_TABLES],
        [inner.__dict__[name] for name in private.MODULE_TABLES],
    )
    found = [list(table) for own in tables for table in own]
    buffers = [name for name, _ in inner.named_buffers()]
    return found == [[], [], ["0"], [name for name, _ in inner.named_parameters()], buffers, []]


class _Stop(Exception):
    """Ends a call whose forward has run."""


class _Moved(Function):
    """Stops once; when called again, goes on with what the stopped call had put on its ctx."""

    ran: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: int) -> Any:
        flags = ctx.needs_input_grad
        ctx.needs_input_grad = (flags[1],)
        ctx.seen = ctx.needs_input_grad
        ctx.needs_input_grad = flags
        if k:
            ctx.save_for_backward(x)
            ctx.k = k
            _Moved.ran = ctx
            raise _Stop
        private.move_context(_Moved.ran, ctx)
        return x * ctx.k, ctx.seen

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, other: None) -> Any:
        return grad * ctx.saved_tensors[0] * ctx.k if ctx.needs_input_grad == (True, False) else grad, other


def _moves_context() -> bool:
    with torch.enable_grad():
        x = torch.full((1,), 3.0, requires_grad=True)
        try:
            private.bound_apply(_Moved)(x, 2)
        except _Stop:
            y, seen = private.bound_apply(_Moved)(x, 0)
        finally:
            _Moved.ran = None
        (gradient,) = torch.autograd.grad(y, x)
    return seen == (False,) and y.item() == 6 and gradient.item() == 6


def _tells_of_no_grad() -> bool:
    seen: list[Any] = []

    class Looks(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Looks(), torch.no_grad():
        pass
    return private.set_grad_enabled in seen


def _tells_of_hooks() -> bool:
    x = torch.ones(2, requires_grad=True)
    before = private.has_hooks(x)
    handle = x.register_hook(lambda gradient: gradient)
    within = private.has_hooks(x)
    handle.remove()
    return (before, within, private.has_hooks(x)) == (False, True, False)


def _storage() -> bool:
    x = torch.ones(2)
    alive = weakref.ref(x.untyped_storage())
    kept = alive() is not None and alive() is x[1:].untyped_storage()
    del x
    return kept and alive() is None


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("torch._C._FunctionBase.apply", _applies),
    ("torch.autograd.function.FunctionMeta, Function._backward_cls, ._forward_cls", _metaclass),
    ("FunctionCtx.to_save, .dirty_tensors", _records),
    ("Node.next_functions, AccumulateGrad.variable", _finds_leaf),
    ("Node._raw_saved_tensors, Tensor._version", _counts_saved_and_written),
    ("torch.utils._python_dispatch.TorchDispatchMode, OpOverload._schema", _dispatches),
    ("torch._C._set_grad_enabled", _tells_of_no_grad),
    ("torch.utils._pytree.tree_leaves, tree_flatten, tree_unflatten", _flattens),
    ("torch.utils._pytree.SUPPORTED_NODES", _registers),
    ("Module.__dict__: _parameters, _buffers, _modules", _keeps_tables),
    ("FunctionCtx.needs_input_grad, .non_differentiable, .saved_for_forward, set and read", _moves_context),
    ("Tensor._backward_hooks", _tells_of_hooks),
    ("Tensor.untyped_storage, one object for as long as it lives", _storage),
)
"""Names, and the trial of what they do."""
