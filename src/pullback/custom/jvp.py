"""`custom_jvp`: a function whose derivative is given as a rule for tangents, from which both modes follow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.call.kept import Known
from pullback.call.surroundings import RngState, drawing_again, rng_state, same_rng_state
from pullback.custom.carried import carried, carries
from pullback.custom.decorated import Decorated, P, R, is_tensors, wrapped
from pullback.custom.fitting import demand_places
from pullback.custom.kept import keep, kept
from pullback.custom.nests import apart, mapped, spread
from pullback.custom.tangents import added, completed, leaves_like, tangent_leaves
from pullback.custom.transpose import transposed
from pullback.errors import DefinitionError, GradientError, MissingMethodError
from pullback.untraced import leave_modules

Rule = TypeVar("Rule", bound=Callable[..., Any])


class CustomJVP(Decorated[P, R]):
    """What `custom_jvp` makes of a function."""

    _rule: Callable[..., tuple[Any, Any]] | None = None
    _backward_role = "rule"
    _random = False
    """Whether the rule was seen to draw random numbers, which it must draw again when it is run for the derivative."""

    @property
    def has_rule(self) -> bool:
        """Whether `defjvp` or `defjvps` was called."""
        return self._rule is not None

    def defjvp(self, rule: Rule) -> Rule:
        """Give the derivative as one rule for all arguments; a decorator, too.

        Args:
            rule: Takes the arguments without a derivative, then a tuple of the others (the primals) and a tuple of
                their tangents, which are nests like them. Returns the function's result and its tangent, a nest like
                the result. The tangent must be linear in the tangents.

        Returns:
            `rule`.

        Raises:
            DefinitionError: PB111, it can't take what it is called with.
        """
        given = [*self.arguments.nondiff, "primals", "tangents"]
        demand_places(self.__name__, rule, "rule", given, variadic=self.arguments.may_vary)
        self._use(rule)
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Give the derivative as one rule for each argument; what they return is added up.

        Args:
            *rules: Each takes the tangent of its argument, the function's result, and all arguments; it returns its
                share of the result's tangent. None stands for zero.

        Raises:
            DefinitionError: PB106 or PB111, the rules don't fit the arguments.
        """
        if self.arguments.nondiff:
            raise DefinitionError(
                "PB106",
                f"{self.__name__} has arguments without a derivative, and defjvps has no place for them.",
                expected="defjvp",
                got=f"defjvps, beside {', '.join(self.arguments.nondiff)}",
                remedy=f"Write one rule, and give it to {self.__name__}.defjvp.",
            )
        names = self.arguments.names(len(self.arguments.call_shape[0]), self.arguments.call_shape[1])
        if len(rules) != len(names) and not self.arguments.has_rest:
            raise DefinitionError(
                "PB111",
                f"{self.__name__}.defjvps takes one rule, or None, for each argument.",
                expected=f"{len(names)}, for {', '.join(names)}",
                got=str(len(rules)),
                remedy="Write None for an argument that the result doesn't depend on.",
            )
        for rule, name in zip(rules, names, strict=False):
            if rule is not None and not self.arguments.has_rest:
                demand_places(
                    self.__name__, rule, f"rule for {name}", [f"{name}_dot", "result", *names], variadic=False
                )  # fmt: skip
        self._use(functools.partial(_each, self, rules))

    def _use(self, rule: Callable[..., tuple[Any, Any]]) -> None:
        if self._rule is not None:
            self.function = self._made()
        self._rule = rule

    def forward(self, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """The function itself where nothing is differentiated, else what the rule says that its result is."""
        fixed, primals = self.arguments.split(args, kwargs)
        if not any(ctx.needs_input_grad):
            with self.watching("f", self.fn, primals, fixed, self.named(args, kwargs)):
                return wrapped(self.fn(*args, **kwargs))
        tensors, others, shape = apart(primals)
        assert self._rule is not None
        before = self._rng_state()
        out, _ = self._run(self._rule, fixed, primals, completed([None] * len(tensors), tensors, others, shape))
        keep(ctx, self._rule, fixed=fixed, results=primals, forward=True)
        if before is not None and not same_rng_state(before, rng_state()):
            self._random = True
            ctx.rng = Known(before)
        ctx.keywords = tuple(kwargs)
        ctx.is_tuple = is_tensors(out)
        return wrapped(out)

    def backward(self, ctx: Any, *grad_outputs: Any) -> Any:
        """The transpose of what the rule does to tangents."""
        rule, fixed, primals = kept(ctx)
        failure = self._not_transposed() if self.watches("rule") else None
        if not torch.is_grad_enabled():
            primals = mapped(torch.Tensor.detach, primals)
        cotangent = grad_outputs if ctx.is_tuple else grad_outputs[0]
        tensors, others, shape = apart(primals)
        wanted = self._wanted(ctx, primals)
        smooth = [index for index, tensor in enumerate(tensors) if is_smooth(tensor) and wanted[index]]

        def linear(*tangents: Tensor) -> list[Tensor | None]:
            every: list[Tensor | None] = [None] * len(tensors)
            for index, tangent in zip(smooth, tangents, strict=True):
                every[index] = tangent
            with _drawing_again(ctx):
                _, tangent_out = self._run(rule, fixed, primals, completed(every, tensors, others, shape))
            return leaves_like(self.__name__, tangent_out, cotangent)

        found = transposed(linear, [tensors[index] for index in smooth], apart(cotangent)[0], failure)
        gradients: list[Tensor | None] = [None] * len(tensors)
        for index, gradient in zip(smooth, found, strict=True):
            gradients[index] = gradient
        return self.arguments.placed(len(ctx.needs_input_grad), ctx.keywords, spread(gradients, shape))

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        """The rule, on the tangents that came and zeros for the rest."""
        rule, fixed, primals = kept(ctx)
        tensors, others, shape = apart(primals)
        names = self.arguments.names(len(tangents) - len(ctx.keywords), ctx.keywords)
        pairs = zip(names, tangents, strict=True)
        due = tuple(tangent for name, tangent in pairs if not self.arguments.is_nondiff(name))
        every = completed(tangent_leaves(due, shape), tensors, others, shape)
        with _drawing_again(ctx):
            out, tangent_out = self._run(rule, fixed, primals, every)
        leaves_like(self.__name__, tangent_out, out)
        return tangent_out if isinstance(out, Tensor) or ctx.is_tuple else (tangent_out,)

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """NOTE [carried]."""
        fixed, primals = self.arguments.split(*self.arguments.without_gradient(args, kwargs))
        if not carries(primals):
            return super().traced(args, kwargs)
        assert self._rule is not None
        return carried(self.__name__, functools.partial(self._run, self._rule, fixed), primals)

    def _rng_state(self) -> RngState | None:
        """The random state before the rule runs for the first time in a call; None where it isn't looked at."""
        looks = self.watches("rule") or (self._random and not torch.compiler.is_compiling())
        return rng_state() if looks else None

    def _wanted(self, ctx: Any, primals: tuple[Any, ...]) -> list[bool]:
        """For each tensor in `primals` whether it belongs to an argument that needs a gradient."""
        count = len(ctx.needs_input_grad)
        names = self.arguments.names(count - len(ctx.keywords), ctx.keywords)
        pairs = zip(names, ctx.needs_input_grad, strict=True)
        needed = [flag for name, flag in pairs if not self.arguments.is_nondiff(name)]
        return [flag for flag, primal in zip(needed, primals, strict=True) for _ in apart(primal)[0]]

    def _run(
        self, rule: Callable[..., Any], fixed: tuple[Any, ...], primals: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        with self.watching("rule", rule, (primals, tangents), fixed, self.named_fixed(fixed)):
            returned = rule(*fixed, primals, tangents)
        return self.pair("rule", returned, "(result, tangent)")

    def _not_transposed(self) -> GradientError:
        return GradientError(
            "PB223",
            f"the rule of {self.__name__} has no transpose: for tangents t and a cotangent u, ⟨u, J t⟩ isn't ⟨Jᵀu, t⟩.",
            expected="a tangent that is linear in the tangents, made from them by PyTorch operations",
            got="one that autograd can't follow, or that isn't linear",
        )

    def _methods(self) -> dict[str, Any]:
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return self.jvp(ctx, *tangents)

        return {"jvp": staticmethod(jvp)}

    def _without_rule(self) -> MissingMethodError:
        return MissingMethodError(
            "PB112",
            f"{self.__name__} is called, and it has no derivative yet.",
            expected=f"{self.__name__}.defjvp(rule) before the first call",
            got="neither defjvp nor defjvps",
            remedy=f"Call {self.__name__}.defjvp(rule), or defjvps, after the function's definition.",
        )


def _drawing_again(ctx: Any) -> contextlib.AbstractContextManager[None]:
    """Run the rule of a call once more."""
    rng: Known | None = getattr(ctx, "rng", None)
    return drawing_again(None if rng is None else rng.value)


def _each(decorated: CustomJVP[Any, Any], rules: Sequence[Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The rules of `defjvps` as one."""
    args, kwargs = decorated.arguments.by_place(primals)
    out = decorated(*args, **kwargs)
    total = None
    for rule, tangent in zip(rules, tangents, strict=True):
        if rule is not None and tangent is not None:
            total = added(total, rule(tangent, out, *primals))
    return out, total


@overload
def custom_jvp(
    fn: Callable[P, R],
    /,
    nondiff_argnums: Sequence[int] | int = ...,
    nondiff_argnames: Sequence[str] | str = ...,
    *,
    reference: Callable[..., Any] | None = ...,
    surrogate: Callable[..., Any] | None = ...,
) -> CustomJVP[P, R]: ...
@overload
def custom_jvp(
    *,
    nondiff_argnums: Sequence[int] | int = ...,
    nondiff_argnames: Sequence[str] | str = ...,
    reference: Callable[..., Any] | None = ...,
    surrogate: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, R]], CustomJVP[P, R]]: ...
def custom_jvp(
    fn: Any = None,
    /,
    nondiff_argnums: Sequence[int] | int = (),
    nondiff_argnames: Sequence[str] | str = (),
    *,
    reference: Callable[..., Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
) -> Any:
    """Give a function a derivative of its own as a rule for tangents, without a class.

    Both modes follow from the one rule: reverse mode is its transpose. The names and the meaning are JAX's, apart from
    ``symbolic_zeros``, which isn't offered: a tangent that is zero comes as zeros.

    Example:
        ::

            @pullback.custom_jvp
            def log1pexp(x):
                return torch.log(1 + torch.exp(x))

            @log1pexp.defjvp
            def log1pexp_jvp(primals, tangents):
                (x,), (x_dot,) = primals, tangents
                return log1pexp(x), (1 - 1 / (1 + torch.exp(x))) * x_dot

    Args:
        fn: The function. Its arguments and its result may be nests of tensors (lists, tuples, dicts, modules); a tensor
            that requires grad must be among the arguments, not captured from outside (other than in no-grad mode).
        nondiff_argnums: The places of arguments without a derivative, such as functions; they come first in the rule.
        nondiff_argnames: The names of more of them.
        reference: The function in plain PyTorch, which higher derivatives then follow.
        surrogate: The function whose derivative the rule gives, where it isn't that of `fn` on purpose.

    Returns:
        The function, with the methods ``defjvp(rule)`` and ``defjvps(*rules)``, one of which must be called before the
        first call. Without `fn`, a decorator.

    Raises:
        DefinitionError: PB105 or PB106, a declaration can't be honoured.
    """
    declared = {"reference": reference, "surrogate": surrogate}

    def decorate(function: Callable[P, R]) -> CustomJVP[P, R]:
        return CustomJVP(function, nondiff_argnums, nondiff_argnames, declared)

    return decorate if fn is None else decorate(fn)


leave_modules("pullback.custom", but=(Decorated.__call__,))
