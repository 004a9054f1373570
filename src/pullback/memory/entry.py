"""One line of the ledger: one piece of memory that the graph keeps, and who keeps it. Numbers and text, no tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pullback.memory.sizes import size

SAVED = "saved"
"""Kept as a saved tensor: hooks, checkpoint and offloading see it, and backward frees it."""

HOOK = "hook"
"""Kept by saved-tensor hooks: what they put in a saved tensor's place, or what they need to bring it back."""

CTX = "ctx"
"""Kept as an attribute of ctx: no hook sees it, and backward doesn't free it (PB303)."""

CLOSURE = "closure"
"""Captured by a function that the node holds, such as backward: no hook sees it, and backward doesn't free it."""


@dataclass(frozen=True)
class Holder:
    """One place in the graph that keeps a piece of memory.

    Attributes:
        operation: The name of the operation: a ``grad_fn``'s (``MulBackward0``) or a Function's (``SwiGLU``).
        argument: What it is there: ``self``, ``result``, a parameter of forward, ``intermediate``, ``ctx.cache[0]``.
        module: The path of the module that was running, from the outermost one: ``Llama.layers.0.mlp``; else empty.
        how: ``saved``, ``hook``, ``ctx`` or ``closure``.
        shape: The shape of the tensor as it is kept there.
        dtype: Its dtype, without ``torch.``.
        bytes: The bytes that its elements take; a view may keep more than that.
        call: Where it is kept to run something again, by checkpoint or recompute: the path of that module, or the
            function's name; else empty.
    """

    operation: str
    argument: str
    module: str
    how: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    call: str = ""

    @property
    def name(self) -> str:
        """Operation and argument: ``MulBackward0.self``, ``argument 0 of recompute(Llama.layers.0)``."""
        return f"{self.argument} of {self.operation}({self.call})" if self.call else f"{self.operation}.{self.argument}"

    @property
    def form(self) -> str:
        """Its dtype and shape: ``float32[32, 64]``."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self.name + (f" in {self.module}" if self.module and self.module != self.call else "")


@dataclass(frozen=True)
class Entry:
    """One piece of memory (a storage) that the graph keeps alive.

    It is charged to the first operation that kept it; `also` names the others, which keep it at no further cost.

    Attributes:
        bytes: Its size.
        first: The first operation that kept it.
        also: The others, in the order of forward.
        device: Where it lies.
        pinned: The bytes of it that none of the tensors in the graph needs: a small view keeps all of its storage.
        recompute: How it can be computed again at little cost from what is kept beside it; empty where it can't.
    """

    bytes: int
    first: Holder
    also: tuple[Holder, ...] = ()
    device: str = "cpu"
    pinned: int = 0
    recompute: str = ""

    @property
    def operation(self) -> str:
        """The operation that it is charged to."""
        return self.first.operation

    @property
    def argument(self) -> str:
        """Which tensor of that operation it is."""
        return self.first.argument

    @property
    def module(self) -> str:
        """The path of the module that was running then; empty outside of modules."""
        return self.first.module

    @property
    def how(self) -> str:
        """How the first operation keeps it: ``saved``, ``hook``, ``ctx`` or ``closure``."""
        return self.first.how

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor as that operation keeps it."""
        return self.first.shape

    @property
    def dtype(self) -> str:
        """Its dtype, without ``torch.``."""
        return self.first.dtype

    @property
    def out_of_sight(self) -> bool:
        """Whether some operation keeps it where no saved-tensor hook sees it, so that it outlives backward."""
        return any(holder.how in (CTX, CLOSURE) for holder in (self.first, *self.also))

    @property
    def pins(self) -> bool:
        """Whether more than half of it is kept for nothing, by views of the rest (PB305)."""
        return 2 * self.pinned > self.bytes

    def __str__(self) -> str:
        return f"{size(self.bytes)}  {self.first}  {self.first.form}{self.others}"

    @property
    def others(self) -> str:
        """Who else keeps it, as the end of a line; empty where nobody does."""
        names = list(dict.fromkeys(holder.name for holder in self.also))
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f", also {', '.join(names[:2])}{rest}" if names else ""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        first = {name: value for name, value in asdict(self.first).items() if name != "bytes"}
        return {
            "bytes": self.bytes,
            **first,
            "shape": list(self.shape),
            "device": self.device,
            "pinned": self.pinned,
            "recompute": self.recompute,
            "also": [{**asdict(holder), "shape": list(holder.shape)} for holder in self.also],
        }
