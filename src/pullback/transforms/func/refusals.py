"""What can't be done under torch.func, and what to do instead: each names the class, the transform and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pullback.define.definition import Definition
from pullback.errors import GradientError, HigherOrderError, PullbackError, SavedTensorError, TransformError
from pullback.transforms.double_backward import sums_to
from pullback.transforms.replay import brief

if TYPE_CHECKING:
    from pullback.transforms.func.forward import Forward
    from pullback.transforms.func.record import Record


def comes_of_a_batch(error: Exception, batched: bool) -> bool:
    """Whether an error may come of the batch that a method was run on."""
    return batched and not isinstance(error, TransformError) and "randomness" not in str(error)


def not_batched(name: str, error: Exception, *, has_rule: bool = False) -> PullbackError:
    """vmap ran a method on a batch, and it raised; if `has_rule`, forward has a vmap of its own."""
    return TransformError(
        "PB510",
        f"{name} can't be run on a batch, as torch.func.vmap does: it raised {_said(error)}",
        expected="PyTorch operations alone, a vmap static method, or a reference in plain PyTorch",
        got="a method that takes one entry at a time",
        remedy="Let backward be a call of a second Function, which has a vmap of its own too; or give a reference in "
        "plain PyTorch."
        if has_rule
        else "",
    )


def writes(name: str) -> PullbackError:
    """forward writes to its argument under vmap."""
    return TransformError(
        "PB513",
        f"{name} changes an argument in place (mark_dirty), under torch.func.vmap.",
        expected="a forward that returns a new tensor, or a vmap static method",
        got="ctx.mark_dirty",
    )


def no_batch(name: str, got: str) -> PullbackError:
    """The author's vmap returned something else than outputs and their dimensions."""
    return TransformError(
        "PB509",
        f"{name}.vmap returned what isn't a batch of forward's outputs.",
        expected="a tuple of two: the outputs, and for each the dimension of its batch or None",
        got=got,
        remedy="Return (output, out_dims).",
    )


def random_under_vmap(name: str) -> PullbackError:
    """forward draws random numbers under vmap, which was told to refuse that."""
    return TransformError(
        "PB514",
        f"{name} draws random numbers under torch.func.vmap, or jacfwd and hessian which use it, with "
        "randomness='error'.",
        expected="randomness='different' or 'same', as vmap asks for with PyTorch's own random operations",
        got="randomness='error', the default",
        remedy="Call vmap or jacfwd with randomness='different' or 'same'; in the place of hessian, "
        "jacfwd(jacrev(f), randomness='same').",
    )


def no_rule(name: str, kind: str) -> PullbackError:
    """A transform that isn't grad, jvp or vmap."""
    return TransformError(
        "PB514",
        f"{name} is called under torch.func.{kind.lower()}, for which a Function has no rule.",
        expected="grad, vjp, jvp, jacrev, jacfwd, hessian or vmap",
        got=kind.lower(),
    )


def changed(name: str, which: str, reason: str) -> PullbackError:
    """What was saved under a transform was written to since."""
    return SavedTensorError(
        "PB301",
        f"{which} of {name} has been modified by an inplace operation between forward and backward.",
        expected="a tensor that is unchanged since forward",
        got=reason.partition("inplace operation: ")[2] or reason,
    )


def no_forward_mode(definition: Definition, why: str) -> PullbackError:
    """Forward mode can't be derived from backward."""
    return TransformError(
        "PB511",
        f"{definition.name} has no jvp, and forward mode (torch.func.jvp, jacfwd, hessian, dual numbers) can't be "
        f"derived from its {definition.method}: {why}",
        expected="a backward that is linear in grad_output and made of PyTorch operations, a jvp, or a reference",
        got="none of these",
        remedy="Write a jvp, or give a reference in plain PyTorch; or use reverse mode alone: for a Hessian, "
        "jacrev(jacrev(f)).",
    )


def opaque(name: str, definition: Definition, reason: Exception) -> PullbackError:
    """Autograd can't follow how the results of a method were computed."""
    why = f"; {reason}" if str(reason) else ""
    return HigherOrderError(
        "PB207",
        f"what {name} returns is being differentiated, and autograd can't follow how it was computed{why}.",
        expected="a result that is made from grad_output and the saved tensors by PyTorch operations",
        got="a tensor without a path to grad_output",
        remedy=f"Write {'double_backward, or ' if name.endswith(definition.method) else ''}a reference in plain "
        "PyTorch.",
    )


def once(definition: Definition) -> PullbackError:
    """backward is declared to be differentiable once, and nothing else gives the second derivative."""
    what = "is marked once_differentiable" if definition.backward is not None else "is missing"
    return HigherOrderError(
        "PB207",
        f"{definition.backward_label} {what}, and its gradient is being differentiated.",
        expected="double_backward or a reference, which give the second derivative",
        got="neither",
        remedy="Write double_backward, give a reference, or don't ask for the second derivative.",
    )


def disagrees(definition: Definition, role: str) -> PullbackError:
    """backward returned another gradient than autograd has of the reference, so the derivatives differ too."""
    return HigherOrderError(
        "PB203",
        f"a gradient that {definition.backward_label} returns is being differentiated through the {role}, "
        "whose gradient is another one.",
        expected=f"the {role}'s gradient",
        got="another",
        remedy=f"Correct backward or the {role}.",
    )


def cut_off(definition: Definition, hidden: Iterable[str], why: str) -> PullbackError:
    """What forward left is being differentiated, and nothing connects it to the arguments."""
    what = ", ".join(sorted(hidden))
    return HigherOrderError(
        "PB206",
        f"the gradient that {definition.backward_label} returns is being differentiated, and it depends on "
        f"{what}, which forward computed and the graph doesn't know; {why}.",
        expected="saved tensors that are arguments or outputs, or a forward that can be run again to connect them",
        got=f"{what}, cut off from the graph",
    )


def replay_differs(definition: Definition) -> PullbackError:
    """forward, run again, saved something else."""
    return HigherOrderError(
        "PB221",
        f"{definition.name}: what forward saves differs when it is run again on the same arguments.",
        expected="what forward saved",
        got="something else",
    )


def other_outputs(definition: Definition, found: int, expected: int) -> PullbackError:
    """The reference has another number of outputs than forward."""
    return HigherOrderError(
        "PB219",
        f"the reference of {definition.name} returned {found} tensors.",
        expected=f"{expected}, as forward does",
        got=str(found),
    )


def other_values(definition: Definition, index: int, value: Tensor, other: Tensor | None) -> PullbackError:
    """vmap would go through the reference, which gives other values than forward."""
    return HigherOrderError(
        "PB219",
        f"output {index} of {definition.name} differs from its reference, through which vmap would batch it.",
        expected=brief(value),
        got=brief(other),
        remedy="Correct the reference, or forward.",
    )


def demand_shapes(forward: Forward, gradients: Sequence[Tensor | None], operands: Sequence[Tensor]) -> None:
    """Raise where a gradient can't be summed to the shape of its argument.

    Raises:
        GradientError: PB213.
    """
    definition = forward.plan.definition
    for index, (gradient, operand) in enumerate(zip(gradients, operands, strict=True)):
        if gradient is not None and not sums_to(gradient.shape, operand.shape):
            name = forward.argument_name(index)
            raise GradientError(
                "PB213",
                f"{definition.backward_label} returned a gradient of another shape for {name}.",
                expected=f"a tensor of shape {tuple(operand.shape)}, as {name} has, or one that can be summed to it",
                got=f"shape {tuple(gradient.shape)}",
            )


def fitting_tangents(name: str, record: Record, returned: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """The author's tangents for the tensors among the outputs.

    Raises:
        GradientError: PB201 or PB202, another number of them, or something that is neither a tensor nor None.
    """
    if len(returned) != len(record.outputs):
        raise GradientError(
            "PB201",
            f"{name} returned {len(returned)} tangents.",
            expected=f"{len(record.outputs)}, one for each output of forward",
            got=str(len(returned)),
            remedy="Return a tuple with one tangent for each output, None for one that has none.",
        )
    for tangent in returned:
        if tangent is not None and not isinstance(tangent, Tensor):
            raise GradientError(
                "PB202",
                f"{name} returned a value of type {type(tangent).__name__} as a tangent.",
                expected="a tensor or None",
                got=type(tangent).__name__,
            )
    pairs = [*zip(record.metas, returned, strict=True)]
    for index, (meta, tangent) in enumerate(pairs):
        if meta is not None and tangent is not None and tangent.shape != meta[0]:
            raise GradientError(
                "PB213",
                f"{name} returned a tangent of another shape for output {index}.",
                expected=f"a tensor of shape {tuple(meta[0])}, as the output has",
                got=f"shape {tuple(tangent.shape)}",
                remedy="Return a tangent of the output's shape.",
            )
    return tuple(tangent for meta, tangent in pairs if meta is not None)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if text.endswith(".") else f"{text}."
