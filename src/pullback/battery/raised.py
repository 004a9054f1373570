"""What the code under test raised, told apart by where, and as text that is safe to make."""

from __future__ import annotations

from pullback.errors import PullbackError

RAISED = (Exception, SystemExit)
"""What the code under test may raise without ending the check; KeyboardInterrupt is the person's own."""


_BY_DESIGN = frozenset({"PB130", "PB510", "PB511", "PB512", "PB513", "PB514", "PB206", "PB207", "PB221"})
"""Refusals of arguments, of what a Function can't do, and second derivatives, which second_order judges."""


class ForwardRaised(Exception):
    """forward raised; `error` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(one_line(error))


class BackwardRaised(Exception):
    """backward raised after forward had accepted the arguments; `error` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(one_line(error))


def shows_fault(error: BaseException) -> bool:
    """Whether it is pullback's own word on a fault, rather than a refusal of a variant or of a transform."""
    return isinstance(error, PullbackError) and error.rule not in _BY_DESIGN


def text_of(error: BaseException) -> str:
    """The exception's text, even if it can't be made."""
    try:
        return str(error).strip()
    except RAISED as second:
        return f"(its text raised {type(second).__name__})"


def one_line(error: BaseException) -> str:
    """The exception's type and the first line of its text."""
    text = text_of(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def first_lines(error: BaseException, *, lines: int = 4, length: int = 600) -> str:
    """The exception's type and the first lines of its text that aren't empty, with … for what is left out."""
    found = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    text = " | ".join(found[:lines]) + (" | …" if len(found) > lines else "")
    text = text if len(text) <= length else text[: length - 1] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
