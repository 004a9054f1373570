"""What the author's methods are told of which tensors require grad: what holds for the call, whatever the level.

On plain tensors at the bottom nothing requires grad, nor does a batch under vmap. An author may ask all the same, as
``x.requires_grad`` in backward or for each parameter of a module, and leave out the gradients that nobody wants.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_REQUIRES_GRAD = Tensor.requires_grad.__get__  # type: ignore[attr-defined]  # a getset


class Asked(TorchFunctionMode):
    """While active, `tensors` say that they require grad.

    Args:
        tensors: Those that a level differentiates with respect to.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._alive = [*tensors]  # for as long as their identity stands for them
        self._asked = {id(tensor) for tensor in self._alive}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer for the tensors; run all else."""
        if func == _REQUIRES_GRAD and id(args[0]) in self._asked:
            return True
        return func(*args, **(kwargs or {}))
