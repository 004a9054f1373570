"""`pullback.recompute`: a function or module that saves its arguments alone, and is run again for its gradients.

Instead of all that the operations inside save, the graph keeps the tensors among the arguments, and the random state
(5 KB, shared by calls between which nothing is drawn). The price is one more forward, as far as the last tensor that a
gradient needs.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch.nn import Module

from pullback.errors import OperationError
from pullback.memory.calls import recomputed
from pullback.memory.twins import twin_of

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Module)


@overload
def recompute(function: M) -> M: ...
@overload
def recompute(function: Callable[P, R]) -> Callable[P, R]: ...
def recompute(function: Any) -> Any:
    """Have a function save only its arguments, and run it again in backward when a gradient needs more.

    It is called as before: ``recompute(block)(x, mask=mask)``, ``@recompute`` above a function or a method, or
    ``self.block = recompute(Block())``. Values and gradients of every order are those of the function, and so are those
    for parameters and tensors that it captures. The rerun happens under the random state, autocast, default dtype and
    default device of the call, ends at the last tensor that is needed, and doesn't happen for gradients that need only
    arguments and parameters. All that it computes is given away as it is used.

    Args:
        function: What to recompute: any function of tensors, also in containers that PyTorch's pytrees know, and of
            anything else, which is kept as it is. It must do the same when it is run again, and not write to its
            arguments, nor enter torch.func.grad, vjp, jvp or what stands on them, which PyTorch refuses where hooks
            are. Of a module the forward is recomputed, not its hooks; unless its forward was replaced on the object,
            as ``torch.compile`` does: then the whole call is.

    Returns:
        A function of the same arguments. For a module another module: it shares all state with the first one, has the
        same keys in its state dict, and is of a class derived from the first one's. It can be copied and pickled.

    Raises:
        OperationError: PB130, `function` can't be recomputed: a class, a generator, an asynchronous function,
            TorchScript.
        SavedTensorError: In backward. PB301, an argument, a parameter or a tensor that was to be saved was changed in
            place since; PB307, the rerun saved tensors of another number, shape or dtype than the call.

    What differs from ``torch.utils.checkpoint``: tensors in containers and keywords are seen by saved-tensor hooks and
    checked for writes. A write to what the rerun reads (an argument, a parameter, a buffer, a captured tensor) is an
    error, not a wrong gradient. Mode, ``requires_grad`` and parameters that `torch.func.functional_call` put in are
    those of the call, and so are buffers that forward itself moves. Batch norm counts a batch once. This goes for what
    the function gets, captures, names as a global, or has in an object of which it is a method.

    Inside ``torch.func``, in forward mode and under ``torch.no_grad`` the function is called plainly; what torch.func
    saves is what the function saves. ``recompute(torch.func.vmap(f))`` recomputes, ``vmap(recompute(f))`` does not.
    Under ``torch.compile`` it is PyTorch's checkpoint, which the compiler follows.

    Python's and NumPy's random numbers are not drawn again (those of a generator that the function reaches are), and
    what the function does besides, such as printing or counting, is done again.
    """
    if isinstance(function, Module) and not isinstance(function, torch.jit.ScriptModule):
        return twin_of(function)
    if isinstance(function, Recomputed):
        return function
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(recompute(function.__func__))
    if isinstance(function, property) and function.fget is not None:
        return function.getter(recompute(function.fget))
    kind = _unfit(function)
    if kind:
        raise OperationError(
            "PB130",
            f"recompute: {kind} can't be recomputed.",
            expected="a function or a module",
            got=repr(function),
            remedy="Give it an object of the class, or a function that returns its tensors.",
        )
    return Recomputed(function)


def _unfit(function: Any) -> str:
    """What `function` is, where its call isn't what computes; nothing where it is."""
    if isinstance(function, type):
        return "a class"
    if isinstance(function, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return "TorchScript, which saves other tensors in its second run than in its first,"
    if not callable(function):
        return "what can't be called"
    for test, kind in (
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.iscoroutinefunction, "an asynchronous function"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
    ):
        if test(function) or test(vars(type(function)).get("__call__")):
            return kind
    return ""


class Recomputed(Generic[P, R]):
    """A function that recomputes; as an attribute of a class, a method that does.

    Attributes:
        function: The function itself.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        kind = "__name__" if inspect.isbuiltin(function) else "__qualname__"
        self.name: str = getattr(function, kind, type(function).__name__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, which saves its arguments alone."""
        result: R = recomputed(self.function, self.name, None, args, kwargs)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The method of an object."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"recompute({self.function!r})"

    def __reduce__(self) -> Any:
        # By name where that leads here, as it does for a decorated function; else by the function.
        found: Any = sys.modules.get(getattr(self.function, "__module__", None) or "")
        for part in self.name.split("."):
            found = getattr(found, part, None)
        return self.name if found is self else (Recomputed, (self.function,))
