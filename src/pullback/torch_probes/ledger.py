"""What the ledger of saved memory stands on: what a node shows of its saved tensors, and the order of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from pullback import torch_private as private
from pullback.torch_probes.calls import node_of_a_write


def _counts_nodes() -> bool:
    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        number = private.next_sequence_number()
        first, second = x * x, x * x
    seen = private.sequence_number(first.grad_fn), private.sequence_number(second.grad_fn)
    return seen == (number, number + 1) and private.next_sequence_number() == number + 2


def _shows_saved() -> bool:
    def unpack(packed: list[torch.Tensor]) -> torch.Tensor:
        return packed[0]

    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        plain: Any = (x * x).grad_fn
        with saved_tensors_hooks(lambda tensor: [tensor], unpack):
            hooked: Any = (x * x).grad_fn
    raw, packed = plain._raw_saved_self, hooked._raw_saved_self
    kept = isinstance(raw, private.SavedVariable) and raw.data is x and private.unpack_hook_of(raw) is None
    by_hook = packed.data[0] is x and private.unpack_hook_of(packed) is unpack
    return kept and by_hook and private.raw_names(type(plain)) == ("_raw_saved_other", "_raw_saved_self")


def _names_author() -> bool:
    node, _, _ = node_of_a_write()
    return private.author_of(node) is not None and private.author_of(node.next_functions[0][0]) is None


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("torch._C._autograd._get_sequence_nr, Node._sequence_nr", _counts_nodes),
    ("torch._C._autograd.SavedTensor, SavedTensor.unpack_hook, Node._raw_saved_self", _shows_saved),
    ("BackwardCFunction._forward_cls, of a node", _names_author),
)
"""Names, and the trial of what they do."""
