"""Each operation of pullback.ops with its formula in plain PyTorch and arguments to try, one module for each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """One operation, with some options.

    Attributes:
        name: What tests call it.
        call: The public function.
        formula: The same in plain PyTorch, differentiable to any order; gets the same arguments. Both are called
            right after the same seed was set.
        draw: Makes arguments in float64 from a generator; what is differentiated requires grad.
        beyond: How many bytes the graph keeps beside the storages of the arguments (and of a tensor output).
        dtypes: What the floating-point arguments may be cast to.
        empty: Arguments with a batch of no elements; None where there is no such thing.
        surrogate: The function whose derivative it has, where that is another one on purpose.
    """

    name: str
    call: Callable[..., Any]
    formula: Callable[..., Any]
    draw: Callable[[torch.Generator], Arguments]
    beyond: Callable[..., int]
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    empty: Callable[[], Arguments] | None = None
    surrogate: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return self.name


def normal(generator: torch.Generator, *shape: int, requires_grad: bool = True) -> Tensor:
    """Draw normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)


def every() -> list[Kind]:
    """The kinds of all modules in this folder; each has them in its list KINDS."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [kind for name in names for kind in importlib.import_module(f"{__name__}.{name}").KINDS]
