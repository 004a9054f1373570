"""Does a rerun read a tensor that was written to since the call? Asked only where there is such a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from pullback.torch_private import TorchDispatchMode, tree_leaves


class Reads(TorchDispatchMode):
    """Calls `found` with the name of the first lost tensor that an operation reads.

    An operation that writes to one shows that the function does so itself, as one does that counts its calls: what it
    reads afterwards is what it wrote.

    Args:
        lost: The tensors, each with its name.
        found: What to call; it doesn't return.
    """

    def __init__(self, lost: Iterable[tuple[str, Tensor]], found: Callable[[str], None]) -> None:
        super().__init__()
        self._names = {_place(tensor): name for name, tensor in lost}
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the operation's arguments, and run it."""
        kwargs = kwargs or {}
        schema = func._schema
        named = [(one, kwargs[one.name]) for one in schema.arguments if one.name in kwargs]
        for argument, value in [*zip(schema.arguments, args, strict=False), *named]:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            looks = argument.alias_info is not None and not writes  # a view, which is read by another operation
            for tensor in tree_leaves(value):
                name = self._names.get(_place(tensor)) if isinstance(tensor, Tensor) else None
                if name is not None and writes:
                    del self._names[_place(tensor)]
                elif name is not None and not looks:
                    self._found(name)
        return func(*args, **kwargs)


def _place(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # it has no storage of its own
        return id(tensor)
