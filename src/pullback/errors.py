"""The exception tree. Each error carries the rule's code and says expected, got, where and what to do.

Every class also derives from what PyTorch raises in the same place, so a handler written for PyTorch keeps working.
"""

from __future__ import annotations

from pullback.rules import RULES


class PullbackError(Exception):
    """The base of every error that pullback raises on purpose.

    Args:
        rule: The rule's code.
        message: What happened, naming class and argument.
        expected: What should have come.
        got: What came instead.
        remedy: What to do; the rule's own unless given.

    Attributes:
        rule: The rule's code, such as ``PB201``.
        remedy: What to do.
    """

    def __init__(self, rule: str, message: str, *, expected: str = "", got: str = "", remedy: str = "") -> None:
        self.rule = rule
        self.message = message
        self.expected = expected
        self.got = got
        self.remedy = remedy or RULES[rule].remedy
        self.args = (self._text(),)  # what the bases' __init__ does, which Dynamo can't call

    def __reduce__(self) -> tuple[object, ...]:
        state = {"expected": self.expected, "got": self.got, "remedy": self.remedy}
        return _rebuild, (type(self), self.rule, self.message, state)

    def _text(self) -> str:
        lines = [f"{self.rule} {self.message}"]
        for label, text in (("expected", self.expected), ("got", self.got), ("remedy", self.remedy)):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)


def _rebuild(kind: type[PullbackError], rule: str, message: str, state: dict[str, str]) -> PullbackError:
    return kind(rule, message, **state)


class DefinitionError(PullbackError, TypeError, RuntimeError):
    """The class can never work as it is written: PB101 to PB106 and PB111.

    It is raised where the class is defined, or by the call that shows it.
    """


class CallError(PullbackError, RuntimeError, TypeError):
    """A class, or a method of ctx, was called in a way that can't work (PB108, PB110), or captures a tensor (PB503)."""


class MissingMethodError(PullbackError, NotImplementedError):
    """forward, backward or a decorated function's rule is needed and not there (PB107, PB109, PB112)."""


class GradientError(PullbackError, RuntimeError):
    """backward returned what can't be its gradients (PB201, PB202, PB218, PB220, PB222)."""


class SavedTensorError(PullbackError, RuntimeError):
    """A saved tensor was changed before backward read it (PB301), or recompute gave another one (PB307)."""


class HigherOrderError(PullbackError, RuntimeError):
    """A gradient can't be differentiated exactly (PB206, PB207, PB219, PB221)."""


class TransformError(PullbackError, RuntimeError):
    """A Function can't be run under a transform of torch.func, or in forward mode (PB509 to PB514, PB516)."""


class AutocastError(PullbackError, RuntimeError, AttributeError):
    """Autocast can't be arranged as it is declared, or decorated (PB521)."""


class OperationError(PullbackError, RuntimeError, ValueError, TypeError):
    """An operation of pullback.ops, or recompute, can't take its arguments (PB130)."""


class SampleError(PullbackError, TypeError, ValueError):
    """The samples given to check can't be used (PB121)."""


class CheckFailedError(PullbackError, AssertionError):
    """`assert_correct` found something; the text is the report, which has each finding's remedy in its place."""

    def _text(self) -> str:
        return f"{self.rule} {self.message}"
