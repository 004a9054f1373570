"""Compile a source of operators, once for each text it and the headers beside it have, and keep what comes out.

Nothing here knows about softcap: a source says by its path where its headers are, and ``build`` beside it keeps the
libraries.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

TORCH = Path(torch.__file__).parent
# Calls of exp and its like can only be put side by side if nobody asks which of them set errno, and both sides of a
# choice be computed only if nobody traps floating-point exceptions. PyTorch does neither, and no result changes by it.
# Never -ffast-math: it takes inf and nan for impossible.
CPP_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math")
_LOADED: set[Path] = set()
_ONE_AT_A_TIME = threading.Lock()


class BuildError(RuntimeError):
    """A kernel could not be compiled; the text says what to install, or what the compiler found wrong."""


def missing_tool() -> str:
    """Say in a sentence what compiling C++ takes and this machine lacks; empty when all is there."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        hint = "install one (g++ or clang), or name yours in CXX, without arguments"
        return f"the C++ compiler {compiler or '(CXX is empty)'} is missing: {hint}"
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


def load_cpp(source: Path) -> None:
    """Load a C++ source's operators, once in a process; PyTorch's own build tool compiles it unless that is done."""
    with _ONE_AT_A_TIME:
        if source in _LOADED:
            return
        library = kept_as(source, " ".join([os.environ.get("CXX", "c++"), *CPP_FLAGS]))
        if library.exists():
            load(library)
        else:
            missing = missing_tool()
            if missing:
                raise BuildError(missing)
            compile_and_load(source, library)
        _LOADED.add(source)


def load_cuda(source: Path) -> None:
    """Load a CUDA source's operators, once in a process; nvcc compiles it unless that is done."""
    with _ONE_AT_A_TIME:
        if source not in _LOADED:
            load(build_cuda(source))
            _LOADED.add(source)


def load(library: Path) -> None:
    """Load the operators of a library that was kept."""
    try:
        torch.ops.load_library(str(library))
    except OSError as error:  # it was cut short, or needs what is missing
        reason = error.__cause__ or error
        raise BuildError(f"{library} can't be loaded; delete it, and it is made anew: {reason}") from error


def compile_and_load(source: Path, library: Path) -> None:
    """Compile a C++ source, load its operators, and keep the library."""
    from torch.utils import cpp_extension  # late, since it takes a while and needs setuptools

    path = os.environ.get("PATH", os.defpath)
    with moved_to(library) as made:
        os.environ["PATH"] = path_with_scripts()
        try:
            cpp_extension.load(
                library.stem,
                [str(source)],
                list(CPP_FLAGS),
                extra_ldflags=["-lm"],  # where the vector functions come from; gcc, as opposed to g++, has to be told
                build_directory=str(made.parent),
                is_python_module=False,
            )
        except (RuntimeError, OSError) as error:
            # PyTorch's OSError has the loader's reason as its cause, its RuntimeError the compiler's words in its text.
            raise does_not_compile(source, f"{error}\n{error.__cause__}") from error
        finally:
            os.environ["PATH"] = path


def build_cuda(source: Path) -> Path:
    """Compile a CUDA source with nvcc, which needs no GPU, unless that is done, and return the library."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("nvcc is missing: install the CUDA toolkit, or name its folder in CUDA_HOME")
    # Code for the GPU that is there; else for nvcc's oldest, which newer ones compile anew when they load it.
    target = ["-arch=native"] if torch.cuda.is_available() else []
    library = kept_as(source, " ".join([nvcc, *target]))
    if not library.exists():
        with moved_to(library) as made:
            flags = ["-std=c++20", "-O3", "-shared", "-Xcompiler", "-fPIC", "-DUSE_CUDA", *target]
            # PyTorch built for the CPU lacks the last two: what is made beside it compiles, and can't be loaded.
            names = ("c10", "torch", "torch_cpu", "c10_cuda", "torch_cuda")
            linked = [f"-l{name}" for name in names if (TORCH / "lib" / f"lib{name}.so").exists()]
            places = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}"]
            command = [nvcc, *flags, *places, str(source), *linked, "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if result.returncode:
                raise does_not_compile(source, result.stdout + result.stderr)
    return library


def does_not_compile(source: Path, output: str) -> BuildError:
    """Make an error that begins with the compiler's first: the command before it fills half a page."""
    telling = ("error:", "undefined reference", "undefined symbol", "cannot open shared object")
    lines = output.splitlines()
    first = next((at for at, line in enumerate(lines) if any(sign in line for sign in telling)), None)
    said = ["no library came out", *lines] if first is None else lines[first:]
    return BuildError(f"{source.name} does not compile: " + "\n".join(said).strip())


def kept_as(source: Path, key: str) -> Path:
    """Return where the library is kept that is made of these texts, for this PyTorch, in the way that key says."""
    headers = sorted(path for path in source.parent.iterdir() if path.suffix in {".h", ".hpp", ".cuh"})
    parts = [torch.__version__, platform.machine(), *platform.libc_ver(), key, *(path.name for path in headers)]
    texts = [path.read_bytes() for path in (source, *headers)]
    digest = hashlib.sha256(b"\0".join([*map(str.encode, parts), *texts])).hexdigest()[:12]
    return source.parent / "build" / f"{source.name.replace('.', '_')}_{digest}.so"


@contextmanager
def moved_to(library: Path) -> Iterator[Path]:
    """Yield where to make a library, a folder of its own, and move it when it is whole.

    So, of several processes at once, none can meet half a library.
    """
    try:
        library.parent.mkdir(exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=library.parent)
    except OSError as error:
        reason = f"{library.parent}, where libraries are kept, can't be written to ({error.strerror})"
        raise BuildError(f"{reason}: copy the folder of the source to where you may write") from error
    with folder:
        made = Path(folder.name) / library.name
        yield made
        os.replace(made, library)
