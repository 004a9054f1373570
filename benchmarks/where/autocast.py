"""Autocast: a product of matrices that declares, in its library's own way, to compute in float32 throughout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

from benchmarks.where.want import CUSTOM_OP, FUNCTION, TORCH, Call, Operation, Section, Want, classes, custom_op, vjp


def product(x: Tensor, w: Tensor) -> Tensor:
    """The operation."""
    return x @ w


def in_float32(x: Tensor, w: Tensor) -> Tensor:
    """The same to float32's precision, whatever is around it: autocast leaves float64 alone, in backward too."""
    return product(x.double(), w.double()).float()


def product_gradients(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Its gradients: two products, of what was saved and of what comes from behind."""
    return g @ w.mT, x.mT @ g


def forward_of(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
    """forward with ctx."""
    ctx.save_for_backward(x, w)
    return product(x, w)


def backward_of(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
    """backward, in either style."""
    return product_gradients(*ctx.saved_tensors, g)


def save_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    """setup_context."""
    ctx.save_for_backward(*inputs)


def plain_style(base: type) -> Any:
    """A class with ctx that declares nothing."""

    class MatrixProduct(base):
        forward = staticmethod(forward_of)
        backward = staticmethod(backward_of)

    return MatrixProduct


def set_up_style(base: type) -> Any:
    """The same in setup_context style."""

    class MatrixProduct(base):
        forward = staticmethod(product)
        setup_context = staticmethod(save_inputs)
        backward = staticmethod(backward_of)

    return MatrixProduct


def cast(make: Call) -> Call:
    """pullback's declaration: an attribute of the class."""

    def declare(base: type) -> Any:
        class MatrixProduct(make(base)):
            cast_inputs = torch.float32

        return MatrixProduct

    return declare


def decorated(make: Call) -> Call:
    """PyTorch's declaration: a decorator on each method."""

    def declare(base: type) -> Any:
        written = make(base)
        take = custom_fwd(device_type="cpu", cast_inputs=torch.float32)

        class MatrixProduct(written):
            forward = staticmethod(take(written.forward))
            backward = staticmethod(custom_bwd(written.backward, device_type="cpu"))

        return MatrixProduct

    return declare


def styled(make: Call) -> dict[str, Any]:
    """The two class columns, each with its own declaration."""
    return {FUNCTION: classes(cast(make))[FUNCTION], TORCH: classes(decorated(make))[TORCH]}


def by_rule(**declared: Any) -> dict[str, Any]:
    """The decorator, which takes its declaration as an argument."""
    return vjp(
        "MatrixProduct",
        product,
        lambda x, w: (product(x, w), (x, w)),
        lambda saved, g: product_gradients(*saved, g),
        **declared,
    )


def registered() -> Call:
    """The registered operator, with PyTorch's declaration for those."""
    op = OPERATOR[CUSTOM_OP]()
    op.register_autocast("cpu", torch.float32)
    return op


OPERATOR = custom_op("MatrixProduct", "(Tensor x, Tensor w) -> Tensor", product, backward_of, save_inputs, fake=product)
DECLARED = Operation(
    "MatrixProduct",
    in_float32,
    {**styled(plain_style), **by_rule(cast_inputs=torch.float32), CUSTOM_OP: registered},
)
DECLARED_SET_UP = Operation("MatrixProduct", in_float32, styled(set_up_style))
UNDECLARED = Operation(
    "MatrixProduct",
    product,
    {
        **classes(plain_style),
        **by_rule(),
        **OPERATOR,
    },
)


def arguments(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two matrices, the first in `dtype` and the second in float32, both leaves."""
    x = torch.linspace(-1, 1, 6).reshape(2, 3).to(dtype).requires_grad_()
    w = torch.linspace(1.5, -0.7, 12).reshape(3, 4).requires_grad_()
    return x, w


def weighted(y: Tensor) -> Tensor:
    """A number that depends on each element in its own way."""
    return (y.float() ** 2 * torch.linspace(0.4, 1.7, y.numel()).reshape(y.shape)).sum()


def mixed(f: Call, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The value, its dtype and the gradients of a forward under autocast, with backward behind it."""
    x, w = arguments(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    return (y, *torch.autograd.grad(weighted(y), (x, w)))


def backward_inside(f: Call) -> Any:
    """The same with backward under autocast, too."""
    x, w = arguments(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
        return (y, *torch.autograd.grad(weighted(y), (x, w)))


def penalty(f: Call) -> Any:
    """The gradients of a gradient's square, where forward was under autocast."""
    x, w = arguments(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    (gradient,) = torch.autograd.grad(weighted(y), x, create_graph=True)
    return torch.autograd.grad((gradient**2).sum(), (x, w))


def compiled(f: Call) -> Any:
    """The gradients under autocast in a compiled region."""
    torch.compiler.reset()
    return mixed(torch.compile(f, backend="aot_eager", fullgraph=True))


SECTION = Section(
    "Autocast",
    "A product of a bfloat16 matrix (for the second derivative, a float32 one) and a float32 one, under "
    "`torch.autocast` to bfloat16, that its author wants in float32 throughout, backward included. It is compared in "
    "float32, since autocast leaves float64 alone. pullback has `cast_inputs` on the class and for the decorator, "
    "PyTorch's class `custom_fwd` and `custom_bwd`, and its `custom_op` `register_autocast`; JAX has no autocast. In "
    "the last row nothing is declared, so that backward meets both dtypes in one product, and the right answer is an "
    "error that names the operation. `pullback check` finds it beforehand, PB517.",
    [
        Want("autocast, backward outside of it", DECLARED, mixed),
        Want("autocast, backward inside of it", DECLARED, backward_inside),
        Want("autocast, setup_context style", DECLARED_SET_UP, mixed),
        Want("autocast, second derivative", DECLARED, penalty),
        Want("autocast in compiled code, aot_eager", DECLARED, compiled, compiled=True),
        Want("autocast, nothing declared", UNDECLARED, mixed, error=("dtype",)),
    ],
)
