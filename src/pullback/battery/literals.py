"""Code that makes a value: an argument written out so that it can be pasted."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Any

import torch

_ELEMENTS = 12
"""Larger tensors are not written out element by element."""


def is_literal(value: object) -> bool:
    """Whether `code_for` gives code for it; a module, say, has to be taken from the samples."""
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(is_literal(item) for item in value)
    if isinstance(value, dict):
        return all(is_literal(item) for item in value.values())
    plain = (torch.Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device, slice)
    return value is None or (isinstance(value, plain) and not isinstance(value, enum.Enum))


def is_exact(value: object) -> bool:
    """Whether `code_for` gives the value's own numbers, to six digits, and not random ones in their place."""
    if isinstance(value, torch.Tensor):
        return value.numel() <= _ELEMENTS
    if isinstance(value, dict):
        return all(is_exact(item) for item in value.values())
    return all(is_exact(item) for item in value) if isinstance(value, (list, tuple)) else True


def code_for(value: object, path: str, varying: Collection[str]) -> str:
    """Code that makes `value`.

    Args:
        value: What to make.
        path: Its name among the arguments, such as ``xs[0]``.
        varying: The names of the tensors that require grad.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value.detach(), ", requires_grad=True" if path in varying else "")
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [code_for(item, f"{path}[{index}]", varying) for index, item in enumerate(value)]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)},)" if items else "()"
    if isinstance(value, dict):
        items = [f"{key!r}: {code_for(item, f'{path}[{key!r}]', varying)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    return _number(value) if isinstance(value, (float, complex)) and not isinstance(value, bool) else repr(value)


def _tensor(tensor: torch.Tensor, grad: str) -> str:
    """Exact for small tensors; zeros for empty ones; random ones of the same kind for large."""
    shape = tuple(tensor.shape)
    place = "" if tensor.device.type == "cpu" else f", device={str(tensor.device)!r}"
    kind = f"dtype={tensor.dtype}{place}{grad}"
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
        grad = ".to_sparse()" + (".requires_grad_()" if grad else "")
        return f"{_tensor(tensor, '')}{grad}"
    if tensor.numel() == 0:
        return f"torch.zeros({shape}, {kind})"
    if tensor.numel() <= _ELEMENTS:
        return f"torch.tensor({_nested(tensor.resolve_conj().tolist())}, {kind})"
    if tensor.dtype is torch.bool:
        return f"torch.rand({shape}) < 0.5"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"torch.randint({int(tensor.min())}, {int(tensor.max()) + 1}, {shape}, {kind})"
    positive = not tensor.is_complex() and bool((tensor >= 0).all())
    return f"torch.{'rand' if positive else 'randn'}({shape}, {kind})"


def _nested(value: Any) -> str:
    return f"[{', '.join(map(_nested, value))}]" if isinstance(value, list) else _number(value)


def _number(value: Any) -> str:
    """To six significant digits; NaN and infinity by torch's names."""
    if isinstance(value, complex):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    if not isinstance(value, float):
        return repr(value)
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "torch.nan", "inf": "torch.inf", "-inf": "-torch.inf"}[str(value)]
    return repr(float(f"{value:.6g}"))


# -- the function itself ----------------------------------------------------------------------------------------------


def import_lines(function: Any) -> tuple[list[str], str]:
    """The lines that bring a class or function into reach, and what it is called then."""
    name = short_name(function)
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    place = _place_in(module, function) if module is not None else ""
    if not place or module is None:
        where = getattr(module, "__name__", "")
        return [f"# {name} as it is defined in {where}" if where else f"# {name}, the function that was checked"], name
    top, dot, _ = place.partition(".")
    try:
        path = inspect.getsourcefile(function) or ""
    except TypeError:
        path = ""
    path = path if path and "<" not in path else getattr(module, "__file__", None) or ""
    if module.__name__ != "__main__" and _importable(module.__name__, path):
        lines = [f"from {module.__name__} import {top}"]
    elif path:
        lines = ["import runpy", f"{top} = runpy.run_path({path!r})[{top!r}]"]
    else:
        return [f"# {name} as it is defined in {module.__name__}"], name
    if not dot and top == name:
        return lines, name
    return [*lines, f"{name} = {place}"] if dot else lines, name if dot else top


def short_name(function: Any) -> str:
    """The last part of its name; ``f`` for what has none that could be written."""
    name = str(getattr(function, "__qualname__", "f")).rsplit(".", 1)[-1]
    return name if name.isidentifier() else "f"


def _place_in(module: ModuleType, function: Any) -> str:
    """The dotted name that leads from the module to the function: its own, or another one that it goes by there."""
    qualified = str(getattr(function, "__qualname__", ""))
    value: Any = module
    for part in qualified.split("."):
        value = getattr(value, part, None)
    if value is function and value is not None:
        return qualified
    return next((name for name, other in vars(module).items() if other is function and name.isidentifier()), "")


def _importable(module: str, path: str) -> bool:
    """Whether a fresh interpreter would find `module` at `path`; that it is imported here proves nothing."""
    top, _, rest = module.partition(".")
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec is not None:
            inside = spec.submodule_search_locations or ()
            return any(path.startswith(str(folder)) for folder in inside) if rest else spec.origin == path
    return False
