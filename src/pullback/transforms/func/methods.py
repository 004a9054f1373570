"""The author's backward, double_backward and jvp as primitives: each is linear in the first of its operands.

With outputs y of arguments x, cotangents g and Jacobian J(x), backward computes J(x)ᵀ g. Its derivative comes from
where it comes from outside torch.func: double_backward; the surrogate or reference; backward itself, where autograd can
follow it; forward, where the two agree in value; an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.call.stand_in import BackwardStandIn
from pullback.errors import HigherOrderError
from pullback.transforms import double_backward
from pullback.transforms.func import refusals
from pullback.transforms.func.agreement import agreeing
from pullback.transforms.func.asked import Asked
from pullback.transforms.func.follow import NotFollowedError, followed, pulled_through
from pullback.transforms.func.levels import bind
from pullback.transforms.func.primitive import Optionals, Primitive, Tensors, fitted
from pullback.transforms.func.replays import cut_off, of_operands
from pullback.transforms.replay import agree, alike

if TYPE_CHECKING:
    from pullback.transforms.func.forward import Forward


class Method(Primitive):
    """One of the author's methods on what one call of forward left.

    Args:
        forward: The call.
        name: The method's name.
        present: Which of the tensors that it is linear in are there, by their position in its signature.

    Its operands are those tensors, then the operands of the call, then the outputs of the call that backward reads.
    """

    def __init__(self, forward: Forward, name: str, present: Sequence[int]) -> None:
        super().__init__()
        self.forward, self.method_name, self.present = forward, name, tuple(present)
        self.name, self.autocast = f"{forward.name}.{name}", forward.autocast
        self.reached: list[int] = []

    def results(self, operands: Tensors) -> Optionals:
        """What the author's method returns, in a fixed order; run where values or derivatives are wanted."""
        raise NotImplementedError

    def run(self, operands: Tensors) -> Tensors:
        """The results that there are; `reached` tells which these are."""
        count = len(self.present)
        # A copy of each, since the author may write to them, and they are read again.
        results = self.results((*(operand.clone() for operand in operands[:count]), *operands[count:]))
        self.reached = [index for index, result in enumerate(results) if result is not None]
        return tuple(result for result in results if result is not None)

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The derivative of the method by autograd, which has to be able to follow it."""
        try:
            return self.followed(operands, cotangents, needs)
        except NotFollowedError as reason:
            raise refusals.opaque(self.name, self.forward.plan.definition, reason) from reason.__cause__

    def followed(self, operands: Tensors, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The derivative by autograd.

        Raises:
            NotFollowedError: Autograd can't follow the method.
            HigherOrderError: PB206, it reads what no graph leads to the arguments from.
        """
        forward = self.forward
        hidden = [*(forward.numbers if forward.seen.read else ()), *forward.record.graphs]
        # With one level the derivative is taken by what the method is linear in, and the rest stays as it is.
        if hidden and (any(needs[len(self.present) :]) or forward.seen.levels > 1):
            why = "it is a number that was read from a tensor, or has a graph of its own"
            raise refusals.cut_off(forward.plan.definition, hidden, why)
        nonlinear = forward.plan.definition.nonlinear_backward
        moved = [
            bool(varies) or (nonzero and not nonlinear)
            for varies, nonzero in zip(self.seen.varies, self.seen.nonzero, strict=True)
        ]

        def method(every: Tensors) -> Optionals:
            results = self.results(every)
            return tuple(results[index] for index in self.reached)

        return followed(method, len(self.present), operands, cotangents, needs, moved)

    def rescue(self, error: Exception, operands: Tensors, *, batched: bool = False) -> bool:
        """Say that the method can't run on a batch, unless it can't run at all."""
        if not refusals.comes_of_a_batch(error, batched):
            return False
        self.run(operands)  # raises what is wrong with a single entry too
        raise refusals.not_batched(self.name, error, has_rule=self.forward.has_rule) from error

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """What the author's method reads; the rest of the arguments is only differentiated with respect to."""
        reads, _ = self.forward.kept()
        start, rest = (True,) * len(self.present), (True,) * len(self.forward.reread)
        return (*start, *(reads or (True,) * len(self.forward.operands)), *rest), None

    def split(self, operands: Tensors) -> tuple[dict[int, Tensor], Tensors, list[Any]]:
        """What the method is linear in by position, the operands of the call, and its outputs, None for the unread."""
        linear = dict(zip(self.present, operands, strict=False))
        arity = len(self.present) + len(self.forward.operands)
        outputs: list[Any] = [None] * self.forward.record.total
        for index, tensor in zip(self.forward.reread, operands[arity:], strict=True):
            outputs[index] = tensor
        return linear, operands[len(self.present) : arity], outputs

    def packed(self, linear: Optionals, operands: Tensors, outputs: Optionals) -> Tensors:
        """The operands of this primitive."""
        given = [tensor for tensor in linear if tensor is not None]
        reread = [outputs[index] for index in self.forward.reread]
        return (*given, *operands, *reread)  # type: ignore[arg-type]  # what is read was saved


class Backward(Method):
    """backward: linear in the cotangents of the outputs; one result for each operand of the call.

    Args:
        forward: The call.
        present: The outputs that have a cotangent.
        needs: For each operand of the call whether its gradient is wanted.
    """

    def __init__(self, forward: Forward, present: Sequence[int], needs: Sequence[bool]) -> None:
        super().__init__(forward, forward.plan.definition.method, present)
        self.needs = tuple(needs)
        self._instead: Callable[[Tensors], Optionals] | None = None

    def results(self, operands: Tensors) -> Optionals:
        """The author's gradients, or those that autograd has where backward can't take a batch."""
        linear, given, outputs = self.split(operands)
        if self._instead is not None:
            return pulled_through(self._instead, given, self.forward.cotangents(linear), self.needs)
        state = self.forward.state(linear, given, outputs, self.needs)
        flags = self.forward.operands.flags(self.needs)
        with Asked(self.asked(given, outputs)):
            returned = state.backward(state.grads)
        gradients = self.forward.operands.by_operand(returned, flags)
        refusals.demand_shapes(self.forward, gradients, given)
        # What was broadcast backward may leave to be summed, as PyTorch's engine does it.
        return tuple(
            None if gradient is None else fitted(gradient, operand)
            for gradient, operand in zip(gradients, given, strict=True)
        )

    def asked(self, operands: Tensors, outputs: Sequence[Tensor | None]) -> Iterator[Tensor]:
        """The tensors that require grad, as far as backward is told."""
        yield from (operand for operand, needed in zip(operands, self.needs, strict=True) if needed)
        yield from (out for k, out in enumerate(outputs) if out is not None and not self.forward.constant(k))

    def rescue(self, error: Exception, operands: Tensors, *, batched: bool = False) -> bool:
        """Where backward can't take a batch: the gradients of the reference, or of forward where they are the same."""
        if self._instead is not None or not refusals.comes_of_a_batch(error, batched):
            return False
        values = self.run(operands)
        definition = self.forward.plan.definition
        failure = refusals.not_batched(self.name, error, has_rule=self.forward.has_rule)
        failure.__cause__ = error
        if definition.reference is not None:
            try:
                self._instead = of_operands(self.forward, definition.reference)
            except NotFollowedError as reason:
                raise failure from reason
            return True
        if definition.surrogate is not None or definition.nonlinear_backward:
            raise failure
        try:
            self._instead = of_operands(self.forward, None)
            found = self.results(operands)
        except Exception:
            raise failure from error
        for value, index in zip(values, self.reached, strict=True):
            gradient = found[index]
            if gradient is None or not agree(value, gradient):
                raise failure
        return True

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The derivative of the gradients, from the first source that there is."""
        definition = self.forward.plan.definition
        if definition.double_backward is not None and self._instead is None:
            return self._through_double_backward(operands, cotangents, needs)
        given = self.forward.followed_instead
        if given is not None:
            role = "surrogate" if definition.surrogate is not None else "reference"
            wrong = None if definition.nonlinear_backward else refusals.disagrees(definition, role)
            try:
                return self._through(given, operands, outputs, cotangents, needs, wrong, alike)
            except NotFollowedError as reason:
                # What forward saved beside its outputs was left unconnected, since it wasn't to be differentiated.
                beside = [k for k in self.forward.reread if k >= self.forward.record.count]
                hidden = [index for index in beside if not self.forward.constant(index)]
                if hidden and any(needs[len(self.present) :]):
                    raise cut_off(self.forward, hidden, reason) from reason.__cause__
        if definition.once_differentiable or definition.backward is None:
            raise refusals.once(definition)
        failure: Exception
        try:
            return self.followed(operands, cotangents, needs)
        except NotFollowedError as reason:
            failure = refusals.opaque(self.name, definition, reason)
            failure.__cause__ = reason.__cause__
        except HigherOrderError as error:
            if not self.forward.record.graphs or self.forward.seen.read:
                raise
            failure = error
        if definition.nonlinear_backward:
            raise failure
        try:
            return self._through(None, operands, outputs, cotangents, needs, failure, agree)
        except NotFollowedError:
            raise failure from failure.__cause__

    def _through(
        self,
        function: Callable[..., Any] | None,
        operands: Tensors,
        outputs: Optionals,
        cotangents: Optionals,
        needs: Sequence[bool],
        failure: Exception | None,
        judge: Callable[[Tensor, Tensor], bool],
    ) -> Optionals:
        """The derivative of the gradients that autograd has of `function`, or of forward itself where it is None."""
        gradient_of = of_operands(self.forward, function)
        arity, start = len(self.forward.operands), len(self.present)

        def gradients(every: Tensors) -> Optionals:
            linear, given, _ = self.split(every)
            found = pulled_through(gradient_of, given, self.forward.cotangents(linear), self.needs)
            return tuple(found[index] for index in self.reached)

        if failure is not None:
            with torch.no_grad():
                traced = gradients(operands)
            for value, path in zip(outputs, traced, strict=True):
                if value is not None and path is not None:
                    agreeing(failure, judge, value, path)
                elif value is not None:  # the function doesn't depend on it, as far as autograd can follow
                    agreeing(failure, judge, value, torch.zeros_like(value))
        wanted = [needed and index < start + arity for index, needed in enumerate(needs)]
        return pulled_through(gradients, operands, cotangents, wanted)

    def _through_double_backward(self, operands: Tensors, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        pairs = zip(self.reached, cotangents, strict=True)
        present = {index: cotangent for index, cotangent in pairs if cotangent is not None}
        method = DoubleBackward(self, tuple(present))
        found = bind(method, (*present.values(), *operands))
        by_index = dict(zip(method.reached, found, strict=True))
        return tuple(by_index.get(index) if needed else None for index, needed in enumerate(needs))


class DoubleBackward(Method):
    """double_backward: linear in the cotangents of backward's gradients; one result for each operand of `Backward`."""

    def __init__(self, backward: Backward, present: Sequence[int]) -> None:
        super().__init__(backward.forward, "double_backward", present)
        self._backward = backward

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """What double_backward reads, which is what backward reads."""
        reads, _ = self._backward.kept()
        return (*(True,) * len(self.present), *(reads or ())), None

    def results(self, operands: Tensors) -> Optionals:
        """What double_backward sends to the cotangents, then to the operands of the call."""
        start = len(self.present)
        received = dict(zip(self.present, operands[:start], strict=True))
        linear, given, outputs = self._backward.split(operands[start:])
        forward, backward = self.forward, self._backward
        state = forward.state(linear, given, outputs, backward.needs)
        due: list[Tensor | None] = [None] * len(state.needs)
        for operand, index in enumerate(forward.operands.positions):
            due[index] = received.get(operand)
            if due[index] is None and operand in backward.reached and forward.record.materialize:
                due[index] = torch.zeros_like(given[operand])

        def through(other: Any) -> Optionals:
            cotangents = {k: grad for k, grad in enumerate(other.grads) if grad is not None}
            again = Backward(forward, tuple(cotangents), backward.needs)
            found = bind(again, again.packed(tuple(cotangents.values()), given, tuple(outputs)))
            by_operand = dict(zip(again.reached, found, strict=True))
            return forward.operands.by_argument([by_operand.get(index) for index in range(len(forward.operands))])

        with Asked(backward.asked(given, outputs)):
            returned = double_backward.sent_back(state, due, through)
        outputs_due = len(state.grads)
        for_operands = forward.operands.by_operand(returned[outputs_due:], (True,) * len(state.needs))
        return (*(returned[index] for index in backward.present), *for_operands, *(None,) * len(forward.reread))


class ForwardMode(Method):
    """The author's jvp: linear in the tangents of the operands of the call; one result for each output."""

    def __init__(self, forward: Forward, present: Sequence[int]) -> None:
        super().__init__(forward, "jvp", present)

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """All: jvp may read any output."""
        return None, None

    def split(self, operands: Tensors) -> tuple[dict[int, Tensor], Tensors, list[Any]]:
        """As for any method; jvp may read all outputs."""
        linear = dict(zip(self.present, operands, strict=False))
        arity = len(self.present) + len(self.forward.operands)
        return linear, operands[len(self.present) : arity], list(operands[arity:])

    def results(self, operands: Tensors) -> Optionals:
        """The author's tangents, one for each tensor among the outputs."""
        linear, given, outputs = self.split(operands)
        record = self.forward.record
        saved = record.tensors(record.saved_forward, given, outputs)
        needs = self.forward.operands.flags([index in linear for index in range(len(self.forward.operands))])
        ctx = BackwardStandIn(None, saved, needs, record.attributes_with(given, outputs))
        zeros = [torch.zeros_like(operand) if record.materialize and is_smooth(operand) else None for operand in given]
        tangents = self.forward.operands.by_argument([linear.get(index, zero) for index, zero in enumerate(zeros)])
        returned = self.forward.plan.cls.jvp(ctx, *tangents)
        returned = returned if isinstance(returned, tuple) else (returned,)
        return refusals.fitting_tangents(self.name, record, returned)
