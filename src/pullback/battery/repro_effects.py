"""A few runnable lines that show what a call does beside its result: writes, leaks, what it keeps and remembers.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

import re

from pullback.battery.scene import Scene
from pullback.battery.stores import Variables
from pullback.battery.subject import Case, Subject
from pullback.custom.decorated import decorated


def changed_lines(subject: Subject, case: Case, name: str) -> str:
    """Print the gradients before and after `name`, an argument or output, is changed between forward and backward."""
    scene = Scene(subject, case)
    varying, changed = _varying(subject, case, scene), scene.expression(name)
    lines = [*scene.lines]
    if subject.in_place and name in case.varying:
        lines.append(f"{changed} = {changed}.clone()")
    lines += [f"output = {scene.call}", f"total = {scene.total()}"]
    gradient = f"torch.autograd.grad(total, {varying}, retain_graph=True, allow_unused=True)"
    lines += [
        f'print("expected, or an error:", {gradient})',
        "with torch.no_grad():",
        f"    {changed}.mul_(1.5).add_(0.25)",
    ]
    return "\n".join([*lines, f'print("got:", {gradient})'])


def attribute_lines(subject: Subject, case: Case, path: str) -> str:
    """Print what is kept as an attribute of ctx."""
    scene = Scene(subject, case)
    name = path.removeprefix("ctx.").partition("[")[0].partition(".")[0].partition(" ")[0]
    lines = [*scene.lines, f"output = {scene.call}", f"node = {_tracked(scene)}.grad_fn"]
    lines.append(f'kept = vars(node).get("{name}")')
    return "\n".join(
        [*lines, 'assert kept is None, f"got {kept} on ctx, expected no tensor there, but one more saved"']
    )


def spoiled_lines(subject: Subject, case: Case, position: int) -> str:
    """Print whether the gradient is the same when a saved tensor is spoilt before backward gets it."""
    scene = Scene(subject, case)
    varying = _varying(subject, case, scene)
    lines = [
        *scene.lines,
        "saved, spoilt = [], []",
        "pack = lambda tensor: saved.append(tensor) or len(saved) - 1",
        "unpack = lambda place: torch.zeros_like(saved[place]) if place in spoilt else saved[place]",
        "with torch.autograd.graph.saved_tensors_hooks(pack, unpack):",
        f"    output = {scene.call}",
        f"total = {scene.total()}",
        f"before = torch.autograd.grad(total, {varying}, retain_graph=True, allow_unused=True)",
        f"spoilt.append({position})",
        f"after = torch.autograd.grad(total, {varying}, retain_graph=True, allow_unused=True)",
        f"read = len(saved) <= {position} or str(before) != str(after)",
        f'assert read, f"got {{after}} without saved tensor {position}, expected another gradient than {{before}}"',
    ]
    return "\n".join(lines)


def pinned_lines(subject: Subject, case: Case, position: int) -> str:
    """Print how many bytes a saved tensor keeps alive, and how many it has."""
    scene = Scene(subject, case)
    lines = [
        *scene.lines,
        "kept = []",
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):",
        f"    output = {scene.call}",
        f"sizes = [(t.untyped_storage().nbytes(), t.nbytes) for t in kept[{position} : {position + 1}]]",
        'assert all(got <= own for got, own in sizes), f"got {sizes[0][0]} bytes kept alive, expected {sizes[0][1]}"',
    ]
    return "\n".join(lines)


def leak_lines(subject: Subject, case: Case, *, differentiate: bool) -> str:
    """Print how many tensors and nodes of a call are still there when it is over."""
    scene = Scene(subject, case)
    x = scene.expression(subject.fresh(case).varying[0].name)
    kinds = "(torch.Tensor, torch.autograd.function.FunctionCtx)"
    lines = [
        "import gc",
        *scene.lines,
        "gc.disable()",
        "for k in (1, 2, 3):",  # one more each time, as what is kept by an identity may be pushed out by its next owner
        f"    before = sum(issubclass(type(o), {kinds}) for o in gc.get_objects())",
        f"    outputs = [{scene.call} for _ in range(k)]",
        f"    [torch.autograd.grad({scene.total()}, {x}, allow_unused=True) for output in outputs]"
        if differentiate
        else "",
        "    del outputs",
        f"    after = sum(issubclass(type(o), {kinds}) for o in gc.get_objects())",
        'print("got, tensors and nodes left over from k calls:", after - before)',
        'print("expected:", 0)',
    ]
    return "\n".join(line for line in lines if line)


def written_lines(subject: Subject, case: Case, name: str) -> str:
    """Print an argument before and after the call."""
    scene = Scene(subject, case)
    x = scene.expression(name)
    lines = [*scene.lines]
    if subject.in_place and name in case.varying:
        lines.append(f"{x} = {x}.clone()")
    call = scene.call.replace(f"{x}.clone()", x)
    lines += [f"before = {x}.detach().clone()", f"output = {call}", f'print("got, after the call:", {x})']
    return "\n".join([*lines, 'print("expected, as before:", before)'])


def bumped_lines(subject: Subject, case: Case, name: str) -> str:
    """Print the version counter of an argument before and after the call."""
    scene = Scene(subject, case)
    x = scene.expression(name)
    lines = [*scene.lines, *([f"{x} = {x}.clone()"] if subject.in_place and name in case.varying else [])]
    call = scene.call.replace(f"{x}.clone()", x)
    return "\n".join([*lines, f'print("expected:", {x}._version)', f"output = {call}", f'print("got:", {x}._version)'])


def spoiled_gradient_lines(subject: Subject, case: Case, output: str, made: str = "", asked: str = "") -> str:
    """Print the gradient of an output before and after backward gets it.

    Args:
        subject: Whose.
        case: The arguments.
        output: Whose gradient.
        made: What is done to it before, as code that follows its name.
        asked: What is printed of it; its values unless given.
    """
    scene = Scene(subject, case)
    x = scene.expression(subject.fresh(case).varying[0].name)
    lines = [
        *scene.lines,
        f"output = {scene.call}",
        f"plain = torch.ones_like({output}){made}",
        f"grad_output = torch.ones_like({output}){made}" if made else "grad_output = plain.clone()",
    ]
    lines.append(f"torch.autograd.grad({output}, {x}, grad_output, allow_unused=True)")
    lines.append(f'print("got, after backward:", grad_output{asked})')
    return "\n".join([*lines, f'print("expected, as before:", plain{asked})'])


def spoiled_saved_lines(subject: Subject, case: Case, name: str = "", *, ones: bool = False) -> str:
    """Print a tensor, if it has a name, before and after backward, along ones or not; else those of two backwards."""
    scene = Scene(subject, case)
    lines = [*scene.lines, f"output = {scene.call}", f"total = {scene.sums() if ones else scene.total()}"]
    gradient = f"torch.autograd.grad(total, {_varying(subject, case, scene)}, retain_graph=True, allow_unused=True)"
    if not name:
        lines += [f'print("expected, from a first backward:", {gradient})', f'print("got, from a second:", {gradient})']
        return "\n".join(lines)
    changed = scene.expression(name)
    lines += [f"before = {changed}.detach().clone()", gradient, f'print("got, after backward:", {changed})']
    return "\n".join([*lines, 'print("expected, as before:", before)'])


def untracked_lines(subject: Subject, case: Case, output: str) -> str:
    """Print whether an output requires grad."""
    scene = Scene(subject, case)
    lines = [*scene.lines, f"output = {scene.call}", f'print("got, requires_grad:", {output}.requires_grad)']
    return "\n".join([*lines, 'print("expected, requires_grad:", True)'])


def captured_lines(subject: Subject, case: Case, name: str) -> str:
    """Print the gradient of a captured tensor, and whether the output depends on it."""
    scene = Scene(subject, case)
    lines = [
        "import inspect",
        *scene.lines,
        f"captured = {_within(scene, subject, name)}",
        *scene.seed(),
        f"output = {scene.call}",
        f"({scene.total()}).backward()",
        f"before, value = captured.grad, {_tracked(scene)}.detach()",
        "captured.data += 1",
        *scene.seed(),
        f"change = {scene.call}{_tracked(scene).removeprefix('output')} - value",
        'assert before is not None or not change.any(), f"got no gradient, expected one: output changes by {change}"',
    ]
    return "\n".join(lines)


def again_lines(subject: Subject, case: Case, *, values: bool) -> str:
    """Print what a call gives, and what the same call gives when it is repeated."""
    scene = Scene(subject, case)
    shown = _shown(subject, case, scene, "output", values=values)
    lines = [*scene.lines]
    for label in ("expected, as the first time", "got, from the same call"):
        lines += [*scene.seed(), f"output = {scene.call}", f'print("{label}:", {shown})']
    return "\n".join(lines)


def seeded_lines(subject: Subject, case: Case, generator: str, method: str) -> str:
    """Draw a number after forward, or after backward, twice, each time from another state before it."""
    scene = Scene(subject, case)
    seed, draw, module = {
        "random": ("random.seed", "random.random()", "random"),
        "numpy.random": ("numpy.random.seed", "numpy.random.rand()", "numpy"),
    }.get(generator, ("torch.manual_seed", "torch.rand(())", "torch"))
    if generator == "torch.cuda":
        draw = 'torch.rand((), device="cuda")'
    lines = [f"import {module}", *scene.lines]
    for number, name in enumerate(("one", "other"), start=1):
        if method == "forward":
            lines += [f"{seed}({number})", f"output = {scene.call}", f"{name} = {draw}"]
        else:
            forward = [f"{seed}(0)", f"output = {scene.call}"]
            lines += [*forward, f"{seed}({number})", f"{scene.total()}.backward()", f"{name} = {draw}"]
    return "\n".join([*lines, 'assert one != other, f"{one} is drawn each time"'])


def mixed_lines(subject: Subject, case: Case, other_case: Case, order: str) -> str:
    """Print the gradients of two calls, each by itself, and with the other one between its forward and its backward.

    Args:
        subject: Whose.
        case: The arguments of the first call.
        other_case: Those of the second.
        order: ``first in, first out``, ``last in, first out``, or ``without grad``.
    """
    first, second = Scene(subject, case), Scene(subject, other_case, suffix="_2")
    of_first = _shown(subject, case, first, "output", values=False)
    of_second = _shown(subject, other_case, second, "output", values=False)
    # What is drawn is the same in both halves, and never the same for the two calls.
    one, two = first.seeded(first.call), first.seeded(second.call, 1)
    lines = [*first.lines, *second.made, "def first(output):", f"    return {first.seeded(of_first)}"]
    lines += ["def second(output):", f"    return {first.seeded(of_second)}"]
    lines += [f'print("expected, one by one:", first({one}), second({two}))', f"call = {one}"]
    if order == "without grad":
        lines += ["with torch.no_grad():", f"    {two}", f'print("got:", first(call), second({two}))']
    elif order == "last in, first out":
        lines += [f"after = second({two})", 'print("got:", first(call), after)']
    else:
        lines += [f"other = {two}", 'print("got:", first(call), second(other))']
    return "\n".join(lines)


def store_lines(
    subject: Subject, case: Case, other_case: Case, name: str, *, values: bool, variables: Variables | None = None
) -> str:
    """Print what a call gives with `name` empty, and what it gives after another call.

    Args:
        subject: Whose.
        case: The arguments of the call that comes before.
        other_case: Those of the call that is looked at.
        name: What is filled by the calls, as the Function knows it.
        values: Whether to print values in place of gradients.
        variables: The variables that it is, unless it is a container or a memoising function.
    """
    first, second = Scene(subject, other_case), Scene(subject, case, suffix="_2")
    shown = _shown(subject, other_case, first, "output", values=values)
    lines = [*first.lines, *second.made]
    if variables is not None:
        own = subject.function if isinstance(subject.function, type) else None
        empty = variables.emptied(first.function, own)
        lines = ["import sys", *lines] if "sys." in empty else lines
    else:
        store = _within(first, subject, name, gone="{}")
        lines = ["import inspect", *lines] if "inspect." in store else lines
        lines.append(f"store = {store}")
        empty = "(getattr(store, 'cache_clear', None) or store.clear)()"
    lines += [empty, *first.seed(), f"output = {first.call}", f'print("expected, as with {name} empty:", {shown})']
    lines += [empty, f"output = {second.call}"]
    lines += [] if values else [_shown(subject, case, second, "output", values=False)]
    return "\n".join([*lines, *first.seed(), f"output = {first.call}", f'print("got, after another call:", {shown})'])


def alias_lines(subject: Subject, case: Case, first: str, second: str) -> str:
    """Print the sum of the gradients of two equal tensors, and the gradient of one tensor that stands for both."""
    scene = Scene(subject, case)
    x, y = scene.expression(first), scene.expression(second)
    lines = [*scene.lines]
    if not (x.isidentifier() and y.isidentifier()):
        return "\n".join([*lines, f"output = {scene.call}"])
    apart = f"sum(torch.autograd.grad(total, [{x}, {y}]))"
    together = f"torch.autograd.grad(total, {x})[0]"
    for label, setting, shown in (
        ("expected, from two equal tensors", f"{x}.detach().clone().requires_grad_()", apart),
        ("got, from one tensor passed twice", x, together),
    ):
        lines += [
            f"{y} = {setting}",
            *scene.seed(),
            f"output = {scene.call}",
            f"total = {scene.total()}",
            f'print("{label}:", {shown})',
        ]
    return "\n".join(lines)


def view_lines(subject: Subject, case: Case, names: tuple[str, str], view: str, argument: str) -> str:
    """Print the gradient of an argument, or the output, for a copy of another one and for a view of its memory."""
    scene = Scene(subject, case)
    x, y = (scene.expression(name) for name in names)
    lines = [*scene.lines]
    grad = ".requires_grad_()" if names[1] in case.varying else ""
    for label, made in (("expected, for a copy", f"{x}.clone(){view}"), ("got, for a view", f"{x}{view}")):
        lines += [f"{y} = {made}{grad}", *scene.seed(), f"output = {scene.call}"]
        shown = f"torch.autograd.grad({scene.total()}, {scene.expression(argument)}, allow_unused=True)[0]"
        lines.append(f'print("{label}:", {shown if argument else "output"})')
    return "\n".join(lines)


def declared_lines(subject: Subject, case: Case, argument: str) -> str:
    """Print the gradient of an argument that was declared to get none."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    lines = [*scene.lines, f"{x}.requires_grad_()", f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append(f'print("got:", torch.autograd.grad(total, {x}, allow_unused=True)[0])')
    return "\n".join([*lines, 'print("expected:", None)'])


def once_lines(subject: Subject, case: Case) -> str:
    """Print whether the gradient has a graph behind it, which would raise when it is differentiated."""
    scene = Scene(subject, case)
    x = scene.expression(subject.fresh(case).varying[0].name)
    name = _tracked(scene)
    lines = [*scene.lines, f"output = {scene.call}", f"grad_output = torch.ones_like({name}, requires_grad=True)"]
    lines.append(f"(gradient,) = torch.autograd.grad({name}, {x}, grad_output, create_graph=True)")
    lines.append('print("got, requires_grad:", gradient.requires_grad)')
    return "\n".join([*lines, 'print("expected, requires_grad:", True)'])


# -- inside -----------------------------------------------------------------------------------------------------------


def _tracked(scene: Scene) -> str:
    """The first output that requires grad, as code."""
    return next((output.name for output in scene.outputs() if output.tensor.requires_grad), "output")


def _shown(subject: Subject, case: Case, scene: Scene, output: str, *, values: bool) -> str:
    """What a call gave, as code: its values, or its gradients."""
    if values:
        return output
    return f"torch.autograd.grad({scene.total(of=output)}, {_varying(subject, case, scene)}, allow_unused=True)"


def _varying(subject: Subject, case: Case, scene: Scene) -> str:
    """The tensors that require grad, as code."""
    return f"[{', '.join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)}]"


def _within(scene: Scene, subject: Subject, name: str, *, gone: str = "") -> str:
    """What the Function knows by a name, as code: a class's attribute, a global, or a closure; or else `gone`."""
    base, dot, attribute = name.partition(".")
    owner = next((cls for cls in getattr(subject.function, "__mro__", ()) if cls.__name__ == base), None)
    if owner is not None and dot:
        return f"getattr({scene.function}, {attribute!r}, {gone})" if gone else f"{scene.function}.{attribute}"
    methods = ["forward", "backward"] if isinstance(subject.function, type) else []
    owning = f"{scene.function}.function" if decorated(subject.function) else scene.function
    sources = [f"{owning}.{method}" for method in methods] or [scene.function]
    known = f"for v in map(inspect.getclosurevars, [{', '.join(sources)}])"
    base, rest = re.fullmatch(r"(\w*)(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]  # always matches
    found = f'n["{base}"] {known} for n in (v.globals, v.nonlocals) if "{base}" in n'
    return f"next(({found}), {gone})" if gone and not rest else f"next({found}){rest}"
