"""A few runnable lines that show that what a call gives depends on the calls before it.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject


def history_lines(
    subject: Subject,
    case: Case,
    other: Case,
    calls: Sequence[tuple[int, bool]],
    places: tuple[int, int],
    *,
    values: bool,
) -> str:
    """Make a row of calls, and print what two of them gave.

    Args:
        subject: Whose.
        case: The arguments of calls 0 and 2.
        other: Those of call 1.
        calls: Which call each is, and whether it gets the tensors of the earlier such calls.
        places: Which two are compared.
        values: Whether to compare values in place of gradients.
    """
    first, second = Scene(subject, case), Scene(subject, other, suffix="_2")
    again = Scene(subject, case, suffix="_3")
    names = [name for name, _, _ in subject.named_tensors(case.sample)]
    lines = [*first.lines, *second.made, *again.made, "kept = []"]
    for place, (which, reuses) in enumerate(calls[: places[1] + 1]):
        scene = again if reuses else (first, second, first)[which]
        if reuses:
            pairs = [(again.expression(name), (first, second, first)[which].expression(name)) for name in names]
            lines += ["with torch.no_grad():", *(f"    {tensor}.copy_({new})" for tensor, new in pairs)]
        if place == len(calls) - 1:
            lines += ["with torch.no_grad():", f"    {second.call}"]
        varying = ", ".join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)
        total = f"-0.75 * ({scene.total()})" if which == 2 else scene.total()
        gradients = f"torch.autograd.grad({total}, [{varying}], allow_unused=True)"
        lines += [*scene.seed(), f"output = {scene.call}", f"kept.append({'output' if values else gradients})"]
    return "\n".join([*lines, f'print("expected:", kept[{places[0]}])', f'print("got:", kept[{places[1]}])'])


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
    gradients = _gradients(subject, case, scene)
    shown = f"(({scene.total()}).item(), {gradients})"
    lines = [
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "class Shortage(TorchDispatchMode):",
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):",
        "        self.k = getattr(self, 'k', 0) + 1",
        "        if self.k == k:",
        "            raise torch.OutOfMemoryError('no memory')",
        "        return func(*args, **(kwargs or {}))",
    ]
    start = [*scene.seed(), f"output = {scene.call}"]
    lines += [*scene.lines, *start, f'print("expected:", {shown})', "for k in range(1, 30):", "    try:"]
    lines += ["        with Shortage():", *(f"            {line}" for line in (*start, gradients))]
    lines += ["    except Exception:", "        pass"]
    return "\n".join([*lines, *start, f'print("got:", {shown})'])


def _gradients(subject: Subject, case: Case, scene: Scene) -> str:
    """The gradients of a weighted sum of ``output``, as code."""
    varying = ", ".join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)
    return f"torch.autograd.grad({scene.total()}, [{varying}], retain_graph=True, allow_unused=True)"
