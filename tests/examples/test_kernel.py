"""A kernel of one's own: right in every dtype and layout, and what a machine can't run is said and never passed."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import library as checks
from torch.autograd import grad, gradcheck, gradgradcheck

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kernel"
sys.path.insert(0, str(FOLDER))  # as Python does for a script; the files import each other

kernel_build = importlib.import_module("kernel_build")
kernel_report = importlib.import_module("kernel_report")
module = importlib.import_module("softcap")
Softcap, softcap = module.Softcap, module.softcap

NO_COMPILER = kernel_build.missing_tool() != ""
NO_NVCC = kernel_build.find_nvcc() is None
NO_TRITON = find_spec("triton") is None or find_spec("numpy") is None
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
needs_compiler = pytest.mark.skipif(NO_COMPILER, reason="building C++ needs a compiler, ninja and setuptools")
needs_nvcc = pytest.mark.skipif(NO_NVCC, reason="compiling CUDA needs nvcc")
needs_triton = pytest.mark.skipif(NO_TRITON, reason="the twin needs Triton and numpy")


def run(*command: str, folder: Path = FOLDER, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder of kernels, with pullback's sources at hand."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def broken(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of the folder in which one file says something else; what it compiles is kept beside it."""
    folder = tmp_path / "examples" / "kernel"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), "utf-8")
    return folder


@needs_compiler
class TestValues:
    """Values and gradients of the C++ kernel."""

    def test_each_dtype_and_layout_has_the_digits_of_the_formula(self) -> None:
        """Strided, expanded, empty, infinite and long tensors are right to the last digits of their dtype."""
        names = set()
        for name, x in kernel_report.arguments("cpu"):
            kernel_report.compare(Softcap, x)
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
        """Integers and complex numbers raise, and the message says what is taken."""
        for dtype in (torch.int64, torch.complex64):
            with pytest.raises(RuntimeError, match="softcap takes float64, float32, bfloat16 and float16 tensors"):
                softcap(torch.ones(2, dtype=dtype))

    def test_a_gradient_that_does_not_fit_is_refused(self) -> None:
        """The operator for backward doesn't read beyond the end of a shorter gradient, or one of another dtype."""
        x = torch.ones(3)
        for g in (torch.ones(2), torch.ones(3, dtype=torch.float64)):
            with pytest.raises(RuntimeError, match="grad_output must have the dtype, the shape and the device of x"):
                torch.ops.pullback_kernel.softcap_backward(g, x, 1.0)

    @pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_cap_that_caps_nothing_is_refused(self, cap: float) -> None:
        """The cap must be positive and finite."""
        with pytest.raises(ValueError, match=f"cap must be a positive, finite number, and is {cap}"):
            softcap(torch.ones(2), cap)

    def test_it_is_built_once(self) -> None:
        """The library lies in the ignored build folder for the next process; nothing half-built is left."""
        softcap(torch.ones(1))
        library = kernel_build.kept_as("softcap.cpp", module.HEADERS, torch.__version__)
        assert library.parent == ROOT / "build" / "kernel"
        assert library.exists()


class TestDevicesWithoutKernels:
    """What takes the kernels' place."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_formula_does(self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
        """Where no kernel is loaded, both operators compute the formula, in the argument's dtype."""
        monkeypatch.setattr(module, "load_kernels", lambda device: False)
        x = torch.linspace(-200, 200, 9, dtype=dtype)
        exact = x.double().requires_grad_()
        expected = Softcap.reference(exact, 2.3)
        kernel_report.same(module.softcap_at_first(x, 2.3), expected.detach())
        gx = module.softcap_backward_at_first(torch.ones_like(x), x, 2.3)
        kernel_report.same(gx, grad(expected.sum(), exact)[0])

    def test_a_device_that_has_none_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is compiled for other devices, nor for CUDA where nvcc is missing."""
        monkeypatch.setattr(kernel_build, "find_nvcc", lambda: None)
        assert not module.load_kernels(torch.device("xpu"))
        assert not module.load_kernels(torch.device("cuda"))

    def test_a_missing_compiler_is_named_with_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On the CPU a call without a compiler raises one sentence."""
        monkeypatch.setattr(kernel_build, "_LOADED", set())
        monkeypatch.setenv("CXX", "no-such-compiler")
        expected = "the C++ compiler no-such-compiler is missing: install one (g++ or clang), or name yours in CXX"
        with pytest.raises(kernel_build.BuildError, match=f"^{re.escape(expected)}$"):
            kernel_build.load_cpp("softcap.cpp", module.HEADERS)

    def test_a_missing_nvcc_is_named_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiling for CUDA without nvcc raises one sentence."""
        monkeypatch.setattr(kernel_build, "find_nvcc", lambda: None)
        with pytest.raises(kernel_build.BuildError, match=r"^nvcc is missing: install the CUDA toolkit, or name its"):
            kernel_build.build_cuda("softcap.cu", module.HEADERS)


class TestReport:
    """What ``python examples/kernel/softcap.py`` prints."""

    @needs_compiler
    @pytest.mark.timeout(300)
    def test_each_part_has_a_line(self) -> None:
        """Run as a program, it proves what this machine can run, and says of the rest why it wasn't run."""
        result = run("softcap.py")
        assert result.returncode == 0, result.stdout + result.stderr
        cpp, cuda, triton = result.stdout.splitlines()
        assert cpp == "cpp: passed"
        if torch.cuda.is_available() and not NO_NVCC:
            assert cuda.startswith("cuda: passed (")
        else:
            assert cuda.startswith("cuda: not run (no nvcc" if NO_NVCC else "cuda: not run (it compiles, and ")
        if NO_TRITON:
            assert triton.startswith("triton: not run (")
        elif not torch.cuda.is_available():
            assert triton == "triton: passed (interpreter)"

    def test_without_compilers_nothing_is_passed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without a C++ compiler, nvcc and Triton, all three lines say 'not run' and why, and the exit code is 1."""
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_HOME", raising=False)
        monkeypatch.setitem(sys.modules, "triton", None)
        printed: list[str] = []
        monkeypatch.setattr("builtins.print", lambda part, **_: printed.append(str(part)))
        assert kernel_report.main(Softcap) == 1
        assert printed == [
            "cpp: not run (the C++ compiler no-such-compiler is missing: "
            "install one (g++ or clang), or name yours in CXX)",
            "cuda: not run (no nvcc)",
            'triton: not run (Triton is missing: pip install "pullback[triton]")',
        ]

    @pytest.mark.parametrize(
        ("results", "code"),
        [
            (("passed", "passed", "passed"), 0),
            (("passed", "not run", "not run"), 0),
            (("not run", "passed", "passed"), 1),
            (("failed", "not run", "not run"), 1),
            (("passed", "failed", "passed"), 1),
            (("passed", "passed", "failed"), 1),
        ],
    )
    def test_the_exit_code_says_whether_all_is_well(
        self, monkeypatch: pytest.MonkeyPatch, results: tuple[str, ...], code: int
    ) -> None:
        """A part that failed makes it 1, and so does C++ that wasn't run; CUDA and Triton may be left out."""
        for name, result in zip(("cpp", "cuda", "triton"), results, strict=True):
            part = kernel_report.Part(name, result)
            monkeypatch.setattr(kernel_report, name, lambda function, part=part: part)
        assert kernel_report.main(Softcap) == code

    @needs_nvcc
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it is run")
    def test_cuda_compiles_without_a_gpu_and_is_not_passed(self) -> None:
        """Where nvcc is and no GPU, the source is compiled, and the line says that it wasn't run."""
        part = kernel_report.cuda(Softcap)
        assert str(part) == "cuda: not run (it compiles, and there is no GPU that this PyTorch can use)"
        assert kernel_build.build_cuda("softcap.cu", module.HEADERS).stat().st_size > 0

    @needs_nvcc
    def test_cuda_that_does_not_compile_has_failed(self, tmp_path: Path) -> None:
        """An error that only nvcc can find is a failure, GPU or none."""
        folder = broken(tmp_path, "softcap.cu", "threadIdx.x", "threadIdx.w")
        result = run("-c", "import kernel_report; print(kernel_report.cuda(None))", folder=folder)
        assert result.stdout.startswith("cuda: failed (softcap.cu does not compile:"), result.stdout + result.stderr

    @needs_compiler
    @pytest.mark.parametrize(
        ("file", "old", "new", "found"),
        [
            (
                "softcap.h",
                "return T(4) * q",
                "return T(3.9) * q",
                "torch.float64, in order: Tensor-likes are not close",
            ),
            ("softcap.h", "return T(4) * q", "return T(4) * * q", "softcap.cpp does not compile:"),
            ("softcap.cpp", "in_order(argument)", "argument", "torch.float64, transposed: Tensor-likes are not close"),
            ("elementwise.h", "::BFloat16:", "::Int:", "torch.bfloat16, in order: for_dtype"),
            ("softcap.cpp", "static_cast<W>(cap)", "static_cast<W>(float(cap))", "torch.float64, in order: Tensor-"),
        ],
        ids=["derivative", "syntax", "strides", "dtype", "narrow"],
    )
    def test_a_broken_kernel_has_failed(self, tmp_path: Path, file: str, old: str, new: str, found: str) -> None:
        """A wrong formula, strides or digits that get lost, a dtype that is refused, and an error of the compiler."""
        folder = broken(tmp_path, file, old, new)
        result = run("-c", "import kernel_report, softcap; print(kernel_report.cpp(softcap.Softcap))", folder=folder)
        assert result.stdout.startswith(f"cpp: failed ({found}"), result.stdout + result.stderr


@needs_compiler
@pytest.mark.timeout(300)
def test_the_check_is_clean() -> None:
    """``pullback check`` of the example ends without a finding."""
    result = run("-m", "pullback", "check", "examples/kernel/softcap.py", folder=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 Function: 1 clean, 0 with findings; no findings." in result.stdout


def test_the_check_says_what_it_needs() -> None:
    """Without a compiler the check isn't clean, and names what to install."""
    result = run("-m", "pullback", "check", "examples/kernel/softcap.py", folder=ROOT, CXX="no-such-compiler")
    assert result.returncode == 1
    assert "the C++ compiler no-such-compiler is missing: install one (g++ or clang)" in " ".join(result.stdout.split())


class TestTriton:
    """The twin."""

    @needs_triton
    @pytest.mark.timeout(300)
    def test_the_check_is_clean_through_the_interpreter(self) -> None:
        """Interpreted on the CPU, the twin passes the check, but for the leaks of the interpreter itself."""
        command = ("-m", "pullback", "check", "examples/kernel/softcap_triton.py", "--skip", "leaks")
        result = run(*command, folder=ROOT, TRITON_INTERPRET="1")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "1 Function: 1 clean, 0 with findings; no findings." in result.stdout

    @needs_triton
    @pytest.mark.parametrize(
        ("old", "new", "found"),
        [
            ("(g * 4 * q", "(g * 3.9 * q", "torch.float64, in order: Tensor-likes are not close"),
            ("u / fraction,", "large,", "torch.float64, in order: Tensor-likes are not close"),
            ("inside = at < count", "inside = at < count - 1", "torch.float64, in order: Tensor-likes are not close"),
            (
                "in arguments]",
                "in arguments[:-1]] + [arguments[-1]]",
                "torch.float64, transposed: Tensor-likes are not",
            ),
        ],
        ids=["derivative", "small", "mask", "strides"],
    )
    def test_a_broken_twin_has_failed(self, tmp_path: Path, old: str, new: str, found: str) -> None:
        """A wrong formula, one that loses digits, a mask and strides are found by the interpreter's run."""
        folder = broken(tmp_path, "softcap_triton.py", old, new)
        result = run("softcap_triton.py", folder=folder, TRITON_INTERPRET="1")
        assert result.returncode == 1
        assert found in result.stderr

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it is run")
    def test_without_the_interpreter_it_is_left_out(self) -> None:
        """On a machine without a GPU a plain check says that the twin was not checked, and doesn't pass it."""
        result = run("-m", "pullback", "check", "examples/kernel/softcap_triton.py", folder=ROOT, TRITON_INTERPRET="0")
        assert result.returncode != 0
        assert "SoftcapTriton" in result.stdout + result.stderr
        assert "was not checked" in result.stdout + result.stderr

    def test_without_triton_the_report_says_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where Triton can't be imported, the line is 'not run' with what to install."""
        monkeypatch.setitem(sys.modules, "triton", None)
        part = kernel_report.triton(Softcap)
        assert str(part) == 'triton: not run (Triton is missing: pip install "pullback[triton]")'

    def test_a_process_that_fails_is_not_passed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the twin's process finds something, the line is 'failed', with what it printed."""
        monkeypatch.setattr(importlib.import_module("softcap_triton"), "missing", lambda interpreted: "")
        failed = subprocess.CompletedProcess((), 1, "", "torch.float64, in order: not close")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
        assert str(kernel_report.triton(Softcap)) == "triton: failed (torch.float64, in order: not close)"


def test_the_page_shows_the_files_as_they_stand() -> None:
    """Each piece of code on the page stands in a file of the example, letter for letter."""
    page = (ROOT / "docs" / "kernels.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in FOLDER.iterdir() if path.suffix in {".h", ".cpp", ".cu", ".py"}]
    pieces = re.findall(r"^```(?:cpp|py)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(pieces) >= 7
    assert [piece for piece in pieces if not any(piece in source for source in sources)] == []
