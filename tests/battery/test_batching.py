"""The probe `batching`: vmap gives what a loop over the entries gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.batches import Batch, batches, by_loop, by_vmap, inside_vmap
from pullback.battery.check import check, make_subject
from pullback.battery.probes import batching
from pullback.errors import OperationError
from pullback.finding import Status
from tests.battery.repros import shown, shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x · w, batched by hand."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> Any:
        return type_of(Product)(front(x, in_dims[0], info), front(w, in_dims[1], info)), 0


def front(tensor: Tensor, dim: int | None, info: Any) -> Tensor:
    """The tensor with its batch in front; shared ones are expanded."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def type_of(cls: type[Function]) -> Callable[..., Any]:
    """The apply of a Function, typed."""
    return cls.apply


SAMPLE = (leaf(2, 2), leaf(2, 2))


def test_a_vmap_that_takes_every_dimension_passes() -> None:
    """Nothing is found, nothing refused."""
    outcome, findings = run_probe(batching.PROBE, Product, SAMPLE)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_every_way_to_batch_two_arguments() -> None:
    """All in front, all last, each alone, one in front and one last; the size is none that occurs in the arguments."""
    subject = make_subject(torch.mul, (leaf(3, 2), leaf(3, 2)))
    made = list(batches(subject, subject.cases[0]))
    assert [tuple(batch.dims.values()) for batch in made] == [(0, 0), (2, 2), (0, None), (None, 0), (0, 2)]
    assert {batch.size for batch in made} == {5}


def test_three_ways_to_run_a_batch_agree_on_a_plain_function() -> None:
    """Entries in a loop, vmap differentiated, and a vjp inside vmap: one derivative."""
    subject = make_subject(lambda x, w: x * w, (leaf(3), leaf(3)))
    batch = Batch(subject.cases[0], {"x": 1, "w": None}, 2)
    loop = by_loop(subject, batch)
    values, gradients = loop.values, loop.gradients(subject, batch, (0,))
    cotangents = loop.cotangents(subject, (0,))
    through = by_vmap(subject, batch)
    torch.testing.assert_close(through.outputs[0].tensor, values[0].tensor)
    assert {name: tuple(t.shape) for name, t in gradients.items()} == {"x": (3, 2), "w": (3,)}
    outside = torch.autograd.grad(through.outputs[0].tensor, [t.tensor for t in through.leaves], cotangents)
    inside = inside_vmap(subject, batch, cotangents, (0,))
    for name, one, other in zip(("x", "w"), outside, inside.values(), strict=True):
        torch.testing.assert_close(one, gradients[name])
        torch.testing.assert_close(other, gradients[name])


def test_a_loop_is_run_once_for_all_ways_to_batch_the_same_tensors() -> None:
    """Where the batch is put changes the gradients' layout alone; what another tensor shares is another loop."""
    calls = 0

    def product(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * w

    subject = make_subject(product, (leaf(3), leaf(3)))
    case, before = subject.cases[0], calls
    first, last, alone = (Batch(case, {"x": x, "w": w}, 2) for x, w in ((0, 0), (1, 1), (0, None)))
    loop = by_loop(subject, first)
    gradients = [loop.gradients(subject, batch, (0,)) for batch in (first, last)]
    assert by_loop(subject, last) is loop
    assert calls == before + 2
    torch.testing.assert_close(gradients[0]["x"], gradients[1]["x"].T)
    assert by_loop(subject, alone) is not loop
    assert calls == before + 4


def test_a_batch_mixed_up_is_found_in_the_values() -> None:
    """PB509 with both numbers, and the way to batch that shows it."""

    class Mixes(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            product, dim = Product.vmap(info, in_dims, x, w)
            return product.flip(0), dim

    _, (finding,) = run_probe(batching.PROBE, Mixes, SAMPLE)
    assert (finding.rule, finding.where) == ("PB509", "vmap with x along 0, w along 0, sample 0")
    assert finding.message == "output differs from that of a loop"
    assert shows_the_fault(finding, Mixes=Mixes)


def test_a_lost_gradient_is_found_though_the_values_are_right() -> None:
    """A batched kernel that cuts the graph."""

    class Cuts(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            return Product.vmap(info, in_dims, x, w.detach())

    _, (finding,) = run_probe(batching.PROBE, Cuts, SAMPLE)
    assert finding.evidence["argument"] == "w"
    assert finding.message == "the gradient of w, taken of a batch through vmap, differs from that of a loop"
    assert finding.got == "None"
    assert shows_the_fault(finding, Cuts=Cuts)


def test_a_graph_that_is_lost_altogether_is_found() -> None:
    """None of the outputs requires grad, of which each entry's does."""

    class Cuts(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            return Product.vmap(info, in_dims, x.detach(), w.detach())

    _, (finding,) = run_probe(batching.PROBE, Cuts, SAMPLE)
    assert finding.message == "the gradient of x, taken of a batch through vmap, differs from that of a loop"
    assert finding.got == "None"
    assert shows_the_fault(finding, Cuts=Cuts)


def test_a_gradient_that_is_wrong_inside_vmap_alone_is_found() -> None:
    """backward calls another Function, whose vmap is wrong: only a vjp inside vmap gets there."""

    class Doubled(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return type_of(Doubled)(g)

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return x * 3, in_dims[0]

    class Twice(Doubled):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return type_of(Twice)(x), in_dims[0]

    _, (finding,) = run_probe(batching.PROBE, Twice, (leaf(3),))
    assert finding.message == "the gradient of x, taken inside vmap, differs from that of a loop"
    assert shows_the_fault(finding, Twice=Twice)


def test_a_vmap_that_raises_is_found_and_one_that_refuses_is_not() -> None:
    """A crash for a shared argument is a fault; NotImplementedError is how to say that it isn't done."""

    class Crashes(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            return Product.vmap(info, (in_dims[0] + 0, in_dims[1] + 0), x, w)

    _, (finding,) = run_probe(batching.PROBE, Crashes, SAMPLE)
    assert finding.where == "vmap with x along 0, w not batched, sample 0"
    assert finding.message.startswith("vmap raises, where a loop works: TypeError: unsupported operand")
    assert shown(finding, Crashes=Crashes).startswith("TypeError: unsupported operand")

    class Refuses(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            if None in in_dims:
                raise NotImplementedError("no shared arguments")
            return Product.vmap(info, in_dims, x, w)

    outcome, findings = run_probe(batching.PROBE, Refuses, SAMPLE)
    assert (outcome.status, findings) == (Status.PASSED, ())
    assert outcome.notes == (
        "refused: vmap with x along 0, w not batched: NotImplementedError: no shared arguments",
        "refused: vmap with x not batched, w along 0: NotImplementedError: no shared arguments",
    )


def test_an_error_of_the_function_in_a_vmap_of_its_own_is_found() -> None:
    """That the operation refuses the shapes that its rule hands it is the rule's fault, and no refusal of a batch."""

    class ForAFirstAxis(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            if x.shape != w.shape:
                raise OperationError("PB130", "x and w differ in shape")
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, g * x

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            return type_of(ForAFirstAxis)(x, w), 0

    _, (finding,) = run_probe(batching.PROBE, ForAFirstAxis, SAMPLE)
    assert finding.message.startswith("vmap raises, where a loop works: ")
    assert "PB130" in shown(finding, ForAFirstAxis=ForAFirstAxis)


def test_a_backward_that_can_not_be_batched_is_noted() -> None:
    """A vmap of one's own may stand for forward alone; a gradient inside vmap then is refused, not wrong."""

    class Opaque(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
            return g * torch.from_numpy(w.copy()), g * torch.from_numpy(x.copy())

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            return type_of(Opaque)(front(x, in_dims[0], info), front(w, in_dims[1], info)), 0

    outcome, findings = run_probe(batching.PROBE, Opaque, SAMPLE)
    assert findings == ()
    assert outcome.notes
    assert all(note.startswith("refused: the gradient inside vmap with ") for note in outcome.notes)


@pytest.mark.parametrize("style", ["ctx", "setup_context"])
def test_what_pytorch_can_not_batch_is_skipped(style: str) -> None:
    """Without vmap or generate_vmap_rule there is nothing to try; a forward that takes ctx is refused by PyTorch."""

    class InCtxStyle(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2

    class WithoutVmap(Function):
        forward = Product.forward
        setup_context = Product.setup_context
        backward = Product.backward

    function, sample = (InCtxStyle, (leaf(2),)) if style == "ctx" else (WithoutVmap, SAMPLE)
    report = check(function, sample, only="batching")
    assert report.outcomes["batching"].status is Status.SKIPPED
    untested = any(sentence.startswith("batching: PyTorch batches no Function") for sentence in report.untested)
    assert untested is (style == "ctx")


def test_a_plain_callable_is_never_blamed_for_what_vmap_can_not_do() -> None:
    """Nobody promised that it can be batched: skipped with PyTorch's words."""
    assert run_probe(batching.PROBE, torch.sin, (leaf(3),))[0].status is Status.PASSED
    outcome, findings = run_probe(batching.PROBE, lambda x: x * float(x.detach().sum()), (leaf(3),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert "calling .item() on a Tensor" in outcome.reason


def test_random_forwards_are_compared_by_shape() -> None:
    """Another mask at each entry is right; another shape isn't."""

    class Masked(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * torch.rand_like(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(output / inputs[0])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.saved_tensors[0]

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return x.movedim(in_dims[0], 0) * torch.rand(info.batch_size, 1, dtype=x.dtype), 0

    outcome, findings = run_probe(batching.PROBE, Masked, (leaf(4),))
    assert findings == ()
    assert outcome.notes == ("sample 0: forward draws random numbers, so only the shapes of a batch were compared",)

    class Flattened(Masked):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return torch.rand(info.batch_size, dtype=x.dtype), 0

    _, (finding,) = run_probe(batching.PROBE, Flattened, (leaf(4),))
    assert (finding.rule, finding.expected, finding.got) == ("PB509", "(3, 4)", "(3,)")


def test_entries_that_forward_refuses_are_refused() -> None:
    """The batch has smaller numbers than the sample; a forward may not take them."""

    def checked(x: Tensor) -> Tensor:
        if float(x.detach().min()) < 1:
            raise ValueError("1 at least")
        return x * 2

    outcome, _ = run_probe(batching.PROBE, checked, (torch.ones(3, dtype=torch.float64),))
    assert (outcome.status, outcome.reason) == (
        Status.SKIPPED,
        "vmap with x along 0: forward alone: ValueError: 1 at least",
    )


def test_nests_and_keywords_are_batched_leaf_by_leaf() -> None:
    """The lines put each tensor of a list or dict into its place."""

    class Weighted(Function):
        @staticmethod
        def forward(x: Tensor, knots: list[Tensor], gain: float) -> Tensor:
            return x * knots[0] * knots[1] * gain

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.slope = inputs[1][0] * inputs[1][1] * inputs[2]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.slope, None, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, knots: list[Tensor], gain: float) -> Any:
            x, *knots = (front(t, dim, info) for t, dim in zip((x, *knots), (in_dims[0], *in_dims[1]), strict=True))
            return type_of(Weighted)(x, [knots[0], knots[0]], gain), 0

    knots = [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()]
    subject = make_subject(Weighted, (leaf(2), knots, 2.0))
    first = next(batches(subject, subject.cases[0]))
    assert first.label == "vmap with x along 0, knots[0] along 0, knots[1] along 0"
    _, (finding,) = run_probe(batching.PROBE, Weighted, (leaf(2), knots, 2.0))
    assert finding.message == "output differs from that of a loop"
    assert "Weighted.apply(entry_0, [entry_1, entry_2], gain)" in finding.repro
    assert shows_the_fault(finding, Weighted=Weighted)


class Derived(pullback.Function):
    """A matrix product in the ctx style, without a vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g


def test_a_pullback_function_is_batched_as_it_is() -> None:
    """In every way that two arguments can be batched."""
    outcome, findings = run_probe(batching.PROBE, Derived, (leaf(2, 3), leaf(3, 2)))
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_containers_and_modules_are_batched() -> None:
    """Leaf by leaf, parameters too."""

    class Layer(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor], layer: torch.nn.Linear) -> Tensor:
            ctx.save_for_backward(*xs, layer.weight)
            result: Tensor = layer(xs[0] + xs[1])
            return result

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b, weight = ctx.saved_tensors
            gx = g @ weight
            return [gx, gx], {"weight": g.mT @ (a + b), "bias": g.sum(0)}

    sample = ([leaf(4, 3), leaf(4, 3)], torch.nn.Linear(3, 2, dtype=torch.float64))
    outcome, findings = run_probe(batching.PROBE, Layer, sample)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (), ())


def test_a_kernel_that_can_not_be_batched_is_skipped() -> None:
    """With the refusal as the reason, and no finding."""

    class Opaque(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.from_numpy(x.detach().numpy() * 2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    outcome, findings = run_probe(batching.PROBE, Opaque, (leaf(2),))
    assert (outcome.status, findings) == (Status.SKIPPED, ())
    assert outcome.reason.startswith("vmap with x along 0: PB510 ")


def refusing(*allowed: tuple[int | None, ...]) -> type[Function]:
    """Product, with a vmap that refuses all ways to batch but some."""

    class Picky(Product):
        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> Any:
            if in_dims not in allowed:
                raise NotImplementedError("only x is batched")
            return Product.vmap(info, in_dims, x, w)

    return Picky


def test_a_vmap_that_refuses_everything_is_found() -> None:
    """PB509: whoever writes a vmap means some of it to work."""
    function = refusing()
    outcome, (finding,) = run_probe(batching.PROBE, function, SAMPLE)
    assert outcome.status is Status.FAILED
    assert finding.rule == "PB509"
    count = finding.message.split()[5]
    assert finding.message == (
        f"vmap refuses each of the {count} ways to batch that were tried: NotImplementedError: only x is batched"
    )
    assert int(count) >= 4
    assert "NotImplementedError: only x is batched" in shown(finding, Picky=function)


def test_a_vmap_that_refuses_all_but_one_way_passes() -> None:
    """What isn't written it may refuse; the refusals are noted."""
    outcome, findings = run_probe(batching.PROBE, refusing((0, None)), SAMPLE)
    assert (outcome.status, findings) == (Status.PASSED, ())
    assert all("NotImplementedError: only x is batched" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (lambda info, made: made * 2 if info.batch_size == 1 else made, "sample 0"),
        (lambda info, made: made * 2 if made.dtype is torch.float32 else made, "sample 0 in float32"),
        (lambda info, made: (made.float() * 1.001).bfloat16() if made.dtype is torch.bfloat16 else made, ""),
    ],
)
def test_a_vmap_is_tried_with_one_entry_and_in_lower_dtypes(fault: Any, where: str) -> None:
    """PB509 where it is wrong there alone; what is no more than a rounding of the dtype is none."""

    class Other(Product):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> Any:
            made, out_dim = Product.vmap(info, in_dims, x, w)
            return fault(info, made), out_dim

    _, findings = run_probe(batching.PROBE, Other, (leaf(3), leaf(3)))
    assert [finding.where.rpartition(", ")[2] for finding in findings] == ([where] if where else [])
    assert all(shows_the_fault(finding, Other=Other, Product=Product) for finding in findings)
