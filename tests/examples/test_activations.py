"""examples/activations.py: the library whose test file docs/prove.md shows, and runs with one Function made wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pullback
from examples import activations

TEST_FILE = Path(activations.__file__).with_name("test_activations.py")


def test_the_test_file_names_every_function() -> None:
    """Whatever the library defines is tested: the list of names is complete."""
    (names,) = re.findall(r'^NAMES = "(.*)"\.split\(\)$', TEST_FILE.read_text("utf-8"), re.MULTILINE)
    assert names.split() == sorted(cls.__name__ for cls in activations.Activation.__subclasses__())
    assert len(names.split()) == 10


def test_the_function_that_the_document_spoils_is_right() -> None:
    """Square is clean as it stands; the document changes a number in it before it runs the ten tests."""
    assert not pullback.check(activations.Square, skip="compiled").findings
