"""No source can crash the linter: random classes of every form, and sources that were mangled.

PULLBACK_PROGRAMS=5000 pytest tests/lint/test_fuzz.py      (make fuzz)
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pullback.lint.run import Linted, lint_text
from pullback.report.formats import write
from pullback.report.names import FORMATS
from tests.lint.sources import modules

PROGRAMS = int(os.environ.get("PULLBACK_PROGRAMS", "60"))
SEED = int(os.environ.get("PULLBACK_SEED", "0"))
ZOO = Path(__file__).parents[1] / "zoo"
SOURCES = [path.read_text("utf-8") for path in sorted(ZOO.glob("*/*.py"))]
SOURCES += [path.read_text("utf-8") for path in sorted((Path(__file__).parent / "examples").glob("*/*.py"))]
PIECES = ("(", ")", ",", "*", "ctx", "None", ":", "\n", "x.", "'", "[0]", " = ")
WORDS = ("ctx", "backward", "forward", "x", "Tensor")

mild = settings(
    max_examples=PROGRAMS,
    deadline=None,
    database=None,
    derandomize=not SEED,
    suppress_health_check=[*HealthCheck],
)


def judge(text: str | bytes) -> Linted:
    """Lint a text, and hold what must be true of whatever comes out."""
    linted = lint_text(text)
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    lines = content.count(b"\n") + content.count(b"\r") + content.count(b"\x0c") + 1
    assert [note for note in linted.notes if "internal error" in note.sentence] == []
    for report in linted.reports:
        for finding in report.findings:
            path, _, line = finding.location.rpartition(":")
            assert path == "text.py"
            assert 1 <= int(line) <= lines
            assert finding.evidence["confidence"] in ("certain", "likely", "possible")
            assert finding.message
            assert "\n" not in finding.message
            assert finding.message.endswith(".")
    return linted


@mild
@given(modules)
def test_random_classes_are_judged(text: str) -> None:
    """Each is judged or noted, twice the same, and the report can be written in every format."""
    linted = judge(text)
    assert judge(text) == linted
    for name in FORMATS:
        assert write(linted.reports, name)


@mild
@given(st.sampled_from(SOURCES), st.randoms(use_true_random=False))
def test_mangled_sources_are_judged(text: str, chance: random.Random) -> None:
    """Lines and pieces of real classes that are dropped, doubled, swapped or replaced, one after another."""
    for _ in range(chance.randrange(1, 6)):
        lines = text.splitlines(keepends=True)
        first, second = (chance.randrange(len(lines) + 1) for _ in range(2))
        low, high = sorted((first, second))
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(20))
        text = chance.choice(
            (
                "".join(lines[:low] + lines[low + 1 :]),
                "".join(lines[:low] + lines[high:] + lines[low:high]),
                "".join(lines[:low] + lines[low:high] * 2 + lines[high:]),
                text[:start] + text[end:],
                text[:start] + chance.choice(PIECES) + text[end:],
                text.replace(chance.choice(WORDS), chance.choice(("g", "self", ""))),
            )
        )
    judge(text)


@mild
@given(st.binary(max_size=200), st.sampled_from(SOURCES), st.randoms(use_true_random=False))
def test_bytes_of_any_kind_are_judged(noise: bytes, text: str, chance: random.Random) -> None:
    """Noise in the middle of a source: bad encodings, NUL, odd ends of lines."""
    content = text.encode()
    place = chance.randrange(len(content))
    judge(content[:place] + noise + content[place:])
