"""Cross entropy of logits that a matrix product makes, a chunk at a time: no more than one chunk of them is there.

The logits are z = x Wᵀ + b, with x of shape (B, H), W of shape (V, H) and b of shape (V,). A chunk has some of the rows
and all classes, where that is enough rows for the products to be fast and the dtype holds a sum: then one pass makes
losses and gradients. Otherwise it has some of the classes: one pass makes lse = log Σ_c exp z_c of each row, a second
the gradients. There the gradient of W is made a few classes at a time, each from all rows, so that in low precision
no more than a piece of it is ever in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pullback.ops import chunks
from pullback.ops.chunks import Span, accumulated, spans
from pullback.ops.products import multiplied_in
from pullback.ops.targets import Options, Owed, Targets, losses

_LEAST_ROWS = 128
"""A chunk of whole rows has at least so many: with fewer, reading W costs more than multiplying by it."""

_LEAST_CLASSES = 1024
"""The same for a chunk of classes."""


class Projection(NamedTuple):
    """What the logits are made of: x of shape (B, H), W of shape (V, H), and b of shape (V,) or None."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None


class Weighing(NamedTuple):
    """How the rows count.

    Attributes:
        targets: The targets.
        options: Smoothing, and the rest that is asked for.
        weight: A factor for each class, or None.
    """

    targets: Targets
    options: Options
    weight: Tensor | None


class Gradients(NamedTuple):
    """The gradients of x, W and b; None for those that aren't wanted."""

    input: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


Needs = tuple[bool, bool, bool]
"""Which gradients are wanted: of x, W and b."""


def whole_rows(of: Projection) -> bool:
    """Whether a chunk has whole rows: where it has enough of them, and the dtype holds sums over all rows."""
    dtype = of.input.dtype
    return dtype == accumulated(dtype) and _rows_at_once(of) >= _LEAST_ROWS


def _rows_at_once(of: Projection) -> int:
    rows = chunks.CHUNK_BYTES // (of.weight.shape[0] * of.input.dtype.itemsize)
    return rows - rows % 16 if rows > 16 else max(rows, 1)  # products are fastest in such numbers


def _blocks(chunk: Tensor, *of_rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows at a time of a chunk of logits and of what belongs to its rows; a compiler gets all at once."""
    if torch.compiler.is_compiling():
        return iter([(chunk, *of_rows)])
    step = max(chunks.block_bytes() // max(chunk.shape[1] * 4, 1), 1)
    return zip(chunk.split(step), *(tensor.split(step) for tensor in of_rows), strict=True)


class _Room:
    """Memory that holds one chunk of logits after the other."""

    def __init__(self, like: Tensor, size: int) -> None:
        self._memory = None if torch.compiler.is_compiling() else like.new_empty(size)

    def of(self, rows: int, classes: int) -> Tensor | None:
        """Room for a chunk; None for a compiler, which plans memory by itself."""
        return None if self._memory is None else self._memory[: rows * classes].view(rows, classes)


# -- whole rows ------------------------------------------------------------------------------------------------------


def by_rows(of: Projection, by: Weighing, due: Owed, needs: Needs) -> tuple[Tensor, Gradients]:
    """The loss of each row, and the gradients of the sum that `due` belongs to.

    Args:
        of: What the logits are made of.
        by: How the rows count.
        due: What each row owes to its logits.
        needs: Which gradients are wanted.
    """
    x, w, b = of
    w = w if 1 in w.stride() else w.contiguous()  # else each product would make its own copy
    step = min(_rows_at_once(of), max(x.shape[0], 1))
    room = _Room(x, step * w.shape[0])
    made = Gradients(
        x.new_empty(x.shape) if needs[0] else None,
        w.new_empty(w.shape) if needs[1] else None,
        w.new_zeros(w.shape[:1]) if needs[2] else None,
    )
    found: list[tuple[Tensor, ...]] = []
    for start, length in spans(x.shape[0], step):
        part = x.narrow(0, start, length)
        z = torch.mm(part, w.t(), out=room.of(length, w.shape[0]))
        z = z if b is None else z.add_(b)
        found += [*_into_own_gradients(z, by, due, (start, length))]
        if made.input is not None:
            made.input.narrow(0, start, length).copy_(z @ w)
        if made.weight is not None:
            _add_product(made.weight, z.t(), part, first=start == 0)
        if made.bias is not None:
            made.bias.add_(z.sum(0))
        del z
    lse, own, *every = (torch.cat(parts) for parts in zip(*found, strict=True))
    terms = (lse.log(), own, every[0] if every else None)
    return losses(by.targets, by.options, w.shape[0], by.weight, terms), made


def _into_own_gradients(z: Tensor, by: Weighing, due: Owed, span: Span) -> Iterator[tuple[Tensor, ...]]:
    """Turn a chunk of whole rows into the gradients of its logits.

    Yields:
        For some of the rows at a time: Σ_c exp z_c, z_y and, where there is smoothing, Σ_c w_c z_c, where z is less the
        row's largest logit.
    """
    of_rows = (t.narrow(0, *span).unsqueeze(1) for t in (by.targets.chosen, due.spread, due.smooth, -due.drawn))
    for logits, index, spread, smooth, off in _blocks(z, *of_rows):
        logits.sub_(logits.amax(1, keepdim=True))
        own = logits.gather(1, index).squeeze(1)
        every = [_every(logits, by.weight)] if by.options.label_smoothing else []
        sums = logits.exp_().sum(1)
        logits.mul_(spread / sums.unsqueeze(1))
        if by.options.label_smoothing:
            logits.sub_(smooth if by.weight is None else smooth * by.weight.to(smooth.dtype))
        logits.scatter_add_(1, index, off)
        yield sums, own, *every


def _every(logits: Tensor, weight: Tensor | None) -> Tensor:
    """Σ_c w_c z_c of each row."""
    return logits.sum(1) if weight is None else logits @ weight.to(logits.dtype)


# -- some of the classes ---------------------------------------------------------------------------------------------


class Tiles:
    """The chunks of logits that have some of the classes, and some of the rows where there are very many.

    In low precision the logits take a third of a chunk, and copies of what is multiplied the rest. All chunks lie
    in the same memory, and two passes share it.

    Args:
        of: What the logits are made of.
    """

    def __init__(self, of: Projection) -> None:
        x, w, _ = of
        self.of = of
        self.dtype = multiplied_in(x.dtype, x.device)
        self.sums = accumulated(x.dtype)
        most = chunks.CHUNK_BYTES // (1 if x.dtype == self.sums else 3) // self.dtype.itemsize
        self.rows = min(max(x.shape[0], 1), max(most // _LEAST_CLASSES, 1))
        self.classes = min(w.shape[0], max(most // self.rows, 1))
        self._room = _Room(w.new_empty(0, dtype=self.dtype), self.rows * self.classes)

    def multiplied(self, tensor: Tensor, span: Span) -> Tensor:
        """Some rows of a matrix, in the dtype to multiply in."""
        return tensor.narrow(0, *span).to(self.dtype)

    def logits(self, part: Tensor, weight: Tensor, span: Span) -> Tensor:
        """One chunk: some rows' logits of some classes."""
        z = torch.mm(part, weight.t(), out=self._room.of(part.shape[0], weight.shape[0]))
        return z if self.of.bias is None else z.add_(self.of.bias.narrow(0, *span))


def log_sums(tiles: Tiles, by: Weighing) -> tuple[Tensor, Tensor, Tensor | None]:
    """lse, z_y and, where there is smoothing, Σ_c w_c z_c of each row.

    Args:
        tiles: The chunks.
        by: How the rows count.
    """
    x, w, _ = tiles.of
    lse = x.new_full(x.shape[:1], -torch.inf, dtype=tiles.sums)
    # Zeros, one for each target; one that is no class raises here, as no chunk would find it.
    own = lse.new_zeros(1).expand(w.shape[0]).gather(0, by.targets.chosen)
    every = torch.zeros_like(lse) if by.options.label_smoothing else None
    for classes in spans(w.shape[0], tiles.classes):
        multiplied = tiles.multiplied(w, classes)
        chosen = None if by.weight is None else by.weight.narrow(0, *classes)
        for rows in spans(x.shape[0], tiles.rows):
            z = tiles.logits(tiles.multiplied(x, rows), multiplied, classes)
            kept = (by.targets.chosen, lse, own) if every is None else (by.targets.chosen, lse, own, every)
            of_rows = (tensor.narrow(0, *rows).unsqueeze(1) for tensor in kept)
            for block, index, lse_, own_, *every_ in _blocks(z, *of_rows):
                logits = block.to(tiles.sums)
                lse_.copy_(torch.logaddexp(lse_, torch.logsumexp(logits, 1, keepdim=True)))
                local, inside = _local(index, classes)
                own_.copy_(torch.where(inside, logits.gather(1, local), own_))
                for sums in every_:
                    sums.add_(_every(logits, chosen).unsqueeze(1))
            del z
    # One infinite logit makes softmax undefined, in PyTorch too.
    return torch.where(lse == torch.inf, torch.nan, lse), own, every


def gradients(tiles: Tiles, by: Weighing, due: Owed, lse: Tensor, needs: Needs) -> Gradients:
    """The gradients, from the logits made once more.

    Args:
        tiles: The chunks.
        by: How the rows count.
        due: What each row owes to its logits.
        lse: log Σ_c exp z_c of each row.
        needs: Which gradients are wanted.
    """
    x, w, _ = tiles.of
    of_input = x.new_empty(x.shape, dtype=tiles.sums) if needs[0] else None
    of_weight = w.new_empty(w.shape) if needs[1] else None
    of_bias = w.new_zeros(w.shape[:1], dtype=tiles.sums) if needs[2] else None
    for classes in spans(w.shape[0], tiles.classes):
        held = tiles.multiplied(w, classes)
        place = None if of_weight is None else of_weight.narrow(0, *classes)
        summed = place if place is None or place.dtype == tiles.sums else torch.empty_like(place, dtype=tiles.sums)
        of_classes = None if of_bias is None else of_bias.narrow(0, *classes)
        for rows in spans(x.shape[0], tiles.rows):
            part = tiles.multiplied(x, rows)
            z = tiles.logits(part, held, classes)
            mine = Owed(*(t.narrow(0, *rows) for t in due))
            _into_gradients(z, by, mine, (lse.narrow(0, *rows), rows, classes), of_classes)
            if of_input is not None:
                _add_product(of_input.narrow(0, *rows), z, held, first=classes[0] == 0)
            if summed is not None:
                _add_product(summed, z.t(), part, first=rows[0] == 0)
            del z, part
        if place is not None and summed is not None and place is not summed:
            place.copy_(summed)
        del held, summed
    return Gradients(
        None if of_input is None else of_input.to(x.dtype), of_weight, None if of_bias is None else of_bias.to(w.dtype)
    )


def at_once(of: Projection, by: Weighing, due: Owed, lse: Tensor, needs: Needs) -> Gradients:
    """The same for a batch of cotangents, which the memory of a chunk has no room for: it holds all logits."""
    x, w, b = (None if t is None else t.to(lse.dtype) for t in of)
    assert x is not None
    assert w is not None
    z = x @ w.t() if b is None else x @ w.t() + b
    gz = (z - lse.unsqueeze(1)).exp() * due.spread.unsqueeze(1)
    if by.options.label_smoothing:
        smooth = due.smooth.unsqueeze(1)
        gz = gz - (smooth if by.weight is None else smooth * by.weight.to(smooth.dtype))
    chosen = by.targets.chosen.unsqueeze(1) == torch.arange(w.shape[0], device=w.device)
    gz = gz - chosen.to(lse.dtype) * due.drawn.unsqueeze(1)
    return Gradients(
        (gz @ w).to(of.input.dtype) if needs[0] else None,
        (gz.transpose(0, 1) @ x).to(of.weight.dtype) if needs[1] else None,
        gz.sum(0).to(of.weight.dtype) if needs[2] else None,
    )


def _into_gradients(
    z: Tensor, by: Weighing, due: Owed, at: tuple[Tensor, Span, Span], of_classes: Tensor | None
) -> None:
    """Turn a chunk of logits into their gradients, and add those up for each class.

    Args:
        z: The chunk.
        by: How the rows count.
        due: What the rows of this chunk owe.
        at: lse of these rows, and which rows and classes they are.
        of_classes: Where the sums for the classes go, if anywhere.
    """
    lse, rows, classes = at
    chosen = None if by.weight is None else by.weight.narrow(0, *classes)
    of_rows = (t.unsqueeze(1) for t in (lse, by.targets.chosen.narrow(0, *rows), due.spread, due.smooth, -due.drawn))
    for block, lse_, index, spread, smooth, off in _blocks(z, *of_rows):
        logits = block.to(lse.dtype)  # the block itself, or a copy of it in float32
        logits.sub_(lse_).exp_().mul_(spread)
        if by.options.label_smoothing:
            logits.sub_(smooth if chosen is None else smooth * chosen.to(smooth.dtype))
        local, inside = _local(index, classes)
        logits.scatter_add_(1, local, torch.where(inside, off, 0))
        if of_classes is not None:
            of_classes.add_(logits.sum(0))
        if logits is not block:
            block.copy_(logits)


def _local(index: Tensor, classes: Span) -> tuple[Tensor, Tensor]:
    """Where the targets are among some classes, and whether they are there at all."""
    local = index - classes[0]
    inside = (local >= 0) & (local < classes[1])
    return torch.where(inside, local, 0), inside


def _add_product(total: Tensor, one: Tensor, other: Tensor, *, first: bool) -> None:
    """Add a matrix product to `total`, which may be of a higher dtype, and of which the `first` makes the values."""
    if one.dtype == total.dtype:
        total.addmm_(one, other, beta=0 if first else 1)
        return
    for some, part in zip(total.split(_LEAST_CLASSES), one.split(_LEAST_CLASSES), strict=True):
        product = part @ other
        if first:
            some.copy_(product)
        else:
            some.add_(product)
