"""Tensors that a function uses and that aren't among its arguments, though they require grad: each raises, by name.

NOTE [captured]: a rule gives the derivative with respect to the arguments, so a parameter that the function takes from
a closure, a global or ``self`` would be treated as a constant, in silence. While the function runs, each call of a
PyTorch operation is looked at: a tensor that requires grad, or belongs to a transform that is running, must be an
argument or must have been made meanwhile. What is made meanwhile is known by identity; a tensor that was there before
can't have the identity of one that was made later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from pullback.call.dependence import is_smooth, tensors_in
from pullback.custom.grad_mode import GradMode
from pullback.custom.nests import tensors_of
from pullback.custom.paths import path_to
from pullback.errors import CallError
from pullback.torch_private import dual_level, is_wrapped, transforms_active


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


# What takes nothing but a shape, a dtype or a device from arguments after the first.
_LIKE = frozenset({Tensor.to, Tensor.type_as, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as})


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
        self._grad_mode = GradMode(function)
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
        self._grad_mode.follow(func, args)
        # Under no_grad the author says that no derivative is meant.
        given = args[:1] if func in _LIKE else (args, kwargs) if self._grad_mode.is_on else ()
        used = [tensor for tensor in tensors_in(given) if self._is_suspect(tensor)]
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
            name = path_to(tensor, self._function, self._extra)
            if not name and not self._was_there(tensor):
                # What torch.func.vjp makes is used in grad mode first, and again without, where nothing shows that.
                self._made.add(id(tensor))
                continue
            kind = f"a tensor of shape {tuple(tensor.shape)}" if not name else name
            why = "requires grad" if tensor.requires_grad else "belongs to a torch.func transform that is running,"
            self._failures.append(
                CallError(
                    "PB503",
                    f"{self._label} uses {kind}, which {why} and isn't among its arguments.",
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
