"""Which files are read, and what becomes of those that can't be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pullback.lint import files
from pullback.lint.files import Note
from pullback.lint.run import lint_paths


def tree(root: Path, *names: str) -> None:
    """Empty files, with the folders that they need."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


def names(root: Path, **options: object) -> list[str]:
    """What is found in a folder, from there."""
    found = files.find([str(root)], **options)  # exclude alone
    return [Path(path).relative_to(root).as_posix() for path in found]


def test_python_files_are_found_in_order(tmp_path: Path) -> None:
    """Files that end in .py or .pyw, in folders too, by name, and no others."""
    tree(tmp_path, "b.py", "a.py", "pack/__init__.py", "pack/deep/ops.py", "run.pyw", "notes.txt", "ops.pyi")
    assert names(tmp_path) == ["a.py", "b.py", "run.pyw", "pack/__init__.py", "pack/deep/ops.py"]


def test_what_nobody_wrote_here_is_left_out(tmp_path: Path) -> None:
    """Hidden folders, caches, environments and build results aren't walked into, unless `build` is a package."""
    tree(tmp_path, ".git/x.py", ".venv/x.py", "venv/x.py", "__pycache__/x.py", "node_modules/x.py", "build/x.py")
    tree(tmp_path, "pack/build/__init__.py", "pack/build/x.py")
    assert names(tmp_path) == ["pack/build/__init__.py", "pack/build/x.py"]


def test_what_is_named_is_read(tmp_path: Path) -> None:
    """A folder that a walk would leave out is walked when it is named, and a file is taken whatever its name."""
    tree(tmp_path, ".venv/x.py", "script")
    assert [Path(p).name for p in files.find([str(tmp_path / ".venv"), str(tmp_path / "script")])] == ["x.py", "script"]


def test_each_file_comes_once(tmp_path: Path) -> None:
    """However often it is named."""
    tree(tmp_path, "a.py")
    assert len(list(files.find([str(tmp_path), str(tmp_path / "a.py"), str(tmp_path)]))) == 1


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("a.py", ["pack/b.py", "pack/deep/c.py"]),
        ("pack", ["a.py"]),
        ("deep", ["a.py", "pack/b.py"]),
        ("pack/deep", ["a.py", "pack/b.py"]),
        ("pack/*.py", ["a.py"]),
        ("pack/deep/", ["a.py", "pack/b.py"]),
        ("*.py", []),
    ],
)
def test_patterns_leave_out(tmp_path: Path, pattern: str, left: list[str]) -> None:
    """A pattern holds for names and for paths from where the walk began."""
    tree(tmp_path, "a.py", "pack/b.py", "pack/deep/c.py")
    assert names(tmp_path, exclude=[pattern]) == left


@pytest.mark.parametrize(
    ("path", "pattern", "hit"),
    [
        ("tests/a.py", "tests/**", True),
        ("tests/deep/a.py", "tests/**", True),
        ("src/tests/a.py", "tests", True),
        ("src/mytests/a.py", "tests", False),
        ("a.py", "b.py", False),
    ],
)
def test_matches(path: str, pattern: str, hit: bool) -> None:
    """A path is hit through its name, its end, or a folder that it lies in."""
    assert files.matches(path, [pattern]) is hit


def test_a_file_that_is_gone_is_a_note(tmp_path: Path) -> None:
    """The note names the file and the reason, and nothing is raised."""
    note = files.read(str(tmp_path / "gone.py"))
    assert isinstance(note, Note)
    assert str(note) == f"{tmp_path / 'gone.py'}: can't be read: No such file or directory"


def test_a_link_to_itself_hides_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that leads nowhere; each is a note when it is read, and no path begins with the dot of the walk."""
    tree(tmp_path, "a.py", "z.py", "inner/b.py", "inner/deep/c.py")
    for name, target in (("loop.py", "loop.py"), ("gone.py", "nowhere"), ("folder.py", "inner")):
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    there = ["a.py", "gone.py", "loop.py", "z.py", "inner/b.py", "inner/deep/c.py"]
    assert [Path(one).as_posix() for one in files.find(["."])] == there
    assert [one.startswith("./") for one in files.find(["."])] == [False] * 6
    assert [note.path for note in lint_paths(["."]).notes] == ["gone.py", "loop.py"]


def test_a_notebook_is_a_note(tmp_path: Path) -> None:
    """It would parse as Python, and seem clean."""
    (tmp_path / "a.ipynb").write_text('{"cells": [{"source": ["from torch.autograd import Function"]}]}', "utf-8")
    assert [str(note) for note in lint_paths([str(tmp_path / "a.ipynb")]).notes] == [
        f"{tmp_path / 'a.ipynb'}: is a notebook, and wasn't read: export its code as a .py file"
    ]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_a_note(tmp_path: Path, encoding: str) -> None:
    """Python doesn't read it; that none of the words is in its bytes says nothing."""
    (tmp_path / "a.py").write_text("\ufeffimport torch.autograd\n", encoding)
    assert [str(note) for note in lint_paths([str(tmp_path)]).notes] == [
        f"{tmp_path / 'a.py'}: is UTF-16, which Python doesn't read"
    ]


def test_a_name_that_no_file_can_have_is_a_note() -> None:
    """NUL in a path, too."""
    assert isinstance(files.read("a\0b.py"), Note)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_a_note(tmp_path: Path) -> None:
    """Without the right to read it."""
    tree(tmp_path, "a.py")
    (tmp_path / "a.py").chmod(0)
    assert "Permission denied" in str(files.read(str(tmp_path / "a.py")))


def test_a_file_that_is_too_large_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't read to its end."""
    monkeypatch.setattr(files, "LARGEST", 1 << 20)
    (tmp_path / "a.py").write_bytes(b"#" * ((1 << 20) + 1))
    assert str(files.read(str(tmp_path / "a.py"))).endswith("is larger than 1 MB, and wasn't read")


@pytest.mark.parametrize(
    ("content", "says"), [(b"import torch.autograd", True), (b"pullback", True), (b"torch", False)]
)
def test_only_two_words_count(content: bytes, says: bool) -> None:
    """A file that says neither has nothing to do with Functions."""
    assert files.says_anything(content) is says


@pytest.mark.parametrize(
    "content",
    [
        b"x = 'caf\xc3\xa9'",
        b"\xef\xbb\xbfx = 'caf\xc3\xa9'",
        b"# -*- coding: latin-1 -*-\nx = 'caf\xe9'",
        b"#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\nx = 'caf\xe9'",
    ],
)
def test_encodings_are_followed(content: bytes) -> None:
    """UTF-8, with or without its mark, and what a file declares (PEP 263)."""
    text = files.decode("a.py", content)
    assert isinstance(text, str)
    assert text.endswith("x = 'café'")
    assert not text.startswith("\ufeff")


@pytest.mark.parametrize("content", [b"x = 'caf\xe9'", b"# coding: no-such\n", b"\xef\xbb\xbf# coding: latin-1\n"])
def test_an_encoding_that_fails_is_a_note(content: bytes) -> None:
    """Bytes that the encoding doesn't have, an encoding that nobody knows, and two that contradict each other."""
    assert "its encoding can't be read" in str(files.decode("a.py", content))


def test_module_names_follow_packages(tmp_path: Path) -> None:
    """A module is named from the outermost package that it lies in."""
    tree(tmp_path, "src/pack/__init__.py", "src/pack/sub/__init__.py", "src/pack/sub/ops.py", "script.py")
    assert files.module_name(str(tmp_path / "src/pack/sub/ops.py")) == ("pack.sub.ops", False)
    assert files.module_name(str(tmp_path / "src/pack/sub/__init__.py")) == ("pack.sub", True)
    assert files.module_name(str(tmp_path / "script.py")) == ("script", False)


def test_a_pipe_is_a_note(tmp_path: Path) -> None:
    """Reading it would never end."""
    os.mkfifo(tmp_path / "a.py")
    assert str(files.read(str(tmp_path / "a.py"))).endswith("is no regular file, and wasn't read")
