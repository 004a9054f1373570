"""What is known of a value without running anything: what kind of thing it may be, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

How = Literal["same", "view", "maybe", "apart", "unsure"]
"""How a value hangs together with its origin: it is that object; another one that shares its memory (``view``); may be
that object, or share its memory, or neither (``maybe``); is another object that may share its memory (``apart``); is
another object, by an index of which nobody knows whether it copies (``unsure``)."""

Kind = Literal[
    "tensor", "none", "bool", "number", "text", "shape", "dtype", "device", "array", "tuple", "list", "dict", "set",
    "function", "class", "module", "ctx", "unbound", "unknown",
]  # fmt: skip
"""What a value may be. ``unbound``: on some path the name has no value at all. ``array``: of NumPy."""


LONGEST = 64
"""A tuple with more items than this is one of which they aren't known."""

DEEPEST = 3
"""As is one in more tuples than this."""


@dataclass(frozen=True)
class Origin:
    """Where a value comes from.

    Attributes:
        kind: ``input`` (an argument of forward, by name), ``output`` (of forward, as setup_context gets it), ``grad``
            (a grad_output, by index), ``tangent``, ``saved`` (an entry of saved_tensors, by index), ``ctx`` (an
            attribute of ctx, by name), ``needs`` (an entry of needs_input_grad, by index) or ``fresh`` (made here by
            the expression at `site`, in memory of its own).
        name: The argument's or attribute's name.
        index: The position; -1 where it isn't known which.
        how: ``same``, ``view``, ``maybe``, ``apart`` or ``unsure``.
        site: Where the expression that made it begins and ends (line, column, line, column), for ``fresh``.
    """

    kind: str
    name: str = ""
    index: int = -1
    how: How = "same"
    site: tuple[int, ...] = ()

    def seen_as(self, how: How) -> Origin:
        """This origin, of a value that is a ``view`` (or ``maybe`` one) of what had it."""
        if how in ("same", self.how) or self.how == "unsure":
            return self
        if how == "unsure" or self.how == "same":
            return replace(self, how=how)
        return replace(self, how="apart")

    def is_of(self, other: Origin) -> bool:
        """Whether both are the same thing, however closely each hangs together with it."""
        return replace(self, how="same") == replace(other, how="same")


@dataclass(frozen=True)
class Value:
    """What an expression may be.

    Attributes:
        kinds: Every kind that it may have.
        origins: What it may be, or share memory with. Empty for numbers, and for what nothing is known of.
        items: The items of a tuple or list of known length.
        family: Of a tuple whose items are numbered by autograd (grad_outputs, saved_tensors, …): the kind of their
            origin and the number of the first.
        elements: Whether it is a tuple or list of tensors, each of which has its origins.
        dotted: The full name of a function, class or module: ``torch.zeros_like``.
        depth: How deeply items stand in items; 0 where there are none.
    """

    kinds: frozenset[Kind]
    origins: frozenset[Origin] = frozenset()
    items: tuple[Value, ...] | None = None
    family: tuple[str, int] | None = None
    dotted: str = ""
    elements: bool = False
    depth: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Forgets items where they are too many, or nested too deeply: `h = (h, h)` doubles them with each line."""
        if not self.items:
            return
        if len(self.items) > LONGEST:
            object.__setattr__(self, "items", None)
            return
        if any(item.depth >= DEEPEST for item in self.items):
            shallow = (replace(item, items=None) if item.depth >= DEEPEST else item for item in self.items)
            object.__setattr__(self, "items", tuple(shallow))
        object.__setattr__(self, "depth", 1 + max(item.depth for item in self.items))

    @property
    def is_tensor(self) -> bool | None:
        """True if it is surely a tensor, False if surely none, None if that isn't known."""
        if self.kinds == {"tensor"}:
            return True
        return None if self.kinds & {"tensor", "unknown"} else False

    @property
    def may_be_none(self) -> bool | None:
        """True if it is None on some path, None if that isn't known, False if it never is."""
        return True if "none" in self.kinds else (None if "unknown" in self.kinds else False)

    def of(self, kind: str) -> tuple[Origin, ...]:
        """Its origins of one kind, in order of their indices."""
        return tuple(
            sorted((origin for origin in self.origins if origin.kind == kind), key=lambda o: (o.index, o.name))
        )

    def surely(self, kind: str) -> bool:
        """Whether it has origins, and each is of one kind."""
        return bool(self.origins) and all(origin.kind == kind for origin in self.origins)

    @property
    def fresh(self) -> bool:
        """Whether it surely has memory of its own, made in this method."""
        return self.surely("fresh")

    def seen_as(self, how: How) -> Value:
        """What a view (or maybe-view) of it is."""
        return Value(self.kinds, frozenset(origin.seen_as(how) for origin in self.origins))

    def item(self, index: int) -> Value:
        """The item of a tuple at a known index."""
        if self.items is not None:
            return self.items[index] if -len(self.items) <= index < len(self.items) else UNKNOWN
        if self.family is None:
            return UNKNOWN
        kind, first = self.family
        return family_item(kind, first + index if index >= 0 else -1)

    def each(self) -> Value:
        """Any item of it, as a loop gets it."""
        if self.items is not None:
            return joined(self.items) if self.items else UNKNOWN
        if self.family is not None:
            return family_item(self.family[0], -1)
        if self.elements and self.kinds <= {"tuple", "list"}:
            return Value(frozenset(("tensor",)), self.seen_as("view").origins)
        if self.is_tensor:
            return self.seen_as("view")
        return UNKNOWN

    def rest(self, start: int, end: int = 0) -> Value:
        """The items from `start` on, but for the last `end`."""
        if self.items is not None:
            return Value(self.kinds, items=self.items[start : len(self.items) - end])
        if self.family is not None:
            return Value(self.kinds, family=(self.family[0], self.family[1] + start if start >= 0 else -1))
        return UNKNOWN


def family_item(kind: str, index: int) -> Value:
    """The item of a tuple that autograd fills: a flag, a tensor, or for arguments anything."""
    origins = frozenset((Origin(kind, index=index),))
    if kind == "needs":
        return Value(frozenset(("bool",)), origins)
    if kind in ("input", "output"):
        return Value(frozenset(("unknown",)), origins)
    return Value(frozenset(("tensor",)), origins)


def a(*kinds: Kind, dotted: str = "") -> Value:
    """A value of these kinds of which no more is known."""
    return Value(frozenset(kinds), dotted=dotted)


UNKNOWN = a("unknown")
NONE = a("none")
NUMBER = a("number")
BOOL = a("bool")
UNBOUND = a("unbound")


def joined(values: Iterable[Value]) -> Value:
    """What a value is that may be any of `values`; there is at least one."""
    several = list({id(value): value for value in values}.values())  # most are one object, which needs no hash
    if len(several) > 1:
        several = list(dict.fromkeys(several))
    if len(several) == 1:
        return several[0]
    lengths = {len(value.items) if value.items is not None else -1 for value in several}
    items = None
    if len(lengths) == 1 and lengths != {-1}:
        items = tuple(joined(column) for column in zip(*(value.items or () for value in several), strict=True))
    families = {value.family for value in several}
    names = {value.dotted for value in several}
    return Value(
        frozenset().union(*(value.kinds for value in several)),
        frozenset().union(*(value.origins for value in several)),
        items,
        families.pop() if len(families) == 1 else None,
        names.pop() if len(names) == 1 else "",
        all(value.elements for value in several),
    )
