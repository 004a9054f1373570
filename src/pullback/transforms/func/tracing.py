"""Tensors that are being traced (torch.func.linearize, make_fx), and what must not be done to them.

A trace writes down PyTorch's operations. What leaves PyTorch would be written down as the number that it was.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from pullback.call.dependence import READING
from pullback.errors import TransformError
from pullback.transforms.graph import is_batched

_LEAVING = READING | {Tensor.data_ptr}


def is_tracing() -> bool:
    """Whether operations are being written down."""
    return _tracer() is not None


def is_concrete(tensor: Tensor) -> bool:
    """Whether the values of `tensor` can be read: it isn't traced, nor a batch, nor without any."""
    tracer = _tracer()
    if tensor.device.type == "meta" or is_batched(tensor):
        return False
    if tracer is not None:
        known = sys.modules[_TRACING].get_proxy_slot(tensor, tracer, None, lambda found: found.proxy.node)
        return known is None or not _varies(known)
    if type(tensor) in (Tensor, Parameter):
        return True
    try:
        return bool(tensor.new_zeros(()) == 0)
    except RuntimeError:
        return False


def untraced() -> contextlib.AbstractContextManager[Any]:
    """While active, what is done to concrete tensors isn't written down."""
    return sys.modules[_TRACING].disable_proxy_modes_tracing() if is_tracing() else contextlib.nullcontext()


class Traced(TorchFunctionMode):
    """While active, values that can't be read aren't.

    Args:
        name: Whose method is run.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse what takes a value out of PyTorch."""
        if func in _LEAVING and not is_concrete(args[0]):
            raise TransformError(
                "PB512",
                f"{self._name} takes values out of PyTorch while it is being traced or batched "
                "(torch.func.linearize, make_fx, torch.autograd.functional).",
                expected="PyTorch operations alone",
                got=f"Tensor.{func.__name__}",
            )
        return func(*args, **(kwargs or {}))


def _varies(node: Any) -> bool:
    """Whether what `node` stands for depends on what the trace will be run on."""
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            return True
        waiting += [other for other in node.all_input_nodes if other not in seen]
        seen.update(waiting)
    return False


_TRACING = "torch.fx.experimental.proxy_tensor"


def _tracer() -> Any:
    # Nobody traces with a module that isn't loaded, and loading it takes its time.
    module = sys.modules.get(_TRACING)
    mode = None if module is None else module.get_proxy_mode()
    return None if mode is None else mode.tracer
