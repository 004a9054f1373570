"""How a recomputed function is called: with slots in its graph, or in another form where hooks have no place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from pullback.memory.rerun import Call, reruns_in_forward_mode
from pullback.torch_private import FORWARD_AD, transforms_active


def recomputed(
    function: Callable[..., Any],
    name: str,
    module: Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `function` so that it saves its arguments alone.

    NOTE [other forms]: Dynamo takes PyTorch's checkpoint for what it is, and has the compiler recompute. Where no
    gradient is recorded, or a graph is exported, the function is called plainly, and so it is inside torch.func and in
    forward mode, whose derivatives PyTorch doesn't take through hooks.

    Args:
        function: The function.
        name: What to call it in an error.
        module: The module whose method it is, where that doesn't show.
        args: Its arguments.
        kwargs: Those by keyword.
    """
    if torch.compiler.is_compiling():
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            return checkpoint(function, *args, use_reentrant=False, **kwargs)
        return function(*args, **kwargs)
    if not torch.is_grad_enabled() or transforms_active():
        return function(*args, **kwargs)
    if FORWARD_AD._current_level >= 0 and not reruns_in_forward_mode():
        return function(*args, **kwargs)
    call = Call(function, name, module, args, kwargs)
    with call.hooks():
        result = function(*args, **kwargs)
    call.close()
    return result
