"""The probe `layouts`: memory order changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.arrangements import CONJUGATED, NEGATED, arrangements
from pullback.battery.probes import layouts
from pullback.battery.samples import Sample
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


def memory_of(tensor: Tensor) -> Tensor:
    """The elements as a raw pointer walks over them."""
    tensor = tensor.detach()
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())[tensor.storage_offset() :]
    padded = torch.cat([whole[: tensor.numel()], whole.new_zeros(max(0, tensor.numel() - whole.numel()))])
    return padded.view(tensor.shape)


class Triple(Function):
    """3x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 3


def test_layouts_hold_the_same_values() -> None:
    """Each pair is equal, and the second isn't plain memory order."""
    pairs = list(arrangements(torch.rand(2, 3, 4, 5)))
    assert [name for name, _, _ in pairs] == [
        "transposed",
        "sliced",
        "padded",
        "permuted",
        "offset",
        "channels last",
        "lazily negated",
        "expanded",
        "expanded in each row",
        "expanded from one element",
    ]
    for name, plain, arranged in pairs:
        assert plain.is_contiguous()
        assert torch.equal(plain, arranged), name
        assert not arranged.is_contiguous() or arranged.storage_offset() > 0, name


def test_a_backward_by_strides_passes() -> None:
    """In every layout."""
    assert run_probe(layouts.PROBE, Triple, (leaf(2, 3),), (leaf(2, 3, 2, 2),), (leaf(4),))[1] == ()


def test_a_backward_by_memory_order_is_found() -> None:
    """PB405 lists the layouts in which it is wrong."""

    class Blind(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return memory_of(g) * 3

    _, (finding,) = run_probe(layouts.PROBE, Blind, (leaf(2, 3),))
    assert finding.rule == "PB405"
    expanded = ["expanded", "expanded in each row", "expanded from one element"]
    assert finding.evidence["layouts"] == ["transposed", "sliced", "padded", NEGATED, *expanded]


def rows_of(tensor: Tensor, row: int) -> Tensor:
    """What a kernel reads for which the elements of a row lie side by side, and rows lie so far apart."""
    if not tensor.dim() or tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
        row = tensor.shape[-1] if tensor.dim() else 1
    at = torch.arange(tensor.shape[:-1].numel()).view(-1, 1) * row + torch.arange(tensor.shape[-1])
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())[tensor.storage_offset() :]
    return whole.take(at.clamp(max=whole.numel() - 1)).view(tensor.shape)


def two_findings(function: Any, x: Tensor, layout: str) -> None:
    """PB405 and PB407 name the layout, and their lines show it."""
    of_g, of_x = run_probe(layouts.PROBE, function, (x,))[1]
    assert (of_g.rule, of_x.rule) == ("PB405", "PB407")
    assert layout in of_g.message
    assert layout in of_x.message
    assert shows_the_fault(of_g, **{function.__name__: function})
    assert shows_the_fault(of_x, **{function.__name__: function})


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_a_kernel_that_takes_rows_to_lie_side_by_side_is_found(shape: tuple[int, ...]) -> None:
    """Also where it copies what isn't dense within a row, as many do."""

    class Packed(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return rows_of(x.detach(), x.shape[-1]) * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return rows_of(g, g.shape[-1]) * 3

    two_findings(Packed, leaf(*shape), "padded")


def test_a_kernel_that_steps_through_all_rows_by_one_stride_is_found() -> None:
    """With three axes, of which the first two can't be merged."""

    class OneStride(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return rows_of(x.detach(), x.stride(-2)) * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return rows_of(g, g.stride(-2)) * 3

    two_findings(OneStride, leaf(2, 3, 4), "permuted")


def test_a_cotangent_that_repeats_in_each_row_is_no_constant() -> None:
    """PB405: it comes so from a sum over the last axis."""

    class OfOneNumber(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g.flatten()[0].expand(g.shape) if g.stride(-1) == 0 else g) * 3

    (finding,) = run_probe(layouts.PROBE, OfOneNumber, (leaf(3, 4),))[1]
    assert finding.evidence["layouts"] == ["expanded in each row"]
    assert shows_the_fault(finding, OfOneNumber=OfOneNumber)


def as_stored(tensor: Tensor) -> Tensor:
    """What lies in memory, where PyTorch still has to conjugate or negate it."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return -tensor if tensor.is_neg() else tensor


class ByAddress(Triple):
    """What lies in memory, three times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return as_stored(x.detach()) * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return as_stored(g) * 3


def test_a_kernel_that_does_not_see_a_conjugate_is_found() -> None:
    """PB405 and PB407, for complex numbers."""
    two_findings(ByAddress, torch.randn(2, 3, dtype=torch.complex128).requires_grad_(), CONJUGATED)


def test_a_kernel_that_does_not_see_a_sign_is_found() -> None:
    """PB405: as the gradient of an imaginary part behind a conj() comes."""
    (finding,) = run_probe(layouts.PROBE, ByAddress, (leaf(2, 3),))[1]
    assert finding.evidence["layouts"] == [NEGATED]
    assert shows_the_fault(finding, ByAddress=ByAddress)


def test_a_refusal_of_what_is_still_to_be_done_passes() -> None:
    """NumPy raises for it, and says what to call."""

    class ByNumPy(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return torch.from_numpy(3 * g.numpy())

    assert run_probe(layouts.PROBE, ByNumPy, (leaf(2, 3),))[1] == ()


def test_a_backward_that_ignores_the_offset_is_found() -> None:
    """A pointer to the start of the storage is another slip."""

    class FromTheStart(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.as_strided(g.shape, g.stride(), 0) * 3

    _, (finding,) = run_probe(layouts.PROBE, FromTheStart, (leaf(2, 3),))
    assert (finding.rule, finding.evidence["layouts"]) == ("PB405", ["offset", NEGATED])


def test_a_backward_that_takes_views_is_found() -> None:
    """PB406: view raises where reshape wouldn't."""

    class Views(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g.view(-1) * 3).view(g.shape)

    _, (finding,) = run_probe(layouts.PROBE, Views, (leaf(2, 3),))
    assert finding.rule == "PB406"
    assert "view size is not compatible" in finding.got


def test_a_forward_by_memory_order_is_found() -> None:
    """PB407 names the argument and the layout."""

    class Blind(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return memory_of(x) * 3

    _, (finding,) = run_probe(layouts.PROBE, Blind, (leaf(2, 3),))
    assert (finding.rule, finding.where) == ("PB407", "argument x, transposed, sample 0")


def test_a_backward_that_misreads_a_saved_argument_is_found() -> None:
    """The values are right, the gradient isn't: PB407 too."""

    class Saves(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * memory_of(ctx.saved_tensors[0]) * g

    _, (finding,) = run_probe(layouts.PROBE, Saves, (leaf(2, 3),))
    assert finding.rule == "PB407"
    assert finding.message.startswith("the gradient of x is another")


def test_a_layout_that_forward_refuses_is_counted() -> None:
    """Refusing is allowed, and said."""

    class Picky(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if not x.is_contiguous():
                raise ValueError("contiguous only")
            return x * 3

    outcome, findings = run_probe(layouts.PROBE, Picky, (leaf(2, 3),))
    assert findings == ()
    assert outcome.notes[0] == "refused: x transposed, sample 0: ValueError: contiguous only"


def test_arguments_keep_their_layout_where_the_author_says_so() -> None:
    """vary=() tries gradients alone."""

    class Blind(Triple):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return memory_of(x) * 3

    assert run_probe(layouts.PROBE, Blind, Sample((leaf(2, 3),), vary=()))[1] == ()


def test_ties_that_a_layout_makes_are_not_compared() -> None:
    """Expanded arguments repeat their elements, and any of the largest may get the gradient."""

    class Largest(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            value, index = x.max(-1)
            index = index if x.is_contiguous() else x.shape[-1] - 1 - index
            ctx.save_for_backward(index if x.stride(-1) == 0 else x.max(-1).indices)
            ctx.shape = x.shape
            return value

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (index,) = ctx.saved_tensors
            return torch.zeros(ctx.shape, dtype=g.dtype).scatter(-1, index.unsqueeze(-1), g.unsqueeze(-1))

    assert rules(run_probe(layouts.PROBE, Largest, (leaf(3, 4),))[1]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_at_a_badly_conditioned_point_is_no_fault(dtype: torch.dtype) -> None:
    """Rows that coincide have no variance, and dividing by it blows up what the mean was off by."""

    def normalised(x: Tensor) -> Tensor:
        if x.dtype != dtype:
            raise TypeError("another dtype")
        return (x - x.mean(0)) * (x.var(0, unbiased=False) + 1e-5).rsqrt()

    sample = (torch.rand(7, 3, dtype=dtype) + 5).requires_grad_()
    assert run_probe(layouts.PROBE, normalised, (sample,))[1] == ()


def test_where_no_digit_means_anything_nothing_is_compared() -> None:
    """Equal rows make a matrix singular, and its log-determinant minus infinity or any large number."""
    sample = (torch.rand(3, 3, dtype=torch.float64).requires_grad_(),)
    assert run_probe(layouts.PROBE, lambda x: torch.linalg.slogdet(x)[1], sample)[1] == ()


class Viewed(Triple):
    """forward asks for a view of its argument where a reshape would do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.view(-1) * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g * 3).view(ctx.shape)


def test_a_view_of_an_argument_in_forward_is_found() -> None:
    """No author refuses a transposed matrix in PyTorch's own words on views."""
    _, (finding,) = run_probe(layouts.PROBE, Viewed, (leaf(2, 3),))
    assert finding.rule == "PB407"
    assert finding.message.startswith("forward raises where x is transposed, and not where it is contiguous")
    assert "reshape" in finding.remedy
    assert shows_the_fault(finding, Viewed=Viewed)


def test_a_reshape_passes_and_a_refusal_in_the_authors_words_is_noted() -> None:
    """What is refused by name is no fault."""

    class Reshaped(Viewed):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape
            return x.reshape(-1) * 3

    class Refused(Viewed):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if not x.is_contiguous():
                raise ValueError("x must be contiguous")
            return Viewed.forward(ctx, x)

    assert run_probe(layouts.PROBE, Reshaped, (leaf(2, 3),))[1] == ()
    outcome, findings = run_probe(layouts.PROBE, Refused, (leaf(2, 3),))
    assert findings == ()
    assert any("x must be contiguous" in note for note in outcome.notes)


class ReadsItsMask(Function):
    """Keeps what is positive, and reads the mask as it lies in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * memory_of(ctx.saved_tensors[0])


def test_a_mask_that_is_the_same_in_every_order_hides_nothing() -> None:
    """All numbers of the sample are positive; transposed ones of both signs are tried too."""

    class Contiguous(ReadsItsMask):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return ReadsItsMask.forward(ctx, x.contiguous())

    assert run_probe(layouts.PROBE, Contiguous, (leaf(2, 3),))[1] == ()
    _, (finding,) = run_probe(layouts.PROBE, ReadsItsMask, (leaf(2, 3),))
    assert (finding.rule, finding.where) == ("PB407", "argument x, transposed, sample 0")
    assert shows_the_fault(finding, ReadsItsMask=ReadsItsMask)
