"""torch.func.vjp where saved-tensor hooks are active (save_on_cpu, non-reentrant checkpoint), which it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.torch_private import pop_saved_hooks, push_saved_hooks, top_saved_hooks


def vjp(function: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
    """The value of `function`, and its vjp, by torch.func.

    What is saved on the way is pullback's own and short-lived; the hooks of the model around it don't see it.
    """
    with _unhooked():
        value, pull, *_ = torch.func.vjp(function, *primals)

    def pulled(cotangents: Any) -> tuple[Tensor, ...]:
        with _unhooked():
            found: tuple[Tensor, ...] = pull(cotangents)
        return found

    return value, pulled


@contextlib.contextmanager
def _unhooked() -> Iterator[None]:
    hooks: list[Any] = []
    while (hook := top_saved_hooks(False)) is not None:
        hooks.append(hook)
        pop_saved_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            push_saved_hooks(*hook)
