"""All kinds of Function that the matrix crosses with the transforms."""

from __future__ import annotations

from tests.transforms.matrix import arguments, containers, given, methods, outputs, saving
from tests.transforms.matrix.kind import Kind, floats
from tests.transforms.operations import EXACT

TABLES = (saving.KINDS, outputs.KINDS, arguments.KINDS, methods.KINDS, given.KINDS, containers.KINDS)

KINDS: dict[str, Kind] = {name: kind for table in TABLES for name, kind in table.items()}
assert len(KINDS) == sum(map(len, TABLES)), "two kinds have one name"

# Some of the operations that the tests of higher orders use are written in yet other ways.
OTHERS = ("boxed", "nested", "vjp_for_backward")
KINDS.update(
    (name, Kind(name, EXACT[name].make, EXACT[name].formula, floats(*EXACT[name].shapes, dtype=EXACT[name].dtype)))
    for name in OTHERS
)
