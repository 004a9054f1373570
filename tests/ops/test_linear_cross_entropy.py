"""What is special to linear_cross_entropy: chunks of either kind, both forms, low precision, shapes, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pullback
from pullback.errors import OperationError, SavedTensorError
from pullback.ops import chunks, linear_cross_entropy, products, projected
from tests.ops.kinds import Kind
from tests.ops.kinds.linear_cross_entropy import KINDS, formula
from tests.ops.live_bytes import calls_of, normal
from tests.ops.runs import drawn, gradients, is_float, mapped, second
from tests.ops.test_each_op import TRANSFORMS, close, of_leaves
from tests.saved_bytes import bytes_kept

each = pytest.mark.parametrize("kind", KINDS, ids=str)
FORMS = ("gradients", "recompute")


@pytest.fixture(params=["whole rows", "some classes"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Cut even small logits into chunks: of two rows, or of two classes by three rows; and those into blocks."""
    rows = request.param == "whole rows"
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 2 * 5 * 8 if rows else 3 * 2 * 8)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 16)
    monkeypatch.setattr(projected, "_LEAST_ROWS", 1 if rows else 1000)
    monkeypatch.setattr(projected, "_LEAST_CLASSES", 2)
    return str(request.param)


@pytest.fixture(params=["upcast", "as it is"])
def multiplied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Multiply bfloat16 through float32, or as on a CPU that has instructions for it."""
    lower = frozenset({torch.bfloat16} if request.param == "as it is" else ())
    monkeypatch.setattr(products, "MULTIPLIED_BY_CPU", lower)
    return str(request.param)


def tokens(count: int = 6, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of 3 features, a weight for 5 classes, and a target with one that is ignored."""
    target = torch.arange(count) % 5
    target[1] = -100
    return normal(count, 3, dtype=dtype), normal(5, 3, dtype=dtype, seed=1), target


def found(function: Any, arguments: tuple[Any, ...], **options: Any) -> Any:
    """The loss and the gradients of all that requires grad."""
    return gradients(lambda *given: function(*given, **options), arguments)


@each
@pytest.mark.usefixtures("chunked")
def test_chunks_give_the_whole(kind: Kind) -> None:
    """In many chunks, values and first and second derivatives are the formula's."""
    arguments = drawn(kind)
    close(gradients(kind.call, arguments), gradients(kind.formula, arguments))
    close(second(kind.call, arguments), second(kind.formula, arguments))


@each
@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_chunks_under_torch_func(kind: Kind, transform: str) -> None:
    """The transforms of torch.func give the same for logits in chunks."""
    arguments = drawn(kind)
    ours, leaves = of_leaves(kind.call, arguments)
    plain, _ = of_leaves(kind.formula, arguments)
    change = TRANSFORMS[transform]
    close(change(ours, len(leaves))(*leaves), change(plain, len(leaves))(*leaves))


@pytest.mark.usefixtures("chunked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
@pytest.mark.parametrize("form", FORMS)
def test_chunks_compiled(form: str) -> None:
    """Compiled in one piece, many chunks give eager's values and gradients."""
    torch._dynamo.reset()
    call = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    close(found(call, tokens(), form=form), found(formula, tokens()))
    torch._dynamo.reset()


@pytest.mark.usefixtures("chunked")
def test_chunks_are_proven() -> None:
    """The whole battery finds nothing where logits are made in chunks."""
    for kind in KINDS[:2]:
        report = pullback.check(kind.call, drawn(kind))
        assert report.ok, str(report)


@each
@pytest.mark.usefixtures("chunked", "multiplied")
def test_chunks_in_low_precision(kind: Kind) -> None:
    """bfloat16 in chunks, upcast or not, is as close to float64 as the formula, within a rounding of the largest."""
    low = mapped(drawn(kind), lambda tensor: tensor.to(torch.bfloat16))
    exact = gradients(kind.formula, mapped(low, Tensor.double))
    for due, came, plain in zip(
        *([*a, *b] for a, b in (exact, gradients(kind.call, low), gradients(kind.formula, low))), strict=True
    ):
        assert came.dtype == plain.dtype == torch.bfloat16
        room = 2 * torch.finfo(torch.bfloat16).eps * float(due.abs().max())
        error = float((came.double() - due).abs().max())
        assert error <= float((plain.double() - due).abs().max()) + room


def test_upcast_products_round_once() -> None:
    """Upcast, each gradient in bfloat16 is within one rounding of float64, after sums over 512 tokens too."""
    x, w, target = normal(512, 64, dtype=torch.bfloat16), normal(300, 64, dtype=torch.bfloat16), torch.arange(512) % 300
    before, products.MULTIPLIED_BY_CPU = products.MULTIPLIED_BY_CPU, frozenset()
    try:
        came = torch.autograd.grad(linear_cross_entropy(x, w, target), (x, w))
    finally:
        products.MULTIPLIED_BY_CPU = before
    exact = mapped((x, w), Tensor.double)
    due = torch.autograd.grad(formula(*exact, target), exact)
    for got, expected in zip(came, due, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-8)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("form", FORMS)
def test_a_target_class_in_each_chunk(form: str) -> None:
    """Each row finds its target in whichever chunk it is, and is told apart from those that are ignored."""
    x, w, _ = tokens(5)
    for ignored in range(5):
        options = {"ignore_index": ignored, "form": form, "reduction": "sum"}
        got = found(linear_cross_entropy, (x, w, torch.arange(5)), **options)
        close(got, found(formula, (x, w, torch.arange(5)), ignore_index=ignored, reduction="sum"))


def bias_of(name: str) -> Tensor:
    """A bias with extreme numbers."""
    inf = math.inf
    rows = {
        "a masked chunk": [-inf, -inf, 0.0, 1.0, 2.0],
        "the last chunk masked": [0.0, 1.0, 2.0, -inf, -inf],
        "all masked": [-inf] * 5,
        "inf": [0.0, inf, 1.0, 2.0, 3.0],
        "nan": [0.0, 1.0, math.nan, 2.0, 3.0],
        "large": [1e4, -1e4, 1e4, 0.0, 1.0],
    }
    return torch.tensor(rows[name], dtype=torch.float64)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["a masked chunk", "the last chunk masked", "all masked", "inf", "nan", "large"])
def test_extreme_logits(name: str, form: str) -> None:
    """Infinite and large logits give what PyTorch gives, wherever the cut is."""
    x, w, _ = tokens(4)
    arguments, bias = (x, w, torch.tensor([2, 4, -100, 0])), bias_of(name)
    got = found(linear_cross_entropy, arguments, linear_bias=bias, form=form)
    close(got, found(formula, arguments, linear_bias=bias), rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_where_no_token_counts(form: str, reduction: str) -> None:
    """The mean of nothing is NaN as in PyTorch, each loss and the sum are 0, and so is each gradient."""
    x, w, target = tokens()
    arguments, options = (x, w, torch.full_like(target, -100)), {"reduction": reduction}
    got = found(linear_cross_entropy, arguments, form=form, **options)
    torch.testing.assert_close(got, found(formula, arguments, **options), rtol=0, atol=0, equal_nan=True)
    assert not any(gradient.any() for gradient in got[1])


def test_forward_makes_what_is_needed_and_no_more() -> None:
    """Of products there is one for the loss, and one for each gradient that is wanted; none in no-grad mode."""
    x, w, target = tokens()

    def count(call: Any) -> int:
        return sum(name in ("mm", "addmm", "addmm_") for name in calls_of(call))

    assert count(lambda: linear_cross_entropy(x, w, target)) == 3
    assert count(lambda: linear_cross_entropy(x, w.detach(), target)) == 2
    assert count(lambda: linear_cross_entropy(x.detach(), w, target)) == 2
    assert count(lambda: linear_cross_entropy(x.detach(), w.detach(), target)) == 1
    assert count(lambda: linear_cross_entropy(x, w, target, form="recompute")) == 1
    with torch.no_grad():
        assert count(lambda: linear_cross_entropy(x, w, target)) == 1


def test_what_is_kept() -> None:
    """Form "gradients" keeps those that are wanted, and nothing else; "recompute", and "none", 4 bytes a token."""
    x, w, target = tokens(dtype=torch.float32)
    known = [x, w, target]

    def kept(x: Tensor, w: Tensor, **options: Any) -> int:
        return bytes_kept(lambda: linear_cross_entropy(x, w, target, **options), known)

    assert kept(x, w) == x.nbytes + w.nbytes
    assert kept(x, w.detach()) == x.nbytes
    assert kept(x.detach(), w) == w.nbytes
    assert kept(x, w, form="recompute") == kept(x, w, reduction="none") == 4 * 6


@pytest.mark.parametrize("factor", [1.0, 0.5, -3.0])
@pytest.mark.parametrize("form", FORMS)
def test_backward_twice(form: str, factor: float) -> None:
    """With retain_graph each backward gives the same, also when the first one's gradients were changed in place."""
    x, w, target = tokens()
    loss = linear_cross_entropy(x, w, target, form=form) * factor
    due = [*torch.autograd.grad(formula(x, w, target) * factor, (x, w))]
    loss.backward(retain_graph=True)
    close([x.grad, w.grad], due)
    assert x.grad is not None
    assert w.grad is not None
    x.grad.zero_()
    w.grad.zero_()
    loss.backward()
    close([x.grad, w.grad], due)


def test_a_gradient_that_is_overwritten_is_noticed() -> None:
    """Gradients of a graph that is retained are the kept ones: backward raises if they were changed, and names them."""
    x, w, target = tokens()
    loss = linear_cross_entropy(x, w, target)
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    again = torch.autograd.grad(loss, (x, w), retain_graph=True)
    close(again, first, rtol=0, atol=0)
    first[1].zero_()
    with pytest.raises(SavedTensorError, match="PB301"):
        torch.autograd.grad(loss, (x, w))


def test_float16_is_scaled_before_it_is_rounded() -> None:
    """Gradients that are too small for float16 survive where the loss is scaled up, as under a gradient scaler."""
    x, w = (normal(4, 8) * 2**-16).half().detach(), normal(6, 8, dtype=torch.float16, seed=1)
    target, scale = torch.arange(4), 1024.0
    got = torch.autograd.grad(linear_cross_entropy(x, w, target) * scale, w)[0]
    exact = w.detach().double().requires_grad_()
    due = torch.autograd.grad(formula(x.double(), exact, target) * scale, exact)[0]
    torch.testing.assert_close(got.double(), due, rtol=2e-3, atol=1e-7)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one token": ((3,), ()),
    "tokens": ((4, 3), (4,)),
    "texts": ((2, 4, 3), (2, 4)),
    "no texts": ((0, 4, 3), (0, 4)),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", SHAPES)
def test_batch_shapes(name: str, reduction: str) -> None:
    """The loss of each token has target's shape; gradients have their arguments' shapes."""
    shape, batch = SHAPES[name]
    arguments = (normal(*shape, dtype=torch.float64), tokens()[1], torch.zeros(batch).long())
    got, (of_input, of_weight) = found(linear_cross_entropy, arguments, reduction=reduction)
    flat = (arguments[0].reshape(-1, 3), arguments[1], arguments[2].reshape(-1))
    due, firsts = found(lambda *given: formula(*given, reduction=reduction), flat)
    close(got[0], due[0].reshape(batch) if reduction == "none" else due[0], equal_nan=True)
    assert of_input.shape == shape
    if reduction != "none":  # there the cotangents are others
        close([of_input.flatten(), of_weight], [firsts[0].flatten(), firsts[1]])


def layouts() -> Iterator[Any]:
    """Weights that no product can read in place, and texts whose tokens lie apart."""
    wide = torch.randn(5, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    yield pytest.param(wide[..., 1], id="sliced")
    yield pytest.param(wide[..., 0].t().contiguous().t(), id="transposed")
    yield pytest.param(wide[:1, :, 0].expand(5, 3), id="expanded")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weight", [*layouts()])
@pytest.mark.usefixtures("chunked")
def test_layouts(weight: Tensor, form: str) -> None:
    """Strided weights and permuted batches give the formula's numbers."""
    x = normal(2, 3, 3, dtype=torch.float64).detach().transpose(0, 1).requires_grad_()
    w, target = weight.requires_grad_(), torch.tensor([[0, 4], [1, 2], [-100, 3]])
    close(found(linear_cross_entropy, (x, w, target), form=form), found(formula, (x, w, target)))


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_pytorchs_own(reduction: str) -> None:
    """Called by PyTorch's own names it gives PyTorch's numbers: with positions, and with probabilities too."""
    x, w, target = tokens()
    options: dict[str, Any] = {"linear_bias": normal(5, dtype=torch.float64, seed=2), "reduction": reduction}
    smooth = {**options, "label_smoothing": 0.1, "weight": torch.rand(5).double(), "ignore_index": 3}
    torch_own: Any = F.linear_cross_entropy
    target[1] = 3
    close(found(linear_cross_entropy, (x, w, target), **smooth), found(torch_own, (x, w, target), **smooth))
    likely = normal(6, 5, dtype=torch.float64, seed=3).detach().softmax(1).requires_grad_()
    close(found(linear_cross_entropy, (x, w, likely), **options), found(torch_own, (x, w, likely), **options))
    deep, places = normal(5, 2, 4, 3, dtype=torch.float64), torch.arange(48).view(6, 2, 4) % 5
    got = found(linear_cross_entropy, (x, deep, places), reduction=reduction)
    close(got, found(torch_own, (x, deep, places), reduction=reduction))


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_under_autocast(form: str, within: bool) -> None:
    """The products run in the lower dtype, the loss comes in float32, also with backward under autocast."""
    x, w, target = tokens(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(x, w, target, form=form)
        due = formula(x, w, target)
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        got = torch.autograd.grad(loss, (x, w))
    assert loss.dtype == due.dtype == torch.float32
    assert {gradient.dtype for gradient in got} == {torch.float32}
    torch.testing.assert_close(loss, due, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(got, torch.autograd.grad(due, (x, w)), rtol=3e-2, atol=3e-3)


def test_in_place_changes_are_noticed() -> None:
    """What backward needs of its arguments may not be overwritten in between, in the form that reads them again."""
    x, w, target = tokens()
    hidden = x * 1.0
    loss = linear_cross_entropy(hidden, w, target, form="recompute")
    hidden.zero_()
    with pytest.raises(RuntimeError, match="input"):
        loss.backward()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "form": ({"form": "both"}, r"`form`(.|\n)*'gradients' or 'recompute'(.|\n)*got: +'both'"),
    "features": ({"input": torch.zeros(6, 4)}, r"`input` and `linear_weight` don't fit(.|\n)*\(6, 4\) and \(5, 3\)"),
    "no classes": ({"linear_weight": torch.zeros(0, 3)}, r"at least one class(.|\n)*\(6, 3\) and \(0, 3\)"),
    "positions": ({"input": torch.zeros(2, 3, 3), "linear_weight": torch.zeros(5, 2, 3)}, r"\(B, H\) and \(V, d1"),
    "bias": ({"linear_bias": torch.zeros(3)}, r"`linear_bias` doesn't fit(.|\n)*shape \(5,\)(.|\n)*shape \(3,\)"),
    "dtypes": ({"linear_weight": torch.zeros(5, 3).double()}, r"one floating-point dtype(.|\n)*float32, torch.float64"),
    "target": ({"target": torch.zeros(5).long()}, r"`target` doesn't fit(.|\n)*\(6,\)(.|\n)*int64 of shape \(5,\)"),
    "target's dtype": ({"target": torch.zeros(6)}, r"`target` of shape \(6,\)(.|\n)*got: +torch\.float32"),
    "reduction": ({"reduction": "max"}, r"linear_cross_entropy: `reduction`(.|\n)*'max'"),
    "weight": ({"weight": torch.ones(4)}, r"linear_cross_entropy: `weight`(.|\n)*\(5,\)(.|\n)*\(4,\)"),
    "a target too large": ({"target": torch.arange(6)}, r"linear_cross_entropy: Target 5 is out of bounds"),
    "ignored among probabilities": (
        {"target": torch.full((6, 5), 0.2), "ignore_index": 1},
        r"`ignore_index` has no meaning(.|\n)*\(6, 5\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """PB130 names the argument, what was expected and what came."""
    change, text = REFUSED[name]
    x, w, target = (a.detach().float() if is_float(a) else a for a in tokens())
    arguments: dict[str, Any] = {"input": x, "linear_weight": w, "target": target, **change}
    with pytest.raises(OperationError, match=text) as caught:
        linear_cross_entropy(**arguments)
    assert caught.value.rule == "PB130"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [0, 3])
def test_no_features(form: str, count: int) -> None:
    """With tokens of no features all classes are as likely, and the gradients are empty."""
    x, w, target = normal(count, 0, dtype=torch.float64), normal(5, 0, dtype=torch.float64), torch.arange(count)
    due = found(formula, (x, w, target), reduction="sum")
    close(found(linear_cross_entropy, (x, w, target), reduction="sum", form=form), due)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_cotangents_with_all_options(form: str) -> None:
    """With is_grads_batched each cotangent meets class weights, smoothing, a bias and an ignored token."""
    x, w, target = tokens()
    bias, weight = normal(5, dtype=torch.float64, seed=2), torch.rand(5, dtype=torch.float64)
    options = {"linear_bias": bias, "weight": weight, "label_smoothing": 0.2}
    for reduction in ("none", "mean"):
        results = []
        for call in (lambda *given, **rest: linear_cross_entropy(*given, form=form, **rest), formula):
            loss = call(x, w, target, reduction=reduction, **options)
            batch = torch.stack([torch.cos(i + torch.arange(loss.numel())).view(loss.shape).double() for i in range(3)])
            results.append(torch.autograd.grad(loss, (x, w, bias), batch, is_grads_batched=True))
        close(*results)
