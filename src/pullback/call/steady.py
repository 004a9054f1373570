"""forward as it runs on every call but the first: the author's, and a look at what it saved.

The function is generated with forward's own parameters, as `dataclasses` does: passing arguments on by name costs half
of what collecting and spreading them does, and this is the one place where that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.call.frames import GENERATED
from pullback.call.layout import Layout
from pullback.define.definition import Definition

_TEMPLATE = """\
def forward(_pb_ctx, {parameters}):
    {run}
    _pb_saved = _pb_ctx.to_save
    if {differs}:
        _pb_differs(_pb_ctx, ({arguments}), _pb_output)
    return _pb_output
"""


def steady_forward(
    cls: type,
    definition: Definition,
    layout: Layout,
    differs: Callable[[Any, tuple[Any, ...], Any], None],
) -> Callable[..., Any]:
    """forward for a class whose calls are like `layout`.

    Args:
        cls: The author's class; its methods are looked up at each call, as PyTorch does.
        definition: What the author wrote.
        layout: Where the saved tensors come from, on the call that was watched.
        differs: Told of a call that saved otherwise: ctx, arguments and output.
    """
    fixed = not definition.variadic and len(definition.parameters) == layout.arity and _all_required(definition)
    names = list(definition.parameters) if fixed else [f"_pb_arguments[{index}]" for index in range(layout.arity)]
    arguments = "".join(f"{name}, " for name in names) if fixed else "*_pb_arguments, "
    if definition.style == "ctx":
        run = f"_pb_output = _pb_author.forward(_pb_ctx, {arguments})"
    else:
        run = f"_pb_output = _pb_author.forward({arguments})\n"
        run += f"    _pb_author.setup_context(_pb_ctx, ({arguments}), _pb_output)"
    source = _TEMPLATE.format(
        parameters=arguments.rstrip(", "),
        run=run,
        differs=_differs_where(layout, names, fixed),
        arguments=arguments,
    )
    namespace: dict[str, Any] = {"_pb_author": cls, "_pb_differs": differs}
    exec(compile(source, f"{GENERATED}{definition.name}.forward>", "exec"), namespace)
    forward: Callable[..., Any] = namespace["forward"]
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    return forward


def _differs_where(layout: Layout, names: list[str], fixed: bool) -> str:
    """The condition under which a call isn't like `layout`: other arguments were saved, or in other places."""
    conditions = [] if fixed else [f"len(_pb_arguments) != {layout.arity}"]
    if layout.saved:
        conditions += ["_pb_saved is None", f"len(_pb_saved) != {len(layout.saved)}"]
    else:
        conditions += ["_pb_saved"]
    for position, entry in enumerate(layout.saved):
        if entry.origin == "argument":
            conditions.append(f"_pb_saved[{position}] is not {names[entry.index]}")
    return " or ".join(conditions)


def _all_required(definition: Definition) -> bool:
    # Where an argument may be left out, forward must be called with as many as were given.
    required = all(parameter.default is parameter.empty for parameter in definition.signature.parameters.values())
    return required or definition.style == "setup_context"
