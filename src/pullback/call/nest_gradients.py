"""The gradients that backward and double_backward return for nests, as one gradient for each leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pullback.call.gradients import by_argument, missing, shown, undue, wrong_kind
from pullback.call.matching import UnlikeError, matched
from pullback.call.nests import Nest
from pullback.call.structure import Structure
from pullback.define.definition import Definition
from pullback.errors import GradientError

_GRAD_OUTPUTS = "grad_outputs"


def leaf_gradients(
    definition: Definition, structure: Structure, needs: Sequence[bool], returned: Any
) -> tuple[Tensor | None, ...]:
    """One gradient or None for each leaf of the call, from whatever backward returned.

    Args:
        definition: What the author wrote.
        structure: The call.
        needs: For each leaf whether it needs a gradient.
        returned: What backward returned: one entry for each argument, by position or by name, nests for nests.

    Raises:
        GradientError: PB201, PB202, PB218 or PB222, naming the argument and the leaf.
    """
    wanted = structure.any_of(needs)
    is_nest = [nest is not None for nest in structure.nests]
    entries = by_argument(definition, structure.names, wanted, returned, is_nest)
    gradients: list[Tensor | None] = []
    own = structure.by_argument(needs)
    for name, nest, entry, needed in zip(structure.names, structure.nests, entries, own, strict=True):
        try:
            leaves = matched(nest, entry, name, needed)
        except UnlikeError as error:
            raise _unlike(definition, error) from None
        gradient = next((leaf for leaf in leaves if leaf is not None), None)
        if gradient is not None and definition.is_nondiff(name):
            raise undue(definition, name, gradient)
        gradients += leaves
    return tuple(gradients)


def leaf_results(
    definition: Definition, structure: Structure, outputs: Nest | None, count: int, returned: Any
) -> tuple[Tensor | None, ...] | Tensor:
    """What double_backward returned: one gradient for each flat output, then one for each leaf.

    Args:
        definition: What the author wrote.
        structure: The call.
        outputs: The nest that forward returned, if it is one.
        count: The number of flat outputs.
        returned: What double_backward returned: one entry for each leaf, or a dict by argument name.

    Raises:
        GradientError: PB220, it returned something else.
    """
    if isinstance(returned, Tensor):  # the short form
        return returned
    extra = (None,) if outputs is not None else ()
    if isinstance(returned, dict):
        return _by_name(definition, structure, outputs, count, returned)
    first = count - len(extra)
    due = first + sum(structure.seen)
    if not isinstance(returned, tuple):
        raise _unusable(definition, structure, first, shown(returned))
    while len(returned) > due and returned[-1] is None:
        returned = returned[:-1]
    if len(returned) != due:
        raise _unusable(definition, structure, first, f"{len(returned)} entries")
    for entry in returned:
        if entry is not None and not isinstance(entry, Tensor):
            raise _unusable(definition, structure, first, f"an entry of type {type(entry).__name__}")
    rest = iter(returned[first:])
    return (*returned[:first], *extra, *(next(rest) if seen else None for seen in structure.seen))


def unlike_tangent(definition: Definition, error: UnlikeError) -> GradientError:
    """The error for tangents that aren't like the outputs that they belong to."""
    return GradientError(
        "PB202",
        f"{definition.name}.jvp returned {error.got} where {error.path} is due.",
        expected=error.expected if error.why != "count" else f"{error.expected} entries for {error.path}",
        got=error.got,
        remedy="Return a nest like what forward returned: a tensor or None for each tensor in it.",
    )


def _by_name(
    definition: Definition, structure: Structure, outputs: Nest | None, count: int, named: Mapping[Any, Any]
) -> tuple[Tensor | None, ...]:
    unknown = [name for name in named if name not in structure.names and name != _GRAD_OUTPUTS]
    first = count - (outputs is not None)
    if unknown:
        raise _unusable(definition, structure, first, f"a dict with the unknown name {unknown[0]!r}")
    if _GRAD_OUTPUTS not in named:
        raise _unusable(definition, structure, first, f"a dict without an entry for {_GRAD_OUTPUTS}")
    given = named[_GRAD_OUTPUTS]
    found: list[Any] = []
    try:
        if outputs is None:
            found += given if isinstance(given, tuple) else (given,)
        else:
            single = not outputs.spreads and isinstance(given, tuple) and len(given) == 1
            found += matched(outputs, given[0] if single else given, _GRAD_OUTPUTS, (True,) * outputs.size)
            found.append(None)
        if len(found) != count:
            raise _unusable(definition, structure, first, f"{len(found)} entries for {_GRAD_OUTPUTS}")
        for name, nest, size in zip(structure.names, structure.nests, structure.sizes, strict=True):
            found += matched(nest, named.get(name), name, (False,) * size)
    except UnlikeError as error:
        raise _unusable(definition, structure, first, f"{error.got} for {error.path}") from None
    return tuple(found)


def _unlike(definition: Definition, error: UnlikeError) -> GradientError:
    if error.why == "kind":
        return wrong_kind(definition, error.path, error.expected, error.got)
    if error.why == "missing":
        return missing(definition, error.path, error.expected, error.got)
    if error.why == "unknown":
        return GradientError(
            "PB218",
            f"{definition.backward_label} returned a gradient for {error.path}, which is no leaf of the argument.",
            expected=error.expected,
            got=error.got,
        )
    return GradientError(
        "PB201",
        f"{definition.backward_label} returned an incorrect number of gradients for {error.path} "
        f"(expected {error.expected}, got {error.got}).",
        expected=f"{error.expected} entries for {error.path}, one for each thing in it",
        got=error.got,
        remedy=f"Return a nest like {error.path}: a tensor or None for each leaf, or None for all of them.",
    )


def _unusable(definition: Definition, structure: Structure, outputs: int, got: str) -> GradientError:
    leaves = [path for path, seen in zip(structure.paths, structure.seen, strict=True) if seen]
    literal = ", ".join(f'"{name}": …' for name in (_GRAD_OUTPUTS, *structure.names))
    return GradientError(
        "PB220",
        f"{definition.name}.double_backward returned what can't be its gradients.",
        expected=f"{outputs + len(leaves)} entries: one for each of {outputs} grad_outputs, then one for each of "
        f"{', '.join(leaves)}; or a dict of the arguments' names and grad_outputs",
        got=got,
        remedy=f"Return a tuple with one gradient for each, or a dict: {{{literal}}}.",
    )
