"""A few runnable lines that show that what a call gives depends on the calls before it.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pullback.battery.repro_transforms import call_with
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject


class Step(NamedTuple):
    """One of a row of calls.

    Attributes:
        which: 0, 1, which has other values than 0, or 2, which has another cotangent.
        after: The words for where it stands.
        held: Whether it gets the tensors of earlier such calls, changed in place.
        prelude: What another call does before: ``no_grad``, ``create_graph``; nothing if empty.
    """

    which: int
    after: str
    held: bool = False
    prelude: str = ""


def history_lines(
    subject: Subject,
    case: Case,
    other: Case,
    steps: Sequence[Step],
    places: tuple[int, int],
    *,
    values: bool,
) -> str:
    """Make a row of calls, and print what two of them gave.

    Args:
        subject: Whose.
        case: The arguments of calls 0 and 2.
        other: Those of call 1.
        steps: The calls.
        places: Which two are compared.
        values: Whether to compare values in place of gradients.
    """
    first, second = Scene(subject, case), Scene(subject, other, suffix="_2")
    again = Scene(subject, case, suffix="_3")
    names = [name for name, _, _ in subject.named_tensors(case.sample)]
    lines = [*first.lines, *second.made, *again.made, "kept = []"]
    frozen = [again.expression(leaf.name) for leaf in subject.fresh(case).varying]
    for step in steps[: places[1] + 1]:
        fresh = (first, second, first)[step.which]
        scene = again if step.held else fresh
        if step.held and frozen:
            lines += [*(f"{x}.requires_grad_(False)" for x in frozen), again.call]
            lines += [f"{x}.requires_grad_(True)" for x in frozen]
            frozen = []
        if step.held:
            written = [f"    {again.expression(name)}.copy_({fresh.expression(name)})" for name in names]
            lines += ["with torch.no_grad():", *written]
        if step.prelude == "no_grad":
            lines += ["with torch.no_grad():", f"    {second.call}"]
        elif step.prelude:
            created = _gradients(subject, other, second).replace("retain_graph", "create_graph")
            lines += [f"output = {second.call}", created]
        factor = "-0.75 * " if step.which == 2 else ""
        shown = "output" if values else _gradients(subject, case, scene, factor)
        lines += [*scene.seed(), f"output = {scene.call}", f"kept.append({shown})"]
    return "\n".join([*lines, f'print("expected:", kept[{places[0]}])', f'print("got:", kept[{places[1]}])'])


def same_tensors_lines(subject: Subject, case: Case, variant: Case, changed: Sequence[str], *, values: bool) -> str:
    """Print what a call gives on new tensors, and on those of an earlier call, some of them changed in place.

    Args:
        subject: Whose.
        case: The arguments of the earlier call.
        variant: Those of the call that is looked at.
        changed: The tensors that are changed, one after the other with a call after each.
        values: Whether to compare values in place of gradients.
    """
    scene, again = Scene(subject, variant), Scene(subject, case, suffix="_2")
    names = {name: again.expression(name) for name, _, _ in subject.named_tensors(case.sample)}
    shown, before = ("output", "output") if values else (_gradients(subject, case, made) for made in (scene, again))
    lines = [*scene.lines, *again.made, *scene.seed(), f"output = {scene.call}", f'print("expected:", {shown})']
    lines += [*scene.seed(), f"output = {again.call}", before]
    for name in changed:
        lines += ["with torch.no_grad():", f"    {names[name]}.copy_({scene.expression(name)})"]
        lines += [*scene.seed(), f"output = {again.call}", before]
    last = call_with(subject, variant, scene, names)
    return "\n".join([*lines[: -2 if changed else None], f"output = {last}", f'print("got:", {before})'])


def check_lines(subject: Subject, case: Case, *, values: bool) -> str:
    """Print what a call gives before the function is checked, and after."""
    scene = Scene(subject, case)
    shown = "output" if values else _gradients(subject, case, scene)
    positional = [code for place, code in enumerate(scene.passed) if place < len(case.sample.args)]
    named = scene.passed[len(positional) :]
    sample = f", pullback.Sample(({', '.join([*positional, ''])}), dict({', '.join(named)}))"
    lines = ["import pullback", *scene.lines, *scene.seed(), f"output = {scene.call}", f'print("expected:", {shown})']
    given = "" if subject.samples.source == "declared" else sample
    lines += [f'pullback.check({scene.function}{given}, skip="compiled")', *scene.seed(), f"output = {scene.call}"]
    return "\n".join([*lines, f'print("got:", {shown})'])


def shortage_lines(subject: Subject, case: Case) -> str:
    """Print the gradients of a call, and of one that comes after calls that ran out of memory."""
    scene = Scene(subject, case)
    call = f"called({scene.seeded(scene.call)})"
    lines = [
        "from contextlib import suppress",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        *scene.lines,
    ]
    lines += [
        "class Shortage(TorchDispatchMode):",
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):",
        "        return func(*args, **(kwargs or {})) if next(left, 1) else torch.empty(2**60)",
        f"called = lambda output: (({scene.total()}).item(), {_gradients(subject, case, scene)})",
        f'print("expected:", {call})',
        "for left in (iter(range(k, -1, -1)) for k in range(30)):",  # the number of operators before memory runs out
        "    with suppress(Exception), Shortage():",
        f"        {call}",
    ]
    return "\n".join([*lines, f'print("got:", {call})'])


def _gradients(subject: Subject, case: Case, scene: Scene, factor: str = "") -> str:
    """The gradients of a weighted sum of ``output``, or of a multiple of it, as code."""
    varying = ", ".join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)
    total = f"{factor}({scene.total()})" if factor else scene.total()
    return f"torch.autograd.grad({total}, [{varying}], retain_graph=True, allow_unused=True)"
