"""What autograd knows of an argument beside its values: a call and its backward leave that as it was.

``requires_grad_`` and ``detach_`` are slips for what makes a new tensor: in the caller's hands a buffer starts to be
trained, or a parameter stops. What adds to ``.grad`` by itself does so where the gradient was only asked for, and a
hook stays for good.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pullback.battery.case import Inputs
from pullback.torch_private import has_hooks

REMEDY = (
    "Leave the argument as it came: requires_grad_(), detach_() and register_hook belong on a tensor of your own, such "
    "as x.detach(); a gradient is returned, and the engine puts it on .grad."
)


REQUIRES = ".requires_grad"


class Flag(NamedTuple):
    """What a tensor is asked, as code that follows its name; what it is expected to say, and what it says."""

    asked: str
    expected: str
    got: str

    def rule(self, method: str) -> str:
        """The rule that the method breaks which has changed it."""
        return "PB330" if self.asked == REQUIRES else "PB401" if method == "forward" else "PB404"


def reflagged(inputs: Inputs) -> dict[str, Flag]:
    """What has changed of each argument, by its name, since these were made: then none had a gradient or a hook.

    A buffer that forward has marked dirty is an output, and has become what its graph makes of it.
    """
    required = {leaf.name for leaf in inputs.varying}
    found = ((leaf.name, _changed(leaf.tensor, leaf.name in required)) for leaf in inputs.leaves)
    return {name: flag for name, flag in found if flag is not None}


def _changed(tensor: torch.Tensor, required: bool) -> Flag | None:
    if not tensor.is_leaf or tensor.is_inference():
        return None
    if tensor.requires_grad != required:
        return Flag(REQUIRES, str(required), str(tensor.requires_grad))
    if tensor.grad is not None:
        return Flag(".grad is None", "True", "False")
    if has_hooks(tensor):
        return Flag("._backward_hooks", "no hook", "one")
    return None
