"""What forward returned, as flat outputs and back: tensors in containers are outputs of their own.

PyTorch passes on an output that is no tensor as it is. So the last output of a call that returned a nest is a
`Returned`, which knows how the others belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.call.dependence import tensors_in
from pullback.call.layout import OUTPUTS
from pullback.call.matching import matched
from pullback.call.nests import Nest, any_tensor, taken_apart


@dataclass(frozen=True, eq=False)
class Returned:
    """The last of the flat outputs of a call that returned a nest.

    Attributes:
        nest: What the author returned, without its leaves.
        value: What the author returned.
        leaves: Its leaves.
    """

    nest: Nest
    value: Any
    leaves: tuple[Any, ...]

    def restored(self, leaves: Sequence[Any], *, always: bool) -> Any:
        """What the author returned, with these leaves: the same object, where they are the same."""
        if all(new is old for new, old in zip(leaves, self.leaves, strict=True)):
            return self.value
        if always or any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return self.nest.rebuilt(iter(leaves))
        # Nothing is tracked, so as in PyTorch containers stay as they are; only outputs of their own are PyTorch's.
        if not self.nest.spreads:
            return self.value
        direct = (leaf for leaf, own in zip(leaves, self.nest.direct(), strict=True) if own)
        pairs = zip(self.nest.parts, self.value, strict=True)
        assert self.nest.make is not None
        return self.nest.make([next(direct) if part is None else given for part, given in pairs], self.nest.context)


def flattened(output: Any, untracked: Sequence[Any] = ()) -> Any:
    """What forward returned, as PyTorch takes it: a tensor, or a tuple with `Returned` as its last entry.

    Args:
        output: What forward returned.
        untracked: The arguments that were passed on as they are.
    """
    found = nest_of(output)
    if found is None:
        return output
    nest, leaves = found
    # PyTorch would put its node on them, and the caller's own tensors would require grad from then on.
    theirs = [tensor for value in untracked if not isinstance(value, Tensor) for tensor in tensors_in(value)]
    # By `is`, as Dynamo doesn't give each tensor an id.
    own = [leaf.detach() if any([leaf is tensor for tensor in theirs]) else leaf for leaf in leaves]
    return (*own, Returned(nest, output, tuple(leaves)))


def flat_outputs(ctx: Any, output: Any, untracked: Sequence[Any]) -> Any:
    """The same, and how the outputs belong together is put down on `ctx`."""
    flat = flattened(output, untracked)
    if type(flat) is tuple and flat and type(flat[-1]) is Returned:
        setattr(ctx, OUTPUTS, flat[-1].nest)
    return flat


def nest_of(output: Any) -> tuple[Nest, list[Any]] | None:
    """The nest that was returned and its leaves; None for a tensor or a plain tuple of tensors, as PyTorch has it."""
    found = None if isinstance(output, Tensor) else taken_apart(output, any_tensor, modules=False)
    plain = found is not None and found[0].kind is tuple and all(part is None for part in found[0].parts)
    return None if plain else found


def nested(outputs: Any, *, always: bool = False) -> Any:
    """What the author returned, of what a flat call returned.

    Args:
        outputs: The flat outputs.
        always: Whether the leaves matter even if none of them requires grad, as inside of transforms.
    """
    if type(outputs) is tuple and outputs and type(outputs[-1]) is Returned:
        return outputs[-1].restored(outputs[:-1], always=always)
    return outputs


def cotangents(ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """The cotangent of each output that the author returned, of those of the flat outputs."""
    nest = getattr(ctx, OUTPUTS, None)
    if nest is None:
        return grads
    whole = nest.rebuilt(iter(grads[:-1]), values=True)
    return tuple(whole) if nest.spreads else (whole,)


def leaves_like(ctx: Any, outputs: Any, path: str) -> tuple[Any, ...]:
    """The leaves of a nest like the outputs of `ctx`, such as tangents, in the order of the flat outputs.

    Raises:
        UnlikeError: It is of another form.
    """
    nest = getattr(ctx, OUTPUTS, None)
    if nest is None:
        return outputs if isinstance(outputs, tuple) else (outputs,)
    if nest.spreads and not isinstance(outputs, tuple):
        outputs = (outputs,)
    return (*matched(nest, outputs, path, (True,) * nest.size), None)


def reordered(nest: Nest | None, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Flat outputs of a reference in the order of forward's, which returned `nest`.

    Raises:
        UnlikeError: The two returned nests of different forms.
    """
    last = outputs[-1] if outputs else None
    if nest is None or (type(last) is Returned and last.nest == nest):
        return outputs
    value = last.value if type(last) is Returned else outputs if nest.spreads or len(outputs) > 1 else outputs[0]
    return (*matched(nest, value, "output", (True,) * nest.size, any_leaf=True), None)
