"""What the methods and functions of PyTorch give back: a view, perhaps a view, no tensor, or memory of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

DTYPES = frozenset(
    "float32 float float64 double float16 half bfloat16 complex32 chalf complex64 cfloat complex128 cdouble uint8 int8 "
    "int16 short int32 int int64 long bool uint16 uint32 uint64 quint8 qint8 qint32 float8_e4m3fn float8_e5m2 "
    "float8_e4m3fnuz float8_e5m2fnuz".split()
)

VIEWS = frozenset(
    "adjoint alias as_strided broadcast_to chunk conj detach diagonal dsplit expand expand_as hsplit imag mH mT H T "
    "movedim moveaxis narrow permute positive real select split split_with_sizes squeeze swapaxes swapdims t "
    "tensor_split transpose unbind unflatten unfold unsafe_chunk unsqueeze view view_as view_as_complex view_as_real "
    "vsplit values indices crow_indices col_indices data resolve_neg untyped_storage storage".split()
)
"""Their result shares memory with the tensor."""

TUPLES = frozenset(
    "chunk dsplit hsplit split split_with_sizes tensor_split unbind unsafe_chunk vsplit aminmax cummax cummin frexp "
    "histogram histogramdd kthvalue lu median_with_dims mode qr slogdet sort svd topk unique unique_consecutive "
    "nonzero_tuple broadcast_tensors meshgrid atleast_1d_several eig eigh ldl_factor lu_factor lstsq solve_ex inv_ex "
    "cholesky_ex triangular_solve geqrf var_mean std_mean".split()
)
"""Their result is a tuple of tensors."""

EITHER = frozenset("max min median nanmedian unique where nonzero split_copy".split())
"""Their result is a tensor or a tuple of them, by what they are given."""

MAYBE_VIEWS = frozenset(
    "reshape reshape_as contiguous to type type_as float double half bfloat16 int long short char byte bool cfloat "
    "cdouble cpu cuda xpu npu to_dense flatten ravel resolve_conj atleast_1d atleast_2d atleast_3d squeeze_multiple "
    "coalesce pin_memory to_mkldnn share_memory asarray as_tensor from_numpy broadcast_tensors meshgrid conj_physical "
    "dropout alpha_dropout pad nan_to_num contiguous_format sum_to_size index_select_view __getitem__".split()
)
"""Their result may be the tensor itself, or share its memory."""

NUMBERS = frozenset(
    "dim ndimension numel nelement item stride storage_offset data_ptr element_size get_device tolist q_scale "
    "q_zero_point sparse_dim dense_dim nbytes ndim itemsize _version output_nr get_rng_state seed initial_seed "
    "get_num_threads device_count current_device".split()
)
SHAPES = frozenset(("size", "shape", "broadcast_shapes", "Size"))
BOOLS = frozenset(
    "is_contiguous is_floating_point is_complex is_signed is_tensor is_pinned is_set_to is_shared is_cuda is_leaf "
    "is_sparse is_quantized is_meta is_mps is_xpu is_cpu is_nested requires_grad is_inference is_coalesced is_conj "
    "is_neg equal allclose is_same_size retains_grad is_grad_enabled is_autocast_enabled is_storage is_nonzero "
    "is_anomaly_enabled is_inference_mode_enabled".split()
)
ARRAYS = frozenset(("numpy", "__array__"))

NO_TENSORS = frozenset(
    "no_grad enable_grad set_grad_enabled inference_mode autocast device dtype finfo iinfo Generator manual_seed Size "
    "Stream Event compile jit ops save load get_default_dtype set_default_dtype promote_types result_type can_cast "
    "is_warn_always_enabled use_deterministic_algorithms set_printoptions typename memory_format layout "
    "get_autocast_gpu_dtype get_autocast_dtype get_device_module cond vmap seed backward register_hook".split()
)
"""Names of ``torch`` and of tensors that give no tensor, or nothing that is known."""

FACTORIES = frozenset(
    "arange as_tensor asarray bartlett_window blackman_window complex empty empty_like empty_permuted empty_strided "
    "eye from_numpy full full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like "
    "polar rand rand_like randint randint_like randn randn_like randperm range scalar_tensor sparse_coo_tensor tensor "
    "tril_indices triu_indices zeros zeros_like stack cat concat concatenate hstack vstack dstack column_stack einsum "
    "block_diag cartesian_prod".split()
)
"""Functions of ``torch`` that give a tensor, and are no methods of tensors."""

WITHOUT_METHOD = ("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.")
"""Modules whose functions give tensors."""

# Methods that lists, dicts, strings, modules, linear operators, solvers and others have as well: no sign of a tensor.
_SHARED = frozenset(
    "add adjoint align_to all any apply apply_ argmax argmin argsort backward bfloat16 bool byte bytes char "
    "cholesky clear clone conj copy count cpu cuda cumprod cumsum data debug det detach device diagonal difference "
    "dot double dtype equal error eval expand fill flatten float format get grad half imag index index_put info int "
    "intersection inverse is_shared item items itemsize join keys layout log log_ logdet long lu lu_solve map "
    "matmul max mean min mm module mv name names nbytes ndim new nonzero numpy parameters partition pop prod push "
    "put qr ravel real reduce reduce_ register_hook remove rename repeat requires_grad_ reshape resize resize_ "
    "round select shape share_memory short size solve sort split squeeze squeeze_ state_dict std storage strip sum "
    "svd swapaxes T take to tolist trace train transpose type union unique update values var view wait warning "
    "where".split()
)


@cache
def torch_names() -> Mapping[str, frozenset[str]]:
    """Module -> the names that any release of torch since 2.0 has in it; ``torch.Tensor`` holds the methods."""
    found: dict[str, set[str]] = {}
    module = ""
    with open(os.path.join(os.path.dirname(__file__), "torch_names.txt"), encoding="utf-8") as text:
        lines = text.read().splitlines()
    for line in lines:
        if line.startswith(" "):
            found[module].update(line.split())
        elif line and not line.startswith("#"):
            module = line
            found[module] = set()
    return {name: frozenset(names) for name, names in found.items()}


@cache
def telling_methods() -> frozenset[str]:
    """Methods that tensors have, and hardly anything else: who calls one shows that it has a tensor."""
    return torch_names()["torch.Tensor"] - _SHARED


def is_in_place(name: str) -> bool:
    """Whether a method of tensors writes into the tensor: its name ends in one underscore."""
    if name.endswith("__") or not name.endswith("_") or name in ("requires_grad_", "share_memory_"):
        return False
    return name in torch_names()["torch.Tensor"]


def gives_tensor(dotted: str) -> bool:
    """Whether a function of PyTorch is known to give a tensor (or, those of `EITHER`, several)."""
    if dotted.startswith(WITHOUT_METHOD):
        return not dotted.rpartition(".")[2].startswith(("_", "is_"))
    module, _, name = dotted.rpartition(".")
    if module != "torch" or name in NO_TENSORS:
        return False
    return name in FACTORIES or (name in torch_names()["torch.Tensor"] and name in torch_names()["torch"])
