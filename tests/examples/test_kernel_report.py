"""What a machine can't run of the kernels is said and never passed; what is broken has failed; the check is clean."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.kernel_example import (
    FOLDER,
    NO_NVCC,
    NO_TRITON,
    ROOT,
    broken,
    kernel_build,
    kernel_report,
    module,
    needs_compiler,
    needs_nvcc,
    needs_triton,
    run,
)

CUDA, TWIN = FOLDER / "softcap.cu", FOLDER / "softcap_triton.py"
Softcap = module.Softcap


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
        assert kernel_report.main(Softcap, numbers=(2.3,), cuda=CUDA, triton=TWIN) == 1
        assert printed == [
            "cpp: not run (the C++ compiler no-such-compiler is missing: "
            "install one (g++ or clang), or name yours in CXX, without arguments)",
            "cuda: not run (no nvcc)",
            "triton: not run (Triton is missing: pip install triton)",
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
            monkeypatch.setattr(kernel_report, f"{name}_part", lambda *_, part=part: part)
        assert kernel_report.main(Softcap, numbers=(2.3,), cuda=CUDA, triton=TWIN) == code

    @needs_nvcc
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it is run")
    def test_cuda_compiles_without_a_gpu_and_is_not_passed(self) -> None:
        """Where nvcc is and no GPU, the source is compiled, and the line says that it wasn't run."""
        part = kernel_report.cuda_part(Softcap, (2.3,), CUDA)
        assert str(part) == "cuda: not run (it compiles, and there is no GPU that this PyTorch can use)"
        assert kernel_build.build_cuda(FOLDER / "softcap.cu").stat().st_size > 0

    @needs_nvcc
    def test_cuda_that_does_not_compile_has_failed(self, tmp_path: Path) -> None:
        """An error that only nvcc can find is a failure, GPU or none."""
        folder = broken(tmp_path, "softcap.cu", "threadIdx.x", "threadIdx.w")
        result = run(
            "-c",
            "import kernel_report as report, pathlib; print(report.cuda_part(None, (), pathlib.Path('softcap.cu')))",
            folder=folder,
        )
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
        result = run(
            "-c", "import kernel_report, softcap; print(kernel_report.cpp_part(softcap.Softcap, (2.3,)))", folder=folder
        )
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
        part = kernel_report.triton_part(TWIN)
        assert str(part) == "triton: not run (Triton is missing: pip install triton)"

    def test_a_process_that_fails_is_not_passed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the twin's process finds something, the line is 'failed', with what it printed."""
        monkeypatch.setattr(importlib.import_module("softcap_triton"), "missing", lambda interpreted: "")
        failed = subprocess.CompletedProcess((), 1, "", "torch.float64, in order: not close")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
        assert str(kernel_report.triton_part(TWIN)) == "triton: failed (torch.float64, in order: not close)"


def test_the_page_shows_the_files_as_they_stand() -> None:
    """Each piece of code on the page stands in a file of the example, letter for letter."""
    page = (ROOT / "docs" / "kernels.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in FOLDER.iterdir() if path.suffix in {".h", ".cpp", ".cu", ".py"}]
    pieces = re.findall(r"^```(?:cpp|py)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(pieces) >= 7
    assert [piece for piece in pieces if not any(piece in source for source in sources)] == []
