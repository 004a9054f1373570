"""What a decorated function leaves on ctx for its derivative: tensors where PyTorch watches over them, the rest beside.

Tensors go through ``ctx.save_for_backward``, so that hooks, checkpoint and PyTorch's check for later writes see them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from pullback.call.kept import Known
from pullback.custom.nests import Shape, apart, together


@dataclass(frozen=True)
class Kept:
    """A nest that was kept for the derivative, without its tensors.

    Attributes:
        shape: Its structure.
        others: Its leaves that aren't tensors; of what may have been computed modules alone, and None for the rest,
            which is kept in the open, as there may be numbers in it that were read from tensors.
        start: Where its tensors begin among the saved ones.
        end: Where they end.
    """

    shape: Shape
    others: tuple[Any, ...]
    start: int
    end: int


def keep(ctx: Any, rule: Callable[..., Any], *, fixed: Any, results: Any, forward: bool = False) -> None:
    """Leave two nests on `ctx`, and the rule that is to read them.

    Args:
        ctx: The Function's ctx.
        rule: The rule that holds at the time of the call; another one may be given before the derivative is taken.
        fixed: Arguments as they came.
        results: What may have been computed.
        forward: Whether forward mode reads them too.
    """
    given, plain, shape = apart(fixed)
    tensors, others, structure = apart(results)
    saved = (*given, *tensors)
    ctx.save_for_backward(*saved)
    if forward:
        ctx.save_for_forward(*saved)
    fixed_part = Kept(shape, tuple(plain), 0, len(given))
    modules = tuple(other if isinstance(other, Module) else None for other in others)
    result_part = Kept(structure, modules, len(given), len(saved))
    ctx.kept = Known((rule, fixed_part, result_part))
    if len(others) > len([module for module in modules if module is not None]):
        ctx.others = tuple(None if isinstance(other, Module) else other for other in others)


def kept(ctx: Any) -> tuple[Callable[..., Any], Any, Any]:
    """The rule and the two nests that `keep` left on `ctx`."""
    saved, (rule, fixed, results) = ctx.saved_tensors, ctx.kept.value
    visible = getattr(ctx, "others", (None,) * len(results.others))
    others = [seen if module is None else module for module, seen in zip(results.others, visible, strict=True)]
    return rule, _again(fixed, saved, fixed.others), _again(results, saved, others)


def _again(entry: Kept, saved: tuple[Any, ...], others: Sequence[Any]) -> Any:
    return together(saved[entry.start : entry.end], others, entry.shape)
