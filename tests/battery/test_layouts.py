"""The probe `layouts`: memory order changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.arrangements import arrangements
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
        "offset",
        "channels last",
        "expanded",
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
    assert finding.evidence["layouts"] == ["transposed", "sliced", "expanded", "expanded from one element"]


def test_a_backward_that_ignores_the_offset_is_found() -> None:
    """A pointer to the start of the storage is another slip."""

    class FromTheStart(Triple):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.as_strided(g.shape, g.stride(), 0) * 3

    _, (finding,) = run_probe(layouts.PROBE, FromTheStart, (leaf(2, 3),))
    assert (finding.rule, finding.evidence["layouts"]) == ("PB405", ["offset"])


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
