"""Is a nest of gradients like the nest that it belongs to? Its leaves in that one's order, or what is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pullback.call.nests import Nest, is_container
from pullback.torch_private import pytree_nodes

_MISSING = object()

A_LEAF = "a tensor or None"
"""What a gradient of a leaf is."""


class UnlikeError(Exception):
    """A nest is of another form than the one that it belongs to.

    Args:
        path: Where.
        expected: What belongs there.
        got: What is there.
        why: ``kind``, ``count``, ``unknown`` or ``missing``.
    """

    def __init__(self, path: str, expected: str, got: str, why: str) -> None:
        self.args = (path, expected, got, why)  # as a call of the base's __init__ would, which Dynamo can't trace
        self.path, self.expected, self.got, self.why = path, expected, got, why


def matched(nest: Nest | None, value: Any, path: str, needs: Sequence[bool], *, any_leaf: bool = False) -> list[Any]:
    """The leaves of `value` in the order of those of `nest`, each a tensor or None.

    None stands for a nest of Nones. A list and a tuple are alike, and so are dicts with the same keys in another order;
    what needs no gradient may be left out of a dict.

    Args:
        nest: What `value` is to be like; None for a leaf.
        value: A nest of tensors and Nones.
        path: What to call it.
        needs: For each leaf whether it needs a gradient.
        any_leaf: Whether a leaf may be anything.

    Raises:
        UnlikeError: It is of another form.
    """
    if nest is None:
        return [value if any_leaf else _leaf(value, path, needs[0])]
    if value is None:
        return [None] * nest.size
    found: list[Any] = []
    for part, label, child in zip(nest.parts, nest.labels, _children(nest, value, path), strict=True):
        own = needs[len(found) : len(found) + (1 if part is None else part.size)]
        if child is not _MISSING:
            found += matched(part, child, path + label, own, any_leaf=any_leaf)
        elif not any(own):
            found += [None] * len(own)
        else:
            raise UnlikeError(path + label, f"an entry for {path + label}", _shown(value), "missing")
    return found


def like(nest: Nest, value: Any) -> list[Any] | None:
    """What `value` has for each part of `nest`; None where it isn't like it, or has not all of them."""
    try:
        children = _children(nest, value, "")
    except UnlikeError:
        return None
    return None if any(child is _MISSING for child in children) else children


def _leaf(value: Any, path: str, needed: bool) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    # A container in which nothing needs a gradient was passed on as it was, so it is a leaf here.
    if not needed and is_container(type(value)):
        return None
    raise UnlikeError(path, A_LEAF, _shown(value), "kind")


def _children(nest: Nest, value: Any, path: str) -> list[Any]:
    """What `value` has for each part of `nest`."""
    if nest.names is not None:
        if not isinstance(value, Mapping):
            raise UnlikeError(path, described(nest), _shown(value), "kind")
        return _by_key(nest, nest.names, value, path)
    if issubclass(nest.kind, (list, tuple, deque)):
        if not isinstance(value, (list, tuple, deque)):
            raise UnlikeError(path, described(nest), _shown(value), "kind")
        children = list(value)
    elif type(value) is nest.kind:
        children = list(pytree_nodes[nest.kind].flatten_fn(value)[0])
    else:
        raise UnlikeError(path, described(nest), _shown(value), "kind")
    if len(children) != len(nest.parts):
        raise UnlikeError(path, str(len(nest.parts)), str(len(children)), "count")
    return children


def _by_key(nest: Nest, names: Sequence[Any], value: Mapping[Any, Any], path: str) -> list[Any]:
    ties = dict(nest.key) if nest.is_module else {}
    given = {}
    for key, child in value.items():
        name = ties.get(key, key)
        if name not in names or name in given:
            twice = f"{name!r} once: {key!r} is another name of it" if name in given else ""
            known = ", ".join(map(repr, names))
            raise UnlikeError(f"{path}[{key!r}]", twice or f"keys among {known}", _shown(value), "unknown")
        given[name] = child
    own = [None] if nest.is_module else []  # the module itself, which the author doesn't know as a leaf
    return [*own, *(given.get(name, _MISSING) for name in names)]


def described(nest: Nest) -> str:
    """What is like `nest`, in words."""
    if nest.is_module:
        return f"a dict by the names of its parameters: {', '.join(map(str, nest.names or ()))}"
    if nest.names is not None:
        return f"a dict with the keys {', '.join(map(repr, nest.names))}"
    if issubclass(nest.kind, (list, tuple, deque)):
        return f"a {'tuple' if issubclass(nest.kind, tuple) else 'list'} of {len(nest.parts)}"
    return f"a {nest.kind.__name__}"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"Tensor{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
