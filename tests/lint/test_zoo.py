"""The zoo as the linter sees it: which wrong Functions show in source, on which line, and why the others don't."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from pullback.finding import Finding
from pullback.lint.run import lint_paths

ZOO = Path(__file__).parents[1] / "zoo"

# Found with the code that the check has for it, on the very line that the zoo marks.
FOUND = frozenset(
    (
        "BareConstant DictBesideATensor DirtyUnmarked FactorOnTheClass FlipsSavedMask GradientDespiteDeclaration "
        "Hoards HoldsItself InputInAClosure InputOnCtx JvpWithoutSave LastCallWins ListOutput MaskOnCtx "
        "MutatesGradient NumberForGradient OneGradientShort OutputOnCtx RawWriteToInput SavedAndNeverUnpacked "
        "SavedForNothing SeedsTheProgram ShapeOnTheClass TakesOneGradOutput UnhandledNone UnknownName "
        "ViewOnGradient WritesToAFrozenArgument WritesToSaved WrongNeedsIndex"
    ).split()
)

# Found on that line or where the comment says, with another code: what shows in source is the cause, or a part of it.
FOUND_AS = {
    "IntermediateOnCtx": "PB303",
    "ListArgument": "PB202",  # on the line of the list that is returned for it
    "MisspelledInBackward": "PB237",
    "SliceOfAWorkspace": "PB550",  # on the line of the workspace: it is also on the default device
}

# Found only where hints are asked for.
HINTED = {"IgnoredOutput": "PB209", "OpaqueBackward": "PB207", "SavedIntermediate": "PB206"}

_FORMULA = "the formula is wrong, which only numbers show"
_SURROUNDINGS = "what it meets (autocast, vmap, a compiler, hooks, threads, a checkpoint) isn't in its source"
_ARGUMENTS = "it depends on what it is called with"
_HELPER = "what a function elsewhere does with a tensor isn't followed"
_STATE = "what is kept outside of the call may be a cache or a count, as well as a fault"
_MEANT = "it may be meant, and only the author or a declaration can say so"

# Not found, and why source can't show it, or not surely enough.
UNSEEN = {
    _FORMULA: (
        "WrongSign LostFactor Untransposed OneWrongElement SummedAway TiesCountTwice TiedSampleCountsTwice "
        "SwapsTwoLeaves TransposesTheWeight WrongDoubleBackward ShortFormOfASum UselessDoubleBackward "
        "SincAtZero OverflowingSoftplus OffFromReference WrongJvp JvpForgetsTheGain JvpIgnoresTheWeights "
        "JvpTakesNoNone JvpOfOneOutputOnly JvpReturnsNoneForAnOutput JvpOfTheTransposed "
        "MarkedThoughSmooth VaryingConstant NestOnceOnly LosesItsGuard"
    ),
    _SURROUNDINGS: (
        "NoAutocast IntoABuffer AddsInPlace FindsTheLargestAgain MixedPath VmapSaysTheWrongDimension "
        "VmapForgetsWhatIsShared VmapTakesTheBatchToBeInFront VmapLosesTheGraph VmapMixesTheBatch "
        "GeneratedThoughItReadsANumber DetachesAGradient ReadsSavedTwice SavesByTurns SwapsByTurns Scrambled "
        "NumpyDropout ApproximatesWhenCompiled TellsLeavesApart AsksTheGraph AsksForItsName DemandsANode ByIdentity "
        "ByAddress NoteOnTheTensor TransposedMemory WholeFromAColumn ByVersion SetUpInForward"
    ),
    _ARGUMENTS: "ModuleArgument RowByRow TellsApartByIdentity RefusesItsOwnSample CapturedGlobal",
    _HELPER: "StrideBlind StrideBlindForward",
    _STATE: (
        "StaleCache CountsItsCalls ScratchOnTheClass CurrentSetting SharedWorkspace OneLine OneAtATime "
        "LowSinceAShortage"
    ),
    _MEANT: (
        "ForgottenArgument IgnoresPartOfADict ForgetsTheBias ClipsUndeclared SilentStraightThrough "
        "NoBackward SinglePrecisionDetour CosineInSingle GradientInSinglePrecision GradientInDoublePrecision "
        "WorksForNobody"
    ),
}  # fmt: skip

REASONS = {name: reason for reason, names in UNSEEN.items() for name in names.split()}


@functools.cache
def linted(folder: str) -> dict[str, tuple[Finding, ...]]:
    """What is found in each Function of a folder of the zoo, by its name; those that others are made from left out."""
    result = lint_paths([str(ZOO / folder)])
    assert result.notes == ()
    reports = [one for one in result.reports if not one.function.startswith("_") and "<locals>" not in one.function]
    return {one.function: one.findings for one in reports}


@functools.cache
def marked() -> dict[str, tuple[int, str]]:
    """The line and the code that the zoo marks in each wrong Function."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted((ZOO / "wrong").glob("*.py")):
        name = ""
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            started = re.match(r"class (\w+)", line)
            name = started.group(1) if started else name
            expectation = re.search(r"# expect: (PB\d{3})", line)
            if expectation:
                found[name] = (number, expectation.group(1))
    return found


def lines(findings: tuple[Finding, ...], *, hints: bool = False) -> set[tuple[int, str]]:
    """Line and code of findings."""
    kept = [one for one in findings if hints or one.evidence["confidence"] != "possible"]
    return {(int(one.location.rpartition(":")[2]), one.rule) for one in kept}


def test_every_wrong_function_is_judged_here() -> None:
    """Each one is found, found as something else, hinted at, or unseen for a reason; and none is two of these."""
    judged = [*FOUND, *FOUND_AS, *HINTED, *REASONS]
    assert sorted(judged) == sorted(name for name in linted("wrong"))


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_fault_that_shows_in_source_is_found_on_its_line(name: str) -> None:
    """With the code and on the line that the zoo marks, and nothing else in the Function."""
    assert lines(linted("wrong")[name]) == {marked()[name]}


@pytest.mark.parametrize("name", sorted(FOUND_AS))
def test_a_cause_is_found_where_the_check_sees_its_effect(name: str) -> None:
    """One finding, with the code of what source shows."""
    found = lines(linted("wrong")[name])
    assert {code for _, code in found} == {FOUND_AS[name]}
    line, _ = marked()[name]
    assert min(abs(one - line) for one, _ in found) <= 5


@pytest.mark.parametrize("name", sorted(HINTED))
def test_what_may_be_a_fault_is_a_hint(name: str) -> None:
    """Nothing at the default level, and a hint on the line that the zoo marks."""
    assert lines(linted("wrong")[name]) == set()
    assert lines(linted("wrong")[name], hints=True) == {marked()[name]}
    assert marked()[name][1] == HINTED[name]


@pytest.mark.parametrize("name", sorted(REASONS))
def test_what_source_cant_show_is_passed_over(name: str) -> None:
    """Silence: a finding here would be about something else."""
    assert lines(linted("wrong")[name]) == set(), REASONS[name]


@pytest.mark.parametrize("name", sorted(linted("right")))
def test_a_right_function_is_clean(name: str) -> None:
    """No finding, and no hint either."""
    assert lines(linted("right")[name], hints=True) == set()
