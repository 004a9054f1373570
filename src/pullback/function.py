"""The base class: `pullback.Function`, PyTorch's Function with its traps closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.compiler import is_dynamo_compiling

from pullback.call.binding import takes_defaults
from pullback.call.cast_calls import NotTakenError, cast_call
from pullback.call.casting import casts, declares, unsupported
from pullback.call.compiled import compiled
from pullback.call.frames import without_own_frames
from pullback.call.nests import PLAIN_TYPES, may_be_nest
from pullback.call.outputs import nested
from pullback.call.plan import Plan, ReturnedNest
from pullback.call.router import resumed, routed
from pullback.call.traced import TRACED, Traced
from pullback.define.declarations import check_kinds
from pullback.define.definition import describe
from pullback.define.function_type import FunctionType
from pullback.define.validate import validate
from pullback.errors import CallError, MissingMethodError, PullbackError
from pullback.torch_private import (
    FORWARD_AD,
    dual_level,
    is_wrapped,
    transforms_active,
    unwrap_if_dead,
    usable,
    usable_in_transforms,
)
from pullback.transforms.func.call import NestError, transformed
from pullback.transforms.higher_order import differentiable_gradients
from pullback.untraced import leave_modules, untraced

_USABLE = usable()
"""Whether this torch behaves as pullback expects; otherwise calls run on PyTorch's own apply."""


class Function(TorchFunction, metaclass=FunctionType):
    """An operation whose derivative its author writes: a drop-in for ``torch.autograd.Function``.

    Write static ``forward(ctx, *inputs)`` and ``backward(ctx, *grad_outputs)`` as for PyTorch and call ``.apply``.
    Values, first gradients and compiled code are PyTorch's own. What is added:

    * A class that can never work raises where it is defined; a wrong call says what to write instead.
    * Second and higher derivatives are exact, or raise: they are never silently wrong. They come from
      ``double_backward(ctx, *grad_grad_inputs)``, a ``surrogate`` or ``reference``, ``backward`` itself, or a replay of
      ``forward``, in this order.
    * ``backward`` may return gradients by argument name, as a dict.
    * Arguments and results may be lists, tuples, dicts, dataclasses that PyTorch's pytree registry knows, and nests of
      them; a module is a nest of its parameters. Each tensor in them has its own gradient, which ``backward`` gets and
      returns in the same nest. Keyword-only arguments and ``**kwargs`` come after all others.

    Declarations, all optional: ``reference``, ``surrogate``, ``double_backward``, ``expected_backward`` and ``samples``
    (static methods), ``nonlinear_backward``, ``nondiff_argnames``, ``replayable``, ``contiguous_grads``,
    ``cast_inputs``, ``keep_autocast``.

    The last two are what the decorators of ``torch.amp`` do, in both forward styles and at every order. With
    ``cast_inputs = torch.float32`` a call under autocast casts its floating-point tensors (but for float64; those in
    containers and the parameters of modules too), and no method of the class runs under autocast. With
    ``keep_autocast = True`` nothing is cast, and ``backward`` runs under the autocast state that ``forward`` ran under.
    Without either, all is as PyTorch has it.

    Raises:
        DefinitionError: PB101 to PB106 or PB111, when a subclass is defined that can't work.
    """

    if TYPE_CHECKING:  # PyTorch's own are too narrow to be overridden with named parameters

        @staticmethod
        def backward(*args: Any, **kwargs: Any) -> Any:
            """The vector-Jacobian product of forward, as in PyTorch."""

        @staticmethod
        def setup_context(*args: Any, **kwargs: Any) -> Any:
            """What forward leaves for backward, as in PyTorch."""

        @staticmethod
        def vjp(*args: Any, **kwargs: Any) -> Any:
            """Another name for backward, as in PyTorch."""

        @staticmethod
        def jvp(*args: Any, **kwargs: Any) -> Any:
            """The Jacobian-vector product of forward, as in PyTorch."""

        @staticmethod
        def vmap(*args: Any, **kwargs: Any) -> Any:
            """forward on a batch, as in PyTorch."""

    cast_inputs: ClassVar[torch.dtype | None] = None
    keep_autocast: ClassVar[bool] = False
    nondiff_argnames: ClassVar[tuple[str, ...]] = ()
    nonlinear_backward: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    contiguous_grads: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Judge the class as it is written; what depends on a call is left for the first one."""
        super().__init_subclass__(**kwargs)
        try:
            setattr(cls, TRACED, Traced(validate(cls), _APPLY))
        except PullbackError as error:
            error.__traceback__ = None
            raise

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Function().apply(x) works in PyTorch, so making an object without arguments is let through.
        if args or kwargs:
            try:
                raise _called(type(self), "(…)")
            except CallError as error:
                error.__traceback__ = None
                raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse ``Name()(x)``, which PyTorch abandoned, and say what to write."""
        try:
            raise _called(type(self), "()(…)")
        except CallError as error:
            error.__traceback__ = None
            raise

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward and put its node into the graph.

        Args:
            *args: forward's arguments.
            **kwargs: More of them, by name.

        Returns:
            What forward returns, connected to the graph.

        Raises:
            MissingMethodError: PB107, the class has no forward.
        """
        if is_dynamo_compiling():
            return compiled(cls, args, kwargs)
        try:
            if kwargs or transforms_active() or FORWARD_AD._current_level >= 0:
                return cls._apply_otherwise(args, kwargs)
            for argument in args:
                kind = argument.__class__
                if kind is Tensor:
                    if is_wrapped(argument):
                        return cls._apply_otherwise(args, kwargs)
                elif kind not in PLAIN_TYPES and may_be_nest(argument):
                    return cls._apply_otherwise(args, kwargs)
            node: Any = cls._backward_cls
            try:
                call = node.pullback_call
            except AttributeError:  # the first call
                call = _prepared(cls)
            return call(*args)
        except ReturnedNest as returned:
            ran = returned.without_frames()
        except PullbackError as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        except TypeError:
            # Other methods may have been put on the class since, with other parameters.
            plan = _plan(cls)
            if plan is None or plan.describes(cls):
                raise
            ran = None
        if ran is not None:
            return _resumed(cls, ran)
        _prepared(cls)
        again: Any = Function.__dict__["apply"]
        return again.__func__(cls, *args, **kwargs)

    @classmethod
    def _apply_otherwise(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The calls that are rare: by keyword, with containers, inside torch.func, with a tensor leaked from there."""
        plan = _plan(cls)
        if plan is None:
            _prepared(cls)
            plan = _plan(cls)
        beneath: Any = super()
        transforming = transforms_active() or dual_level() >= 0
        if plan is None or (transforming and not usable_in_transforms()):
            unsupported(describe(cls))
            return beneath.apply(*args, **kwargs)
        if transforming:
            try:
                return transformed(plan, args, kwargs)
            except NestError:
                _route_all(cls)
                return transformed(plan, args, kwargs)
        if casts(plan.definition):
            try:
                return cast_call(plan, args, kwargs)
            except NotTakenError:
                return beneath.apply(*args, **kwargs)
        # A tensor that leaked from a transform is what it was in there, as for PyTorch's own operations.
        args = tuple([unwrap_if_dead(value) if isinstance(value, Tensor) else value for value in args])
        route = routed(plan, args, kwargs)
        if route is None:
            return beneath.apply(*args, **kwargs)
        return nested(route.plan.call(*route.arguments))


def _plan(cls: type[Function]) -> Plan | None:
    """The plan of `cls`; None before its first call, and where calls run on PyTorch's own apply."""
    plan: Plan | None = getattr(cls._backward_cls, "pullback_plan", None)
    return plan


def _prepared(cls: type[Function]) -> Callable[..., Any]:
    """What runs the calls of `cls` from now on; made at its first call, as abstract classes never need it."""
    if describe(cls).forward is None:
        raise MissingMethodError("PB107", f"{cls.__name__} has no forward, so it can't be applied.")
    check_kinds(cls)  # once more, as a declaration may have been put there since the class was defined
    call: Callable[..., Any]
    node: Any = cls._backward_cls
    if not _USABLE:
        call = _routing(cls) if declares(describe(cls)) else super(Function, cls).apply
    else:
        plan = Plan(cls, differentiable_gradients)
        call = _routing(cls) if takes_defaults(plan.definition) else plan.call
        if plan.definition.cast_inputs is not None:
            call = _casting(cls, plan, call)
        node = plan.node
    # PyTorch makes this class anew for each Function, so a subclass never finds its base's call here.
    node.pullback_call = call
    return call


def _routing(cls: type[Function]) -> Callable[..., Any]:
    """What runs the calls of a class that all have to be taken apart."""

    def call(*args: Any) -> Any:
        return cls._apply_otherwise(args, {})

    return call


def _casting(cls: type[Function], plan: Plan, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """What runs the calls of a class that declares cast_inputs: those under autocast, and `otherwise` the rest."""

    def call(*args: Any) -> Any:
        return cls._apply_otherwise(args, {}) if casts(plan.definition) else otherwise(*args)

    return call


def _resumed(cls: type[Function], ran: ReturnedNest) -> Any:
    """The result of a call whose forward returned a nest, and the same for the calls to come."""
    _route_all(cls)
    return nested(resumed(ran))


def _route_all(cls: type[Function]) -> None:
    """Take apart the outputs of all calls of a class from now on: its forward returned a nest."""
    node: Any = cls._backward_cls
    node.pullback_call = _routing(cls)


def _called(cls: type, how: str) -> CallError:
    name = cls.__name__
    return CallError(
        "PB108",
        f"{name}{how} makes an object; a Function runs through apply.",
        expected=f"{name}.apply(…)",
        got=f"{name}{how}",
        remedy=f"Write {name}.apply(…).",
    )


_TRACED_APPLY: Any = Function.__dict__["apply"].__func__
_APPLY = untraced(_TRACED_APPLY)
"""`Function.apply` for calls that Dynamo has left to Python."""

leave_modules("pullback.", but=(_TRACED_APPLY,))
