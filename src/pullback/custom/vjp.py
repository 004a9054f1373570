"""`custom_vjp`: a function whose reverse-mode derivative is given by two functions beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from pullback.custom.decorated import Decorated, P, R, is_tensors, wrapped
from pullback.custom.fitting import demand_places, demand_same_arguments
from pullback.custom.kept import keep, kept
from pullback.errors import GradientError, MissingMethodError
from pullback.transforms.func.replays import FORWARD_FOLLOWED
from pullback.untraced import leave_modules

Fwd = Callable[..., tuple[R, Any]]
Bwd = Callable[..., Any]


class CustomVJP(Decorated[P, R]):
    """What `custom_vjp` makes of a function."""

    _fwd: Fwd[R] | None = None
    _bwd: Bwd | None = None

    @property
    def has_rule(self) -> bool:
        """Whether `defvjp` was called."""
        return self._fwd is not None

    def defvjp(self, fwd: Callable[..., tuple[R, Any]], bwd: Callable[..., Any]) -> None:
        """Give the derivative.

        Args:
            fwd: Takes what the function takes; returns the function's result, and what `bwd` needs: any nest of tensors
                and other values (the residuals).
            bwd: Takes the arguments without a derivative, the residuals, and the cotangent: a nest like the result.
                Returns a tuple with the gradient for each differentiable argument, or a dict by argument name; None
                stands for zero.

        Raises:
            DefinitionError: PB111, one of the two can't take what it is called with.
        """
        demand_same_arguments(self.arguments, fwd, "fwd")
        lead = [*self.arguments.nondiff, "residuals", "cotangent"]
        demand_places(self.__name__, bwd, "bwd", lead, variadic=self.arguments.may_vary)
        if self._fwd is not None:
            self.function = self._made()  # what was learned of the calls so far is of another fwd
        self._fwd, self._bwd = fwd, bwd

    def _methods(self) -> dict[str, Any]:
        """What lets the levels of torch.func below the one that applies the rule see what fwd computes."""
        return {FORWARD_FOLLOWED: True}

    def forward(self, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """The function itself where nothing is differentiated, else fwd."""
        named = self.named(args, kwargs)
        fixed, given = self.arguments.split(args, kwargs)
        if not any(ctx.needs_input_grad):
            with self.watching("f", self.fn, given, fixed, named):
                return wrapped(self.fn(*args, **kwargs))
        assert self._fwd is not None
        assert self._bwd is not None
        with self.watching("fwd", self._fwd, given, fixed, named):
            returned = self._fwd(*args, **kwargs)
        out, residuals = self.pair("fwd", returned, "(result, residuals)")
        keep(ctx, self._bwd, fixed=fixed, results=residuals)
        ctx.keywords = tuple(kwargs)
        ctx.is_tuple = is_tensors(out)
        return wrapped(out)

    def backward(self, ctx: Any, *grad_outputs: Any) -> Any:
        """bwd, and its gradients by position."""
        bwd, fixed, residuals = kept(ctx)
        cotangent = grad_outputs if ctx.is_tuple else grad_outputs[0]
        names = self.arguments.names(len(ctx.needs_input_grad) - len(ctx.keywords), ctx.keywords)
        with self.watching("bwd", bwd, (residuals, cotangent), fixed, self.named_fixed(fixed)):
            returned = bwd(*fixed, residuals, cotangent)
        return self._placed(names, returned)

    def _placed(self, names: list[str], returned: Any) -> Any:
        """One entry for each argument, of what bwd returned."""
        if isinstance(returned, dict):
            return returned
        due = [name for name in names if not self.arguments.is_nondiff(name)]
        if not isinstance(returned, tuple):
            several = isinstance(returned, list) and len(due) > 1
            returned = tuple(returned) if several else (returned,)
        gradients = list(returned)
        while len(gradients) > len(due) and gradients[-1] is None:
            gradients.pop()
        if len(gradients) != len(due):
            raise GradientError(
                "PB201",
                f"the bwd of {self.__name__} returned an incorrect number of gradients (expected {len(due)}, got "
                f"{len(gradients)}).",
                expected=f"({', '.join(due)}{',' if len(due) == 1 else ''})",
                got=f"{len(gradients)} {'entry' if len(gradients) == 1 else 'entries'}",
                remedy=f"Return one gradient for each of {', '.join(due)}, None for zero; or a dict by name.",
            )
        rest = iter(gradients)
        return tuple([None if self.arguments.is_nondiff(name) else next(rest) for name in names])

    def _without_rule(self) -> MissingMethodError:
        return MissingMethodError(
            "PB112",
            f"{self.__name__} is called, and it has no derivative yet.",
            expected=f"{self.__name__}.defvjp(fwd, bwd) before the first call",
            got="no defvjp",
            remedy=f"Call {self.__name__}.defvjp(fwd, bwd) after the function's definition.",
        )


@overload
def custom_vjp(
    fn: Callable[P, R],
    /,
    nondiff_argnums: Sequence[int] | int = ...,
    nondiff_argnames: Sequence[str] | str = ...,
    *,
    reference: Callable[..., Any] | None = ...,
    surrogate: Callable[..., Any] | None = ...,
    nonlinear_backward: bool | None = ...,
    cast_inputs: torch.dtype | None = ...,
    keep_autocast: bool | None = ...,
) -> CustomVJP[P, R]: ...
@overload
def custom_vjp(
    *,
    nondiff_argnums: Sequence[int] | int = ...,
    nondiff_argnames: Sequence[str] | str = ...,
    reference: Callable[..., Any] | None = ...,
    surrogate: Callable[..., Any] | None = ...,
    nonlinear_backward: bool | None = ...,
    cast_inputs: torch.dtype | None = ...,
    keep_autocast: bool | None = ...,
) -> Callable[[Callable[P, R]], CustomVJP[P, R]]: ...
def custom_vjp(
    fn: Any = None,
    /,
    nondiff_argnums: Sequence[int] | int = (),
    nondiff_argnames: Sequence[str] | str = (),
    *,
    reference: Callable[..., Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
    nonlinear_backward: bool | None = None,
    cast_inputs: torch.dtype | None = None,
    keep_autocast: bool | None = None,
) -> Any:
    """Give a function a reverse-mode derivative of its own, without a class.

    The names and the meaning are JAX's; forward mode, which JAX refuses here, is derived from the rule. Where
    torch.func takes several derivatives, the innermost is by the rule and the others are of what the rule computes,
    `fwd` included; plain autograd, which has one graph for all of them, applies the rule at each.

    Example:
        ::

            @pullback.custom_vjp
            def cube(x):
                return x**3

            def cube_fwd(x):
                return x**3, x

            def cube_bwd(x, cotangent):
                return (3 * x**2 * cotangent,)

            cube.defvjp(cube_fwd, cube_bwd)

    Args:
        fn: The function. Its arguments and its result may be nests of tensors (lists, tuples, dicts, modules); a tensor
            that requires grad must be among the arguments, not captured from outside (other than in no-grad mode).
        nondiff_argnums: The places of arguments without a derivative, such as functions; they come first in ``bwd``.
        nondiff_argnames: The names of more of them.
        reference: The function in plain PyTorch, which higher derivatives then follow.
        surrogate: The function whose derivative the rule gives, where it isn't that of `fn` on purpose.
        nonlinear_backward: Whether ``bwd`` isn't linear in the cotangent, on purpose.
        cast_inputs: What autocast casts the floating-point tensors among the arguments to, as on `pullback.Function`.
        keep_autocast: Whether ``bwd`` runs under the autocast state that ``fwd`` ran under.

    Returns:
        The function, with a method ``defvjp(fwd, bwd)`` that must be called before the first call. Without `fn`, a
        decorator.

    Raises:
        DefinitionError: PB105 or PB106, a declaration can't be honoured.
    """
    declared: dict[str, Any] = {"reference": reference, "surrogate": surrogate}
    declared |= {"nonlinear_backward": nonlinear_backward, "cast_inputs": cast_inputs, "keep_autocast": keep_autocast}

    def decorate(function: Callable[P, R]) -> CustomVJP[P, R]:
        return CustomVJP(function, nondiff_argnums, nondiff_argnames, declared)

    return decorate if fn is None else decorate(fn)


leave_modules("pullback.custom", but=(Decorated.__call__,))
