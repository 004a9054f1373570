"""A few runnable lines that show a fault under forward mode or vmap.

Like those of `pullback.battery.repro`, they print what they got and what was expected, unless the fault is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pullback.battery.literals import code_for, is_literal
from pullback.battery.nodes import belongs
from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject


def tangent_lines(
    subject: Subject,
    case: Case,
    moving: Sequence[str],
    *,
    tracked: bool,
    output: int | None = None,
    sharp: bool = False,
) -> str:
    """Print the change of a total along tangents: by backward, as an inner product, and by forward mode.

    With `sharp`, the tangents have digits that float32 doesn't hold, and so must what comes of them.
    """
    scene, names, made = _tangents(subject, case, moving)
    made = [f"{line} / 3" if sharp else line for line in made]
    lines = [*scene.lines, *made, *scene.seed(), f"output = {scene.call}", f"total = {scene.total(output)}"]
    listed = ", ".join(scene.expression(name) for name in moving)
    pairs = f"zip(torch.autograd.grad(total, [{listed}], allow_unused=True), [{', '.join(names.values())}])"
    product = f"sum((g.conj() * t).sum().real.item() for g, t in {pairs} if g is not None)"
    lines.append(f'print("expected, from backward:", float({product}))')
    lines += _dual(subject, case, scene, names, tracked=tracked)
    tangent = "torch.autograd.forward_ad.unpack_dual(total).tangent"
    lines += [f"    total = {scene.total(output)}", f"    tangent = {tangent}"]
    lines.append('    print("got, from forward mode:", 0.0 if tangent is None else tangent.item())')
    if sharp:
        lines.append('assert abs(got - expected) <= 1e-10 * abs(expected), f"got {got!r}, expected {expected!r}"')
    return "\n".join(lines)


def dual_lines(subject: Subject, case: Case, moving: Sequence[str], *, tracked: bool) -> str:
    """Call the function on arguments with tangents."""
    scene, names, made = _tangents(subject, case, moving)
    return "\n".join([*scene.lines, *made, *_dual(subject, case, scene, names, tracked=tracked)])


def differentiated_lines(subject: Subject, case: Case, moving: Sequence[str], argument: str) -> str:
    """Print the derivative, by an argument, of a total's change along tangents: by backward, and by forward mode."""
    scene, names, made = _tangents(subject, case, moving)
    x, listed = scene.expression(argument), ", ".join(scene.expression(name) for name in moving)
    lines = [*scene.lines, *made, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    gradients = f"torch.autograd.grad(total, [{listed}], create_graph=True, allow_unused=True)"
    pairs = f"zip({gradients}, [{', '.join(names.values())}])"
    lines.append(f"slope = sum((g.conj() * t).sum().real for g, t in {pairs} if g is not None)")
    lines.append(f'print("expected, by backward twice:", torch.autograd.grad(slope, {x})[0])')
    lines += _dual(subject, case, scene, names, tracked=True)
    lines.append(f"    slope = torch.autograd.forward_ad.unpack_dual({scene.total()}).tangent")
    return "\n".join([*lines, f'    print("got, by backward of forward mode:", torch.autograd.grad(slope, {x})[0])'])


def by_tangent_lines(subject: Subject, case: Case, moving: Sequence[str], argument: str) -> str:
    """Print the gradient of a total, and the derivative of the total's tangent by that of the argument."""
    scene, names, made = _tangents(subject, case, moving)
    x, tangent = scene.expression(argument), names[argument]
    lines = [*scene.lines, *made, f"{tangent}.requires_grad_()", *scene.seed(), f"output = {scene.call}"]
    lines.append(f'print("expected, by backward:", torch.autograd.grad({scene.total()}, {x})[0])')
    lines += _dual(subject, case, scene, names, tracked=True)
    lines.append(f"    slope = torch.autograd.forward_ad.unpack_dual({scene.total()}).tangent")
    lines.append(
        f"    found = torch.autograd.grad(slope, {tangent}, allow_unused=True) if slope.requires_grad else [None]"
    )
    return "\n".join([*lines, '    print("got, by backward of forward mode:", found[0])'])


def spoiled_tangent_lines(subject: Subject, case: Case, moving: Sequence[str], argument: str) -> str:
    """Print the tangent of an argument before and after a call in forward mode."""
    scene, names, made = _tangents(subject, case, moving)
    lines = [*scene.lines, *made, f"before = {names[argument]}.clone()"]
    lines += _dual(subject, case, scene, names, tracked=False)
    return "\n".join([*lines, f'print("got:", {names[argument]})', 'print("expected, as before:", before)'])


def _tangents(subject: Subject, case: Case, moving: Sequence[str]) -> tuple[Scene, dict[str, str], list[str]]:
    """The scene, what the tangent of each argument is called, and the lines that make them."""
    scene = Scene(subject, case)
    names = {name: "tangent" if len(moving) == 1 else f"tangent_{place}" for place, name in enumerate(moving)}
    made = []
    for name, tangent in names.items():
        x = scene.expression(name)
        made.append(f"{tangent} = torch.arange(1.0, {x}.numel() + 1).sin().to({x}.dtype).view({x}.shape)")
    return scene, names, made


def _dual(subject: Subject, case: Case, scene: Scene, names: Mapping[str, str], *, tracked: bool) -> list[str]:
    """The lines that call the function under a dual level, as ``output``."""
    lines = []
    if not tracked:
        others = [scene.expression(name) for name in sorted(case.varying)]
        lines.append(f"[x.requires_grad_(False) for x in [{', '.join(others)}]]")
    lines.append("with torch.autograd.forward_ad.dual_level():")
    code = {
        name: f"torch.autograd.forward_ad.make_dual({scene.expression(name)}, {tangent})"
        for name, tangent in names.items()
    }
    return [*lines, *scene.seed("    "), f"    output = {call_with(subject, case, scene, code)}"]


def batched_lines(
    subject: Subject,
    case: Case,
    dims: Mapping[str, int | None],
    size: int,
    *,
    output: int | None = None,
    gradient: str = "",
    inner: bool = False,
    fails: bool = False,
) -> str:
    """Print what vmap gives beside what a loop over the entries gives.

    Args:
        subject: Whose.
        case: The arguments; entry k of the batch has them shrunk k times.
        dims: Along which dimension each tensor is batched; None for those that aren't.
        size: The size of the batch.
        output: The position of the output to look at; all of them unless given.
        gradient: The tensor whose gradient is looked at in place of the output.
        inner: Whether the gradient is taken inside vmap.
        fails: Whether to stop at the vmap, which raises.
    """
    scene = Scene(subject, case)
    batched = [name for name, dim in dims.items() if dim is not None]
    passed = [*batched, *([gradient] if gradient and gradient not in batched else [])]
    names = {name: f"entry_{place}" if len(passed) > 1 else "entry" for place, name in enumerate(passed)}
    returned = scene.total(output) if gradient else scene.outputs()[output or 0].name
    lines = [*scene.lines, f"def one({', '.join(names.values())}):", *scene.seed("    ")]
    lines += [f"    output = {call_with(subject, case, scene, names)}", f"    return {returned}"]
    tensors = {name: tensor for name, _, tensor in subject.named_tensors(case.sample)}
    batches = {name: f"batch_{place}" if len(passed) > 1 else "batch" for place, name in enumerate(passed)}
    for name in passed:
        lines.append(f"{batches[name]} = {_batch(scene.expression(name), tensors[name], dims[name], size)}")
    in_dims = repr(tuple(dims[name] for name in passed))
    arguments = ", ".join(batches.values())
    slices = [f"{batches[n]}.select({dims[n]}, k)" if dims[n] is not None else batches[n] for n in passed]
    loop = f"torch.stack([one({', '.join(slices)}) for k in range({size})])"
    if not gradient:
        lines.append(f'print("got, from vmap:", torch.vmap(one, in_dims={in_dims})({arguments}))')
        return "\n".join(lines if fails else [*lines, f'print("expected, from a loop:", {loop})'])
    x, weights = batches[gradient], f"torch.linspace(0.5, 1.5, {size})"
    if inner:
        pull = f"torch.func.grad(one, argnums={passed.index(gradient)})"
        lines.append(f'print("got, from vmap:", torch.vmap({pull}, in_dims={in_dims})({arguments}))')
        each = f"[torch.autograd.grad(one({', '.join(slices)}), {x})[0] for k in range({size})]"
        dim = dims[gradient]
        each = f"[g.select({dim}, k) for k, g in enumerate({each})]" if dim is not None else each
        lines.insert(-1, f"{x}.requires_grad_()")
        return "\n".join([*lines, f'print("expected, from a loop:", torch.stack({each}))'])
    lines.append(f"{x}.requires_grad_()")
    for label, call in (("got, from vmap", f"torch.vmap(one, in_dims={in_dims})({arguments})"), ("expected", loop)):
        lines.append(f"(gradient,) = torch.autograd.grad(({call} * {weights}).sum(), {x}, allow_unused=True)")
        lines += [] if fails and label == "expected" else [f'print("{label}:", gradient)']
    return "\n".join(lines)


def cotangents_lines(
    subject: Subject, case: Case, argument: str = "", *, fails: bool = False, crashes: bool = False
) -> str:
    """Print the gradients for two cotangents at once beside those for one after the other.

    Args:
        subject: Whose.
        case: The arguments.
        argument: The one whose gradient is looked at; the first unless given.
        fails: Whether to stop at the batch, which raises.
        crashes: Whether to take the batch through torch.vmap, which raises where is_grads_batched ends the process.
    """
    scene = Scene(subject, case)
    x = scene.expression(argument or sorted(case.varying)[0])
    lines = [*scene.lines, *scene.seed(), f"output = {scene.call}", f"total = {scene.total()}"]
    lines.append("batch = torch.tensor([1.0, -2.0], dtype=total.dtype, device=total.device)")
    if crashes:
        one = f"lambda g: torch.autograd.grad(total, {x}, g, allow_unused=True)[0]"
        return "\n".join([*lines, f"got = torch.vmap({one})(batch)"])
    options = "retain_graph=True, allow_unused=True"
    batched = f"torch.autograd.grad(total, {x}, batch, is_grads_batched=True, {options})[0]"
    lines.append(f'print("got, for both at once:", {batched})')
    each = f"torch.stack([torch.autograd.grad(total, {x}, g, {options})[0] for g in batch])"
    return "\n".join(lines if fails else [*lines, f'print("expected, one by one:", {each})'])


def call_with(subject: Subject, case: Case, scene: Scene, code: Mapping[str, str]) -> str:
    """The call, with other code in place of some tensors, by their names."""
    values = [*zip(subject.argument_names, case.sample.args, strict=False), *case.sample.kwargs.items()]
    passed = []
    for position, ((name, value), text) in enumerate(zip(values, scene.passed, strict=True)):
        inside = any(path in code for path, _, _ in subject.named_tensors(case.sample) if belongs(path, name))
        inside = inside and is_literal(value)  # a module, say, can't be written with other parameters
        written = _nest(value, name, code, scene) if inside else text
        passed.append(written if position < len(case.sample.args) or not inside else f"{name}={written}")
    return f"{scene.call.removesuffix(f'({scene.arguments})')}({', '.join(passed)})"


def _nest(value: object, path: str, code: Mapping[str, str], scene: Scene) -> str:
    """Code for a nest, each tensor by the code for it."""
    if isinstance(value, torch.Tensor):
        return code.get(path, scene.expression(path))
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_nest(item, f"{path}[{index}]", code, scene) for index, item in enumerate(value)]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)},)"
    if isinstance(value, dict):
        items = [f"{key!r}: {_nest(item, f'{path}[{key!r}]', code, scene)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    return code_for(value, path, ())


def _batch(x: str, tensor: torch.Tensor, dim: int | None, size: int) -> str:
    if dim is None:
        return f"{x}.detach()"
    entry = f"{x}.detach()" + (" * (1 - k / 16)" if tensor.is_floating_point() or tensor.is_complex() else "")
    return f"torch.stack([{entry} for k in range({size})], {dim})"
