"""Where a tensor is wrong, as a picture: an SVG heat map of its errors, with its scale, and a caption to explain it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pullback.finding import ErrorMap

_FAINTEST = 0.15  # the opacity of the smallest error, which is still seen beside a blank cell
_STEPS = 10  # of the scale
_LEFT, _TOP, _BOTTOM, _SCALE = 46, 8, 34, 120  # what stands beside the cells, in pixels


def picture(errors: ErrorMap) -> str:
    """A figure in HTML; empty for a single number, of which the text of a finding says all."""
    rows, columns = len(errors.values), len(errors.values[0])
    if rows == columns == 1:
        return ""
    finite = [value for row in errors.values for value in row if value is not None]
    largest = max(finite, default=0.0)
    cell = min(24, max(11, 480 // columns))
    width, height = _LEFT + columns * cell + _SCALE, _TOP + max(rows * cell, 72) + _BOTTOM
    caption = escape(_caption(errors, largest))
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{caption}">',
        f'<rect class="ground" x="{_LEFT}" y="{_TOP}" width="{columns * cell}" height="{rows * cell}"/>',
        *_cells(errors, largest, cell),
        *_axes(errors, cell),
        *_scale(errors, largest, _LEFT + columns * cell + 24),
        "</svg>",
    ]
    return f"<figure>{''.join(parts)}<figcaption>{caption}</figcaption></figure>"


def _cells(errors: ErrorMap, largest: float, cell: int) -> Iterator[str]:
    for i, row in enumerate(errors.values):
        for j, value in enumerate(row):
            if value == 0:
                continue  # blank
            look = 'class="lost"' if value is None else f'class="heat" fill-opacity="{_opacity(value / largest)}"'
            place = f'x="{_LEFT + j * cell}" y="{_TOP + i * cell}" width="{cell}" height="{cell}"'
            error = "not finite" if value is None else f"{value:g}"
            yield f"<rect {look} {place}><title>{_elements(errors, i, j)}: {error}</title></rect>"


def _opacity(share: float) -> str:
    return f"{_FAINTEST + (1 - _FAINTEST) * share:.2f}"


def _elements(errors: ErrorMap, row: int, column: int) -> str:
    """Which elements a cell stands for, written as an index: ``[2, 0:4]``."""
    _, height, width = errors.block
    sizes = (1, 1, *errors.shape)[-2:]
    ends = [
        _range(number * step, step, size)
        for number, step, size in zip((row, column), (height, width), sizes, strict=True)
    ]
    leading = ["…"] if len(errors.shape) > 2 else []
    return f"[{', '.join([*leading, *ends[2 - min(len(errors.shape), 2) :]])}]"


def _range(start: int, step: int, size: int) -> str:
    stop = min(start + step, size)
    return str(start) if stop == start + 1 else f"{start}:{stop}"


def _axes(errors: ErrorMap, cell: int) -> Iterator[str]:
    rows, columns = len(errors.values), len(errors.values[0])
    height, width = rows * cell, columns * cell
    below = _TOP + height
    last = errors.shape[-1]
    yield f'<text x="{_LEFT}" y="{below + 13}">0</text>'
    yield f'<text x="{_LEFT + width}" y="{below + 13}" text-anchor="end">{last - 1}</text>'
    yield f'<text x="{_LEFT + width / 2:g}" y="{below + 28}" text-anchor="middle">last axis</text>'
    if len(errors.shape) > 1:
        side = _LEFT - 6
        yield f'<text x="{side}" y="{_TOP + 10}" text-anchor="end">0</text>'
        if rows > 1:
            yield f'<text x="{side}" y="{below - 2}" text-anchor="end">{errors.shape[-2] - 1}</text>'


def _scale(errors: ErrorMap, largest: float, x: int) -> Iterator[str]:
    if largest > 0:
        step = 6
        for number in range(_STEPS):
            share = 1 - number / (_STEPS - 1)
            place = f'x="{x}" y="{_TOP + number * step}" width="14" height="{step}"'
            yield f'<rect class="heat" fill-opacity="{_opacity(share)}" {place}/>'
        yield f'<text x="{x + 20}" y="{_TOP + 10}">{largest:g}</text>'
        yield f'<text x="{x + 20}" y="{_TOP + _STEPS * step}">above 0</text>'
    if any(value is None for row in errors.values for value in row):
        y = _TOP + 70
        yield f'<rect class="lost" x="{x}" y="{y}" width="14" height="10"/>'
        yield f'<text x="{x + 20}" y="{y + 9}">not finite</text>'


def _caption(errors: ErrorMap, largest: float) -> str:
    """What is seen, what was pooled, and how the axes lie."""
    leading, height, width = errors.block
    shape = " × ".join(map(str, errors.shape))
    text = f"Where it is wrong: |expected − got| over the shape {shape}; blank where it is right within the tolerance"
    if largest > 0:
        text += f", darkest where it is {largest:g}"
    text += "."
    if len(errors.shape) > 1:
        text += " Rows are the last axis but one, columns the last."
    pooled = []
    if height > 1 or width > 1:
        pooled.append(f"{height} × {width} elements" if len(errors.shape) > 1 else f"{width} elements")
    if leading > 1:
        pooled.append(f"the leading axes ({' × '.join(map(str, errors.shape[:-2]))})")
    if pooled:
        text += f" Pooled: each cell is the largest error over {' and over '.join(pooled)}."
    return text
