"""Compile the sources beside this file, once for each text they have and each PyTorch, and keep what comes out.

Nothing here knows about softcap: the next operation needs its own list of sources, and no more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
KEPT = FOLDER.parents[1] / "build" / "kernel"
TORCH = Path(torch.__file__).parent
_LOADED: set[str] = set()
_ONE_AT_A_TIME = threading.Lock()


class BuildError(RuntimeError):
    """A kernel could not be compiled; the text says what to install, or what the compiler found wrong."""


def missing_tool() -> str:
    """Say in a sentence what compiling C++ takes and this machine lacks; empty when all is there."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler} is missing: install one (g++ or clang), or name yours in CXX"
    if shutil.which("ninja", path=path_with_scripts()) is None:
        return "ninja is missing: pip install ninja"
    return "" if find_spec("setuptools") else "setuptools is missing: pip install setuptools"


def path_with_scripts() -> str:
    """Return PATH with this environment's scripts, where pip puts ninja, whether or not it is activated."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])


def find_nvcc() -> str | None:
    """Return CUDA's compiler: that of PATH, or that of CUDA_HOME."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None)


def load_cpp(source: str, headers: Sequence[str]) -> None:
    """Load a C++ source's operators, once in a process; PyTorch's own build tool compiles it unless that is done."""
    with _ONE_AT_A_TIME:
        if source in _LOADED:
            return
        missing = missing_tool()
        if missing:
            raise BuildError(missing)
        library = kept_as(source, headers, torch.__version__)
        if library.exists():
            torch.ops.load_library(str(library))
        else:
            compile_and_load(source, library)
        _LOADED.add(source)


def load_cuda(source: str, headers: Sequence[str]) -> None:
    """Load a CUDA source's operators, once in a process; nvcc compiles it unless that is done."""
    with _ONE_AT_A_TIME:
        if source not in _LOADED:
            torch.ops.load_library(str(build_cuda(source, headers)))
            _LOADED.add(source)


def compile_and_load(source: str, library: Path) -> None:
    """Compile a C++ source, load its operators, and keep the library."""
    from torch.utils import cpp_extension  # late, since it takes a while and needs setuptools

    path = os.environ.get("PATH", os.defpath)
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        os.environ["PATH"] = path_with_scripts()
        try:
            cpp_extension.load(
                library.stem, [str(FOLDER / source)], ["-O3"], build_directory=folder, is_python_module=False
            )
        except RuntimeError as error:
            raise BuildError(f"{source} does not compile:\n{error}") from error
        finally:
            os.environ["PATH"] = path
        os.replace(Path(folder) / library.name, library)


def build_cuda(source: str, headers: Sequence[str]) -> Path:
    """Compile a CUDA source with nvcc, which needs no GPU, unless that is done, and return the library."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("nvcc is missing: install the CUDA toolkit, or name its folder in CUDA_HOME")
    # Code for the GPU that is there; else for nvcc's oldest, which newer ones compile anew when they load it.
    target = ["-arch=native"] if torch.cuda.is_available() else []
    library = kept_as(source, headers, " ".join([torch.__version__, *target]))
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            made = Path(folder) / library.name
            flags = ["-std=c++20", "-O3", "-shared", "-Xcompiler", "-fPIC", "-DUSE_CUDA", *target]
            # PyTorch built for the CPU lacks the last two: what is made beside it compiles, and can't be loaded.
            names = ("c10", "torch", "torch_cpu", "c10_cuda", "torch_cuda")
            linked = [f"-l{name}" for name in names if (TORCH / "lib" / f"lib{name}.so").exists()]
            places = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}"]
            command = [nvcc, *flags, *places, str(FOLDER / source), *linked, "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise BuildError(f"{source} does not compile:\n{result.stdout}{result.stderr}")
            os.replace(made, library)
    return library


def kept_as(source: str, headers: Sequence[str], key: str) -> Path:
    """Return where the library of these texts is kept.

    It is made in a folder of its own and then moved there: of several processes at once, none can meet half a library.
    """
    texts = [(FOLDER / name).read_bytes() for name in (source, *headers)]
    digest = hashlib.sha256(b"\0".join([key.encode(), *texts])).hexdigest()[:12]
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT / f"{source.replace('.', '_')}_{digest}.so"
