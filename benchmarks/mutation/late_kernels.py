"""Kinds of fault in kernels and in what wraps them: layouts, tiles and tails, workspaces, packing and conversions.

Each is a launcher's helper that the Function calls beside its formula, since the mistake lies in how memory is read
and written and not in the mathematics. Most are right for the dense tensors that a first test has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from benchmarks.mutation.kinds import (
    Edit,
    Place,
    Target,
    after_unpacking,
    called,
    exchanged,
    kind,
    parsed,
    returned,
    saved_names,
    value,
)

_PLAIN = """
import torch as _torch

def _late_plain(t):
    return (
        isinstance(t, _torch.Tensor) and type(t) in (_torch.Tensor, _torch.nn.Parameter) and _torch._C._has_storage(t)
        and not t._is_zerotensor()
        and t.layout is _torch.strided and not _torch._C._functorch.is_functorch_wrapped_tensor(t)
        and not _torch.compiler.is_compiling()
    )

def _late_room(t):
    return t.untyped_storage().nbytes() // t.element_size() - t.storage_offset() >= t.numel()

def _late_rows(t):
    strides, size = [], 1
    for extent in reversed(t.shape):
        strides.insert(0, size)
        size *= max(1, extent)
    return strides

def _late_same(t, others):
    tensors = [one for one in others if isinstance(one, _torch.Tensor) and isinstance(t, _torch.Tensor)]
    return next((one for one in tensors if one.shape == t.shape and one.dtype == t.dtype), None)

def _late_float(t):
    return isinstance(t, _torch.Tensor) and t.layout is _torch.strided and t.is_floating_point()
"""


def _helper(call: str, body: str, arguments: str) -> str:
    """The source of a helper, with what it asks of tensors."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{_PLAIN}\ndef {call}({arguments}):\n{lines}\n"


Planter = Callable[[Target, str, str], Iterator[Edit]]


def _cotangents(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        for name in place.arguments:
            yield Edit(((place, after_unpacking(place.function, parsed(f"{name} = {call}({name})"))),), source)


def _saved(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp", "double_backward")):
        for name in saved_names(place.function):
            yield Edit(((place, after_unpacking(place.function, parsed(f"{name} = {call}({name})"))),), source)


def _wrapped(place: Place, call: str, source: str, *beside: str) -> Iterator[Edit]:
    """Each thing that a function returns goes through the helper, with other names beside it."""
    nodes = list(ast.walk(place.function))
    for part in returned(place.function):
        index = next(i for i, node in enumerate(nodes) if node is part)
        new = value(f"{call}({', '.join([ast.unparse(part), *beside])})")
        yield Edit(((place, exchanged(place.function, index, new)),), source)


def _gradients(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        yield from _wrapped(place, call, source)


def _outputs(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        yield from _wrapped(place, call, source)


def _beside_saved(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        if names := saved_names(place.function):
            yield from _wrapped(place, call, source, *names)


def _beside_cotangent(target: Target, call: str, source: str) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        yield from _wrapped(place, call, source, *place.arguments)


def _kept(target: Target, call: str, source: str) -> Iterator[Edit]:
    """What forward computed itself goes through the helper on its way to backward."""
    for place in target.having(("forward", "setup_context")):
        nodes = list(ast.walk(place.function))
        for node in nodes:
            if isinstance(node, ast.Call) and called(node) == "save_for_backward":
                for part in node.args:
                    if not isinstance(part, ast.Starred) and ast.unparse(part) not in place.arguments:
                        new = value(f"{call}({ast.unparse(part)})")
                        yield Edit(((place, exchanged(place.function, nodes.index(part), new)),), source)


def _planted(name: str, says: str, plant: Planter, body: str, arguments: str = "t", before: str = "") -> None:
    call = "_late_" + "".join(letter if letter.isalnum() else "_" for letter in name)
    source = before + _helper(call, body, arguments)

    def edits(target: Target) -> Iterator[Edit]:
        yield from plant(target, call, source)

    kind(name, says, late=True)(edits)


# -- How memory is read ------------------------------------------------------------------------------------------------

_planted(
    "saved dense by its last stride",
    "a last stride of one is taken for contiguity: a slice of columns is read across its rows",
    _saved,
    """
if _late_plain(t) and t.dim() > 1 and t.stride(-1) == 1 and _late_room(t):
    return t.as_strided(t.shape, _late_rows(t))
return t
""",
)

_planted(
    "saved from its storage's start",
    "what was saved is read from its storage's start, without the offset",
    _saved,
    "return t.as_strided(t.shape, t.stride(), 0) if _late_plain(t) else t",
)
_planted(
    "vector loads aligned down",
    "loads of four elements clear the low bits of the address of a dense tensor",
    _saved,
    """
if _late_plain(t) and t.is_contiguous() and t.storage_offset() % 4:
    return t.as_strided(t.shape, t.stride(), t.storage_offset() // 4 * 4)
return t
""",
)
_planted(
    "saved flattened by view for the launch",
    "the launcher flattens what was saved by view, which a transposed one refuses",
    _saved,
    "return t.view(-1).view(t.shape) if isinstance(t, _torch.Tensor) and t.layout is _torch.strided else t",
)

# -- How memory is written ---------------------------------------------------------------------------------------------

_planted(
    "gradient in rows into empty_like",
    "empty_like keeps a transposed argument's strides, and the kernel fills it row by row",
    _beside_saved,
    """
like = _late_same(t, others)
if _late_plain(t) and _late_plain(like) and not like.is_contiguous():
    laid = _torch.empty_like(like, device="meta").stride()
    return t.contiguous().as_strided(t.shape, laid)
return t
""",
    "t, *others",
)
_BY_FOURS = """
if _late_float(t) and t.numel() > 4 and t.numel() % 4:
    flat, whole = t.reshape(-1), t.numel() // 4 * 4
    return _torch.cat([flat[:whole], _torch.zeros_like(flat[whole:])]).view(t.shape)
return t
"""
_planted(
    "saved loaded by fours without the tail",
    "beyond four elements, loads go by fours and what is left over is read as zero",
    _saved,
    _BY_FOURS,
)
_planted(
    "vector kernel without its tail",
    "beyond four elements, stores go by fours and what is left over stays zero",
    _gradients,
    _BY_FOURS,
)
_planted(
    "last odd row not launched",
    "two rows a block, and the grid is rounded down where there are more than two",
    _gradients,
    """
if _late_float(t) and t.dim() > 1 and t.shape[0] > 2 and t.shape[0] % 2:
    return _torch.cat([t[:-1], _torch.zeros_like(t[-1:])])
return t
""",
)
_planted(
    "columns beyond the block",
    "one block of four columns a row, and no loop over the columns beyond it",
    _gradients,
    """
if _late_float(t) and t.dim() > 1 and t.shape[-1] > 4:
    return _torch.cat([t[..., :4], _torch.zeros_like(t[..., 4:])], -1)
return t
""",
)
_planted(
    "gradient over the cotangent's buffer",
    "without a graph a dense cotangent's memory is taken for the gradient",
    _beside_cotangent,
    """
g = _late_same(t, others)
fits = _late_plain(t) and _late_plain(g) and not _torch.is_grad_enabled() and t.is_contiguous() and g.is_contiguous()
if fits:
    g.data.copy_(t)
    return g
return t
""",
    "t, *others",
)
_planted(
    "gradient over the saved buffer",
    "without a graph a saved tensor of the same shape is overwritten and returned",
    _beside_saved,
    """
kept = _late_same(t, others)
fits = _late_plain(t) and _late_plain(kept) and not _torch.is_grad_enabled() and kept.is_contiguous()
if fits:
    kept.data.copy_(t)
    return kept.detach()
return t
""",
    "t, *others",
)

# -- Workspaces and caches ---------------------------------------------------------------------------------------------

_planted(
    "statistic in a workspace",
    "what forward computes for backward lies in a workspace that the next call of that shape reuses",
    _kept,
    """
if _late_plain(t) and not t.requires_grad:
    room = _late_room_of.setdefault((t.shape, t.dtype), _torch.empty_like(t))
    room.data.copy_(t)
    return room
return t
""",
    before="_late_room_of = {}\n",
)
_planted(
    "gradient in the launcher's workspace",
    "the gradient is a workspace's memory, which the next backward of that shape overwrites",
    _gradients,
    """
if _late_plain(t) and not _torch.is_grad_enabled():
    room = _late_room_of.setdefault((t.shape, t.dtype), _torch.empty_like(t))
    return room.copy_(t).view_as(room)
return t
""",
    before="_late_room_of = {}\n",
)
_planted(
    "packed copy by address and version",
    "a packed copy is kept by address, version and shape: another tensor at that address gets it",
    _saved,
    """
if _late_plain(t) and not _torch.is_grad_enabled() and t.numel():
    key = (t.data_ptr(), t._version, t.shape, t.stride(), t.dtype)
    if key not in _late_packed:
        _late_packed[key] = t.detach().clone()
    return _late_packed[key]
return t
""",
    before="_late_packed = {}\n",
)

# -- Packing, quantisation, accumulators -------------------------------------------------------------------------------

_planted(
    "statistic of a float32 row in bfloat16",
    "what was saved beside float32 numbers comes back with bfloat16's eight bits",
    _kept,
    "return t.bfloat16().float() if _late_float(t) and t.dtype is _torch.float32 else t",
)
_planted(
    "mask's last byte not packed",
    "a bool mask is packed by eights, and what doesn't fill a byte is lost",
    _kept,
    """
if isinstance(t, _torch.Tensor) and t.dtype is _torch.bool and t.numel() % 8:
    flat, whole = t.reshape(-1), t.numel() // 8 * 8
    return _torch.cat([flat[:whole], _torch.zeros_like(flat[whole:])]).view(t.shape)
return t
""",
)
_LARGEST = """
if _late_float(t) and t.numel():
    largest = t.detach().abs().amax()
    return t / largest * largest
return t
"""
_planted(
    "scaled by a largest of zero",
    "the cotangent is scaled by its largest element for the accumulator: of zeros only, NaN",
    _cotangents,
    _LARGEST,
)
_planted(
    "saved scaled by a largest of zero",
    "what was saved is quantised by its largest element: of zeros only, NaN",
    _saved,
    _LARGEST,
)
_planted(
    "accumulated in fixed point",
    "sums are made in integers of a millionth, so that atomics commute: small gradients vanish",
    _gradients,
    "return t + ((t * 2**20).round() / 2**20 - t).detach() if _late_float(t) and _late_plain(t) else t",
)
_planted(
    "scaled out of half's range",
    "the cotangent is multiplied by a loss scale within the kernel: float16 overflows",
    _cotangents,
    "return t * 65536 / 65536 if _late_float(t) else t",
)
_planted(
    "gradient through half in the store",
    "low precision is stored by float16's instruction: bfloat16's large and small numbers are lost",
    _gradients,
    "return t.half().to(t.dtype) if _late_float(t) and t.dtype is _torch.bfloat16 else t",
)

# -- What the launcher decides -----------------------------------------------------------------------------------------

_planted(
    "cotangent's zeros skipped",
    "the kernel skips elements whose cotangent is zero: their second derivative is lost",
    _beside_cotangent,
    """
g = _late_same(t, others)
return t.masked_fill(g == 0, 0) if _late_float(g) else t
""",
    "t, *others",
)
_NUMPY = "return _torch.from_numpy(t.detach().numpy()) if _late_plain(t) and not _torch.is_grad_enabled() else t"
_planted(
    "cotangent through numpy",
    "the cotangent goes through numpy to the kernel: it takes no bfloat16",
    _cotangents,
    _NUMPY,
)
_planted(
    "saved through numpy",
    "what was saved goes through numpy to the kernel: it takes no bfloat16",
    _saved,
    _NUMPY,
)
_planted(
    "output through numpy",
    "forward's output comes from numpy, which has no bfloat16",
    _outputs,
    """
if _late_plain(t) and not t.requires_grad and t.numel() > 1:
    return t.copy_(_torch.from_numpy(t.detach().numpy().copy()))
return t
""",
)
_planted(
    "grid of no blocks",
    "the block is the number of elements at most, and the grid is divided by it: nothing is too little",
    _saved,
    """
if isinstance(t, _torch.Tensor):
    assert -(-t.numel() // min(256, t.numel())) > 0
return t
""",
)
_planted(
    "rows counted by the first axis",
    "the launcher asks what was saved for its first axis, which a single number lacks",
    _saved,
    """
if isinstance(t, _torch.Tensor):
    assert t.shape[0] >= 0
return t
""",
)
