"""The exception tree: text in four parts, PyTorch's exceptions among the bases, and nothing lost on the way."""

from __future__ import annotations

import copy
import pickle

import pytest

from pullback import errors
from pullback.errors import PullbackError
from pullback.rules import RULES

# What PyTorch raises in the same place, so a handler for it keeps working.
BESIDE = {
    "DefinitionError": (TypeError,),
    "CallError": (RuntimeError, TypeError),
    "MissingMethodError": (NotImplementedError,),
    "GradientError": (RuntimeError,),
    "SavedTensorError": (RuntimeError,),
    "HigherOrderError": (RuntimeError,),
    "TransformError": (RuntimeError,),
    "AutocastError": (RuntimeError, AttributeError),
    "OperationError": (RuntimeError, ValueError, TypeError),
    "SampleError": (TypeError, ValueError),
    "CheckFailedError": (AssertionError,),
}

TREE = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and name.endswith("Error")}


def test_every_error_has_a_base_of_pytorchs() -> None:
    """Each class but the root derives from PullbackError and from what PyTorch raises there."""
    assert {*TREE} == {*BESIDE, "PullbackError"}
    for name, bases in BESIDE.items():
        assert issubclass(TREE[name], PullbackError)
        assert all(issubclass(TREE[name], base) for base in bases)


def test_the_text_has_four_parts() -> None:
    """Code and message, what was expected, what came, what to do: one line each."""
    error = PullbackError("PB201", "f went wrong.", expected="two", got="one", remedy="Return two.")
    assert str(error).splitlines() == [
        "PB201 f went wrong.",
        "  expected: two",
        "  got: one",
        "  remedy: Return two.",
    ]
    assert (error.rule, error.message, error.remedy) == ("PB201", "f went wrong.", "Return two.")


def test_parts_that_are_not_given_are_left_out() -> None:
    """Without expected and got only the message stays, and the rule's own remedy."""
    error = PullbackError("PB201", "f went wrong.")
    assert str(error).splitlines() == ["PB201 f went wrong.", f"  remedy: {RULES['PB201'].remedy}"]


def test_a_failed_check_says_each_remedy_once() -> None:
    """The report in the text has the remedies; the error keeps its first one for programs alone."""
    error = errors.CheckFailedError("PB203", "f is not right\nremedy: Derive it anew.", remedy="Derive it anew.")
    assert str(error) == "PB203 f is not right\nremedy: Derive it anew."
    assert error.remedy == "Derive it anew."


def test_an_unknown_code_is_refused() -> None:
    """An error speaks of a rule that is in the book."""
    with pytest.raises(KeyError, match="PB000"):
        PullbackError("PB000", "f went wrong.")


@pytest.mark.parametrize("name", sorted(TREE))
def test_errors_are_copied_and_pickled(name: str) -> None:
    """Every class survives with its text, rule and remedy; the classes' second bases don't get in the way."""
    error = TREE[name]("PB201", "f went wrong.", expected="two", got="one")
    copies = [copy.copy(error), copy.deepcopy(error)]
    copies += [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in copies:
        assert type(again) is type(error)
        assert vars(again) == vars(error)
        assert (str(again), again.args) == (str(error), error.args)
