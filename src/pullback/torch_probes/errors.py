"""What only the words of an error stand on: saved tensors that are looked at one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pullback import torch_private as private
from pullback.torch_probes.calls import node_of_a_write


def _unpacks_one_by_one() -> bool:
    node, _, x = node_of_a_write()  # x is the node's output now, as forward changed it in place
    (raw,) = private.raw_saved_tensors(node)
    version = x._version
    x.add_(1)
    with torch.enable_grad():
        plain = torch.ones(1, requires_grad=True)
        other: Any = (plain * plain).grad_fn
    saved = private.saved_data(raw)
    alone = private.unpacked(other._raw_saved_self)
    return alone is plain and torch.equal(saved, x) and x._version == saved._version == version + 1


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (("SavedTensor.data, .unpack", _unpacks_one_by_one),)
"""Names, and the trial of what they do."""
