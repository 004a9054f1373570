"""What calls within compiled code stand on: which frames Dynamo leaves to Python. Its trial imports Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from pullback import torch_private as private


def _anew(function: Any) -> Any:
    """`function` with a code object of its own, since Dynamo keeps what it compiled by that."""
    code = function.__code__.replace(co_name=function.__name__)
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _leaves_frames() -> bool:
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module

    def one_more(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def outer(x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = left(x) * 2
        return doubled

    left = _anew(one_more)
    private.leave_to_python(left.__code__)
    x = torch.zeros(2)
    alone: Any = torch.compile(left, backend=backend)
    within: Any = torch.compile(_anew(outer), backend=backend)
    # By itself such a frame isn't compiled; where compiled code calls it, it is followed.
    alone(x)
    untouched = not graphs
    return untouched and bool((within(x) == 2).all()) and len(graphs) == 1


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("torch._C._dynamo.eval_frame.set_code_exec_strategy, _FrameExecStrategy, _FrameAction", _leaves_frames),
)
"""Names, and the trial of what they do."""
