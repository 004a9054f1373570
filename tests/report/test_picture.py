"""Error maps, and the pictures of them."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pullback.finding import ErrorMap
from pullback.report.picture import picture
from tests.report.examples import ERRORS, WRONG


def figure(errors: ErrorMap) -> ElementTree.Element:
    """The picture, which has to be well formed."""
    return ElementTree.fromstring(picture(errors))


def cells(errors: ErrorMap) -> dict[str, tuple[str, str]]:
    """What each drawn cell is called -> its class, and how dark it is."""
    drawn = [(rect, rect.find("title")) for rect in figure(errors).iter("rect")]
    return {
        str(title.text): (str(rect.get("class")), str(rect.get("fill-opacity")))
        for rect, title in drawn
        if title is not None
    }


def caption(errors: ErrorMap) -> str:
    """The text below the picture."""
    found = figure(errors).find("figcaption")
    assert found is not None
    return str(found.text)


def test_a_map_goes_through_the_evidence_and_back() -> None:
    """A finding keeps it as data that is ready for JSON."""
    assert ErrorMap.read(ERRORS.evidence) == ERRORS
    assert WRONG.error_map == ERRORS
    assert replace(WRONG, evidence={}).error_map is None


@pytest.mark.parametrize(
    "change",
    [
        {"values": []},
        {"values": [[]]},
        {"values": [[0.0, 1.0], [0.0]]},
        {"values": [[0.0, 1.0]]},
        {"values": [[0.0, -1.0], [0.0, 1.0]]},
        {"values": [[0.0, float("inf")], [0.0, 1.0]]},
        {"values": [[0.0, "<b>"], [0.0, 1.0]]},
        {"values": [[0.0, True], [0.0, 1.0]]},
        {"values": 1},
        {"shape": [2]},
        {"shape": [2, "2"]},
        {"shape": [2, -2]},
        {"shape": [40, 40], "values": [[0.0] * 40] * 40},
        {"block": [1, 1]},
        {"block": [1, 0, 1]},
        {"block": None},
        {"values": [[0.0, False], [0.0, 1.0]]},
        {"values": [[0.0, 10**400], [0.0, 1.0]]},
        {"shape": [0], "values": [[]]},
        {"shape": [0, 3], "values": []},
        {"shape": [3, 0], "values": [[], [], []]},
        {"shape": [0, 2, 2]},
    ],
)
def test_what_is_no_map_is_read_as_none(change: dict[str, object]) -> None:
    """Evidence of another writer can't break a picture; a tensor without elements has none."""
    assert ErrorMap.read({**ERRORS.evidence, **change}) is None
    assert ErrorMap.read(None) is None


def test_wrong_elements_are_drawn_and_right_ones_are_blank() -> None:
    """The darker, the larger the error; each cell says its index and its error."""
    errors = ErrorMap(shape=(2, 3), block=(1, 1, 1), values=((0.0, 2.0, 0.0), (1.0, 0.0, 0.002)))
    assert cells(errors) == {
        "[0, 1]: 2": ("heat", "1.00"),
        "[1, 0]: 1": ("heat", "0.57"),
        "[1, 2]: 0.002": ("heat", "0.15"),
    }
    assert caption(errors) == (
        "Where it is wrong: |expected − got| over the shape 2 × 3; blank where it is right within the tolerance, "
        "darkest where it is 2. Rows are the last axis but one, columns the last."
    )


def test_what_is_not_finite_has_a_colour_of_its_own() -> None:
    """It has no place on the scale, so the legend names it."""
    assert cells(ERRORS)["[1, 1]: not finite"][0] == "lost"
    assert "not finite" in [text.text for text in figure(ERRORS).iter("text")]
    nothing_finite = ErrorMap(shape=(2,), block=(1, 1, 1), values=((None, 0.0),))
    assert cells(nothing_finite) == {"[0]: not finite": ("lost", "None")}
    assert "darkest" not in caption(nothing_finite)


def test_the_scale_has_its_ends() -> None:
    """The largest error is written beside it."""
    assert {"1.5", "above 0"} <= {text.text for text in figure(ERRORS).iter("text")}


def test_the_caption_says_what_was_pooled() -> None:
    """Blocks of the last axes, and the leading axes; each cell names the elements that it stands for."""
    errors = ErrorMap(shape=(5, 3, 7, 4), block=(15, 3, 2), values=((0.0, 0.0), (0.0, 0.0), (0.0, 0.5)))
    assert list(cells(errors)) == ["[…, 6, 2:4]: 0.5"]
    assert "Pooled: each cell is the largest error over 3 × 2 elements and over the leading axes (5 × 3)." in caption(
        errors
    )
    assert "Pooled" not in caption(ERRORS)


def test_a_vector_is_one_row() -> None:
    """It has no axis of rows."""
    errors = ErrorMap(shape=(64,), block=(1, 1, 2), values=((0.0,) * 31 + (1.0,),))
    assert list(cells(errors)) == ["[62:64]: 1"]
    assert "largest error over 2 elements" in caption(errors)
    assert [text.text for text in figure(errors).iter("text")][:3] == ["0", "63", "last axis"]


def test_a_single_number_has_no_picture() -> None:
    """The finding's text says all of it."""
    assert picture(ErrorMap(shape=(), block=(1, 1, 1), values=((1.0,),))) == ""


@pytest.mark.parametrize("shape", [(1, 32), (32, 1), (32, 32), (2, 2)])
def test_everything_lies_within_the_picture(shape: tuple[int, int]) -> None:
    """Cells, axes and scale, for flat, narrow and large maps alike."""
    rows, columns = shape
    errors = ErrorMap(shape=shape, block=(1, 1, 1), values=(((1.0,) * columns),) * rows)
    svg = figure(errors).find("svg")
    assert svg is not None
    width, height = (float(part) for part in str(svg.get("viewBox")).split()[2:])
    for element in svg:
        right = float(element.get("x", "0")) + float(element.get("width", "0"))
        assert 0 <= float(element.get("x", "0")) <= right <= width
        assert 0 <= float(element.get("y", "0")) + float(element.get("height", "0")) <= height
    assert not re.search(r"(href|src|url)\b", picture(errors))
