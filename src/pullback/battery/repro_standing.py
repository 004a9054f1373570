"""A few runnable lines that show that a result depends on who asks, on an earlier backward, or that a call sets things.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pullback.battery.repro_transforms import call_with
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject


def standing_lines(
    subject: Subject, case: Case, under: str, passed: str, *, start: Sequence[str] = (), gradients: bool
) -> str:
    """Print what a call gives, and what it gives under a context or with something else passed for its arguments.

    Args:
        subject: Whose.
        case: The arguments.
        under: The context, as code; none if empty.
        passed: What is passed for an argument that requires grad, with a place for it.
        start: Lines that this relies on.
        gradients: Whether to print the gradients, too.
    """
    scene = Scene(subject, case)
    names = sorted(case.varying)
    made = {name: passed.format(scene.expression(name)) for name in names}
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    listed = ", ".join(scene.expression(name) for name in names)
    shown = (
        f"(total.item(), torch.autograd.grad(total, [{listed}], allow_unused=True))" if gradients else "total.item()"
    )
    lines += [f'print("expected:", {shown})', *scene.seed()]
    if not gradients:
        call = f"output = {call_with(subject, case, scene, made) if passed != '{}' else scene.call}"
        lines += [f"with {under}:", f"    {call}"] if under else [call]
        return "\n".join([*lines, f"total = {scene.total()}", 'print("got:", total.item())'])
    variables = {name: f"other_{place}" for place, name in enumerate(names)}
    lines += [*start, *(f"{variables[name]} = {made[name]}" for name in names)]
    lines += [f"output = {call_with(subject, case, scene, variables)}", f"total = {scene.total()}"]
    others = ", ".join(variables.values())
    return "\n".join(
        [*lines, f'print("got:", (total.item(), torch.autograd.grad(total, [{others}], allow_unused=True)))']
    )


def inference_lines(subject: Subject, case: Case, argument: str, output: str) -> str:
    """Print whether a gradient, or an output that nobody differentiates, is an inference tensor."""
    if argument:
        scene = Scene(subject, case)
        got = f"torch.autograd.grad({scene.total()}, {scene.expression(argument)})[0]"
    else:
        scene, got = Scene(subject, replace(case, varying=frozenset())), output
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", 'print("expected:", False)']
    return "\n".join([*lines, f'print("got:", {got}.is_inference())'])


def subset_value_lines(subject: Subject, case: Case, output: str, chosen: tuple[str, ...]) -> str:
    """Print an output when all arguments require grad, and when only the `chosen` ones do."""
    scene = Scene(subject, case)
    others = [scene.expression(name) for name in sorted(case.varying) if name not in chosen]
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f'print("expected:", {output}.detach())']
    lines += [f"{other}.requires_grad_(False)" for other in others]
    return "\n".join([*lines, *scene.seed(), f"output = {scene.call}", f'print("got:", {output}.detach())'])


def written_when_lines(
    subject: Subject,
    case: Case,
    name: str,
    requires: Collection[str],
    under: str,
    method: str,
    asked: str,
    *,
    leaf: bool | None = None,
    ones: bool = False,
) -> str:
    """Print an argument before and after a call where only some arguments require grad, or under a context.

    Args:
        subject: Whose.
        case: The arguments.
        name: The one to print.
        requires: Those that require grad.
        under: The context, as code; none if empty.
        method: Whether to run ``forward`` alone, or ``backward``, too.
        asked: What is printed of it, as code that follows its name.
        leaf: False where results of another operation are passed.
        ones: Whether to differentiate along ones.
    """
    scene = Scene(subject, replace(case, varying=frozenset(requires)))
    x, names = scene.expression(name), sorted(requires)
    variables = {} if leaf is not False else {one: f"other_{place}" for place, one in enumerate(names)}
    made = [f"{variable} = {scene.expression(one)}.clone()" for one, variable in variables.items()]
    x, call = variables.get(name, x), call_with(subject, case, scene, variables) if variables else scene.call
    lines = [*scene.lines, *made, f"before = {x}{asked}", *scene.seed(), *([f"with {under}:"] if under else [])]
    lines.append(f"{'    ' if under else ''}output = {call}")
    wanted = ", ".join(scene.expression(one) for one in names)
    total = scene.sums() if ones else scene.total()
    lines += [f"torch.autograd.grad({total}, [{wanted}], allow_unused=True)"] if method == "backward" else []
    return "\n".join([*lines, f'print("got:", {x}{asked})', 'print("expected, as before:", before)'])


def shared_memory_lines(subject: Subject, case: Case, argument: str, other: str) -> str:
    """Print an argument before and after another one's gradient along ones is set to zeros in place."""
    scene = Scene(subject, case)
    x, y = scene.expression(argument), scene.expression(other)
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f'print("expected:", {y}.detach().clone())']
    lines += [f"(gradient,) = torch.autograd.grad({scene.sums()}, {x})", "gradient.zero_()"]
    return "\n".join([*lines, f'print("got:", {y}.detach())'])


def later_lines(subject: Subject, case: Case, *, created: bool, held: bool) -> str:
    """Print the gradients of a call by themselves, and after another backward through the same call.

    Args:
        subject: Whose.
        case: The arguments.
        created: Whether the other backward has create_graph=True.
        held: Whether to print those that the first backward gave, before and after the second.
    """
    scene = Scene(subject, case)
    listed = ", ".join(scene.expression(name) for name in sorted(case.varying))
    own = f"torch.autograd.grad(total, [{listed}], retain_graph=True, allow_unused=True)"
    other = f"torch.autograd.grad(total, [{listed}], -2 * torch.ones_like(total), retain_graph=True, allow_unused=True)"
    if created:
        other = f"torch.autograd.grad(total, [{listed}], create_graph=True, allow_unused=True)"
    start = [*scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    if held:
        lines = [*scene.lines, *start, f"gradients = {own}", 'print("expected:", [str(g) for g in gradients])', other]
        return "\n".join([*lines, 'print("got:", [str(g) for g in gradients])'])
    lines = [*scene.lines, *start, f'print("expected, by itself:", {own})', *start, other]
    return "\n".join([*lines, f'print("got, after another:", {own})'])


def changed_gradient_lines(subject: Subject, case: Case) -> str:
    """Print the gradients along a grad_output by themselves, and after a backward along it as it was before."""
    scene = Scene(subject, case)
    outputs = f"[{', '.join(output.name for output in scene.outputs() if output.tensor.requires_grad)}]"
    listed = ", ".join(scene.expression(name) for name in sorted(case.varying))
    asked = f"torch.autograd.grad({outputs}, [{listed}], grad_output, retain_graph=True, allow_unused=True)"
    start, change = [*scene.seed(), f"output = {scene.call}"], "for t in grad_output: t.mul_(-2)"
    made = f"grad_output = [torch.ones_like(t) for t in {outputs}]"
    lines = [*scene.lines, *start, made, change, f'print("expected:", {asked})', *start, made, asked, change]
    return "\n".join([*lines, f'print("got:", {asked})'])


def value_held_lines(subject: Subject, case: Case, other: Case) -> str:
    """Print what a call gave, before and after a call on other values."""
    scene, changed = Scene(subject, case), Scene(subject, other, suffix="_other")
    lines = [*scene.lines, *changed.made, *scene.seed(), f"output = {scene.call}"]
    lines += [f'print("expected:", {scene.total()}.item())', f"kept = {changed.call}"]
    return "\n".join([*lines, f'print("got:", {scene.total()}.item())'])


def summed_lines(subject: Subject, case: Case) -> str:
    """Print twice the gradients of a call, and what two backwards leave on ``.grad``."""
    scene = Scene(subject, case)
    names = [scene.expression(name) for name in sorted(case.varying)]
    gradients = f"torch.autograd.grad(total, [{', '.join(names)}], retain_graph=True, allow_unused=True)"
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append(f'print("expected:", [g if g is None else 2 * g for g in {gradients}])')
    lines += ["total.backward(retain_graph=True)", "total.backward()"]
    return "\n".join([*lines, f'print("got:", [x.grad for x in [{", ".join(names)}]])'])


def drawn_lines(subject: Subject, case: Case) -> str:
    """Print a number that is drawn without a backward, and one that is drawn after it."""
    scene = Scene(subject, case)
    start = ["torch.manual_seed(0)", f"output = {scene.call}"]
    draw = "torch.rand(()).item()"
    lines = [*scene.lines, *start, f'print("expected:", {draw})', *start, f"{scene.total()}.backward()"]
    return "\n".join([*lines, f'print("got:", {draw})'])


def redrawn_lines(subject: Subject, case: Case) -> str:
    """Print whether two calls in a row draw the same numbers."""
    scene = Scene(subject, case)
    lines = [*scene.lines, f"output = {scene.call}", f"again = {scene.call}"]
    return "\n".join(
        [*lines, 'assert str(output) != str(again), f"got {again}, as the call before, expected another draw"']
    )


def setting_lines(subject: Subject, case: Case, asked: str, put: str) -> str:
    """Print a setting of the process, set by `put`, before and after a call and its backward."""
    scene = Scene(subject, case)
    lines = [*scene.lines, put, f'print("expected:", str({asked}))', *scene.seed(), f"output = {scene.call}"]
    return "\n".join([*lines, f"{scene.total()}.backward()", f'print("got:", str({asked}))'])
