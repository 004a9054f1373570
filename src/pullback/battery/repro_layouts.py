"""A few runnable lines that show a gradient which depends on how all tensors of a call lie in memory."""

from __future__ import annotations

from pullback.battery.scene import Scene
from pullback.battery.subject import Case, Subject

ARRANGED = {
    "transposed": "t.mT.contiguous().mT if t.dim() > 1 else t",
    "channels last": "t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t",
    "sliced": "torch.stack([t, -t], -1)[..., 0]",
    "offset": "torch.cat([t.new_ones(3), t.reshape(-1)])[3:].view(t.shape)",
}
"""The code of a tensor t in each layout."""


def everything_lines(subject: Subject, case: Case, argument: str, layout: str) -> str:
    """Print the gradient of `argument` where all is contiguous, then where arguments and cotangents are arranged."""
    scene = Scene(subject, case)
    tensors = ", ".join(scene.expression(leaf.name) for leaf in subject.fresh(case).varying)
    outputs = ", ".join(output.name for output in scene.outputs() if output.tensor.requires_grad)
    lines = [*scene.lines, "def call(change):", *scene.seed("    "), f"    output = {scene.call}"]
    lines += [f"    outputs = [{outputs}]"]
    lines.append("    weights = [change(torch.linspace(0.5, 1.5, o.numel()).to(o).view(o.shape)) for o in outputs]")
    lines.append(
        f"    return torch.autograd.grad(outputs, {scene.expression(argument)}, weights, allow_unused=True)[0]"
    )
    lines.append('print("expected, all contiguous:", call(lambda t: t))')
    lines.append(f"for t in [{tensors}]: t.data = (lambda t: {ARRANGED[layout]})(t.data)")
    return "\n".join([*lines, f'print("got, all {layout}:", call(lambda t: {ARRANGED[layout]}))'])
