"""A batch of cotangents through one backward, as ``torch.autograd.grad(…, is_grads_batched=True)`` has it.

PyTorch runs backward once, on tensors that hold the whole batch and look like one entry of it. It does so by an older
machinery than that of ``torch.vmap``, with fewer operators, and ``.data`` of such a tensor ends the process. So each
method is watched while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from pullback.battery.raised import RAISED, BackwardRaised
from pullback.battery.subject import Leaf, Output, Subject

_DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # a getset


class DataError(RuntimeError):
    """``.data`` of a batch of cotangents: PyTorch would end the process, so it isn't tried."""


class ReadError(RuntimeError):
    """The value of a batch of cotangents was asked for: a batch has several, and PyTorch raises.

    Args:
        how: By what: ``bool()``.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(f"{how} of a batch of cotangents")


def _flattened(tensor: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not tensor.dim():
        return tensor.reshape(1)
    first, last = start_dim % tensor.dim(), end_dim % tensor.dim()
    return tensor.reshape(*tensor.shape[:first], -1, *tensor.shape[last + 1 :])


def _unflattened(tensor: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    place = dim % tensor.dim()
    return tensor.reshape(*tensor.shape[:place], *sizes, *tensor.shape[place + 1 :])


_SAME: Mapping[Any, tuple[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        Tensor.detach: ("detach", lambda tensor: tensor),
        torch.detach: ("detach", lambda tensor: tensor),
        Tensor.flatten: ("flatten", _flattened),
        torch.flatten: ("flatten", _flattened),
        Tensor.unflatten: ("unflatten", _unflattened),
        torch.unflatten: ("unflatten", _unflattened),
        Tensor.swapaxes: ("swapaxes", lambda tensor, axis0, axis1: tensor.transpose(axis0, axis1)),
        torch.swapaxes: ("swapaxes", lambda tensor, axis0, axis1: tensor.transpose(axis0, axis1)),
    }
)
"""Operators that can't be batched so, and what gives the same numbers, and can."""


_READS: Mapping[Any, str] = MappingProxyType(
    {
        Tensor.__bool__: "bool()",
        Tensor.is_nonzero: "bool()",
        torch.is_nonzero: "bool()",
        Tensor.__float__: "float()",
        Tensor.__int__: "int()",
        Tensor.__index__: "int()",
        Tensor.__complex__: "complex()",
        Tensor.__contains__: "in",
        Tensor.item: "item()",
        Tensor.tolist: "tolist()",
        Tensor.equal: "equal()",
        torch.equal: "equal()",
        Tensor.allclose: "allclose()",
        torch.allclose: "allclose()",
        Tensor.nonzero: "nonzero()",
        torch.nonzero: "nonzero()",
        Tensor.argwhere: "argwhere()",
        torch.argwhere: "argwhere()",
        Tensor.masked_select: "masked_select()",
        torch.masked_select: "masked_select()",
        Tensor.unique: "unique()",
        torch.unique: "unique()",
    }
)
"""What asks for the value of its argument, or gives as many elements as the values say."""

_INDEXED = frozenset({Tensor.__getitem__, Tensor.__setitem__})


def _reading(func: Any, args: Sequence[Any]) -> str:
    """What in the call of a function of PyTorch asks a batch for its value, such as ``bool()``; empty if nothing."""
    if func in _READS:
        asked = args[:2] if func in (Tensor.equal, torch.equal, Tensor.allclose, torch.allclose) else args[:1]
        return _READS[func] if any(isinstance(a, Tensor) and _is_batch(a) for a in asked) else ""
    if func in _INDEXED:
        index = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
        masks = (entry for entry in index if isinstance(entry, Tensor) and entry.dtype is torch.bool)
        return "a mask in brackets" if any(_is_batch(mask) for mask in masks) else ""
    return ""


class _Address:
    """Stands for the address of a batch: it can be looked at and compared, and nobody can read memory there."""

    def __mod__(self, _: int) -> int:
        return 0

    def __lt__(self, _: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__


class _Storage:
    """Stands for the storage of a batch, which has an address and a length."""

    def __init__(self, tensor: Tensor) -> None:
        self._length, self._width = tensor.numel(), tensor.element_size()

    def data_ptr(self) -> _Address:
        """The address."""
        return _Address()

    def nbytes(self) -> int:
        """The length in bytes."""
        return self._length * self._width

    def __len__(self) -> int:
        return self._length

    size = __len__


_POINTED: Mapping[Any, tuple[str, Callable[[Tensor], object]]] = MappingProxyType(
    {
        Tensor.data_ptr: ("data_ptr", lambda tensor: _Address()),
        Tensor.untyped_storage: ("untyped_storage", _Storage),
        Tensor.storage: ("storage", _Storage),
    }
)
"""What asks where a tensor lies, which a batch does nowhere, and what stands for the answer."""

POINTERS = frozenset(name for name, _ in _POINTED.values())
"""The names of these. Whoever hands an address to a kernel can take no batch; whoever only looks at it needn't ask."""


class Watched(TorchFunctionMode):
    """While active, ``.data`` of a batch is an error instead of a crash, and asking for its value an error by name.

    Args:
        eased: Whether operators are replaced that have no batched form and needn't be there.
        placed: Whether something stands for addresses, too.

    Attributes:
        replaced: The names of those that were.
        calls: How many functions of PyTorch have been called.
    """

    def __init__(self, *, eased: bool = False, placed: bool = False) -> None:
        super().__init__()
        self._eased, self._placed = eased, placed
        self.replaced: set[str] = set()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, or what stands in its place."""
        self.calls += 1
        if func == _DATA and _is_batch(args[0]):
            raise DataError("backward reads .data of a batch of cotangents")
        how = _reading(func, args)
        if how:
            raise ReadError(how)
        if self._eased and func in _SAME and _is_batch(args[0]):
            name, same = _SAME[func]
            self.replaced.add(name)
            return same(*args, **(kwargs or {}))
        if self._placed and func in _POINTED and _is_batch(args[0]):
            name, instead = _POINTED[func]
            self.replaced.add(name)
            return instead(args[0])
        return func(*args, **(kwargs or {}))


def _is_batch(tensor: Tensor) -> bool:
    """Whether a dense tensor stands for several, and so has no memory of its own."""
    if tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return True
    return False


def pulled(
    subject: Subject, outputs: Sequence[Output], batches: Sequence[Tensor], leaves: Sequence[Leaf], watched: Watched
) -> tuple[Tensor | None, ...]:
    """The gradients of each of the batches' entries, in one run of backward.

    Args:
        subject: Whose.
        outputs: What to differentiate.
        batches: For each output, cotangents with the batch in front.
        leaves: What to differentiate by.
        watched: Stands over each method while it runs.

    Returns:
        For each leaf the gradients with the batch in front, or None.

    Raises:
        BackwardRaised: If that raises.
    """
    tensors = [output.tensor for output in outputs]
    subject.reseed(backward=True)
    try:
        with standing_over(tensors, watched):
            found: tuple[Tensor | None, ...] = torch.autograd.grad(
                tensors, [leaf.tensor for leaf in leaves], [*batches], allow_unused=True, is_grads_batched=True
            )
    except RAISED as error:
        raise BackwardRaised(error) from error
    return found


@contextmanager
def standing_over(tensors: Iterable[Tensor], mode: Watched) -> Iterator[None]:
    """Have the mode active in each Function's backward: around the whole call it would be asked about that alone."""

    def enter(*_: object) -> None:
        mode.__enter__()  # type: ignore[no-untyped-call]  # PyTorch's

    def leave(*_: object) -> None:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # PyTorch's

    handles = []
    for node in _functions(tensors):
        handles += [node.register_prehook(enter), node.register_hook(leave)]
    try:
        yield
    finally:
        before = mode.calls
        torch.ones(())
        if mode.calls != before:  # backward raised, and the engine left the mode where it was
            leave()
        for handle in handles:
            handle.remove()


def _functions(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of Functions that lead to some tensors."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [other for other, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            yield node
