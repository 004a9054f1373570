"""Each finding in the packages of the development environment was read by somebody, who said whether it is one."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path

import pytest
import torch

from pullback.cli import toml
from pullback.lint.run import Linted, lint_paths

ROOT = Path(__file__).parents[2]
SITE = Path(torch.__file__).parents[1]
VERDICTS = toml.read(Path(__file__).with_name("verdicts.toml"))["verdict"]
KEYS = {"package", "file", "class", "rule", "verdict", "why"}

Key = tuple[str, str, str]  # file, class, rule


def pinned() -> dict[str, str]:
    """Distribution -> the release that constraints.txt pins, by normalised names."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.partition(";")[0].strip().split("==") for line in lines if "==" in line and line[0] != "#")
    return {normalised(name): release for name, release in pairs}


def normalised(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def judged() -> frozenset[str]:
    """The packages that lie here in the release that is pinned: of others the findings may be others."""
    wanted, found = pinned(), set()
    for package, distributions in importlib.metadata.packages_distributions().items():
        for name in distributions:
            release = importlib.metadata.version(name).partition("+")[0]
            if wanted.get(normalised(name), "").partition("+")[0] == release:
                found.add(package)
    return frozenset(found)


@functools.cache
def linted() -> Linted:
    """The whole environment, once."""
    return lint_paths([str(SITE)])


def found() -> set[Key]:
    """What is found at the default level in the packages that count."""
    keys = set()
    for report in linted().reports:
        file, _, _ = report.location.rpartition(":")
        path = Path(file).relative_to(SITE)
        if path.parts[0].removesuffix(".py") in judged():
            sure = [one for one in report.findings if one.evidence["confidence"] != "possible"]
            keys |= {(path.as_posix(), report.function, one.rule) for one in sure}
    return keys


def said(verdict: str) -> set[Key]:
    """The findings with a verdict, in the packages that count."""
    entries = [one for one in VERDICTS if one["verdict"] == verdict and one["package"] in judged()]
    return {(one["file"], one["class"], one["rule"]) for one in entries}


def test_the_file_is_whole() -> None:
    """Each entry has its keys, a verdict that is one of two, and a reason; none stands there twice."""
    for one in VERDICTS:
        assert {*one} == KEYS
        assert one["verdict"] in ("true", "false")
        assert len(one["why"]) > 40
        assert one["file"].startswith(one["package"])
    keys = [(one["file"], one["class"], one["rule"]) for one in VERDICTS]
    assert len({*keys}) == len(keys)


def test_every_finding_has_a_verdict() -> None:
    """A finding that nobody judged is in the difference; so is one that is gone, or false and back again."""
    if "torch" not in judged():
        pytest.skip(f"torch {torch.__version__} isn't the release whose findings were judged")
    assert found() == said("true")
    assert not found() & said("false")


def test_the_environment_was_read() -> None:
    """The Functions of torch are among what was judged, and no file of the pinned packages was left out."""
    assert len(linted().files) > 2000
    names = {report.function for report in linted().reports}
    assert {"CheckpointFunction", "SyncBatchNorm", "NumpyCube"} <= names
    assert [note for note in linted().notes if Path(note.path).relative_to(SITE).parts[0] in judged()] == []
