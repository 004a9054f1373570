"""From what a person names to files and modules, by reading alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pullback.cli.failure import UsageError
from pullback.cli.targets import Target, may_define_function, resolve
from tests.cli.conftest import GOOD, Pullback

FUNCTION = "import torch\nclass F(torch.autograd.Function): ...\n"


@pytest.fixture
def tree(folder: Path) -> Path:
    """A folder of files with and without Functions."""
    files = {
        "ops.py": FUNCTION,
        "pkg/__init__.py": "",
        "pkg/more.py": FUNCTION,
        "pkg/model.py": "import torch\nclass M(torch.nn.Module):\n    def forward(self, x): ...\n",
        "pkg/__pycache__/old.py": FUNCTION,
        ".hidden/ops.py": FUNCTION,
        "env/pyvenv.cfg": "",
        "env/lib/ops.py": FUNCTION,
        "notes.txt": "",
    }
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return folder


def test_each_way_to_name_a_target(tree: Path) -> None:
    """Files, classes of files, modules and classes of modules are told apart."""
    found = resolve(["ops.py", "pkg/more.py:F", "pkg.more", "pkg.other:Outer.Inner", str(tree / "ops.py") + ":F"])
    assert found == [
        Target(source="ops.py", is_file=True, names=("F",)),
        Target(source="pkg/more.py", is_file=True, names=("F",), whole=False),
        Target(source="pkg.more", is_file=False),
        Target(source="pkg.other", is_file=False, names=("Outer.Inner",), whole=False),
    ]


def test_classes_of_one_file_are_joined(tree: Path) -> None:
    """One file is imported once; named as a whole it stays whole, and the classes that were named have to be there."""
    both = Target(source="ops.py", is_file=True, names=("A", "B"), whole=False)
    assert resolve(["ops.py:A", "./ops.py:B", "ops.py:A"]) == [both]
    assert resolve(["ops.py:A", "ops.py", "ops.py:B"]) == [replace(both, whole=True)]


def test_a_file_is_one_by_whatever_path_it_is_named(tree: Path) -> None:
    """An absolute path, a way round, a link to the file and one to its folder lead to one target, named as at first."""
    (tree / "link.py").symlink_to(tree / "ops.py")
    (tree / "there").symlink_to(tree / "pkg")
    assert resolve(["link.py", "ops.py", str(tree / "ops.py"), "pkg/../ops.py"]) == [
        Target(source="link.py", is_file=True)
    ]
    assert resolve(["there", "pkg/more.py:F"]) == [Target(source="there/more.py", is_file=True, names=("F",))]
    assert [target.source for target in resolve(["."])] == ["link.py", "pkg/more.py"]


def test_folders_hold_the_files_that_may_define_functions(tree: Path) -> None:
    """Other files are not imported; hidden folders, caches and environments are passed over."""
    found = resolve([str(tree)])
    assert [Path(target.source).relative_to(tree).as_posix() for target in found] == ["ops.py", "pkg/more.py"]
    assert not any(target.named for target in found)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "nowhere.py: no such file"),
        ("no/where", "no/where: no such file"),
        ("lost.txt", "lost.txt: no such file, and no such module"),
        ("notes.txt", "notes.txt isn't a Python file"),
        ("pkg:F", r"pkg is a folder; name a file in it, as in pkg/file.py:F"),
        ("ops.py:", "name a class after the colon"),
        ("not-a-module", "a target is file.py, file.py:Class, package.module:Class or a folder"),
        ("pkg/*.py", r"pkg/\*.py: no such file; a pattern is the shell's to expand: name the folder"),
        ("bare", "no Python file in this folder"),
        ("plain", "no Function can be seen in the source of its 1 Python files"),
    ],
)
def test_what_is_not_there_is_a_usage_error(tree: Path, target: str, message: str) -> None:
    """A target that can't be found ends the run before anything is imported, and says what was looked for."""
    (tree / "bare").mkdir()
    (tree / "plain").mkdir()
    (tree / "plain" / "x.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match=message):
        resolve([target])


@pytest.mark.parametrize(
    ("source", "may"),
    [
        (FUNCTION, True),
        ("class F(pullback.Function): ...\n", True),
        ("class F(Base):\n    def backward(ctx, g): ...\n", True),
        ("class F(Base):\n    def forward(ctx, x): ...\n", True),
        ("def make():\n    class F(Function): ...\n", True),
        ("class F(Function:\n", True),
        ("class M(Module):\n    def forward(self, x): ...\n", False),
        ("class F:\n    def backward(ctx, g): ...\n", False),
        ("import torch\n", False),
        ("def f(:\n", False),
        ("x = '\0'\n", False),
    ],
)
def test_which_sources_may_define_functions(tmp_path: Path, source: str, may: bool) -> None:
    """Direct and indirect bases count, in doubt a file counts, and plain modules and scripts don't."""
    path = tmp_path / "x.py"
    path.write_bytes(source.encode())
    assert may_define_function(path) is may


def test_missing_files_exit_2(pullback: Pullback) -> None:
    """On the command line a missing file is a usage error, whatever else is named."""
    ran = pullback("check", "ops.py", "nowhere.py", ops=GOOD)
    assert ran.code == 2
    assert ran.err == "pullback: nowhere.py: no such file\n"
    assert ran.out == ""


def test_missing_modules_exit_2(pullback: Pullback) -> None:
    """A module that isn't there is nothing to check."""
    ran = pullback("check", "no_such_module:F")
    assert ran.code == 2
    assert "there is no module no_such_module" in ran.err


def test_a_folder_is_checked_file_by_file(pullback: Pullback, folder: Path) -> None:
    """A file that turns out to hold no Function is named, and the others are reported."""
    (folder / "a.py").write_text("class Function:\n    pass\nclass A(Function):\n    probes = {}\n")
    (folder / "b.py").write_text("class Function:\n    pass\nclass B(Function):\n    pass\n")
    ran = pullback("check", str(folder))
    assert ran.code == 0
    assert "1 Function: 1 clean" in ran.out
    assert f"skipped: {folder / 'b.py'} defines no Function" in " ".join(ran.out.split())  # lines wrap by path


def test_a_file_with_a_colon_in_its_name_can_be_named(tree: Path) -> None:
    """The whole text is tried as a path first; a class may follow."""
    (tree / "a:b.py").write_text(FUNCTION)
    assert resolve(["a:b.py"]) == [Target(source="a:b.py", is_file=True)]
    assert resolve(["a:b.py:F"]) == [Target(source="a:b.py", is_file=True, names=("F",), whole=False)]
