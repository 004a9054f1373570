"""Autocast as a class declares it: ``cast_inputs`` and ``keep_autocast``.

NOTE [cast outside]: ``cast_inputs`` casts the arguments before the node is made, by an operation of PyTorch's that has
its own place in the graph. So what forward gets, and may save, are the arguments of the node: layouts, replays and
higher orders see nothing out of the ordinary, and each gradient comes back in the dtype of the caller's tensor.
`torch.amp.custom_fwd` casts inside of the node, where a saved argument is a copy that no graph leads to.

forward runs with autocast off once its arguments are cast, and backward does in any case, as with PyTorch's decorators.
``keep_autocast`` casts nothing: the state of autocast around forward is put down on ctx, and brought back for backward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.call.layout import AUTOCAST
from pullback.call.surroundings import AUTOCAST_KINDS, Autocast, autocast_now, autocast_settings, under_autocast
from pullback.define.definition import Definition
from pullback.errors import AutocastError

_UNDECORATED = "_fwd_used_autocast"
"""The attribute of ctx that custom_bwd reads and custom_fwd has set."""


def casts(definition: Definition) -> bool:
    """Whether a call made here has its arguments cast."""
    return definition.cast_inputs is not None and any([torch.is_autocast_enabled(kind) for kind in AUTOCAST_KINDS])


def declares(definition: Definition) -> bool:
    """Whether the class says anything of autocast."""
    return definition.cast_inputs is not None or definition.keep_autocast


def unsupported(definition: Definition) -> None:
    """Raise where autocast is on and the class says something of it, on a torch where nothing can be made of that.

    Raises:
        AutocastError: PB521.
    """
    if declares(definition) and autocast_now():
        name = "keep_autocast" if definition.cast_inputs is None else "cast_inputs"
        raise AutocastError(
            "PB521",
            f"{definition.name} declares {name}, which this PyTorch has no way to heed.",
            expected="a PyTorch that calls can be guarded on",
            got="one that lacks what `pullback env` lists",
            remedy="Use torch.amp.custom_fwd and custom_bwd, or another PyTorch.",
        )


def cast_arguments(dtype: torch.dtype, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """`leaves`, those cast to `dtype` that autocast is on for.

    As in PyTorch these are floating-point tensors other than float64, on a device of a type that autocast is on for.

    Args:
        dtype: What to cast to.
        leaves: Tensors and anything else, which stays as it is.
    """
    return tuple([leaf.to(dtype) if isinstance(leaf, Tensor) and _eligible(leaf) else leaf for leaf in leaves])


def _eligible(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return False
    kind = tensor.device.type
    return kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind)


def autocast_off() -> contextlib.AbstractContextManager[None]:
    """Run a block with autocast off for all types of devices."""
    return under_autocast(())


def keep_state(definition: Definition, ctx: Any) -> None:
    """Put the state of autocast down on `ctx`, where backward is to run under it."""
    if definition.keep_autocast:
        setattr(ctx, AUTOCAST, autocast_now())


def keeping(definition: Definition, forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, which puts the state of autocast down first, where backward is to run under it."""
    if not definition.keep_autocast:
        return forward

    @functools.wraps(forward)
    def kept(ctx: Any, *arguments: Any) -> Any:
        keep_state(definition, ctx)
        return forward(ctx, *arguments)

    return kept


def around_backward(definition: Definition, attributes: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Run the author's backward or double_backward as its class declares.

    Args:
        definition: What the author wrote.
        attributes: What forward left on ctx.
    """
    return under_declared(_declared(definition, attributes))


def under_declared(autocast: Autocast | None) -> contextlib.AbstractContextManager[None]:
    """Run a block under this state of autocast; for None, of which nothing is declared, under that which is."""
    return contextlib.nullcontext() if autocast is None else under_autocast(autocast)


def declared_now(definition: Definition) -> Autocast | None:
    """The state of autocast that all methods of a call made here run under, None where nothing is declared."""
    if definition.cast_inputs is not None:
        return ()
    return autocast_now() if definition.keep_autocast else None


def settings_of(definition: Definition, attributes: Mapping[str, Any]) -> tuple[Autocast, ...]:
    """The states of autocast that forward may have run under: the one that is known, or all that there are."""
    declared = _declared(definition, attributes)
    return autocast_settings() if declared is None else (declared,)


def _declared(definition: Definition, attributes: Mapping[str, Any]) -> Autocast | None:
    if definition.cast_inputs is not None:
        return ()
    return attributes.get(AUTOCAST, ()) if definition.keep_autocast else None


def decorated_wrongly(definition: Definition, error: Exception) -> AutocastError | None:
    """What to raise where ``torch.amp.custom_bwd`` found nothing of ``custom_fwd`` on ctx; None for another `error`."""
    if not isinstance(error, AttributeError) or isinstance(error, AutocastError) or _UNDECORATED not in str(error):
        return None
    beside = definition.style == "setup_context"
    return AutocastError(
        "PB521",
        f"{definition.name}.backward is decorated with torch.amp.custom_bwd, and nothing on ctx says under which state "
        "of autocast forward ran" + (": beside setup_context, custom_fwd never sees ctx." if beside else "."),
        expected="cast_inputs or keep_autocast on the class" + ("" if beside else ", or custom_fwd around forward"),
        got="custom_bwd " + ("beside setup_context" if beside else "alone"),
        remedy="Remove both decorators, and write cast_inputs = torch.float32 on the class, or keep_autocast = True "
        "where nothing is to be cast.",
    )
