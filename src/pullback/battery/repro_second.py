"""A few runnable lines that show a wrong second derivative.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from pullback.battery.case import CotangentName
from pullback.battery.repro import compared_at
from pullback.battery.repro_layouts import ARRANGED
from pullback.battery.scene import Scene, weighted
from pullback.battery.subject import Case, Subject

NO_LEAVES = "no leaves"
"""What other operations made, in the place of a layout."""


def penalty_lines(subject: Subject, case: Case, variable: str = "", index: tuple[int, ...] = ()) -> str:
    """A gradient penalty: print its derivative by `variable` beside its finite difference."""
    scene = Scene(subject, case)
    varying = subject.fresh(case).varying
    listed = ", ".join(scene.expression(leaf.name) for leaf in varying)
    square = "(g * g.conj()).real" if any(leaf.tensor.is_complex() for leaf in varying) else "(g**2)"
    lines = [
        *scene.lines,
        "def penalty():",
        *scene.seed("    "),
        f"    output = {scene.call}",
        f"    gradients = torch.autograd.grad({scene.total()}, [{listed}], create_graph=True, allow_unused=True)",
        f"    return sum({square}.sum() for g in gradients if g is not None)",
    ]
    variable = variable or varying[0].name
    return "\n".join([*lines, *_second(scene, variable, index, "penalty")])


def cotangent_lines(subject: Subject, case: Case, argument: str, index: tuple[int, ...], output: str = "output") -> str:
    """Print the derivative of the gradient of `argument` by grad_output beside its finite difference."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    leaf = subject.fresh(case).leaf(argument).tensor
    lines = [
        *scene.lines,
        f"grad_output = torch.ones_like({scene.call}{output.removeprefix('output')}, requires_grad=True)",
        "def slope():",
        *scene.seed("    "),
        f"    output = {scene.call}",
        f"    (gradient,) = torch.autograd.grad({output}, {x}, grad_output, create_graph=True)",
        f"    return {weighted('gradient', leaf)}",
    ]
    return "\n".join([*lines, *_second(scene, "grad_output", index, "slope")])


def accumulated_lines(subject: Subject, case: Case, variable: str) -> str:
    """Print a second derivative by ``autograd.grad``, and by two calls of ``backward``.

    Args:
        subject: Whose.
        case: The arguments.
        variable: What the gradients are differentiated by: an argument, or ``grad_output``.
    """
    scene = Scene(subject, case)
    varying = subject.fresh(case).varying
    leaves = [scene.expression(leaf.name) for leaf in varying]
    by = "g" if isinstance(variable, CotangentName) else scene.expression(variable)
    terms = [weighted(f"grads[{place}]", leaf.tensor) for place, leaf in enumerate(varying)]
    slope = " + ".join(f"({term} if grads[{place}] is not None else 0)" for place, term in enumerate(terms))
    lines = [*scene.lines, "def slope(grads):", f"    return {slope}"]
    lines += ["def total():", *scene.seed("    "), f"    output = {scene.call}", f"    return {scene.total()}"]
    listed, cleared = ", ".join(leaves), " = ".join(f"{x}.grad" for x in leaves)
    options = "create_graph=True, allow_unused=True"
    return "\n".join(
        [
            *lines,
            "g = torch.ones((), requires_grad=True)",
            "start = total()",
            f"gradients = torch.autograd.grad(start, [{listed}], g.to(start), {options})",
            f'print("expected, from grad:", torch.autograd.grad(slope(gradients), {by}, allow_unused=True)[0])',
            "start = total()",
            "start.backward(g.to(start), create_graph=True)",
            f"gradients = [x.grad for x in [{listed}]]",
            f"{cleared} = g.grad = None",
            "slope(gradients).backward()",
            f'print("got, from backward:", {by}.grad)',
        ]
    )


def otherwise_lines(
    subject: Subject, case: Case, argument: str, variable: str, layout: str = "", without: str = ""
) -> str:
    """Print a second derivative as it is, and in another layout, or `without` one, or where `argument` is alone."""
    scene = Scene(subject, case)
    x, listed = scene.expression(argument), _listed(scene, case)
    slope = weighted("gradient", subject.fresh(case).leaf(argument).tensor)
    by = "g" if isinstance(variable, CotangentName) else scene.expression(variable)
    lines = [*scene.lines, "def second():", *scene.seed("    "), f"    output = {scene.call}"]
    lines += [f"    total, g = {scene.total()}, torch.ones((), requires_grad=True)"]
    lines.append(f"    (gradient,) = torch.autograd.grad(total, {x}, g.to(total), create_graph=True)")
    lines.append(f"    return torch.autograd.grad({slope}, {by}, allow_unused=True)[0]")
    lines.append('print("expected:", second())')
    label = layout or (f"{without} requires none" if without else f"{argument} alone")
    lines.append(_arranged(listed, layout) if layout else _asked(scene, listed, x, without))
    return "\n".join([*lines, f'print("got, {label}:", second())'])


def unfollowed_lines(subject: Subject, case: Case, argument: str, layout: str = "") -> str:
    """Differentiate a gradient, which raises; on arguments in another layout if there is one."""
    scene = Scene(subject, case)
    x, slope = scene.expression(argument), weighted("gradient", subject.fresh(case).leaf(argument).tensor)
    lines = [*scene.lines, *([_arranged(_listed(scene, case), layout)] if layout else [])]
    lines += [*scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append("g = torch.ones((), requires_grad=True)")
    lines.append(f"(gradient,) = torch.autograd.grad(total, {x}, g.to(total), create_graph=True)")
    return "\n".join([*lines, f"torch.autograd.grad({slope}, [{x}, g], allow_unused=True)"])


def needless_lines(subject: Subject, case: Case) -> str:
    """Differentiate a gradient by ``backward``, which a declaration has raise."""
    scene = Scene(subject, case)
    x = scene.expression(min(case.varying))
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines += ["g = torch.ones((), requires_grad=True)"]
    lines.append(f"(gradient,) = torch.autograd.grad(total, {x}, g.to(total), create_graph=True)")
    return "\n".join([*lines, f"{weighted('gradient', subject.fresh(case).leaf(min(case.varying)).tensor)}.backward()"])


def special_cotangent_lines(subject: Subject, case: Case, argument: str, value: int) -> str:
    """Print the derivative of a gradient by grad_output, where it is 0 or 1 throughout, and elsewhere."""
    scene = Scene(subject, case)
    x, slope = scene.expression(argument), weighted("gradient", subject.fresh(case).leaf(argument).tensor)
    lines = [*scene.lines, "def by_grad_output(g):", *scene.seed("    "), f"    output = {scene.call}"]
    lines.append(f"    total = {scene.total(equally=bool(value))}")
    lines.append(f"    (gradient,) = torch.autograd.grad(total, {x}, g.to(total), create_graph=True)")
    lines.append("    if not gradient.requires_grad:")
    lines.append("        return torch.zeros_like(g)")
    lines.append(f"    found = torch.autograd.grad({slope}, g, allow_unused=True)[0]")
    lines.append("    return torch.zeros_like(g) if found is None else found")
    for label, at in ((f"expected, as at {value + 1}:", value + 1.0), (f"got, at {value}:", float(value))):
        lines.append(f'print("{label}", by_grad_output(torch.tensor({at}, requires_grad=True)))')
    return "\n".join(lines)


def created_lines(
    subject: Subject, case: Case, argument: str, *, alone: bool, without: str = "", results: bool = False
) -> str:
    """Print a gradient with create_graph and without it, where it alone requires grad, or all do `without` one."""
    scene = Scene(subject, case)
    x, listed = scene.expression(argument), _listed(scene, case)
    lines = [*scene.lines, *([_asked(scene, listed, x, without)] if alone or without else [])]
    lines += [_arranged(listed, NO_LEAVES)] if results else []
    for label, option in (("expected, without create_graph:", ""), ("got, with it:", ", create_graph=True")):
        lines += [*scene.seed(), f"output = {scene.call}"]
        lines.append(f'print("{label}", torch.autograd.grad({scene.total()}, {x}{option})[0])')
    return "\n".join(lines)


def _arranged(listed: str, layout: str) -> str:
    if layout == NO_LEAVES:
        return f"{listed} = [t.clone() for t in {listed}]"
    return f"for t in {listed}: t.data = (lambda t: {ARRANGED[layout]})(t.data)"


def _asked(scene: Scene, listed: str, x: str, without: str) -> str:
    if without:
        return f"{scene.expression(without)}.requires_grad_(False)"
    return f"[t.requires_grad_(t is {x}) for t in {listed}]"


def _listed(scene: Scene, case: Case) -> str:
    return f"[{', '.join(scene.expression(name) for name in sorted(case.varying))}]"


# -- inside -----------------------------------------------------------------------------------------------------------


def _second(scene: Scene, leaf: str, index: tuple[int, ...], function: str) -> list[str]:
    x = scene.expression(leaf)
    return [
        f"value = {function}()",
        f"second = torch.autograd.grad(value, {x}, allow_unused=True)[0] if value.requires_grad else None",
        *compared_at(scene, leaf, index, "second", function),
    ]
