"""Tensors that a function uses and that aren't among its arguments, though they require grad: each raises, by name.

NOTE [captured]: a rule gives the derivative with respect to the arguments, so a parameter that the function takes from
a closure, a global or ``self`` would be treated as a constant, in silence. While the function runs, each call of a
PyTorch operation is looked at: a tensor that requires grad, or belongs to a transform that is running, must be an
argument or must have been made meanwhile. What is made meanwhile is known by identity; a tensor that was there before
can't have the identity of one that was made later.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from pullback.call.dependence import is_smooth, tensors_in
from pullback.call.kept import held_by
from pullback.custom.nests import tensors_of
from pullback.errors import CallError
from pullback.torch_private import dual_level, is_wrapped, transforms_active

_DEPTH = 6
_MOST = 5000  # objects that are looked at for a name


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


# What says on purpose that no derivative is wanted, or takes nothing but a shape or a dtype from its argument.
_HARMLESS = frozenset(
    {
        Tensor.detach,
        Tensor.requires_grad_,
        _getter("data"),
        _getter("grad"),
        Tensor.new_zeros,
        Tensor.new_ones,
        Tensor.new_empty,
        Tensor.new_full,
        Tensor.new_tensor,
        torch.zeros_like,
        torch.ones_like,
        torch.empty_like,
        torch.full_like,
        torch.rand_like,
        torch.randn_like,
    }
)


class Watch(TorchFunctionMode):
    """Raises at its end if a captured tensor that requires grad was used while it was active (NOTE [captured]).

    Args:
        name: The decorated function's name.
        role: Which function runs: ``f``, ``fwd``, ``bwd`` or ``rule``.
        function: That function.
        given: A nest with the tensors that it may use.
        fixed: Arguments without a derivative: it may use the tensors in them, but not the parameters of modules.
        extra: Arguments by name, in which tensors may be captured too.

    Raises:
        CallError: PB503, at its end, if such a tensor was used.
    """

    def __init__(self, name: str, role: str, function: Any, given: Any, fixed: Any, extra: Mapping[str, Any]) -> None:
        super().__init__()
        self._label = name if role == "f" else f"the {role} of {name}"
        self._function = function
        self._extra = extra
        self._may_use_any = role in ("bwd", "rule")
        known = (*tensors_of(given), *tensors_of(fixed, modules=False))
        self._known = {id(tensor): tensor for tensor in known}
        self._made: set[int] = set()
        self._failures: list[CallError] = []

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        # Raised here: from inside an operator Python would take a TypeError for an operand that doesn't fit.
        if self._failures:
            raise self._failures.pop(
                0
            )  # and kept by no variable, or this frame and the error would keep each other alive

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and look at what it was given where it returns something differentiable."""
        kwargs = kwargs or {}
        used = [tensor for tensor in tensors_in((args, kwargs)) if self._is_suspect(tensor)]
        try:
            result = func(*args, **kwargs)
        except Exception:
            self._judge(used)
            raise
        made = tensors_in(result)
        if used and func not in _HARMLESS and any(map(is_smooth, made)):
            self._judge(used)
        # A setter returns nothing: what it was given may be a tensor that requires grad from now on.
        before = {id(tensor) for tensor in used}
        candidates = made if made or used else tensors_in(args)
        self._made.update({id(tensor) for tensor in candidates if _is_tracked(tensor)} - before)
        return result

    def _is_suspect(self, tensor: Tensor) -> bool:
        return _is_tracked(tensor) and id(tensor) not in self._known and id(tensor) not in self._made

    def _judge(self, used: list[Tensor]) -> None:
        for tensor in used:
            name = _name_of(tensor, self._function, self._extra)
            if not name and not self._was_there(tensor):
                continue
            kind = f"a tensor of shape {tuple(tensor.shape)}" if not name else name
            self._failures.append(
                CallError(
                    "PB503",
                    f"{self._label} uses {kind}, which requires grad and isn't among its arguments.",
                    expected="arguments for all that is differentiated",
                    got=f"{kind}, captured from outside",
                    remedy=f"Pass {name or 'it'} as an argument; or detach it, if no gradient is meant to flow.",
                )
            )

    def _was_there(self, tensor: Tensor) -> bool:
        """Whether a tensor that nothing leads to can't have been made meanwhile.

        A wrapper of torch.func, another Function's output, a parameter and all that is made in grad mode (by the
        machinery of other Functions, too) may have been, without an operation that shows it.
        """
        inside = self._may_use_any or transforms_active() or dual_level() >= 0 or torch.is_grad_enabled()
        return tensor.is_leaf and not inside and not isinstance(tensor, Parameter)


def _is_tracked(tensor: Tensor) -> bool:
    return tensor.requires_grad or is_wrapped(tensor)


def _name_of(tensor: Tensor, function: Any, extra: Mapping[str, Any]) -> str:
    """The path by which `function`, or one of `extra`, leads to `tensor`; empty where none is found."""
    roots = [("", function), *extra.items()]
    seen: set[int] = set()
    level = [(name, value) for name, value in roots]
    for _ in range(_DEPTH):
        following: list[tuple[str, Any]] = []
        for path, value in level:
            if value is tensor:
                return path
            if id(value) in seen or len(seen) > _MOST:
                continue
            seen.add(id(value))
            following += _inside(path, value)
        level = following
    return ""


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` leads to, each with its path: ``w``, ``net.weight``, ``scales[0]``."""
    if isinstance(value, (Tensor, str, int, float, bytes, type(None))):
        return
    if isinstance(value, types.FunctionType):
        yield from _used_by(value)
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), (path, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((path, value.func), *((f"{path}[{k}]", item) for k, item in enumerate(value.args)))
        yield from ((name, item) for name, item in value.keywords.items())
    elif isinstance(value, Module):
        yield from ((_dotted(path, name), parameter) for name, parameter in value.named_parameters())
        yield from ((_dotted(path, name), item) for name, item in vars(value).items() if not name.startswith("_"))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif not isinstance(value, (type, types.ModuleType)):
        wrapped = getattr(value, "__wrapped__", None)
        # Another decorated function is as good as what it decorates.
        yield from _inside(path, wrapped) if callable(wrapped) else ()
        yield from ((_dotted(path, name), item) for name, item in held_by(value).items())


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function captures: its closure, its defaults, and the globals that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    names = set(_names_in(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, (type, types.ModuleType)):  # of these what the code names
            yield from ((f"{name}.{entry}", vars(value)[entry]) for entry in sorted(names & vars(value).keys()))
        else:
            yield name, value
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield "", wrapped


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
