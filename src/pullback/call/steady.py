"""forward as it runs on every call but the first: the author's, and a look at what it saved.

The function is generated with forward's own parameters, as `dataclasses` does: passing arguments on by name costs half
of what collecting and spreading them does, and this is the one place where that counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pullback.call.frames import GENERATED
from pullback.call.layout import ATTRIBUTE, NOT_KEPT, Layout
from pullback.call.nests import is_container
from pullback.define.definition import Definition
from pullback.define.function_type import stays
from pullback.torch_private import leave_to_python

UNLIKE = Layout()
"""Stands for layouts that save other things, or get tensors in other places, than the one forward is made for."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What the generated forward calls upon beside the author's.

    Attributes:
        watch: Runs a call that may be unlike any before: ctx and arguments.
        differs: Told of a call that saved otherwise: ctx, arguments, output and the random state.
        flags: The positions of arguments that may steer forward into another branch.
        measures: The positions of floats, of which only zero may.
        by_flags: The layouts that were seen, by the flags they came with; `UNLIKE` where only other ones were.
        kept: The positions of the arguments that are kept for a replay, other than tensors.
        rng: Takes down the random state before forward; None where forward draws nothing.
        other: Told of a call that returned something else than the call that was watched: ctx, arguments, output and
            the random state.
        returned: What the call that was watched returned, by type: of a tuple, of each of its entries; None where it
            may be anything.
    """

    watch: Callable[[Any, tuple[Any, ...]], Any]
    differs: Callable[..., None]
    flags: tuple[int, ...]
    measures: tuple[int, ...]
    by_flags: Mapping[tuple[object, ...], Layout]
    kept: tuple[int, ...]
    rng: Callable[[], Any] | None
    other: Callable[..., None]
    returned: type | tuple[type, ...] | None


def flag_key(flags: tuple[int, ...], measures: tuple[int, ...], arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """What `Steering.by_flags` is looked up by."""
    return (*(arguments[index] for index in flags), *(arguments[index] == 0.0 for index in measures))


def steady_forward(cls: type, definition: Definition, layout: Layout, steering: Steering) -> Callable[..., Any]:
    """forward for a class whose calls are like `layout`.

    Args:
        cls: The author's class; a method that might change unnoticed is looked up at each call, as PyTorch does.
        definition: What the author wrote.
        layout: Where the saved tensors come from, on the call that was watched.
        steering: What to call when a call is unlike it.
    """
    fixed = not definition.variadic and len(definition.parameters) == layout.arity and _all_required(definition)
    names = _positional(definition) if fixed else [f"_pb_arguments[{index}]" for index in range(layout.arity)]
    arguments = "".join(f"{name}, " for name in names) if fixed else "*_pb_arguments, "
    state = "_pb_state" if steering.rng else "None"
    lines = [f"def forward(_pb_ctx, {arguments.rstrip(', ')}):"]
    if steering.flags or steering.measures:
        lines += _look_up(layout, names, arguments, steering, fixed)
    if steering.rng:
        lines += ["    _pb_state = _pb_rng()"]
    methods = {name: name if stays(cls, name) else f"author.{name}" for name in ("forward", "setup_context")}
    if definition.style == "ctx":
        lines += [f"    _pb_output = _pb_{methods['forward']}(_pb_ctx, {arguments})"]
    else:
        lines += [f"    _pb_output = _pb_{methods['forward']}({arguments})"]
        lines += [f"    _pb_{methods['setup_context']}(_pb_ctx, ({arguments}), _pb_output)"]
    if steering.returned is not None:
        lines += [f"    if {_returned_otherwise(steering.returned)}:"]
        lines += [f"        _pb_other(_pb_ctx, ({arguments}), _pb_output, {state})"]
    conditions = _alike_where(layout, names, fixed)
    if steering.flags or steering.measures:
        conditions.append("_pb_layout is not _pb_unlike")
    lines += _saved_alike(layout, conditions)
    lines += ["    if not _pb_alike:", f"        _pb_differs(_pb_ctx, ({arguments}), _pb_output, {state})"]
    if layout.plain or steering.rng:
        kept = "".join(f"{names[index] if index in steering.kept else '_pb_not_kept'}, " for index in layout.plain)
        lines += ["    else:", f"        _pb_ctx.{ATTRIBUTE} = (_pb_layout, ({kept}), {state})"]
    lines += ["    return _pb_output"]
    author: Any = cls
    namespace: dict[str, Any] = {
        "_pb_author": author,
        "_pb_forward": author.forward,
        "_pb_setup_context": author.setup_context,
        "_pb_layout": layout,
        "_pb_unlike": UNLIKE,
        "_pb_not_kept": NOT_KEPT,
        "_pb_watch": steering.watch,
        "_pb_differs": steering.differs,
        "_pb_by_flags": steering.by_flags,
        "_pb_rng": steering.rng,
        "_pb_other": steering.other,
        **{f"_pb_type_{index}": kind for index, kind in enumerate(_kinds(steering.returned))},
    }
    exec(compile("\n".join(lines), f"{GENERATED}{definition.name}.forward>", "exec"), namespace)
    forward: Any = namespace["forward"]
    leave_to_python(forward.__code__)  # NOTE [frames of pullback]
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    made: Callable[..., Any] = forward
    return made


def _look_up(layout: Layout, names: list[str], arguments: str, steering: Steering, fixed: bool) -> list[str]:
    """Find the layout that belongs to the flags of this call, or watch it."""
    flags = "".join(f"{names[index]}, " for index in steering.flags)
    measures = "".join(f"{names[index]} == 0.0, " for index in steering.measures)
    watch = f"        return _pb_watch(_pb_ctx, ({arguments}))"
    other = [] if fixed else [f"    if len(_pb_arguments) != {layout.arity}:", watch]
    return [
        *other,
        "    try:",
        f"        _pb_layout = _pb_by_flags.get(({flags}{measures}))",
        "    except TypeError:",  # something that has no hash came in the place of a flag
        "        _pb_layout = None",
        "    if _pb_layout is None:",
        watch,
    ]


def _alike_where(layout: Layout, names: list[str], fixed: bool) -> list[str]:
    """The conditions under which a call is like `layout`: the same arguments were saved, in the same places."""
    conditions = [] if fixed else [f"len(_pb_arguments) == {layout.arity}"]
    for position, entry in enumerate(layout.saved):
        if entry.origin == "argument":
            conditions.append(f"_pb_saved_{position} is {names[entry.index]}")
        elif entry.origin == "nothing":
            conditions.append(f"_pb_saved_{position} is None")
    return conditions


def _saved_alike(layout: Layout, conditions: list[str]) -> list[str]:
    """Take what was saved apart, by an assignment, which is quicker than to ask for its length and entries."""
    if not layout.saved:
        return [f"    _pb_alike = {' and '.join(['not _pb_ctx.to_save', *conditions])}"]
    saved = "".join(f"_pb_saved_{position}, " for position in range(len(layout.saved)))
    return [
        "    try:",
        f"        {saved}= _pb_ctx.to_save",
        f"        _pb_alike = {' and '.join(conditions) or True}",
        "    except (TypeError, ValueError):",  # nothing was saved, or less or more
        "        _pb_alike = False",
    ]


def returned_types(output: Any) -> type | tuple[type, ...]:
    """What `Steering.returned` is for an output; what may hold tensors the next time is to be looked at each time."""
    kinds = [type(entry) for entry in output] if type(output) is tuple else [type(output)]
    known = tuple([_Unlike if is_container(kind) else kind for kind in kinds])
    return known if type(output) is tuple else known[0]


class _Unlike:
    """No output is of this class."""


def _kinds(returned: type | tuple[type, ...] | None) -> tuple[type, ...]:
    return returned if isinstance(returned, tuple) else () if returned is None else (returned,)


def _returned_otherwise(returned: type | tuple[type, ...]) -> str:
    """The condition under which a call didn't return what the call that was watched did."""
    if isinstance(returned, type):
        return "_pb_output.__class__ is not _pb_type_0"
    conditions = ["_pb_output.__class__ is not tuple", f"len(_pb_output) != {len(returned)}"]
    conditions += [f"_pb_output[{k}].__class__ is not _pb_type_{k}" for k in range(len(returned))]
    return " or ".join(conditions)


def _positional(definition: Definition) -> list[str]:
    # Not `definition.parameters`: a leaf is called state['w'] there.
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in definition.signature.parameters.items() if parameter.kind in by_place]


def _all_required(definition: Definition) -> bool:
    # Where an argument may be left out, forward must be called with as many as were given.
    required = all(parameter.default is parameter.empty for parameter in definition.signature.parameters.values())
    return required or definition.style == "setup_context"
