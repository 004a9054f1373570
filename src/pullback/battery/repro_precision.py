"""A few runnable lines that show a fault of dtype or precision.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

import torch

from pullback.battery.repro import entry_of, raw_lines
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Leaf, Subject
from pullback.battery.verdict import compared, equal


def rounded_lines(subject: Subject, case: Case, argument: str, low: torch.dtype) -> str:
    """Print by how much rounding to a lower dtype changes the gradient: not at all, if it was rounded before."""
    scene = Scene(subject, case)
    x = scene.expression(argument)
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append(f"(gradient,) = torch.autograd.grad(total / 3, {x})")
    if subject.fresh(case).leaf(argument).tensor.is_complex():
        lines.append("gradient = torch.view_as_real(gradient)")
    change = f"(gradient - gradient.to({low}).to(gradient.dtype)).abs().max().item()"
    lines.append(f"change = {change}")
    return "\n".join(
        [*lines, f'assert change > 0, "got only numbers that {_short(low)} holds, expected those of float64"']
    )


def lower_lines(
    subject: Subject, case: Case, argument: str, low: torch.dtype, *, only: str = "", share: float = 0.0
) -> str:
    """Print the gradient of `argument` in a lower dtype beside that in float64 for the same values.

    Args:
        subject: Whose.
        case: The arguments.
        argument: Whose gradient.
        low: The lower dtype.
        only: The one argument that is in it; empty for all.
        share: Of the largest element, how far off the gradient may be; 0 for what rounding costs as a rule.
    """
    scene = Scene(subject, case)
    floats = [leaf for leaf in subject.fresh(case).leaves if leaf.tensor.is_floating_point()]
    lines = list(scene.lines)
    for label, dtype in ((f"got, in {_short(low)}", low), ("expected, in float64", torch.float64)):
        for name in [scene.expression(leaf.name) for leaf in floats if only in ("", leaf.name) and _is_own(leaf)]:
            cast = f".to({low})" + (f".to({dtype})" if dtype is not low else "")
            lines.append(f"{name} = {name}.detach(){cast}.requires_grad_({name}.requires_grad)")
        lines += [*scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
        lines.append(f'print("{label}:", torch.autograd.grad(total, {scene.expression(argument)})[0])')
    near = f"(got - expected).abs().max() <= {share:.2g} * expected.abs().max()"
    return "\n".join([*lines, f'assert {near}, f"got {{got}}, expected {{expected}}"' if share else compared([low])])


def lower_value_lines(subject: Subject, case: Case, low: torch.dtype, *, only: str = "") -> str:
    """Print what the function returns in a lower dtype, or with `only` one argument in it, beside that in float64."""
    scene = Scene(subject, case)
    floats = [leaf for leaf in subject.fresh(case).leaves if leaf.tensor.is_floating_point()]
    names = [scene.expression(leaf.name) for leaf in floats if only in ("", leaf.name) and _is_own(leaf)]
    lines = list(scene.lines)
    for label, dtype in ((f"got, in {_short(low)}", low), ("expected, in float64", torch.float64)):
        lines += [
            f"{name} = {name}.detach().to({low})" + (f".to({dtype})" if dtype is not low else "") for name in names
        ]
        lines += [*scene.seed(), f'print("{label}:", {scene.call})']
    return "\n".join([*lines, compared([low])])


def operator_lines(subject: Subject, case: Case) -> str:
    """Print the dtypes of what backward's operators give beside those of the arguments."""
    scene = Scene(subject, case)
    own = sorted({str(leaf.tensor.dtype) for leaf in subject.fresh(case).varying})
    lines = [
        *scene.lines,
        "class Watch(torch.utils._python_dispatch.TorchDispatchMode):",
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):",
        "        result = func(*args, **(kwargs or {}))",
        "        seen.update(str(t.dtype) for t in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(t))",
        "        return result",
        "seen = set()",
        f"output = {scene.call}",
        f"total = {scene.total()}",
        "with Watch():",
        "    total.backward()",
        "low = seen & {'torch.float32', 'torch.bfloat16', 'torch.float16', 'torch.complex64'} - " + f"{set(own)!r}",
        f'assert not low, f"got {{low}} in backward, expected {" and ".join(own)}"',
    ]
    return "\n".join(lines)


def dtype_lines(subject: Subject, case: Case, argument: str) -> str:
    """Print the dtype of what backward itself returns beside that of the argument; the engine casts it."""
    scene = Scene(subject, case)
    lines = [*scene.lines, f"output = {scene.call}", *raw_lines(scene, "gradients")]
    got = f"gradients[{entry_of(subject, case, argument)}].dtype"
    return "\n".join([*lines, *equal(got, f"{scene.expression(argument)}.dtype")])


def _is_own(leaf: Leaf) -> bool:
    """Whether the leaf is an argument, and not within one."""
    return leaf.name == leaf.argument


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
