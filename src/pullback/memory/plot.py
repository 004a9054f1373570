"""The ledger as a picture: two rows of bars. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from pullback.memory.text import size

if TYPE_CHECKING:
    from pullback.memory.ledger import Ledger

_BARS = 15
_COLOUR = "#4c72b0"


def draw(ledger: Ledger, path: str | os.PathLike[str]) -> None:
    """Draw the bytes by module and by operation into a file. No window, and nothing of pyplot's state, is touched."""
    modules = {name or "(outside of modules)": count for name, count in ledger.by_module().items()}
    heights = [_rows(modules), _rows(ledger.by_operation())]
    figure: Any = Figure(figsize=(11, 3 + 0.3 * sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _bars(above, modules, "by module")
    _bars(below, ledger.by_operation(), "by operation")
    figure.suptitle(f"The graph keeps {size(ledger.total)}")
    figure.savefig(os.fspath(path))


def _rows(sums: Mapping[str, int]) -> int:
    return max(1, min(len(sums), _BARS))


def _bars(axes: Any, sums: Mapping[str, int], title: str) -> None:
    chosen = [*sums.items()][:_BARS]
    if not chosen:  # axes of no bars have no size
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
    bars = axes.barh([name for name, _ in chosen], [count / 2**20 for _, count in chosen], color=_COLOUR)
    axes.bar_label(bars, [size(count) for _, count in chosen], padding=3)
    axes.invert_yaxis()  # the most on top
    axes.margins(x=0.15)
    axes.set_xlabel("MiB")
    axes.set_title(title, loc="left")
