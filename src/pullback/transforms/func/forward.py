"""A call of a Function as a primitive: tensors are the operands, the outputs and what forward saves come out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

from pullback.call.casting import declared_now
from pullback.call.dependence import is_smooth
from pullback.call.layout import UNMATERIALIZED, Call, Layout, numbers_on
from pullback.call.outputs import nest_of
from pullback.call.plan import Plan
from pullback.call.stand_in import ForwardStandIn
from pullback.call.surroundings import autocast_now, rng_state, same_rng_state, set_rng_state
from pullback.errors import HigherOrderError
from pullback.torch_private import is_wrapped, version_of
from pullback.transforms.func import refusals
from pullback.transforms.func.agreement import agreeing
from pullback.transforms.func.asked import Asked
from pullback.transforms.func.by_rule import ByRule, by_author
from pullback.transforms.func.follow import NotFollowedError, Plain, pulled_through
from pullback.transforms.func.levels import bind
from pullback.transforms.func.linear import LinearMap, nearly, nearly_inner
from pullback.transforms.func.methods import Backward, ForwardMode
from pullback.transforms.func.operands import Operands
from pullback.transforms.func.primitive import Batch, Optionals, Primitive, Tensors, distinct, fitted
from pullback.transforms.func.record import Around, OutputPlace, Record, read_record
from pullback.transforms.func.replays import connected, of_operands, pulled_beside
from pullback.transforms.func.tracing import is_tracing
from pullback.transforms.graph import is_batched
from pullback.transforms.replay import alike
from pullback.transforms.state import State


class NestError(Exception):
    """forward returned a container, of whose tensors none would be tracked."""


class Forward(Primitive):
    """One call of the Function that `plan` runs.

    What forward saved and is neither argument nor output comes out as a further output, so that a level above that
    differentiates backward reaches it; its own derivative is that of forward, run again.

    Args:
        plan: The class.
        arguments: All arguments of the call.

    Attributes:
        operands: Where the tensors stand among the arguments.
        record: What the run left.
        source: Where the values come from: ``forward``, ``reference`` (forward can't take a batch), or ``vmap`` (the
            author's rule for batches).
    """

    record: Record
    keeps = True

    def __init__(self, plan: Plan, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.plan, self.name, self.literals = plan, plan.definition.name, plan.literals
        self.operands = Operands(arguments)
        self.source = "forward"
        self._rule: ByRule | None = None
        self.autocast = declared_now(plan.definition)

    @property
    def has_rule(self) -> bool:
        """Whether the author wrote a vmap."""
        return self.plan.cls.vmap is not TorchFunction.vmap

    @property
    def reread(self) -> list[int]:
        """The outputs that backward reads."""
        return sorted(index for side, index in self.record.places if side == "output")

    @property
    def followed_instead(self) -> Callable[..., Any] | None:
        """The surrogate or reference that has the derivative of backward; None where backward itself is followed."""
        definition = self.plan.definition
        return None if self.record.around.writes else definition.surrogate or definition.reference

    @property
    def numbers(self) -> list[str]:
        """The numbers on ctx that may have been read from an argument: neither in the source nor given."""
        return [
            f"ctx.{path}"
            for path, number in numbers_on(self.record.attributes)
            if not any(number is value for value in self.operands.plain)
            and not (isinstance(number, float) and number in self.literals)
        ]

    def run(self, operands: Tensors) -> Tensors:
        """Run the author's forward, or the reference in its place, on a ctx that writes down what it leaves."""
        ctx = ForwardStandIn(self.asked())
        # Where two operands are one tensor, what was saved of one would be taken for the other.
        operands = distinct((), operands)
        versions = [*map(version_of, operands)]
        before = rng_state()
        arguments = self.operands.arguments(operands)
        if self.source == "reference":
            output = self.plan.definition.reference(*arguments)  # type: ignore[misc]  # there is one
        else:
            with Asked(operand for index, operand in enumerate(operands) if index in self.seen.asked):
                output = self.plan.run_forward(ctx, arguments)
        if nest_of(output) is not None:
            raise NestError
        around = Around(
            writes=versions != [*map(version_of, operands)],
            rng=None if same_rng_state(before, rng_state()) else before,
            autocast=autocast_now(),
        )
        self.record, outputs = read_record(ctx, operands, output, around)
        if self.record.dirty and any(map(is_wrapped, operands)):
            raise refusals.writes(self.name)
        return outputs

    def rescue(self, error: Exception, operands: Tensors, *, batched: bool = False) -> bool:
        """Go through the reference, where forward can't take a batch and one is given."""
        if isinstance(error, NestError) or not refusals.comes_of_a_batch(error, batched):
            return False
        values = self.run(operands)[: self.record.count]  # raises what is wrong with a single entry too
        if self.source == "reference" or self.plan.definition.reference is None:
            raise refusals.not_batched(f"{self.name}.forward", error) from error
        referred = of_operands(self, self.plan.definition.reference)(operands)
        for index, (value, other) in enumerate(zip(values, referred, strict=False)):
            if other is None or value.shape != other.shape or (is_smooth(value) and not alike(value, other)):
                raise refusals.other_values(self.plan.definition, index, value, other)
        self.source = "reference"
        return True

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """backward's gradients for the outputs, and forward's own derivative for what it saved beside them."""
        record = self.record
        due, beside = cotangents[: record.count], cotangents[record.count :]
        present = [index for index, cotangent in enumerate(due) if cotangent is not None]
        if self.source == "reference":
            return pulled_through(of_operands(self, self.plan.definition.reference), operands, cotangents, needs)
        if self._rule is not None:
            return self._rule.pull(operands, outputs, cotangents, needs)
        gradients: Sequence[Tensor | None] = [None] * len(self.operands)
        if present:
            backward = Backward(self, present, needs)
            bound = bind(backward, backward.packed(due, operands, outputs))
            by_index = dict(zip(backward.reached, bound, strict=True))
            gradients = [by_index.get(index) for index in range(len(self.operands))]
        if any(cotangent is not None for cotangent in beside):
            more = pulled_beside(self, operands, outputs, beside, needs)
            gradients = [_added(*entry) for entry in zip(gradients, more, operands, strict=True)]
        return tuple(gradients)

    def push(self, operands: Tensors, outputs: Tensors, tangents: Optionals, used: int) -> Optionals:
        """The author's jvp, or the transpose of backward."""
        definition = self.plan.definition
        if self.record.dirty:  # the operand's tangent is about to be overwritten with the output's
            tangents = tuple(tangent if tangent is None else tangent.clone() for tangent in tangents)
        if self.source == "forward" and self.plan.cls.jvp is not TorchFunction.jvp:
            pushed = self._by_author(operands, outputs, tangents)
            if all(index < self.record.count for index in self.moving(outputs, used)):
                return pushed
            return (*pushed[: self.record.count], *super().push(operands, outputs, tangents, used)[self.record.count :])
        if self.source == "forward" and definition.nonlinear_backward:
            if definition.reference is None or definition.surrogate is not None:
                raise refusals.no_forward_mode(definition, "it is declared nonlinear.")
            try:
                plain = Plain(self.name, of_operands(self, definition.reference))
            except NotFollowedError as reason:
                raise refusals.no_forward_mode(definition, f"it is declared nonlinear, and {reason}.") from None
            return self._filled(plain.push(operands, outputs[: self.record.count], tangents, used))
        try:
            with _grads_unchanged(self.record.own):
                return super().push(operands, outputs, tangents, used)
        except HigherOrderError as error:
            if error.rule != "PB207":
                raise
            raise refusals.no_forward_mode(definition, error.message) from error

    def _by_author(self, operands: Tensors, outputs: Tensors, tangents: Optionals) -> Optionals:
        present = [index for index, tangent in enumerate(tangents) if tangent is not None]
        method = ForwardMode(self, present)
        given = [tangent for tangent in tangents if tangent is not None]
        bound = bind(method, (*given, *operands, *outputs))
        by_index = dict(zip(method.reached, bound, strict=True))
        return self._filled([by_index.get(index) for index in range(self.record.count)])

    def _filled(self, tangents: Sequence[Tensor | None]) -> Optionals:
        """The tangents of the outputs, and none for what was saved beside them."""
        return (*tangents, *(None,) * (self.record.total - self.record.count))

    def verify_linear(self, seen: LinearMap) -> None:
        """Refuse a backward that isn't linear in its cotangents."""
        if is_tracing() or any(is_batched(tensor) and not is_wrapped(tensor) for tensor in seen.along):
            return  # nothing can be compared; the latter are the batches of torch.autograd.functional
        failure = refusals.no_forward_mode(self.plan.definition, "it isn't linear in grad_output.")
        *vectors, inners = seen.comparisons()
        for one, other in vectors:
            agreeing(failure, nearly, one, other)
        agreeing(failure, nearly_inner, *inners)

    def batch(self, size: int, randomness: str, dims: Sequence[int | None], operands: Tensors) -> Batch | None:
        """The author's vmap, where there is one."""
        if not self.has_rule:
            return None
        self._rule, self.source = by_author(self, randomness), "vmap"
        return self._rule.batch(size, randomness, dims, operands)

    def applied(self, operands: Tensors) -> Any:
        """What another call of the Function returns, connected at all levels."""
        again = Forward(self.plan, self.operands.arguments(operands))
        return again.output(bind(again, operands))

    def connected(self, operands: Tensors, outputs: Tensors, depth: int) -> Tensors:
        """The outputs, with what was saved beside them connected at the levels below."""
        return connected(self, operands, outputs, depth)

    def asked(self) -> tuple[bool, ...]:
        """For each argument whether some level differentiates with respect to it."""
        return self.operands.flags([index in self.seen.asked for index in range(len(self.operands))])

    def argument_name(self, operand: int) -> str:
        """What the author calls an operand."""
        return self.plan.definition.argument_name(self.operands.positions[operand])

    def output(self, outputs: Tensors) -> Any:
        """What the call returns: forward's outputs as it returned them."""
        made = tuple(outputs[entry.index] if isinstance(entry, OutputPlace) else entry for entry in self.record.outputs)
        return made[0] if self.record.single else made

    def moving(self, outputs: Tensors, used: int) -> list[int]:
        """The outputs, and what forward saved beside them where a level above differentiates what reads it."""
        reads = self.followed_instead is None and used > (self.plan.definition.double_backward is not None)
        return [index for index in super().moving(outputs, used) if reads or index < self.record.count]

    def drew(self, *, rewind: bool = False) -> bool:
        """Whether forward drew random numbers; if `rewind`, they are to be drawn again."""
        rng = self.record.around.rng
        if rewind and rng is not None:
            set_rng_state(rng)
        return rng is not None

    def written(self) -> frozenset[int]:
        """The operands that forward marked as changed."""
        return frozenset(self.record.dirty.values())

    def constant(self, index: int) -> bool:
        """Whether the author declared an output constant, or what was saved beside them varies with no argument."""
        declared = index in self.record.constants
        return declared or (index >= self.record.count and super().constant(index))

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """What backward reads."""
        if self.source != "forward":
            return None, [False] * self.record.total
        reads = [("operand", index) in self.record.places for index in range(len(self.operands))]
        return reads, [("output", index) in self.record.places for index in range(self.record.total)]

    def cotangents(self, linear: dict[int, Tensor]) -> Optionals:
        """One cotangent for each output, None where there is none; nothing for what was saved beside them."""
        return tuple(linear.get(index) for index in range(self.record.total))

    def state(self, linear: dict[int, Tensor], operands: Sequence[Any], outputs: Sequence[Any], needs: Any) -> State:
        """The call as the author's backward and double_backward see it."""
        record = self.record
        grads = []
        for entry, meta in zip(record.outputs, record.metas, strict=True):
            grad = linear.get(entry.index) if isinstance(entry, OutputPlace) else None
            if grad is None and meta is not None and record.materialize:
                shape, dtype, device = meta
                grad = torch.zeros(shape, dtype=dtype, device=device)
            grads.append(grad.contiguous() if self.plan.definition.contiguous_grads and grad is not None else grad)
        flags = self.operands.flags(needs)
        attributes = record.attributes_with(operands, outputs)
        attributes[UNMATERIALIZED] = not record.materialize
        plain = tuple(index for index in range(len(self.operands.plain)) if index not in self.operands.positions)
        return State(
            plan=self.plan,
            call=Call(Layout(arity=len(self.operands.plain), plain=plain)),
            needs=flags,
            saved=tuple(record.tensors(record.saved, operands, outputs)),
            attributes=attributes,
            inputs={k: operand for k, operand in zip(self.operands.positions, operands, strict=True) if flags[k]},
            outputs=(),
            hidden=(),
            presumed=frozenset(),
            numbers=(),
            grads=tuple(grads),
            edge=(),
        )


def _added(one: Tensor | None, other: Tensor | None, operand: Tensor) -> Tensor | None:
    return other if one is None else one if other is None else fitted(one, operand) + other


@contextlib.contextmanager
def _grads_unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Keep what a backward accumulates into parameters out of them, while it is run on made-up cotangents."""
    leaves = [tensor for tensor in tensors if tensor.is_leaf]
    before = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad
