"""Which arguments does a tensor that forward computed vary with, smoothly? Watched once, while forward runs.

An intermediate that varies with no argument that requires grad is a constant as far as derivatives go: a dropout mask,
a comparison cast to float, a copy of an argument that doesn't require grad. Whatever else forward saves is cut off from
the graph and has to be connected again before a second derivative is right.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.torch_private import TorchDispatchMode, tree_leaves


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# Operations whose result has the shape of their argument and none of its values.
_SHAPE_ONLY = _named("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full")

# Operations whose result is flat almost everywhere, though it isn't boolean or integer.
_FLAT = _named("sign round floor ceil trunc floor_divide")

# Operations that leave nothing of what a tensor held.
_OVERWRITING = _named("zero_ fill_")

# How a Python number, a list or an array becomes a tensor.
_FROM_PYTHON = _named("lift_fresh lift")

READING = frozenset(getattr(torch.Tensor, name) for name in ("numpy", "tolist", "item", "__array__", "__dlpack__"))
"""How a tensor's values get out of PyTorch, past its operations."""

# Operations whose result is the same everywhere, until something is written there behind PyTorch's back.
_UNIFORM = _named("zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full")

# What arguments are beside tensors and nests, most of the time; it has no tensors in it.
_ATOMS = frozenset(
    (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
    )
)


@dataclass(frozen=True)
class _Operation:
    """What is to be known of an operation at each call of it; see the names above.

    Attributes:
        empty: Whether its result holds whatever lay there.
        from_python: Whether it makes a tensor of what Python holds.
        overwrites: Whether nothing is left of what its first tensor held.
        shape_only: Whether its result has none of the values.
        flat: Whether its result is flat almost everywhere.
        uniform: Whether its result is the same everywhere.
        reads: Whether it takes a number out of a tensor.
        writes: Whether it writes to an argument.
    """

    empty: bool
    from_python: bool
    overwrites: bool
    shape_only: bool
    flat: bool
    uniform: bool
    reads: bool
    writes: bool


@functools.lru_cache(maxsize=1024)
def _operation(func: Any) -> _Operation:
    schema = getattr(func, "_schema", None)
    name = getattr(schema, "name", "")
    infos = [argument.alias_info for argument in getattr(schema, "arguments", ())]
    return _Operation(
        empty="empty" in name,
        from_python=name in _FROM_PYTHON,
        overwrites=name in _OVERWRITING,
        shape_only=name in _SHAPE_ONLY,
        flat=name in _FLAT,
        uniform=name in _UNIFORM,
        reads=name == "aten::_local_scalar_dense",
        writes=any(info is not None and info.is_write for info in infos),
    )


class Dependence(TorchDispatchMode):
    """While active, follows each argument's values through the operations that forward runs.

    It follows storages, so views and in-place writes are seen; it errs to the side of too much. A tensor that no
    operation made (NumPy, a kernel), or that a kernel may have filled behind PyTorch's back (``empty``, or ``zeros``
    that are no longer zero), is taken to vary with every argument. Once a Python number was read from a tensor, all
    that is made with a Python number is taken to vary as that tensor does. A tensor that PyTorch made before forward
    ran, such as a table or a parameter, varies with none.

    Args:
        arguments: The arguments of forward, in order.
        literals: The numbers that stand in forward's source, which no tensor was read for.

    Attributes:
        read: The arguments that what was read from tensors (``item``, ``numpy``) varies with.
    """

    supports_higher_order_operators = True

    def __init__(self, arguments: Sequence[Any], literals: frozenset[float] = frozenset()) -> None:
        super().__init__()
        self._literals = literals
        self._everything = frozenset(range(len(arguments)))
        self.read: frozenset[int] = frozenset()
        # Storages by identity, held weakly: forward's memory is freed as it would be, and a storage that comes to lie
        # where a dead one lay isn't taken for it.
        self._sources: dict[int, tuple[weakref.ref[torch.UntypedStorage], frozenset[int]]] = {}
        self._uniform: dict[int, tuple[weakref.ref[torch.UntypedStorage], Any]] = {}
        self._numbered: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for index, argument in enumerate(arguments):
            for tensor in tensors_in(argument):
                self._add(tensor, frozenset({index}))

    def __enter__(self) -> Dependence:
        self._reads = _Reads(self)
        self._reads.__enter__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        entered: Dependence = super().__enter__()
        return entered

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        del self._reads  # it knows this object, and would keep it alive until the garbage collector comes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and give its results the sources of its arguments."""
        kwargs = kwargs or {}
        operation = _operation(func)
        given = tensors_in((args, kwargs) if kwargs else args)
        sources = self._sources_of(operation, args, kwargs, given)
        if operation.reads:
            self.reading(args[0])
        numbered = self._takes_number(args, kwargs) or (bool(self._numbered) and any(map(self.numbered, given)))
        bits: frozenset[int] = frozenset().union(*[self.of(tensor) for tensor in given if not is_smooth(tensor)])
        result = func(*args, **kwargs)
        if operation.overwrites and _fills_its_storage(result):
            self._mark(storage_of(result), frozenset())
        if operation.writes:
            for tensor in written(func._schema, args, kwargs):
                self._uniform.pop(id(storage_of(tensor)), None)
                self._add(tensor, sources, bits)
        for tensor in tensors_in(result):
            self._add(tensor, sources, bits)
            if numbered and is_smooth(tensor) and (storage := storage_of(tensor)) is not None:
                self._numbered[id(storage)] = weakref.ref(storage)
        if operation.uniform:
            self._expect_uniform(result)
        return result

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        """The indices of the arguments that `tensor` varies with smoothly; all of them where that isn't known.

        Integers vary with what they are the bits of, as ``x.view(torch.int32)`` has those of x.
        """
        storage = storage_of(tensor)
        if not is_smooth(tensor):
            return frozenset() if tensor.dtype is torch.bool else self._entry(storage) or frozenset()
        if self._uniform and self._written_behind(tensor, storage):
            return self._everything
        return self._known(storage)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is an argument, or was made or used by an operation that was watched."""
        return self._entry(storage_of(tensor)) is not None

    def numbered(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` was made with a Python number that may have been read from a tensor: no graph has that."""
        storage = storage_of(tensor)
        alive = self._numbered.get(id(storage))
        return alive is not None and alive() is storage

    def reading(self, tensor: torch.Tensor) -> None:
        """Note that the values of `tensor` are about to leave PyTorch."""
        self.read |= self.of(tensor)

    def _sources_of(
        self, operation: _Operation, args: Any, kwargs: Any, given: Sequence[torch.Tensor]
    ) -> frozenset[int]:
        if operation.empty:
            return self._everything
        if operation.from_python:
            return self.read.union(*[self._known(storage_of(tensor)) for tensor in tensors_in(args)])
        from_numbers = self.read if self._takes_number(args, kwargs) else ()
        if operation.overwrites:
            given = tensors_in((args[1:], kwargs))
        elif operation.shape_only:
            given = ()
        found: frozenset[int] = frozenset().union(*[self.of(tensor) for tensor in given], from_numbers)
        flat = operation.flat and not any(tensor.is_complex() for tensor in given)
        return frozenset() if flat else found

    def _takes_number(self, args: Any, kwargs: Any) -> bool:
        if not self.read:
            return False
        leaves = tree_leaves((args, kwargs))
        return any(type(leaf) in (float, complex) and leaf not in self._literals for leaf in leaves)

    def _add(self, tensor: torch.Tensor, sources: frozenset[int], bits: frozenset[int] = frozenset()) -> None:
        # A bool or integer tensor is flat almost everywhere: what is made from it doesn't vary smoothly. Unless it has
        # the bits of a smooth one: with a view of that it shares the storage, and what is made of such bits may be
        # taken for a smooth one again.
        more = sources if is_smooth(tensor) else bits if tensor.dtype is not torch.bool else frozenset()
        storage = storage_of(tensor)
        known = self._entry(storage)
        self._mark(storage, known | more if known else more)

    def _known(self, storage: torch.UntypedStorage | None) -> frozenset[int]:
        entry = self._entry(storage)
        if entry is not None:
            return entry
        # Memory that PyTorch allocates while this is active was seen; what it borrows (NumPy's) can't be resized.
        return frozenset() if storage is not None and storage.resizable() else self._everything

    def _entry(self, storage: torch.UntypedStorage | None) -> frozenset[int] | None:
        alive, sources = self._sources.get(id(storage), (None, None))
        return sources if alive is not None and alive() is storage else None

    def _mark(self, storage: torch.UntypedStorage | None, sources: frozenset[int]) -> None:
        if storage is not None:
            self._sources[id(storage)] = (weakref.ref(storage), sources)

    def _expect_uniform(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None and tensor.numel() and has_values(tensor):
            self._uniform[id(storage)] = (weakref.ref(storage), tensor[(0,) * tensor.dim()].clone())

    def _written_behind(self, tensor: torch.Tensor, storage: torch.UntypedStorage | None) -> bool:
        alive, value = self._uniform.get(id(storage), (None, None))
        if alive is None or value is None or alive() is not storage:
            return False
        return bool(torch.ne(tensor, value).logical_and(~torch.isnan(tensor)).any())


class _Reads(TorchFunctionMode):
    """Tells `watch` of the values that leave PyTorch by a method that isn't an operation."""

    def __init__(self, watch: Dependence) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            self._watch.reading(args[0])
        return func(*args, **kwargs) if kwargs else func(*args)


def written(schema: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes to; not each of them is among its results."""
    for index, argument in enumerate(getattr(schema, "arguments", ())):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from tensors_in(given)


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    storage = storage_of(tensor)
    return storage is not None and tensor.numel() * tensor.element_size() == storage.nbytes()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of `tensor`; None for sparse and other tensors that have none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def has_values(tensor: torch.Tensor) -> bool:
    """Whether there are numbers behind `tensor`: meta tensors, and fake ones that say they are elsewhere, have none."""
    if tensor.device.type == "meta":
        return False
    storage = storage_of(tensor)
    return storage is None or storage.device.type != "meta"


def is_smooth(tensor: torch.Tensor) -> bool:
    """Whether the dtype of `tensor` is one that derivatives are taken with respect to."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_in(nest: Any) -> list[torch.Tensor]:
    """The tensors in a nest; none in one that contains itself."""
    found: list[torch.Tensor] = []
    try:
        _gather(nest, found)
    except RecursionError:
        return []
    return found


def _gather(nest: Any, found: list[torch.Tensor]) -> None:
    """Each tensor of a nest in its order; the registry is asked only for what is none of Python's own kinds."""
    kind = type(nest)
    if kind is torch.Tensor:
        found.append(nest)
    elif kind is tuple or kind is list:
        for item in nest:
            if type(item) not in _ATOMS:
                _gather(item, found)
    elif kind is dict:
        for item in nest.values():
            _gather(item, found)
    elif isinstance(nest, torch.Tensor):
        found.append(nest)
    elif kind not in _ATOMS:
        found += [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor)]
