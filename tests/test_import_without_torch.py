"""What needs no torch doesn't import it, and what needs it says so in one sentence where it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = (
    "import pullback",
    "import pullback.context",
    "import pullback.errors",
    "import pullback.finding",
    "import pullback.lint",
    "import pullback.report",
    "import pullback.rules",
    "from pullback import Finding, Report, Severity",
    "dir(pullback)",
    "str(pullback.Report(function='F'))",
    "import pullback.cli",
    "import pullback.pytest_plugin",
)
COMMANDS = (
    "explain PB203",
    "explain --list",
    "--help",
    "--version",
    "check --help",
    "lint --help",
    "lint examples",
    "explain --help",
    "env --help",
)
BLOCKED = "import sys; sys.modules['torch'] = None; "


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def imports_torch(statement: str) -> bool:
    """Whether a new interpreter has torch loaded after `statement`, which has to succeed."""
    result = python(f"import sys, pullback\n{statement}\nprint('torch' in sys.modules)")
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last in {"True", "False"}
    return last == "True"


@pytest.mark.parametrize("statement", IMPORTS)
def test_import_leaves_torch_alone(statement: str) -> None:
    """Importing what is plain data, text or command line doesn't import torch."""
    assert not imports_torch(statement)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_command_leaves_torch_alone(arguments: str) -> None:
    """Commands that only tell something run without importing torch."""
    run = (
        "from pullback.cli import main\n"
        "try:\n"
        f"    status = main({arguments.split()!r})\n"
        "except SystemExit as stop:\n"
        "    status = stop.code\n"
        "assert not status, status"
    )
    assert not imports_torch(run)


@pytest.mark.parametrize("statement", ["import torch", "pullback.Function", "from pullback import check"])
def test_an_import_of_torch_is_seen(statement: str) -> None:
    """The tests above can fail: where torch is loaded, the same question is answered with yes."""
    assert imports_torch(statement)


@pytest.mark.parametrize("name", ["Function", "check", "assert_correct", "Sample", "samples_for"])
def test_without_torch_the_error_is_one_sentence(name: str) -> None:
    """Where torch is missing, touching a name that needs it says so, and what to install."""
    result = python(f"{BLOCKED}import pullback; pullback.{name}")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"ImportError: pullback.{name} needs PyTorch, which isn't installed: install your own build of "
        "torch, or pullback with its extra: pullback[torch]."
    )


def test_without_torch_from_import_says_the_same() -> None:
    """`from pullback import Function` gives the same error as `pullback.Function`."""
    result = python(f"{BLOCKED}from pullback import Function")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("ImportError: pullback.Function needs PyTorch, which isn't")


def test_without_torch_the_rest_works() -> None:
    """Findings, reports, the rulebook and the commands that only tell something work where torch is missing."""
    result = python(f"{BLOCKED}from pullback.cli import main; import pullback; main(['explain', 'PB203'])")
    assert result.returncode == 0, result.stderr
    assert "PB203" in result.stdout


def test_another_missing_module_is_not_taken_for_torch() -> None:
    """Only torch's own absence gives the sentence about torch."""
    result = python("import sys; sys.modules['pullback.function'] = None; import pullback; pullback.Function")
    assert result.returncode == 1
    assert "ModuleNotFoundError: import of pullback.function halted" in result.stderr
    assert "pullback[torch]" not in result.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that pullback doesn't have fails as in any module."""
    import pullback

    with pytest.raises(AttributeError, match="module 'pullback' has no attribute 'Funktion'"):
        pullback.Funktion  # noqa: B018  # the attribute access is the thing under test
