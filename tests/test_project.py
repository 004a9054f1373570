"""The project around the code: public names, documents, commands, the wheel."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import pullback

ROOT = Path(__file__).parent.parent
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder, free of the flags of a make that runs these tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files that set the environment up, after a finished installation."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


@pytest.mark.parametrize("name", pullback.__all__)
def test_public_name_is_there(name: str) -> None:
    """Every name of __all__ can be had, is listed by dir, and is the same object each time."""
    assert getattr(pullback, name) is getattr(pullback, name)
    assert name in dir(pullback)


def test_public_names_are_no_modules() -> None:
    """What is called by a public name isn't hidden behind a module of that name; packages are meant as such."""
    modules = {path.stem for path in (ROOT / "src" / "pullback").iterdir() if path.name != "__init__.py"}
    packages = {name for name in pullback.__all__ if isinstance(getattr(pullback, name), ModuleType)}
    assert modules & {*pullback.__all__} == packages


def test_type_checkers_see_the_public_names() -> None:
    """What is loaded lazily at run time is what is re-exported to type checkers, from the same modules."""
    tree = ast.parse((ROOT / "src" / "pullback" / "__init__.py").read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"pullback.{alias.name}" if node.module == "pullback" else node.module  # a package of it
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == pullback._HOME
    assert sorted([*seen, "__version__"]) == sorted(pullback.__all__)


def test_version_is_the_installed_one() -> None:
    """The version stands in one place, and the package is installed from it."""
    assert pullback.__version__ == importlib.metadata.version("pullback")


def test_torch_is_an_extra() -> None:
    """Installing pullback brings no torch; only the extra names it."""
    requirements = importlib.metadata.requires("pullback") or []
    assert [line for line in requirements if re.match(r"(torch|numpy)\b", line) and "extra ==" not in line] == []
    assert any(re.match(r"torch\b.*extra == 'torch'", line) for line in requirements)


def test_every_tool_is_pinned() -> None:
    """constraints.txt has the version of each package that pyproject.toml asks for."""
    pinned = set(re.findall(r"^([a-z-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    required = {re.match(r"[a-zA-Z-]+", line)[0] for line in importlib.metadata.requires("pullback") or []}
    assert required - {"tomli"} <= pinned


def test_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    """The wheel carries the sources, the typing marker, the licence, the command and the plugin; no tests."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("pullback-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        written = archive.read(entry_points).decode()
        assert "[console_scripts]\npullback = pullback.cli:main" in written
        assert "[pytest11]\npullback = pullback.pytest_plugin" in written
    assert {"pullback/__init__.py", "pullback/py.typed", "pullback/rules/__init__.py"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"pullback"}


@pytest.mark.parametrize("target", ["test", "demo", "docs"])
def test_fresh_environment_needs_no_pip(checkout: Path, target: str) -> None:
    """Once .venv is set up, make asks pip for nothing, so it works without a network."""
    result = make(checkout, "--dry-run", target)
    assert result.returncode == 0, result.stderr
    assert ".venv/bin/" in result.stdout
    assert "pip" not in result.stdout


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", ".venv/.installed"])
def test_changed_requirements_are_installed(checkout: Path, name: str) -> None:
    """A change of what is needed, or an installation that broke off, makes the environment anew."""
    if name.startswith(".venv"):
        (checkout / name).unlink()
    else:
        os.utime(checkout / name, (2**32, 2**32))
    result = make(checkout, "--dry-run", "test")
    assert result.returncode == 0, result.stderr
    assert "pip install" in result.stdout


def test_another_torch_has_an_environment_of_its_own(checkout: Path) -> None:
    """`make test-torch` installs the release that it is told, beside .venv, and runs the tests there, nothing else."""
    result = make(checkout, "--dry-run", "test-torch", "VERSION=2.12.1", "PIP_ARGS=--pre", "PYTEST_ARGS=tests/call")
    assert result.returncode == 0, result.stderr
    (install,) = re.findall(r"^\S+ -m pip install (?:.*\\\n)*.*", result.stdout, re.MULTILINE)
    assert install.startswith(".venv-torch-2.12.1/bin/python")
    assert "--pre" in install
    assert '"torch==2.12.1"' in install
    assert re.findall(r"^\S+ -m pytest .*", result.stdout, re.MULTILINE) == [
        ".venv-torch-2.12.1/bin/python -m pytest -n 2 --dist loadfile --quiet tests/call"
    ]
    assert ".venv/" not in result.stdout
    assert "mypy" not in result.stdout


def test_another_torch_has_to_be_named(checkout: Path) -> None:
    """Without a release `make test-torch` says what to write, and makes no environment."""
    result = make(checkout, "test-torch")
    assert result.returncode == 2
    assert "which torch? make test-torch VERSION=" in result.stderr
    assert sorted(path.name for path in checkout.glob(".venv*")) == [".venv"]


@pytest.mark.parametrize("python", ["false", "no-such-python"])
def test_python_that_is_too_old_is_named(checkout: Path, python: str) -> None:
    """Without a Python of 3.10 or newer, make says so in one plain sentence and stops."""
    (checkout / ".venv" / ".installed").unlink()
    result = make(checkout, f"PYTHON={python}", "test")
    assert result.returncode == 2
    assert f"pullback needs Python 3.10 or newer, and '{python}' is older or missing" in result.stderr
    assert not (checkout / ".venv" / "bin").exists()


def test_continuous_integration_runs_make_test() -> None:
    """.ci/run can be executed and calls `make test`, nothing else."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text("utf-8").splitlines()
    assert lines == ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_hold(path: Path) -> None:
    """Every relative link in the documents leads to a file."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md"])
def test_commands_of_the_documents_exist(path: str) -> None:
    """Every `make` target that a document names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", (ROOT / path).read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} & named
    assert named <= targets


def test_readme_example_is_right_with_another_import(tmp_path: Path) -> None:
    """The README's wrong Function, whose report test_documents compares, is clean with pullback's base class."""
    readme = (ROOT / "README.md").read_text("utf-8")
    example, rebased = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[:2]
    assert "class Swish(torch.autograd.Function)" in example
    assert "class Swish(pullback.Function)" in rebased
    path = tmp_path / "swish.py"
    path.write_text(
        example.replace("import torch\n", "import pullback\nimport torch\n").replace(
            "torch.autograd.Function", "pullback.Function"
        ),
        "utf-8",
    )
    main = "import sys; from pullback.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", main, "check", "swish.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_say_what_they_hold(path: Path) -> None:
    """Every test has a docstring and is annotated, so that mypy and people read it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            where = f"{path.name}:{node.lineno} {node.name}"
            assert ast.get_docstring(node), where
            assert node.returns is not None, where
            assert all(argument.annotation for argument in node.args.args if argument.arg != "self"), where
