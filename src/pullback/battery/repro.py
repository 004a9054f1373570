"""A few runnable lines that show a fault: import the class, make the arguments, call, differentiate."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from pullback.battery.compare import number
from pullback.battery.subject import Case, Subject

_LITERAL_ELEMENTS = 12


def call_lines(subject: Subject, case: Case) -> list[str]:
    """Import the function, make its arguments, and call it: ``output = Square.apply(x)``."""
    setting, call = _setting(subject, case)
    return [*setting, f"output = {call}"]


def _setting(subject: Subject, case: Case) -> tuple[list[str], str]:
    """The lines before the call, and the call."""
    lines = ["import torch", *_import_lines(subject.function)]
    function = _short_name(subject.function) + (".apply" if isinstance(subject.function, type) else "")
    values = [*zip(subject.argument_names, case.sample.args, strict=False), *case.sample.kwargs.items()]
    passed = []
    for position, (name, value) in enumerate(values):
        variable = name if name.isidentifier() else f"argument_{position}"
        text = _literal(value, name, case)
        if (
            not _is_literal(value)
            and subject.samples.source == "declared"
            and case.index < len(subject.samples.samples)
        ):
            text = f"list({_short_name(subject.function)}.samples())[{case.index}][{position}]"
        lines.append(f"{variable} = {text}")
        if subject.in_place and name in case.varying:
            variable += ".clone()"
        passed.append(variable if position < len(case.sample.args) else f"{name}={variable}")
    return lines, f"{function}({', '.join(passed)})"


def backward_lines(subject: Subject, case: Case) -> str:
    """Call the function and differentiate the sum of its outputs."""
    lines = call_lines(subject, case)
    lines.append(f"({_total(subject, case)}).backward()")
    return "\n".join(lines)


def value_lines(subject: Subject, case: Case) -> str:
    """Call the function and print what it returns."""
    return "\n".join([*call_lines(subject, case), "print(output)"])


def gradient_lines(subject: Subject, case: Case, argument: str, *, output: int | None = None) -> str:
    """Call the function and print the gradient of `argument`, for all outputs or one."""
    total = f"output[{output}].sum()" if output is not None else _total(subject, case)
    return "\n".join([*call_lines(subject, case), f"({total}).backward()", f"print({argument}.grad)"])


def scale_lines(subject: Subject, case: Case, argument: str) -> str:
    """Print the gradient for a total of two sizes, divided by that size; for a linear backward they are the same."""
    lines = call_lines(subject, case)
    lines.append("for scale in (1.0, 100.0):")
    total = _total(subject, case)
    lines.append(f"    (gradient,) = torch.autograd.grad(scale * ({total}), {argument}, retain_graph=True)")
    return "\n".join([*lines, "    print(gradient / scale)"])


def difference_lines(subject: Subject, case: Case, argument: str, index: tuple[int, ...]) -> str:
    """Print one element of the gradient of `argument` beside forward's finite difference."""
    if not argument.isidentifier():
        return gradient_lines(subject, case, argument)
    setting, call = _setting(subject, case)
    place = ", ".join(map(str, index)) or "()"
    return "\n".join(
        [
            *setting,
            f"def total({argument}):",
            f"    output = {call}",
            f"    return {_total(subject, case)}",
            f"(gradient,) = torch.autograd.grad(total({argument}), {argument}, allow_unused=True)",
            f"step = torch.zeros_like({argument})",
            f"step[{place}] = 1e-6",
            f'print("backward:", gradient if gradient is None else gradient[{place}])',
            f'print("differences:", (total({argument} + step) - total({argument} - step)).item() / 2e-6)',
        ]
    )


_ARRANGE = {
    "transposed": "plain.transpose(-1, -2).contiguous().transpose(-1, -2)",
    "sliced": "torch.stack([plain, plain + 1], -1)[..., 0]",
    "offset": "torch.cat([plain.new_zeros(3), plain.flatten()])[3:].view(plain.shape)",
    "channels last": "plain.contiguous(memory_format=torch.channels_last)",
    "expanded": "plain[:1].expand(plain.shape)",
}
_FROM_ONE = "plain.flatten()[:1].view([1] * plain.dim()).expand(plain.shape)"


def layout_lines(subject: Subject, case: Case, argument: str, layout: str) -> str:
    """Print the gradient of `argument` for a contiguous cotangent, then for the same one in another layout."""
    lines = call_lines(subject, case)
    lines.append("output = output if torch.is_tensor(output) else output[0]")
    if layout.startswith("expanded"):
        lines.append("plain = torch.ones_like(output)")
    else:
        lines.append("plain = torch.arange(1.0, output.numel() + 1, dtype=output.dtype).view(output.shape)")
    lines.append(f"for g in (plain, {_ARRANGE.get(layout, _FROM_ONE)}):")
    return "\n".join([*lines, f"    print(torch.autograd.grad(output, {argument}, g, retain_graph=True))"])


def argument_lines(subject: Subject, case: Case, argument: str, layout: str) -> str:
    """Print what the function returns for a contiguous argument, then for the same one in another layout."""
    if not argument.isidentifier():
        return value_lines(subject, case)
    setting, call = _setting(subject, case)
    lines = [*setting, f"plain = {argument}.detach()"]
    if layout.startswith("expanded"):
        lines.append(f"plain = {_ARRANGE.get(layout, _FROM_ONE)}.contiguous()")
    lines.append(f"for {argument} in (plain, {_ARRANGE.get(layout, _FROM_ONE)}):")
    lines += [f"    {argument} = {argument}.requires_grad_()"] if argument in case.varying else []
    lines += [f"    output = {call}", "    print(output)"]
    if argument in case.varying:
        lines.append(f"    print(torch.autograd.grad({_total(subject, case)}, {argument}))")
    return "\n".join(lines)


def penalty_lines(subject: Subject, case: Case) -> str:
    """A gradient penalty: differentiate the squared gradients once more, and print what comes."""
    varying = subject.fresh(case).varying
    listed = ", ".join(leaf.name for leaf in varying)
    square = "(g * g.conj()).real" if any(leaf.tensor.is_complex() for leaf in varying) else "(g**2)"
    return "\n".join(
        [
            *call_lines(subject, case),
            f"gradients = torch.autograd.grad({_total(subject, case)}, [{listed}], create_graph=True)",
            f"penalty = sum({square}.sum() for g in gradients)",
            'assert penalty.requires_grad, "the gradient has no graph behind it"',
            f"print(torch.autograd.grad(penalty, [{listed}], allow_unused=True))",
        ]
    )


def cotangent_lines(subject: Subject, case: Case, argument: str) -> str:
    """Differentiate the gradient of `argument` by grad_output."""
    return "\n".join(
        [
            *call_lines(subject, case),
            "output = output if torch.is_tensor(output) else output[0]",
            "grad_output = torch.ones_like(output, requires_grad=True)",
            f"(gradient,) = torch.autograd.grad(output, {argument}, grad_output, create_graph=True)",
            'assert gradient.requires_grad, "the gradient has no graph behind it"',
            "print(torch.autograd.grad(gradient.sum(), grad_output, allow_unused=True))",
        ]
    )


def _total(subject: Subject, case: Case) -> str:
    try:
        returned = subject.raw_call(subject.fresh(case, requires=()))
    except Exception:  # a forward that raises: the lines show just that
        return "output.sum()"
    if isinstance(returned, torch.Tensor):
        return "output.sum()"
    return "sum(o.sum() for o in output if torch.is_tensor(o) and o.requires_grad)"


def _import_lines(function: Any) -> list[str]:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not name.isidentifier():
        return [
            f"# {_short_name(function)} as it is defined in {module}" if name else "# the function that was checked"
        ]
    try:
        path = inspect.getsourcefile(function) or ""
    except TypeError:
        path = ""
    known = sys.modules.get(module)
    if module != "__main__" and known is not None and _importable(module, path):
        return [f"from {module} import {name}"]
    if path:
        return ["import runpy", f'{name} = runpy.run_path("{path}")["{name}"]']
    return [f"# {name} as it is defined in {module}"]


def _importable(module: str, path: str) -> bool:
    """Whether a fresh interpreter would find `module` at `path`; that it is imported here proves nothing."""
    top, _, rest = module.partition(".")
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec is not None:
            inside = spec.submodule_search_locations or ()
            return any(path.startswith(str(folder)) for folder in inside) if rest else spec.origin == path
    return False


def _short_name(function: Any) -> str:
    name = getattr(function, "__qualname__", "f").rsplit(".", 1)[-1]
    return name if name.isidentifier() else "f"


def _is_literal(value: object) -> bool:
    """Whether `_literal` gives code for it; a module, say, has to be taken from the samples."""
    if isinstance(value, (list, tuple)):
        return all(_is_literal(item) for item in value)
    if isinstance(value, dict):
        return all(_is_literal(item) for item in value.values())
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, complex, str, bytes, torch.dtype))


def _literal(value: object, path: str, case: Case) -> str:
    """Code that makes `value`: exact for small tensors, random ones of the same shape for large."""
    if isinstance(value, torch.Tensor):
        grad = ", requires_grad=True" if path in case.varying else ""
        if value.numel() > _LITERAL_ELEMENTS:
            return f"torch.rand({tuple(value.shape)}, dtype={value.dtype}{grad})"
        return f"torch.tensor({number(value)}, dtype={value.dtype}{grad})"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_literal(item, f"{path}[{index}]", case) for index, item in enumerate(value)]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)},)"
    if isinstance(value, dict):
        items = [f"{key!r}: {_literal(item, f'{path}[{key!r}]', case)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    return repr(value)
