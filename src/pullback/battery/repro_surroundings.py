"""A few runnable lines that show a fault in certain surroundings: hooks, checkpoint, threads, autocast, compiled code.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from pullback.battery.repro_transforms import call_with
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject
from pullback.battery.verdict import compared

_LOW = torch.bfloat16

_THREADS = "from concurrent.futures import ThreadPoolExecutor, wait"


def hook_lines(subject: Subject, case: Case, copy: str, *, order: int = 1) -> str:
    """Print the gradients of a plain call, then those of one whose saved tensors are kept as copies."""
    scene = Scene(subject, case)
    shown = _shown(scene)
    lines = [*scene.lines, *_derivative(subject, case, scene, order=order)]
    lines += [*scene.seed(), f"output = {scene.call}", f'print("expected, without hooks:", {shown})']
    lines.append(f"copy = lambda tensor: {copy}")
    lines += ["with torch.autograd.graph.saved_tensors_hooks(copy, copy):", *scene.seed("    ")]
    return "\n".join([*lines, f"    output = {scene.call}", f'print("got, with copies:", {shown})'])


def checkpoint_lines(
    subject: Subject,
    case: Case,
    *,
    reentrant: bool,
    order: int = 1,
    values: bool = False,
    afresh: Collection[str] = (),
) -> str:
    """Print the gradients, or the values, of a plain call, then those of the same call in a checkpoint.

    Args:
        subject: Whose.
        case: The arguments.
        reentrant: The kind of checkpoint.
        order: That of the derivative.
        values: Whether to print values in place of gradients.
        afresh: The arguments without a gradient that each call gets copies of.
    """
    scene = Scene(subject, case)
    shown = _shown(scene, values=values)
    names = {leaf.name: f"t{place}" for place, leaf in enumerate(subject.fresh(case).varying)}
    own = {name: f"{t}.clone()" if subject.in_place else t for name, t in names.items()}
    copies = {name: f"{scene.expression(name)}.clone()" for name in afresh}
    plain = call_with(subject, case, scene, copies) if copies else scene.call
    leaves = ", ".join(scene.expression(name) for name in names)
    seeds = ["random.seed(0), torch.manual_seed(0)"] if scene.seed() else []
    lines = ["import random", "from torch.utils.checkpoint import checkpoint", *scene.lines]
    lines += (
        _derivative(subject, case, scene, order=order) if order > 1 else _accumulated(scene, leaves, draws=bool(seeds))
    )
    lines += [*seeds, f"output = {plain}", f'print("expected, without a checkpoint:", {shown})']
    inside = f"lambda {', '.join(names.values())}: {call_with(subject, case, scene, {**own, **copies})}"
    lines += [*seeds, f"output = checkpoint({inside}, {leaves}, use_reentrant={reentrant})"]
    return "\n".join([*lines, f'print("got, in a checkpoint:", {shown})'])


def autocast_lines(subject: Subject, case: Case, *, inside: bool, value: str = "") -> str:
    """Print the gradients of a call under autocast, or the output called `value`, beside those in float64."""
    scene = Scene(subject, case)
    shown = f"{value}.detach().double()" if value else _shown(scene)
    floats = [name for name, _, tensor in subject.named_tensors(case.sample) if tensor.is_floating_point()]
    names = [scene.expression(name) for name in dict.fromkeys(floats)]
    lines = [*scene.lines, *([] if value else _derivative(subject, case, scene))]
    data = ", ".join(f"{name}.data" for name in names)
    lines.append(f"{data} = {', '.join(f'{name}.data.float().double()' for name in names)}")
    lines += [*scene.seed(), f"output = {scene.call}", f'print("expected, in float64:", {shown})']
    lines.append(f"{data} = {', '.join(f'{name}.data.float()' for name in names)}")
    lines += ['with torch.autocast("cpu", dtype=torch.bfloat16):', *scene.seed("    ")]
    lines.append(f"    output = {scene.call}")
    return "\n".join([*lines, f'{"    " if inside else ""}print("got, under autocast:", {shown})', compared([_LOW])])


def thread_lines(subject: Subject, case: Case) -> str:
    """Print the gradients of a call whose backward runs in the same thread, and in another one."""
    scene = Scene(subject, case)
    shown = _shown(scene)
    lines = [_THREADS, *scene.lines, *_derivative(subject, case, scene)]
    lines += [*scene.seed(), f"output = {scene.call}", f'print("expected, in the same thread:", {shown})']
    lines += [*scene.seed(), f"output = {scene.call}"]
    return "\n".join(
        [*lines, 'print("got, in another thread:", ThreadPoolExecutor(1).submit(derivative, output).result())']
    )


def interleaved_lines(
    subject: Subject, case: Case, other_case: Case, place: str, *, values: bool = False, fails: bool = False
) -> str:
    """Print the gradients of a call by itself, and with whole calls of another thread in between.

    Args:
        subject: Whose.
        case: The arguments of the call.
        other_case: Those of the calls in between.
        place: The file between whose lines they come; between operators if it is empty.
        values: Whether to print values in place of gradients.
        fails: Whether the other calls raise, which is printed.
    """
    scene, second = Scene(subject, case), Scene(subject, other_case, suffix="_2")
    leaves, others = ([s.expression(leaf.name) for leaf in subject.fresh(case).varying] for s in (scene, second))
    call = f"torch.autograd.grad(times * ({scene.total()}), leaves, allow_unused=True)"
    lines = [_THREADS, *scene.lines, *second.made, "def derivative(output, leaves, times=1):", f"    return {call}"]
    # Another gradient than the first call's, where both are linear.
    lines.append(f"other = lambda: derivative({second.call}, [{', '.join(others)}], 1.5)")
    shown = ", ".join(f"{o.name.replace('output', '({0})', 1)}.detach()" for o in scene.outputs())
    result = shown.format(scene.call) if values else f"derivative({scene.call}, [{', '.join(leaves)}])"
    lines += [*scene.seed(), f'print("expected, alone:", {result})']
    start = (
        "ThreadPoolExecutor(1).submit(other).result(1)" if fails else "wait([ThreadPoolExecutor(1).submit(other)], 1)"
    )
    if place:
        here = f'event == "line" and frame.f_code.co_filename == {place!r}'
        lines += ["def trace(frame, event, _):", f"    {here} and {start}", "    return trace", "import sys"]
        lines += ["sys.settrace(trace)", *scene.seed(), f'print("got, with others in between:", {result})']
        return "\n".join([*lines, "sys.settrace(None)"])
    lines += [
        "class Between(torch.utils._python_dispatch.TorchDispatchMode):",
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):",
        f"        return (func(*args, **(kwargs or {{}})), {start})[0]",
        "with Between():",
        *scene.seed("    "),
        f'    print("got, with others in between:", {result})',
    ]
    return "\n".join(lines)


def compiled_lines(
    subject: Subject, case: Case, *, only: int | None = None, non_leaves: bool = False, values: bool = False
) -> str:
    """Print what a call gives, and what it gives when it is compiled.

    Args:
        subject: Whose.
        case: The arguments.
        only: The position of the one output that is differentiated; all unless given.
        non_leaves: Whether the arguments are results of operations.
        values: Whether to print values in place of gradients.
    """
    scene = Scene(subject, case)
    shown = _shown(scene, values=values)
    names = [leaf.name for leaf in subject.fresh(case).leaves]
    code = {name: f"t{place}" for place, name in enumerate(names)}
    leaves = ", ".join(scene.expression(name) + (".clone()" if non_leaves else "") for name in names)
    own = {name: f"{t}.clone()" if subject.in_place and name in case.varying else t for name, t in code.items()}
    lines = [*scene.lines, *_derivative(subject, case, scene, only=only)]
    lines += [f"def f({', '.join(code.values())}):", f"    return {call_with(subject, case, scene, own)}"]
    lines += [*scene.seed(), f"output = f({leaves})", f'print("expected, not compiled:", {shown})']
    lines.append('compiled = torch.compile(f, backend="aot_eager")')
    if non_leaves:  # what was compiled for leaves is taken for them, too
        lines.append(f"compiled({leaves.replace('.clone()', '')})")
    lines += [*scene.seed(), f"output = compiled({leaves})"]
    return "\n".join([*lines, f'print("got, compiled:", {shown})'])


# -- inside -----------------------------------------------------------------------------------------------------------


def _shown(scene: Scene, *, values: bool = False) -> str:
    """What is printed of ``output``, as code: its gradients, or its values."""
    if not values:
        return "derivative(output)"
    return ", ".join(f"{output.name}.detach()" for output in scene.outputs())


def _derivative(
    subject: Subject,
    case: Case,
    scene: Scene,
    *,
    order: int = 1,
    name: str = "derivative",
    call: str = "",
    only: int | None = None,
) -> list[str]:
    """The lines that define ``derivative(output)``, gradients or second derivatives; with a `call`, of its output."""
    varying = ", ".join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)
    create = ", create_graph=True" if order > 1 else ""
    total = f"1.5 * ({scene.total(only)})" if call else scene.total(only)  # another gradient than the first call's
    first = f"torch.autograd.grad({total}, [{varying}], allow_unused=True{create})"
    lines = [f"def {name}({'' if call else 'output'}):", *([f"    output = {call}"] if call else [])]
    if order == 1:
        return [*lines, f"    return {first}"]
    return [
        *lines,
        f"    gradients = {first}",
        "    total = sum((g.abs() ** 2).sum() for g in gradients if g is not None)",
        f"    return torch.autograd.grad(total, [{varying}], allow_unused=True)",
    ]


def _accumulated(scene: Scene, leaves: str, *, draws: bool) -> list[str]:
    """The lines that define ``derivative(output)`` by ``backward()``: a reentrant checkpoint refuses ``grad``."""
    grads = [f"{leaf}.grad" for leaf in leaves.split(", ")]
    return [
        "def derivative(output):",
        *(["    random.seed(1)  # other numbers were drawn since forward"] if draws else []),
        f"    {' = '.join(grads)} = None",
        f"    ({scene.total()}).backward()",
        f"    return [{', '.join(grads)}]",
    ]
