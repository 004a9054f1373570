"""The arguments of a call, kept for its rerun as the graph keeps saved tensors.

Saved-tensor hooks that are around the call, such as those that move tensors to the CPU, or of a recompute or checkpoint
around it, see the tensors among the arguments, and no other tensor of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

from pullback.call.nests import PLAIN_TYPES
from pullback.errors import SavedTensorError
from pullback.torch_private import top_saved_hooks, tree_flatten, tree_unflatten, version_of

Unpack: TypeAlias = Callable[[Any], Tensor]
Hooks: TypeAlias = tuple[Callable[[Tensor], Any], Unpack]

_FLAT = PLAIN_TYPES | {Tensor}


class Input:
    """One tensor among the arguments.

    Attributes:
        data: The tensor, cut off from the graph; what the hook around the call made of it, if there is one.
        unpack: The other hook; None where there is none, so that PyTorch's count of writes tells of changes.
        version: That count, when the call began.
    """

    __slots__ = ("data", "kind", "requires_grad", "unpack", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.requires_grad = tensor.requires_grad
        self.kind = type(tensor)
        self.version = version_of(tensor)
        self.unpack: Unpack | None = None
        # Not the tensor: when it is written to it gets a node behind this call, and there would be a cycle.
        self.data: Any = tensor.detach()

    def hand_over(self, tensor: Tensor, hooks: Hooks) -> None:
        """Have the hooks around the call keep the tensor; unless it was written to, which they would not tell."""
        if version_of(tensor) == self.version:
            pack, self.unpack = hooks
            with torch.no_grad():  # as PyTorch calls it
                self.data = pack(tensor)

    def again(self) -> Tensor:
        """The tensor for a rerun: a leaf, so that nothing which the rerun does to it reaches the caller's graph."""
        data = self.data
        if self.unpack is not None:
            with torch.no_grad():
                data = self.unpack(data)
        if self.kind is Parameter:
            return Parameter(data.detach(), self.requires_grad)
        leaf: Tensor = data.detach()
        return leaf.requires_grad_() if self.requires_grad else leaf


class Inputs:
    """The arguments of one call. A tensor that is there twice is one tensor in the rerun, too.

    Attributes:
        places: The tensors by their id, while the call runs.
        pending: The hooks that are to get the tensors as soon as the call saves one of its own. Where an argument
            requires grad, they get them at once.
    """

    __slots__ = ("_alive", "leaves", "pending", "places", "structure")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.structure: Any = None
        leaves: Any = args
        if kwargs or not all([type(value) in _FLAT for value in args]):
            leaves, self.structure = tree_flatten((args, kwargs))
        self._alive: Any = leaves  # else an id in `places` might become another tensor's
        self.places: dict[int, Input] = {}
        self.leaves: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                kept = self.places.get(id(leaf))
                if kept is None:
                    kept = self.places[id(leaf)] = Input(leaf)
                self.leaves.append(kept)
            else:
                self.leaves.append(leaf)
        self.pending: Hooks | None = top_saved_hooks(True)
        if self.pending is not None and any([kept.requires_grad for kept in self.places.values()]):
            self.keep()

    def keep(self) -> None:
        """Hand the tensors to the hooks around the call."""
        hooks, self.pending = self.pending, None
        assert hooks is not None
        handed: set[int] = set()
        for leaf, kept in zip(self._alive, self.leaves, strict=True):
            if isinstance(kept, Input) and id(kept) not in handed:
                handed.add(id(kept))
                kept.hand_over(leaf, hooks)

    def close(self) -> None:
        """The call is over: its tensors may go."""
        self.places.clear()
        self._alive = None

    def again(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for a rerun, by position and by keyword.

        Args:
            name: What to call the function in an error.

        Raises:
            SavedTensorError: PB301, a tensor among them was written to since the call.
        """
        made: dict[int, Tensor] = {}
        leaves: list[Any] = []
        for place, leaf in enumerate(self.leaves):
            if not isinstance(leaf, Input):
                leaves.append(leaf)
                continue
            tensor = made.get(id(leaf))
            if tensor is None:
                if leaf.unpack is None and version_of(leaf.data) != leaf.version:
                    raise self._written_to(place, leaf, name)
                tensor = made[id(leaf)] = leaf.again()
            leaves.append(tensor)
        if self.structure is None:
            return tuple(leaves), {}
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs

    def _written_to(self, place: int, kept: Input, name: str) -> SavedTensorError:
        return SavedTensorError(
            "PB301",
            f"recompute({name}): {self._path(place)} was changed in place after the call began, and backward needs "
            "it to run the function again.",
            expected=f"the {tuple(kept.data.shape)} {str(kept.data.dtype).removeprefix('torch.')} tensor at version "
            f"{kept.version}",
            got=f"version {version_of(kept.data)}",
            remedy="Don't write to it between forward and backward, in the function or outside; or give a clone of it.",
        )

    def _path(self, place: int) -> str:
        """How to name a leaf: `argument 0`, `argument 1['mask']`, `argument scale`."""
        if self.structure is None:
            return f"argument {place}"
        # The structure filled with the numbers of its leaves shows where each one lies.
        args, kwargs = tree_unflatten(list(range(len(self.leaves))), self.structure)
        for name, value in (*enumerate(args), *kwargs.items()):
            if place in tree_flatten(value)[0]:
                return f"argument {name}" if value == place else f"a tensor in argument {name}"
        return "an argument"
