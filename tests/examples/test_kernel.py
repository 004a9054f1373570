"""A kernel of one's own: right in every dtype and layout, under every transform, and refused by name where it isn't."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import library as checks
from torch._subclasses import FakeTensorMode
from torch.autograd import grad, gradcheck, gradgradcheck

from tests.examples.kernel_example import DTYPES, FOLDER, kernel_build, kernel_report, module, needs_compiler

DENSE = {"layout": torch.strided, "is_quantized": False}
Softcap, softcap = module.Softcap, module.softcap


@needs_compiler
class TestValues:
    """Values and gradients of the C++ kernel."""

    def test_each_dtype_and_layout_has_the_digits_of_the_formula(self) -> None:
        """Strided, expanded, empty, infinite and long tensors are right to the last digits of their dtype."""
        names = set()
        for name, x in kernel_report.arguments("cpu"):
            kernel_report.compare(Softcap, x, (2.3,))
            names.add(name)
        assert {f"{dtype}, expanded" for dtype in DTYPES} <= names
        assert {f"{dtype}, empty" for dtype in DTYPES} <= names

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_result_has_the_dtype_and_is_in_order(self, dtype: torch.dtype) -> None:
        """A transposed argument gives a result of its dtype and shape, with its elements in order, as the fake says."""
        x = torch.ones(3, 4, dtype=dtype).t().requires_grad_()
        y = softcap(x, 2.0)
        (gx,) = grad(y.sum(), x)
        assert (y.dtype, y.shape, y.is_contiguous()) == (dtype, x.shape, True)
        assert (gx.dtype, gx.shape) == (dtype, x.shape)

    def test_a_small_slope_keeps_its_digits(self) -> None:
        """Far out, where 1 - tanh² is 0 in float32, the gradient is 4 exp(-2 x / c)."""
        x = torch.tensor([20.0, -20.0], requires_grad=True)
        (gx,) = grad(softcap(x, 1.0).sum(), x)
        torch.testing.assert_close(gx, torch.full((2,), 1.6993417e-17), rtol=1e-5, atol=0)
        assert (1 - torch.tanh(x.detach()) ** 2).tolist() == [0, 0]

    def test_derivatives_of_first_and_second_order_are_those_of_differences(self) -> None:
        """Finite differences agree, of the value and of the gradient."""
        x = torch.linspace(-5, 5, 7, dtype=torch.float64).requires_grad_()
        assert gradcheck(Softcap.apply, (x, 2.3))
        assert gradgradcheck(Softcap.apply, (x, 2.3))

    def test_transforms_agree_with_the_formula(self) -> None:
        """vmap, forward mode and a hessian are those of the formula, and vmap's batch isn't taken one by one."""
        x = torch.linspace(-3, 3, 6, dtype=torch.float64).view(2, 3)

        def both(transform: Any) -> None:
            got, expected = transform(lambda t: softcap(t, 2.3)), transform(lambda t: 2.3 * torch.tanh(t / 2.3))
            torch.testing.assert_close(got, expected)

        # PyTorch warns where it has to loop over a batch, and a warning is an error here.
        both(lambda f: torch.func.vmap(f, in_dims=1)(x))
        both(lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t).sum()), in_dims=1)(x))
        both(lambda f: torch.func.vmap(lambda g: torch.func.vjp(f, x)[1](g)[0])(torch.stack([x, x.cos()])))
        both(lambda f: torch.func.jvp(f, (x,), (x.cos(),)))
        both(lambda f: torch.func.hessian(lambda t: f(t).sum())(x))

    def test_only_the_argument_is_saved(self) -> None:
        """The graph keeps x, and no copy of it, though the kernel reads one that is in order."""
        x = torch.ones(3, 4).requires_grad_().t()
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
            softcap(x)
        assert saved == [x.data_ptr()]


@needs_compiler
class TestOperators:
    """The operators beneath the Function."""

    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
    def test_compiled_in_one_graph_the_kernels_run(self) -> None:
        """torch.compile breaks no graph, keeps the operator as it is, and gives the same gradients."""
        texts: list[str] = []

        def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
            texts.extend(part.code for part in graph.modules() if isinstance(part, torch.fx.GraphModule))
            return graph

        x = torch.linspace(-3, 3, 5, requires_grad=True)
        (expected,) = grad(softcap(x, 2.3).sum(), x)
        for chosen in (backend, "aot_eager"):
            torch.compiler.reset()
            compiled = torch.compile(lambda t: softcap(t, 2.3) * 1, backend=chosen, fullgraph=True)
            (got,) = grad(compiled(x).sum(), x)
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert "pullback_kernel.softcap" in "".join(texts)
        assert "tanh" not in "".join(texts)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_they_keep_their_schema(self, dtype: torch.dtype) -> None:
        """PyTorch's own check of operators finds that the fake has the result's shape, and that nothing is written."""
        operators = torch.ops.pullback_kernel
        x = torch.ones(3, 4, dtype=dtype)
        for tests in ("test_schema", "test_faketensor"):
            checks.opcheck(operators.softcap, (x, 2.0), test_utils=tests)
            checks.opcheck(operators.softcap_backward, (x, x, 2.0), test_utils=tests)

    def test_other_dtypes_are_refused_by_name(self) -> None:
        """Integers and complex numbers raise, on any device and in the operators too, and it is said what is taken."""
        taken = "the operation takes float64, float32, bfloat16 and float16 tensors, and one of"
        for dtype, name in ((torch.int64, "Long"), (torch.complex64, "ComplexFloat"), (torch.bool, "Bool")):
            for device in ("cpu", "meta"):
                with pytest.raises(TypeError, match=f"^{taken} {dtype} came$"):
                    softcap(torch.ones(2, dtype=dtype, device=device))
            with pytest.raises(RuntimeError, match=f"{taken} {name} came"):
                torch.ops.pullback_kernel.softcap(torch.ones(2, dtype=dtype), 2.0)

    def test_a_gradient_that_does_not_fit_is_refused(self) -> None:
        """The operator for backward doesn't read beyond the end of a shorter gradient, or one of another dtype."""
        x = torch.ones(3)
        for g in (torch.ones(2), torch.ones(3, dtype=torch.float64)):
            with pytest.raises(RuntimeError, match="grad_output must have the dtype, the shape and the device of x"):
                torch.ops.pullback_kernel.softcap_backward(g, x, 1.0)

    @pytest.mark.parametrize(
        "cap", [0.0, -1.0, float("inf"), float("nan"), 1e-50, 1e300, "2", None, torch.tensor(2.0, requires_grad=True)]
    )
    def test_a_cap_that_caps_nothing_is_refused(self, cap: Any) -> None:
        """It must be positive and finite in float32 too, and a number: a tensor's gradient would be lost in silence."""
        expected = f"cap must be a positive, finite number of float32, and is {cap!r}"
        with pytest.raises(ValueError, match=re.escape(expected)):
            softcap(torch.ones(2), cap)

    def test_it_is_built_once(self) -> None:
        """The library lies in the ignored build folder for the next process; nothing half-built is left."""
        softcap(torch.ones(1))
        library = kernel_build.kept_as(module.FOLDER / "softcap.cpp", " ".join(["c++", *kernel_build.CPP_FLAGS]))
        assert library.parent == FOLDER / "build"
        assert library.exists() or "CXX" in os.environ

    def test_loops_call_glibcs_vector_functions(self) -> None:
        """Where glibc has them and g++ is the compiler, tanh and exp are computed several elements at a time."""
        softcap(torch.ones(1))
        libc, version = platform.libc_ver()
        compiler = subprocess.run(
            [os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True, check=True
        )
        if platform.machine() != "x86_64" or libc != "glibc" or "Free Software" not in compiler.stdout:
            pytest.skip("glibc's vector functions are for x86-64, and only g++ is told of them")
        if tuple(map(int, version.split("."))) < (2, 35):
            pytest.skip("glibc has a vector tanh since 2.35")
        newest = max((FOLDER / "build").glob("softcap_cpp_*"), key=lambda path: path.stat().st_mtime)
        for name in (b"_ZGVbN4v_tanhf", b"_ZGVbN2v_tanh", b"_ZGVbN4v_expf", b"_ZGVbN2v_exp"):
            assert name + b"\0" in newest.read_bytes()


class TestDevicesWithoutKernels:
    """What takes the kernels' place."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_formula_does(self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
        """Where no kernel is loaded, both operators compute the formula, in the argument's dtype."""
        monkeypatch.setattr(module, "load_kernels", lambda x: False)
        x = torch.linspace(-200, 200, 9, dtype=dtype)
        exact = x.double().requires_grad_()
        expected = Softcap.reference(exact, 2.3)
        kernel_report.same(module.softcap_at_first(x, 2.3), expected.detach())
        gx = module.softcap_backward_at_first(torch.ones_like(x), x, 2.3)
        kernel_report.same(gx, grad(expected.sum(), exact)[0])

    def test_a_device_that_has_none_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is compiled for other devices, nor for CUDA where nvcc is missing."""
        monkeypatch.setattr(kernel_build, "find_nvcc", lambda: None)
        for device in ("xpu", "cuda"):
            assert not module.load_kernels(SimpleNamespace(device=torch.device(device), **DENSE))

    def test_a_sparse_tensor_takes_the_formula(self) -> None:
        """The kernels read dense memory; a sparse argument's result is the formula's, sparse as well."""
        x = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
        y = softcap(x.to_sparse(), 2.3)
        assert y.layout is torch.sparse_coo
        torch.testing.assert_close(y.to_dense(), Softcap.reference(x, 2.3))

    @pytest.mark.parametrize("device", ["meta", "fake"])
    def test_a_tensor_without_memory_gets_its_shape(self, device: str) -> None:
        """On the meta device, and under a fake mode, values and gradients have their shape, and no kernel is run."""
        with FakeTensorMode() if device == "fake" else nullcontext():
            x = torch.ones(3, 4, device="cpu" if device == "fake" else device, requires_grad=True)
            (gx,) = grad(softcap(x, 2.3).sum(), x)
        assert (gx.shape, gx.device) == (x.shape, x.device)

    def test_a_missing_compiler_is_named_with_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """On the CPU a call without a compiler raises one sentence."""
        (tmp_path / "softcap.cpp").touch()
        monkeypatch.setenv("CXX", "no-such-compiler")
        expected = "the C++ compiler no-such-compiler is missing: install one (g++ or clang), or name yours in CXX, "
        expected += "without arguments"
        with pytest.raises(kernel_build.BuildError, match=f"^{re.escape(expected)}$"):
            kernel_build.load_cpp(tmp_path / "softcap.cpp")

    def test_a_missing_nvcc_is_named_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiling for CUDA without nvcc raises one sentence."""
        monkeypatch.setattr(kernel_build, "find_nvcc", lambda: None)
        with pytest.raises(kernel_build.BuildError, match=r"^nvcc is missing: install the CUDA toolkit, or name its"):
            kernel_build.build_cuda(FOLDER / "softcap.cu")


class TestBuilding:
    """What can go wrong while a source is compiled and its library is kept."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A source with nothing in it."""
        (tmp_path / "empty.cpp").touch()
        return tmp_path / "empty.cpp"

    @needs_compiler
    def test_a_compiler_that_makes_nothing_is_found_out(self, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
        """Where CXX is a program that succeeds and is no compiler, the missing library is what is named."""
        monkeypatch.setenv("CXX", "true")
        with pytest.raises(
            kernel_build.BuildError, match=r"^empty.cpp does not compile: .*empty_cpp_.*\.so: cannot open"
        ):
            kernel_build.load_cpp(source)
        assert list((source.parent / "build").iterdir()) == []

    @pytest.mark.parametrize(("given", "said"), [("", "(CXX is empty)"), ("ccache g++", "ccache g++"), ("c '", "c '")])
    def test_cxx_is_one_program(self, monkeypatch: pytest.MonkeyPatch, given: str, said: str) -> None:
        """PyTorch's build tool takes all of CXX for the program's name, so arguments in it are refused."""
        monkeypatch.setenv("CXX", given)
        assert kernel_build.missing_tool().startswith(f"the C++ compiler {said} is missing: install one")
        assert kernel_build.missing_tool().endswith("name yours in CXX, without arguments")

    def test_a_missing_ninja_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Neither on PATH nor among the environment's scripts."""
        (tmp_path / "cxx").touch(mode=0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
        monkeypatch.setattr(kernel_build, "path_with_scripts", lambda: str(tmp_path))
        assert kernel_build.missing_tool() == "ninja is missing: pip install ninja"

    @needs_compiler
    def test_a_folder_that_cannot_be_written_to_is_named(self, source: Path) -> None:
        """The sentence says where libraries are kept and what to do; here a file is in the way."""
        (source.parent / "build").touch()
        expected = (
            r"build, where libraries are kept, can't be written to \(.+\): copy the folder of the source to where"
        )
        with pytest.raises(kernel_build.BuildError, match=expected):
            kernel_build.load_cpp(source)

    def test_half_a_library_is_named(self, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
        """A library that was cut short is to be deleted, and needs no compiler to be found out."""
        key = " ".join([os.environ.get("CXX", "c++"), *kernel_build.CPP_FLAGS])
        library = kernel_build.kept_as(source, key)
        library.parent.mkdir()
        library.write_bytes(b"half")
        monkeypatch.setattr(kernel_build, "missing_tool", lambda: "all")
        with pytest.raises(
            kernel_build.BuildError, match=r"\.so can't be loaded; delete it, and it is made anew: .*short"
        ):
            kernel_build.load_cpp(source)

    def test_the_first_error_comes_first(self) -> None:
        """Of a compiler's page the command is left out, and what comes after the first error stays."""
        output = "[1/2] c++ -O3\nIn file included from a.cpp\na.h:5:2: error: no x\n  5 | x\na.h:6:2: error: no y\n"
        error = kernel_build.does_not_compile(Path("a.cpp"), output)
        assert str(error) == "a.cpp does not compile: a.h:5:2: error: no x\n  5 | x\na.h:6:2: error: no y"
        assert str(kernel_build.does_not_compile(Path("a.cpp"), "gone\n")).splitlines()[1:] == ["gone"]
