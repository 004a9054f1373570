"""The transforms, each from a program to a program of the same arguments, so that any goes on top of any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.transforms.matrix.kind import Kind, Point, Program

Wrap = Callable[[Program, Point], Program]

BATCH = 3


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for entry in tree:
            yield from leaves(entry)
    else:
        assert tree is None, f"a transform returned {type(tree).__name__}"


def parted(tree: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs that have derivatives, and the others."""
    flat = list(leaves(tree))
    return tuple(t for t in flat if t.is_floating_point()), tuple(t for t in flat if not t.is_floating_point())


def weights(like: Tensor) -> Tensor:
    """Numbers from 0.5 to 1.5, no two alike."""
    return torch.linspace(0.5, 1.5, like.numel(), dtype=like.dtype).reshape(like.shape)


def score(outputs: tuple[Tensor, ...]) -> Tensor:
    """A number that depends on each element, in a way that isn't linear."""
    terms = [(weights(t) * (t + 0.5 * t * t)).sum() for t in outputs]
    return torch.stack(terms).sum()


def cotangents(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One cotangent for each output; they vary with it, so that an outer derivative sees them."""
    return tuple(weights(t) * (0.3 * t).cos() for t in outputs)


def narrowed(program: Program, wrt: tuple[int, ...], tensors: tuple[Tensor, ...]) -> Program:
    """The program as a function of the tensors that derivatives are taken by: (float outputs, the others)."""

    def call(*chosen: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        full = list(tensors)
        for place, tensor in zip(wrt, chosen, strict=True):
            full[place] = tensor
        return parted(program(*full))

    return call


def grad(program: Program, point: Point) -> Program:
    """The gradient of a score of the outputs."""

    def call(*tensors: Tensor) -> Any:
        def scored(*given: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            outputs, others = parted(program(*given))
            return score(outputs), others

        return torch.func.grad(scored, argnums=point.wrt, has_aux=True)(*tensors)

    return call


def vjp(program: Program, point: Point) -> Program:
    """Outputs and the pullback of cotangents."""

    def call(*tensors: Tensor) -> Any:
        chosen = [tensors[k] for k in point.wrt]
        outputs, pull, others = torch.func.vjp(narrowed(program, point.wrt, tensors), *chosen, has_aux=True)
        return outputs, pull(cotangents(outputs)), others

    return call


def jvp(program: Program, point: Point) -> Program:
    """Outputs and the push of tangents."""

    def call(*tensors: Tensor) -> Any:
        chosen = tuple(tensors[k] for k in point.wrt)
        return torch.func.jvp(narrowed(program, point.wrt, tensors), chosen, cotangents(chosen), has_aux=True)

    return call


def jacrev(program: Program, point: Point) -> Program:
    """Jacobians, by rows."""

    def call(*tensors: Tensor) -> Any:
        chosen = [tensors[k] for k in point.wrt]
        argnums = tuple(range(len(chosen)))
        return torch.func.jacrev(narrowed(program, point.wrt, tensors), argnums, has_aux=True)(*chosen)

    return call


def jacfwd(program: Program, point: Point) -> Program:
    """Jacobians, by columns; each column is of the same call, so it sees the same random numbers."""

    def call(*tensors: Tensor) -> Any:
        chosen = [tensors[k] for k in point.wrt]
        argnums = tuple(range(len(chosen)))
        randomness = "error" if point.kind.randomness == "error" else "same"
        narrow = narrowed(program, point.wrt, tensors)
        return torch.func.jacfwd(narrow, argnums, has_aux=True, randomness=randomness)(*chosen)

    return call


def hessian(program: Program, point: Point) -> Program:
    """The Hessian of a score of the outputs: forward over reverse."""

    def call(*tensors: Tensor) -> Any:
        chosen = [tensors[k] for k in point.wrt]
        argnums = tuple(range(len(chosen)))
        narrow = narrowed(program, point.wrt, tensors)
        # torch.func.hessian has no way to say how random numbers are drawn, so it is written out for those.
        randomness = "error" if point.kind.randomness == "error" else "same"
        inner = torch.func.jacrev(lambda *given: score(narrow(*given)[0]), argnums)
        return torch.func.jacfwd(inner, argnums, randomness=randomness)(*chosen)

    return call


def batched(tensor: Tensor, dim: int = 0) -> Tensor:
    """A batch of tensors like this one: floats are scaled, integers and bools turned round, so that they stay valid."""
    entries = [tensor, tensor.flip(-1) if tensor.dim() else tensor, tensor]
    if tensor.is_floating_point():
        entries = [tensor, 0.9 * tensor + 0.05, 1.1 * tensor - 0.02]
    return torch.stack(entries[:BATCH], dim)


def vmap(program: Program, point: Point) -> Program:
    """The outputs for a batch that is made from the arguments."""

    def call(*tensors: Tensor) -> Any:
        return torch.func.vmap(program, randomness=point.kind.randomness)(*(batched(tensor) for tensor in tensors))

    return call


TRANSFORMS: dict[str, Wrap] = {"grad": grad, "vjp": vjp, "jvp": jvp, "jacrev": jacrev, "jacfwd": jacfwd, "vmap": vmap}
"""What compositions are made of."""

ALONE: dict[str, Wrap] = {**TRANSFORMS, "hessian": hessian}

FORWARD = {"jvp": 1, "jacfwd": 1, "hessian": 1}
ORDER = {"grad": 1, "vjp": 1, "jvp": 1, "jacrev": 1, "jacfwd": 1, "hessian": 2}

TORCHS_OWN = "an error of PyTorch's"
"""Stands for a rule where PyTorch runs backward in a way in which pullback has no say."""

Composition = tuple[str, ...]
"""Names of transforms, outermost first."""


def composed(composition: Composition, program: Program, point: Point) -> Program:
    """The program under all transforms of a composition."""
    for name in reversed(composition):
        program = ALONE[name](program, point)
    return program


def under(composition: Composition) -> Callable[[Program, Point], Any]:
    """What a program gives under all transforms of a composition, at a point."""
    return lambda program, point: composed(composition, program, point)(*point.tensors)


def orders(composition: Composition) -> int:
    """How many derivatives are taken of each other."""
    return sum(ORDER.get(name, 0) for name in composition)


def forward_levels(composition: Composition) -> int:
    """How many of them are in forward mode."""
    return sum(FORWARD.get(name, 0) for name in composition)


def refusals(kind: Kind, composition: Composition) -> frozenset[str]:
    """The rules by which this composition may be refused for this kind; none for nearly all."""
    mapped, forward, order = "vmap" in composition, forward_levels(composition), orders(composition)
    loops = mapped or any(name in composition for name in ("jacrev", "jacfwd", "hessian"))
    # jacfwd is a vmap of jvp; the inner one of two writes to what the outer one's tangents are part of.
    in_batches = mapped or composition.count("jacfwd") >= 2
    may = {
        "PB513": kind.in_place and in_batches,
        "PB510": (mapped and (kind.shape_by_data or kind.opaque_forward)) or (loops and kind.opaque_backward),
        "PB511": forward >= 1 and kind.no_forward_mode,
        kind.order_code: order > kind.order,
    }
    return frozenset(code for code, so in may.items() if so)


def refusals_outside(kind: Kind, composition: Composition) -> frozenset[str]:
    """The same where derivatives are plain autograd's, by tensors that are no leaves."""
    return refusals(kind, composition) | ({kind.unsaved} if kind.unsaved and orders(composition) > 1 else set())


def refusals_of_rows(kind: Kind) -> frozenset[str]:
    """The rules by which a batch of cotangents outside of torch.func, in its older batches, may be refused."""
    return refusals(kind, ("jacrev",)) | ({TORCHS_OWN} if kind.numpy_backward else set())
