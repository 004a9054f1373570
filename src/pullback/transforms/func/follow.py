"""Derivatives by torch.func of what is made of PyTorch operations, and what shows that a method isn't."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.transforms.func.hooks import vjp
from pullback.transforms.func.primitive import Optionals, Primitive, Tensors, fitted
from pullback.transforms.graph import Reach


class NotFollowedError(Exception):
    """Autograd can't follow a method; the text says why."""


def pulled_through(
    function: Callable[[Tensors], Optionals],
    operands: Tensors,
    cotangents: Optionals,
    needs: Sequence[bool],
) -> Optionals:
    """The vjp of `function` at `operands`, where it is made of PyTorch operations: one gradient for each operand."""
    wanted = [index for index, needed in enumerate(needs) if needed and is_smooth(operands[index])]
    kept: list[int] = []

    def run(*values: Tensor) -> Tensors:
        every = list(operands)
        for index, value in zip(wanted, values, strict=True):
            every[index] = value
        outputs = function(tuple(every))
        due = zip(outputs, cotangents, strict=True)
        pairs = [(index, out) for index, (out, cot) in enumerate(due) if out is not None and cot is not None]
        kept[:] = [index for index, out in pairs if is_smooth(out)]
        # torch.func.vjp wants an output, whether there is one or not.
        return tuple(out for index, out in pairs if index in kept) or values[:1]

    if not wanted:
        return (None,) * len(operands)
    _, pull = vjp(run, *(operands[index] for index in wanted))
    if not kept:
        return (None,) * len(operands)
    found = dict(zip(wanted, pull(tuple(cotangents[index] for index in kept)), strict=True))
    return tuple(found.get(index) for index in range(len(operands)))


def followed(
    method: Callable[[Tensors], Optionals],
    linear: int,
    operands: Tensors,
    cotangents: Optionals,
    needs: Sequence[bool],
    moved: Sequence[bool],
) -> Optionals:
    """The vjp of an author's method, which is linear in its first operands.

    Args:
        method: Takes operands; returns its results.
        linear: How many of the first operands it is linear in.
        operands: What it was run on.
        cotangents: For each result.
        needs: For each operand whether a gradient is due.
        moved: For each result whether its values vary with the operands, on the plain run.

    Raises:
        NotFollowedError: A result that varies with what it is linear in has no path to it in the graph.
    """

    def watched(every: Tensors) -> Optionals:
        # A copy of each, since backward may write to its cotangents.
        marked = [operand.clone() if index < linear and is_smooth(operand) else operand
                  for index, operand in enumerate(every)]  # fmt: skip
        try:
            results = method(tuple(marked))
        except Exception as error:
            raise NotFollowedError(f"run where autograd watches, it raised {error!r}") from error
        nodes = [operand.grad_fn for operand in marked[:linear] if operand.grad_fn is not None]
        for result, cotangent, moves in zip(results, cotangents, moved, strict=True):
            if cotangent is None or not moves:
                continue
            if result is None:
                raise NotFollowedError("run where autograd watches, it returned None for what it has a gradient for")
            reach = Reach(result, nodes, ())
            if reach.broken:
                raise NotFollowedError("an operator without a derivative lies between")
            if not reach.found:
                raise NotFollowedError("")
        return results

    # What it is linear in is always followed, so that a break shows: it cuts off the other operands as well.
    asked = [needed or index < linear for index, needed in enumerate(needs)]
    found = pulled_through(watched, operands, cotangents, asked)
    return tuple(
        fitted(gradient, operand) if needed and gradient is not None else None
        for gradient, operand, needed in zip(found, operands, needs, strict=True)
    )


class Plain(Primitive):
    """A function that is made of PyTorch operations.

    Args:
        name: What it is called.
        function: Takes operands; returns outputs.
    """

    def __init__(self, name: str, function: Callable[[Tensors], Optionals]) -> None:
        super().__init__()
        self.name, self._function = name, function

    def run(self, operands: Tensors) -> Tensors:
        """The outputs."""
        return tuple(output for output in self._function(operands) if output is not None)

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The gradients that autograd has."""
        return pulled_through(self._function, operands, cotangents, needs)


class CutOff(Primitive):
    """Tensors that no graph leads to the operands from: raises when they are differentiated.

    Args:
        name: Whose they are.
        failure: What to raise.
        count: How many tensors they are.
        behind: How many tensors they were computed from.

    Its operands are the tensors, then what they were computed from.
    """

    def __init__(self, name: str, failure: Exception, count: int, behind: int) -> None:
        super().__init__()
        self.name, self._failure, self._count, self._behind = name, failure, count, behind

    def run(self, operands: Tensors) -> Tensors:
        """The tensors."""
        return operands[: self._count]

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """Raise."""
        raise self._failure

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """Nothing: there is no derivative to compute."""
        return [False] * (self._count + self._behind), [False] * self._count

    def constant(self, index: int) -> bool:
        """Never: what they vary with is unknown to the graph alone."""
        return False
