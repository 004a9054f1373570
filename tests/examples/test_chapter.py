"""The chapter's operations: the numbers they print, and that each is right where its text says so."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from examples import chapter

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [*chapter.MATMUL_SHAPES, ((4, 1, 2, 3), (1, 5, 3, 2)), ((1, 1), (1, 1)), ((0, 3), (3, 2)), ((2, 0), (0, 2))]


def run_chapter(**environment: str) -> list[str]:
    """Run the file as a person does and return its lines."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, "examples/chapter.py"]
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    # A CUDA build of torch says so where it compiles on a machine without CUDA.
    assert [line for line in result.stderr.splitlines() if "No CUDA runtime is found" not in line] == []
    return result.stdout.splitlines()


def penalty(function: Callable[..., Tensor], *arguments: Tensor, wanted: Sequence[int] = (0,)) -> tuple[Tensor, ...]:
    """Differentiate the squared norm of the weighted first gradient; zeros where that is a constant."""
    leaves = [arguments[i] for i in wanted]
    y = function(*arguments)
    weights = torch.linspace(0.5, 2, max(y.numel(), 1), dtype=y.dtype)[: y.numel()].view(y.shape)
    first = grad(y, leaves, weights, create_graph=True)
    norm = torch.stack([g.square().sum() for g in first]).sum()
    if not norm.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return grad(norm, leaves, allow_unused=True, materialize_grads=True)


def same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Require equal tensors, within float64's rounding."""
    torch.testing.assert_close(tuple(got), tuple(expected), rtol=1e-10, atol=1e-10)


def test_each_operation_prints_its_numbers() -> None:
    """Run as a program, the chapter prints one line for each operation, with the numbers it is known by."""
    lines = {line.split()[0]: line for line in run_chapter()}
    assert list(lines) == [
        *("Square", "ClippedReLU", "Matmul", "Cube", "Chained", "Round", "ClipGradient", "GeluMLP", "Snake")
    ]
    assert "gradient at [2, 3]: [4, 6]" in lines["Square"]
    assert "gradient at [-1, 0.5, 3], max 2: [0, 1, 0]; at 0 and at max: [0, 0]" in lines["ClippedReLU"]
    assert float(lines["Matmul"].split()[-1]) < 1e-12
    assert "first and second derivative at 2: 12 and 12; second for g = 0.5: 6" in lines["Cube"]
    ours, plain = lines["Chained"].split("penalty: ")[1].split("; of the plain formula: ")
    assert ours == plain
    assert "gradient: [1, 1]" in lines["Round"]
    assert "[-1, 0.5, 1]" in lines["ClipGradient"]
    assert lines["GeluMLP"].endswith("for b2 alone: 0")


@pytest.mark.skipif(chapter.missing_tool() != "", reason="building C++ needs a compiler, ninja and setuptools")
def test_the_cpp_operation_prints_its_derivatives() -> None:
    """Where a compiler is there, the C++ operation is built, and its second derivative is right too."""
    (line,) = [line for line in run_chapter() if line.startswith("Snake")]
    assert line.endswith("first and second derivative at pi/8: 1.707 and 1.414")


def test_without_a_compiler_a_sentence_takes_its_place() -> None:
    """Without a compiler the C++ operation is left out with a plain sentence, and everything else is printed."""
    lines = run_chapter(CXX="no-such-compiler")
    assert len(lines) == 9
    assert lines[-1].split(maxsplit=1)[1] == (
        "left out: the C++ compiler no-such-compiler is missing, which building C++ needs"
    )


def test_without_a_compiler_the_check_says_what_it_left_out() -> None:
    """The C++ operation isn't passed over in silence where it can't be built."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CXX": "no-such-compiler"}
    command = [sys.executable, "-m", "pullback", "check", "examples/chapter.py", "--only", "runs"]
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped: Snake (examples/chapter.py:" in result.stdout
    assert "8 Functions: 8 clean, 0 with findings; no findings; 1 skipped." in result.stdout


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_clipped_relu_keeps_the_dtype(dtype: torch.dtype) -> None:
    """The gradient has x's dtype, and both edges count as outside."""
    x = torch.tensor([-1, 0, 0.5, 2, 3], dtype=dtype, requires_grad=True)
    seen: list[Tensor] = []
    y = chapter.ClippedReLU.apply(x, 2)
    y.grad_fn.register_hook(lambda gradients, _: seen.append(gradients[0]))
    y.sum().backward()
    assert seen[0].dtype == dtype
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1, 0, 0]


def test_clipped_relu_is_zero_outside_for_infinite_gradients() -> None:
    """Outside the clip an infinite gradient is dropped, rather than multiplied by zero, which is NaN."""
    x = torch.tensor([-1.0, 0.5], requires_grad=True)
    (gx,) = grad(chapter.ClippedReLU.apply(x, 2.0), x, torch.tensor([torch.inf, torch.inf]))
    assert gx.tolist() == [0, torch.inf]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_is_right_for_every_shape(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Values, first gradients for each subset of arguments, and a gradient penalty are torch.matmul's."""
    left, right = chapter.leaf(*a, seed=1), chapter.leaf(*b, seed=2)
    expected = torch.matmul(left, right)
    g = chapter.leaf(*expected.shape, seed=3).detach()
    same([chapter.Matmul.apply(left, right)], [expected])
    for wanted in ((left,), (right,), (left, right)):
        x, y = (t if any(t is w for w in wanted) else t.detach() for t in (left, right))
        got = grad(chapter.Matmul.apply(x, y), wanted, g)
        assert [t.shape for t in got] == [t.shape for t in wanted]
        same(got, grad(torch.matmul(x, y), wanted, g))
    same(penalty(chapter.Matmul.apply, left, right, wanted=(0, 1)), penalty(torch.matmul, left, right, wanted=(0, 1)))


def test_matmul_is_right_for_complex_tensors() -> None:
    """The conjugates are where PyTorch's convention for complex gradients has them."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, dtype=torch.complex128, generator=generator) for s in ((2, 3), (3, 2)))
    assert gradcheck(chapter.Matmul.apply, (a.requires_grad_(), b.requires_grad_()))


def test_cube_is_right_to_third_order_for_any_cotangent() -> None:
    """With a cotangent that isn't 1, second and third derivatives are those of x³."""
    x = torch.tensor([2.0, -0.5], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([0.7, -3.0], dtype=torch.float64, requires_grad=True)
    (first,) = grad(chapter.Cube.apply(x), x, g, create_graph=True)
    second, for_g = grad(first.sum(), (x, g), create_graph=True)
    (third,) = grad(second.sum(), x)
    same([first, second, for_g, third], [3 * x * x * g, 6 * x * g, 3 * x * x, 6 * g])


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_chained_is_exact_through_its_intermediate(wanted: tuple[int, ...]) -> None:
    """A gradient penalty through the saved intermediate equals that of the plain formula, for each subset."""
    x, w = chapter.leaf(3, 2, seed=1), chapter.leaf(3, 2, seed=2)
    arguments = [t if i in wanted else t.detach() for i, t in enumerate((x, w))]
    same(
        penalty(chapter.Chained.apply, *arguments, wanted=wanted),
        penalty(lambda x, w: (x * w).sin(), *arguments, wanted=wanted),
    )


def test_round_goes_straight_through_to_second_order() -> None:
    """Round's gradient is the identity's, so the second derivative of its square is 2."""
    x = torch.tensor([0.2, 1.7], dtype=torch.float64, requires_grad=True)
    (first,) = grad(chapter.Round.apply(x * x).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x)
    same([first, second], [2 * x, torch.full_like(x, 2)])


def test_clip_gradient_agrees_with_its_oracle() -> None:
    """backward and expected_backward, which say the same in different words, agree on both sides of the limit."""
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([-2, -0.5, 0, 0.3, 9], dtype=torch.float64)
    y = chapter.ClipGradient.apply(x, 0.5)
    (got,) = grad(y, x, g)
    expected, none = chapter.ClipGradient.expected_backward((x, 0.5), (y,), (g,))
    assert none is None
    assert got.tolist() == expected.tolist() == [-0.5, -0.5, 0, 0.3, 0.5]


def gelu_arguments(wanted: Sequence[int], batch: tuple[int, ...] = (2, 3)) -> list[Tensor]:
    """Return the arguments of GeluMLP, those in `wanted` as leaves that require grad."""
    shapes = ((*batch, 2), (4, 2), (4,), (3, 4), (3,))
    return [chapter.leaf(*shape, seed=i).detach().requires_grad_(i in wanted) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gelu_mlp_is_right_for_each_subset(count: int) -> None:
    """First gradients and a gradient penalty are autograd's, whichever arguments are asked for."""
    for wanted in itertools.combinations(range(5), count):
        arguments = gelu_arguments(wanted)
        leaves = [arguments[i] for i in wanted]
        y, expected = chapter.GeluMLP.apply(*arguments), chapter.GeluMLP.reference(*arguments)
        g = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
        same(grad(y, leaves, g), grad(expected, leaves, g))
        same(
            penalty(chapter.GeluMLP.apply, *arguments, wanted=wanted),
            penalty(chapter.GeluMLP.reference, *arguments, wanted=wanted),
        )


@pytest.mark.parametrize(("wanted", "products"), [((4,), 0), ((3,), 2), ((2,), 2), ((0,), 3), ((1,), 3), (range(5), 5)])
def test_gelu_mlp_recomputes_only_what_is_needed(wanted: Sequence[int], products: int) -> None:
    """backward multiplies matrices only for the gradients that are asked for, and not at all for b2."""
    arguments = gelu_arguments(wanted)
    y = chapter.GeluMLP.apply(*arguments).sum()
    with FlopCounterMode(display=False) as counter:
        grad(y, [arguments[i] for i in wanted])
    # Each product has rows * n * m, or rows * m * k, multiplications and as many additions.
    rows, n, m, k = 6, 2, 4, 3
    first, second = 2 * rows * n * m, 2 * rows * m * k
    expected = {0: 0, 2: first + second, 3: 2 * first + second, 5: 3 * first + 2 * second}
    assert counter.get_total_flops() == expected[products]


def test_gelu_mlp_saves_only_its_arguments() -> None:
    """The graph keeps four of the five arguments alive and nothing else."""
    saved: list[int] = []
    arguments = gelu_arguments(range(5))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        chapter.GeluMLP.apply(*arguments)
    assert sorted(saved) == sorted(t.data_ptr() for t in arguments[:4])


def test_gelu_mlp_takes_an_empty_batch() -> None:
    """A batch without elements gives zero gradients for the weights."""
    arguments = gelu_arguments(range(5), batch=(0, 3))
    gradients = grad(chapter.GeluMLP.apply(*arguments).sum(), arguments)
    assert [g.shape for g in gradients] == [a.shape for a in arguments]
    assert all(g.abs().sum() == 0 for g in gradients)


@pytest.mark.skipif(chapter.missing_tool() != "", reason="building C++ needs a compiler, ninja and setuptools")
class TestSnake:
    """The operation in C++."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_it_reads_tensors_of_any_layout(self, dtype: torch.dtype) -> None:
        """Transposed, expanded and sliced arguments and gradients give the values of the formula."""
        base = chapter.leaf(6, 6).detach().to(dtype)
        for x in (base.t(), base[:1].expand(6, 6), base[::2, 1:], base[0, 0], base[:0]):
            leaf = x.detach().requires_grad_()
            y = chapter.Snake.apply(leaf)
            reverse = tuple(reversed(range(y.dim())))
            transposed = torch.ones_like(y).permute(reverse).clone().permute(reverse)
            for g in (torch.ones((), dtype=dtype).expand(y.shape), transposed):
                (gx,) = grad(y, leaf, g, retain_graph=True)
                torch.testing.assert_close(gx, 1 + (2 * x).sin())
            torch.testing.assert_close(y.detach(), x + x.sin() ** 2)

    def test_its_second_order_comes_from_the_reference(self) -> None:
        """Though backward is opaque, second derivatives are exact."""
        assert gradgradcheck(chapter.Snake.apply, (chapter.leaf(3, 2),))

    def test_it_refuses_other_dtypes_by_name(self) -> None:
        """A tensor of integers raises, and the message says what it takes."""
        with pytest.raises(RuntimeError, match="snake takes float32 and float64 tensors"):
            chapter.Snake.apply(torch.ones(2, dtype=torch.int64))

    def test_it_is_built_once(self) -> None:
        """The library lies in the ignored build folder, ready for the next process; nothing half-built is left."""
        chapter.snake_operators()
        kept = list((ROOT / "build" / "chapter").iterdir())
        assert any(path.suffix == ".so" for path in kept)
