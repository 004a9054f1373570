"""A few runnable lines that show a wrong number: import the class, make the arguments, call, and compare two numbers.

What is printed here as ``got`` and ``expected`` is compared in the end (`pullback.battery.verdict`). The gradient that
is looked at is that of a weighted sum of the outputs: with equal weights many a wrong gradient looks right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from pullback.battery.arrangements import CONJUGATED
from pullback.battery.literals import import_lines
from pullback.battery.nodes import entry_names, node_of
from pullback.battery.numerics import size_of
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject
from pullback.battery.verdict import equal
from pullback.custom.decorated import decorated


def call_lines(subject: Subject, case: Case) -> list[str]:
    """Import the function, make its arguments, and call it: ``output = Square.apply(x)``."""
    scene = Scene(subject, case)
    return [*scene.lines, f"output = {scene.call}"]


def backward_lines(subject: Subject, case: Case, *, times: int = 1, only: int | None = None) -> str:
    """Call the function and differentiate a sum of its outputs, or one of them, once or several times."""
    scene = Scene(subject, case)
    retain = "retain_graph=True" if times > 1 else ""
    lines = [*scene.lines, f"output = {scene.call}"]
    return "\n".join([*lines, f"total = {scene.total(only)}", *[f"total.backward({retain})"] * times])


def plain_lines(subject: Subject, case: Case) -> str:
    """Call the function where nothing is differentiated."""
    scene = Scene(subject, replace(case, varying=frozenset()))
    return "\n".join([*scene.lines, f"output = {scene.call}"])


def value_lines(subject: Subject, case: Case) -> str:
    """Print what the function returns beside what its reference does."""
    scene = Scene(subject, case)
    imports, reference = _companion(subject, scene, "reference")
    lines = [*scene.lines, *imports, *scene.seed(), f'print("got:", {scene.call})']
    return "\n".join([*lines, *scene.seed(), f'print("expected:", {reference}({scene.arguments}))'])


def value_dtype_lines(subject: Subject, case: Case, output: str) -> str:
    """The dtype of an output beside that of the reference's."""
    scene = Scene(subject, case)
    imports, reference = _companion(subject, scene, "reference")
    calls = scene.call, f"{reference}({scene.arguments})"
    got, expected = (f"{output.replace('output', f'({call})', 1)}.dtype" for call in calls)
    return "\n".join([*scene.lines, *imports, *equal(got, expected)])


def rule_value_lines(subject: Subject, case: Case) -> str:
    """Print what a decorated function returns by its rule beside what it returns without one."""
    scene = Scene(subject, case)
    lines = [*scene.lines, *scene.seed(), f'print("got:", {scene.call})', *scene.seed(), "with torch.no_grad():"]
    return "\n".join([*lines, f'    print("expected:", {scene.call})'])


def difference_lines(
    subject: Subject, case: Case, argument: str, index: tuple[int, ...], *, output: int | None = None
) -> str:
    """Print one element of the gradient of `argument` beside forward's finite difference."""
    scene = Scene(subject, case)
    total = [
        "def total():",
        *scene.seed("    "),
        f"    output = {scene.call}",
        f"    return {scene.total(output)}",
    ]
    x = scene.expression(argument)
    gradient = f"(gradient,) = torch.autograd.grad(total(), {x}, allow_unused=True)"
    return "\n".join([*scene.lines, *total, gradient, *compared_at(scene, argument, index, "gradient", "total")])


def factor_lines(subject: Subject, case: Case, argument: str) -> str:
    """Print the slope along the signs of the gradient of `argument` beside forward's sharp finite difference."""
    scene = Scene(subject, case)
    x, h = scene.expression(argument), f"{1e-3 * size_of(subject.fresh(case).leaf(argument).tensor):g}"
    lines = [*scene.lines, "def total():", *scene.seed("    "), f"    output = {scene.call}"]
    lines += [f"    return {scene.total()}", f"(gradient,) = torch.autograd.grad(total(), {x})"]
    lines += [f"start, along = {x}.detach().clone(), gradient.sgn()", "def moved(t):"]
    lines += [f"    {x}.data.copy_(start + t * along)", "    return total().item()"]
    lines.append('print("got, from backward:", (gradient.conj() * along).sum().real.item())')
    difference = f"(8 * (moved({h}) - moved(-{h})) - moved(2 * {h}) + moved(-2 * {h})) / (12 * {h})"
    lines.append(f'print("expected, from differences:", {difference})')
    near = 'abs(got - expected) <= 5e-8 * abs(expected), f"got {got!r}, expected {expected!r}"'
    return "\n".join([*lines, f"assert {near}"])


def oracle_lines(subject: Subject, case: Case, argument: str, source: str, *, output: int | None = None) -> str:
    """Print the gradient of `argument` beside that of the ``reference`` or ``surrogate``."""
    scene = Scene(subject, case)
    imports, oracle = _companion(subject, scene, source)
    x = scene.expression(argument)
    lines = [*scene.lines, *imports]
    lines += ["def gradient(output):"]
    lines += [f"    return torch.autograd.grad({scene.total(output)}, {x}, allow_unused=True)[0]"]
    lines += [*scene.seed(), f'print("got, from backward:", gradient({scene.call}))']
    return "\n".join(
        [*lines, *scene.seed(), f'print("expected, from {source}:", gradient({oracle}({scene.arguments})))']
    )


def tie_lines(subject: Subject, case: Case, names: Sequence[str], shared: float) -> str:
    """Print the sum of the gradients of equal elements beside the difference when they move together."""
    scene = Scene(subject, case)
    listed = ", ".join(scene.expression(name) for name in names)
    value = float(f"{shared:.6g}")
    lines = [
        *scene.lines,
        "def total():",
        *scene.seed("    "),
        f"    output = {scene.call}",
        f"    return {scene.total()}",
        f"tied = [x == {value!r} for x in ({listed},)]",
        f"gradients = torch.autograd.grad(total(), [{listed}])",
        'print("got, from backward:", sum(g[t].sum().item() for g, t in zip(gradients, tied)))',
        "def moved(step):",
        f"    [x.data.add_(step * t) for x, t in zip([{listed}], tied)]",
        "    return total().item()",
        'print("expected, from differences:", (moved(1e-6) - moved(-2e-6)) / 2e-6)',
    ]
    return "\n".join(lines)


def expectation_lines(subject: Subject, case: Case, argument: str, size: float) -> str:
    """Print the gradient of `argument` beside what ``expected_backward`` returns for the same cotangents."""
    scene = Scene(subject, case)
    outputs = scene.outputs()
    lines = [*scene.lines, f"output = {scene.call}"]
    single = len(outputs) == 1 and outputs[0].name == "output"
    lines.append(f"outputs = {'(output,)' if single else 'tuple(output)'}")
    lines.append(
        f"grad_output = tuple({size:g} * torch.linspace(-1, 1, o.numel()).to(o).view(o.shape) for o in outputs)"
    )
    x = scene.expression(argument)
    lines.append(f"(gradient,) = torch.autograd.grad(outputs, {x}, grad_output, allow_unused=True)")
    plain = "tuple(o.detach() for o in outputs)"
    owed = f"{scene.function}.expected_backward(({scene.arguments},), {plain}, grad_output)"
    place = next((i for i, name in enumerate(subject.argument_names) if argument.startswith(name)), 0)
    one = f"owed if torch.is_tensor(owed) else owed[{argument!r} if isinstance(owed, dict) else {place}]"
    return "\n".join([*lines, f"owed = {owed}", 'print("got:", gradient)', f'print("expected:", {one})'])


def scale_lines(
    subject: Subject, case: Case, argument: str, *, factor: float = -100.0, dtype: torch.dtype | None = None
) -> str:
    """Print the gradient for a total of two sizes, divided by that size; for a linear backward they are the same.

    Args:
        subject: Whose.
        case: The arguments.
        argument: Whose gradient.
        factor: How many times as large the other total is.
        dtype: What the arguments are cast to before.
    """
    scene = Scene(subject, case)
    x = scene.expression(argument)
    floats = [leaf for leaf in subject.fresh(case).leaves if leaf.tensor.is_floating_point()]
    lines = list(scene.lines)
    for name in [scene.expression(leaf.name) for leaf in floats if dtype is not None and leaf.name == leaf.argument]:
        lines.append(f"{name} = {name}.detach().to({dtype}).requires_grad_({name}.requires_grad)")
    lines += [*scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append(f"(gradient,) = torch.autograd.grad(total, {x}, retain_graph=True)")
    lines.append('print("expected, the gradient of the total:", gradient)')
    mantissa, exponent = math.frexp(factor)
    by = f"2.0**{exponent - 1}" if mantissa == 0.5 else f"{factor:g}"
    lines.append(f"(gradient,) = torch.autograd.grad({by} * total, {x})")
    lines.append(f'print("got, that of {by} times the total, divided by {by}:", gradient / {by})')
    return "\n".join(lines)


def uneven_lines(subject: Subject, case: Case, argument: str, factor: float) -> str:
    """Print what belongs to every other element of a cotangent in a gradient, where they are 1, and where far less."""
    scene = Scene(subject, case)
    ends = ", ".join(output.name for output in scene.outputs() if output.tensor.requires_grad)
    by = f"2.0**{math.frexp(factor)[1] - 1}"
    lines = [
        *scene.lines,
        "def pulled(small):",
        *scene.seed("    "),
        f"    output = {scene.call}",
        f"    ends = [{ends}]",
    ]
    lines += [
        "    places = [torch.arange(end.numel()).view(end.shape) % 2 for end in ends]",
        "    cotangents = [torch.where(at == 1, small, 1.0).to(end) for at, end in zip(places, ends)]",
        f"    return torch.autograd.grad(ends, {scene.expression(argument)}, cotangents)[0]",
        'print("expected, from elements of 1:", pulled(1.0) - pulled(0.0))',
        f'print("got, from elements of {by}, divided by {by}:", (pulled({by}) - pulled(0.0)) / {by})',
    ]
    return "\n".join(lines)


def subset_lines(subject: Subject, case: Case, argument: str, chosen: tuple[str, ...]) -> str:
    """Print the gradient of `argument` when all require grad, and when only the `chosen` ones do."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    others = [scene.expression(name) for name in sorted(case.varying) if name not in chosen]
    lines = list(scene.lines)
    for label in ("expected, when all require grad", f"got, when only {' and '.join(chosen)} does"):
        lines += [*scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
        lines.append(f"(gradient,) = torch.autograd.grad(total, {x}, allow_unused=True)")
        lines.append(f'print("{label}:", gradient)')
        lines += [f"{other}.requires_grad_(False)" for other in others] if label.startswith("expected") else []
    return "\n".join(lines)


def unused_lines(subject: Subject, case: Case, argument: str, output: int) -> str:
    """Print the gradient of `argument` with zeros for the outputs that aren't used, and without them."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    zeros = " + ".join([scene.total(output), f"0 * ({scene.total()})"])
    lines = [*scene.lines]
    for label, total in (
        ("expected, with zeros for the other outputs", zeros),
        ("got, without them", scene.total(output)),
    ):
        lines += [*scene.seed(), f"output = {scene.call}"]
        lines.append(f"(gradient,) = torch.autograd.grad({total}, {x}, allow_unused=True)")
        lines.append(f'print("{label}:", gradient)')
    return "\n".join(lines)


_ARRANGE = {
    "transposed": "plain.transpose(-1, -2).contiguous().transpose(-1, -2)",
    "sliced": "torch.stack([plain, -plain], -1)[..., 0]",
    "padded": "torch.cat([plain, -plain], -1)[..., : plain.shape[-1]]",
    "permuted": "plain.transpose(0, 1).contiguous().transpose(0, 1)",
    "offset": "torch.cat([plain.new_zeros(3), plain.flatten()])[3:].view(plain.shape)",
    "channels last": "plain.contiguous(memory_format=torch.channels_last)",
    CONJUGATED: "plain.conj().resolve_conj().conj()",
    "lazily negated": "torch.complex(plain, -plain).conj().imag",
    "expanded": "plain[:1].expand(plain.shape)",
    "expanded in each row": "plain[..., :1].expand(plain.shape)",
}
_FROM_ONE = "plain.flatten()[:1].view([1] * plain.dim()).expand(plain.shape)"


def layout_lines(subject: Subject, case: Case, argument: str, layout: str, output: str = "output") -> str:
    """Print the gradient of `argument` for a contiguous cotangent, then for the same one in another layout."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    lines = [*scene.lines, f"output = {scene.call}", f"plain = torch.arange(1.0, {output}.numel() + 1).to({output})"]
    lines.append(f"plain = plain.view({output}.shape)" + (" * (1 + 2j)" if layout == CONJUGATED else ""))
    arranged = _ARRANGE.get(layout, _FROM_ONE)
    if layout.startswith("expanded"):
        lines.append(f"plain = ({arranged}).contiguous()")
    for label, cotangent in (
        ("expected, for a contiguous gradient", "plain"),
        (f"got, for a gradient {layout}", arranged),
    ):
        lines.append(f"(gradient,) = torch.autograd.grad({output}, {x}, {cotangent}, retain_graph=True)")
        lines.append(f'print("{label}:", gradient)')
    return "\n".join(lines)


def argument_lines(subject: Subject, case: Case, argument: str, layout: str) -> str:
    """Print what the function returns for a contiguous argument, then for the same one in another layout."""
    scene = Scene(subject, case)
    x, arranged = scene.expression(argument), _ARRANGE.get(layout, _FROM_ONE)
    lines = [*scene.lines, f"plain = {x}.detach()"]
    if layout.startswith("expanded"):
        lines.append(f"plain = ({arranged}).contiguous()")
    for label, value in (("expected, for a contiguous", "plain"), (f"got, for a {layout}", arranged)):
        grad = ".requires_grad_()" if argument in case.varying else ""
        lines += [f"{x} = {value}{grad}", *scene.seed(), f"output = {scene.call}"]
        shown = f", torch.autograd.grad({scene.total()}, {x}, allow_unused=True)" if grad else ""
        lines.append(f'print("{label} {argument}:", output{shown})')
    return "\n".join(lines)


def jacobian_lines(subject: Subject, case: Case) -> str:
    """Print the largest element of the Jacobian off its diagonal."""
    scene = Scene(subject, case)
    leaf = subject.fresh(case).varying[0]
    x = scene.expression(leaf.name)
    lines = [*scene.lines, f"output = {scene.call}"]
    rows = f"torch.stack([torch.autograd.grad(o, {x}, retain_graph=True)[0].flatten() for o in output.flatten()])"
    lines += [
        f"jacobian = {rows}",
        'print("got, off the diagonal:", (jacobian - jacobian.diag().diag()).abs().max().item())',
    ]
    return "\n".join([*lines, 'print("expected, off the diagonal:", 0.0)'])


def waste_lines(subject: Subject, case: Case, argument: str, needed: str) -> str:
    """Print what backward itself returns for an argument that doesn't require grad; the engine throws it away."""
    only = Case(case.index, case.sample, frozenset({needed}), case.exact, case.moved)
    scene = Scene(subject, only)
    lines = [*scene.lines, f"output = {scene.call}", *raw_lines(scene, "gradients")]
    lines.append(f'print("got, for {argument}:", gradients[{entry_of(subject, only, argument)}])')
    return "\n".join([*lines, f'print("expected, for {argument}:", None)'])


# -- inside -----------------------------------------------------------------------------------------------------------


def raw_lines(scene: Scene, name: str) -> list[str]:
    """What backward returns before the engine looks at it, as a tuple."""
    outputs = scene.outputs()
    tracked = next((output.name for output in outputs if output.tensor.requires_grad), "output")
    ones = [f"torch.ones_like({output.name})" for output in outputs]
    if any(output.name not in ("output", f"output[{place}]") for place, output in enumerate(outputs)):
        ones.append("None")  # a call that returns containers has one output more
    return [
        "with torch.no_grad():",  # as the engine does
        f"    {name} = {tracked}.grad_fn.apply({', '.join(ones)})",
        f"{name} = {name} if isinstance({name}, tuple) else ({name},)",
    ]


def entry_of(subject: Subject, case: Case, argument: str) -> int:
    """Where the gradient of an argument, or of a leaf of one, stands among what backward itself returns."""
    inputs = subject.fresh(case)
    names = entry_names(subject, node_of(subject, subject.call(inputs)), inputs)
    return names.index(argument)


def compared_at(scene: Scene, leaf: str, index: tuple[int, ...], gradient: str, function: str) -> list[str]:
    """Print an element of a gradient beside the difference quotient of what a function returns."""
    x, place, step = scene.expression(leaf), _place(index), scene.step(leaf)
    expected = f"(moved({step:g}) - moved({-2 * step:g})) / {2 * step:g}"
    if scene.is_complex(leaf):
        sideways = f"(moved({complex(step, step)}) - moved({complex(0, -2 * step)})) / {2 * step:g}"
        expected = f"complex({expected}, {sideways})"
    element, change = f"{gradient}{place}", "step"
    if not place and scene.size(leaf) > 1:
        # All elements move, each by another step: along equal ones what a Function normalises doesn't change.
        weights = f"torch.linspace(0.5, 1.5, {x}.numel(){scene.place(x)}).view({x}.shape)"
        element, change = f"({gradient} * {weights}).sum()", f"step * {weights}"
    return [
        f'print("got, from backward:", {gradient} if {gradient} is None else {element}.item())',
        "def moved(step):",
        f"    {x}.data{place or '[()]'} += {change}",
        f"    return {function}().item()",
        f'print("expected, from differences:", {expected})',
    ]


def _companion(subject: Subject, scene: Scene, source: str) -> tuple[list[str], str]:
    """The lines that bring the reference or surrogate into reach, and what it is called."""
    companion = getattr(subject, source)
    if companion is getattr(subject.function, source, None) or companion is None:
        owner = ".function" if decorated(subject.function) is not None else ""
        return [], f"{scene.function}{owner}.{source}"
    return import_lines(companion)


def _place(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""
