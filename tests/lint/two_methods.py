"""Sources of Functions of two methods, for tests of the linter."""

from __future__ import annotations

from collections.abc import Sequence

from tests.lint.helper import HEAD


def function(
    forward: Sequence[str],
    backward: Sequence[str],
    *,
    takes: str = "x, w",
    gets: str = "g",
    base: str = "Function",
    after: str = "",
    extra: str = "",
) -> str:
    """The source of a Function in the style with ctx first.

    Args:
        forward: The lines of forward.
        backward: Those of backward.
        takes: The parameters of forward after ctx.
        gets: Those of backward.
        base: What the class derives from.
        after: What stands behind the class.
        extra: What stands in the class before its methods.
    """
    return (
        f"{HEAD}import pullback\n\n\nclass F({base}):\n{_indented(extra.splitlines(), 4)}"
        f"    @staticmethod\n    def forward(ctx, {takes}):\n{_indented(forward, 8)}\n"
        f"    @staticmethod\n    def backward(ctx, {gets}):\n{_indented(backward, 8)}\n{after}"
    )


def _indented(lines: Sequence[str], by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines)
