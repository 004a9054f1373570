"""The zoo: each wrong Function is found with exactly the code that its source expects, and no right one is scolded."""

import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pullback.battery.battery import FIRST, PROBES
from pullback.battery.check import check
from pullback.finding import Report
from pullback.rules import RULES, Severity
from tests.battery.repros import shown, shows_the_fault
from tests.torch_features import a_cycle_keeps_what_was_saved, compiles_next_functions

HERE = Path(__file__).parent
EXPECTATION = re.compile(r"# expect: (PB\d{3})")


def load(path: Path) -> ModuleType:
    """Import a file of the zoo by its path, under a name of its own."""
    name = f"zoo_{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def inhabitants(folder: str) -> dict[str, type[torch.autograd.Function]]:
    """Every Function of a folder of the zoo, by its name; those with an underscore are what others are made from."""
    found: dict[str, type[torch.autograd.Function]] = {}
    for path in sorted((HERE / folder).glob("*.py")):
        module = load(path)
        for name, value in vars(module).items():
            is_function = isinstance(value, type) and issubclass(value, torch.autograd.Function)
            if is_function and value.__module__ == module.__name__ and not name.startswith("_"):
                assert name not in found, f"{name} is in the zoo twice"
                found[name] = value
    return found


WRONG, RIGHT = inhabitants("wrong"), inhabitants("right")


def expectations(cls: type) -> list[str]:
    """What the source of `cls` expects, in its comments."""
    lines, _ = inspect.getsourcelines(cls)
    return [match.group(1) for line in lines for match in EXPECTATION.finditer(line)]


EXPECTED = {name: expectations(cls) for name, cls in WRONG.items()}


# What is wrong only where torch does a certain thing: whether it does, and what it means if it doesn't.
PREMISES: dict[str, tuple[Callable[[], bool], str]] = {
    "HoldsItself": (a_cycle_keeps_what_was_saved, "on this torch, what is saved on a ctx in a cycle is freed"),
    "AsksTheGraph": (compiles_next_functions, "this torch refuses to compile a backward that reads next_functions"),
}


@functools.cache
def report_on(name: str) -> Report:
    """The report on one inhabitant, made once."""
    return check({**WRONG, **RIGHT}[name])


def codes(report: Report, *, hints: bool = False) -> set[str]:
    """The codes found, without hints unless asked for."""
    return {finding.rule for finding in report.findings if hints or finding.severity is not Severity.HINT}


def test_each_wrong_function_states_one_expectation() -> None:
    """One defect a class: the source of each names one code, on the line at fault."""
    assert {name: found for name, found in EXPECTED.items() if len(found) != 1} == {}
    assert {code for found in EXPECTED.values() for code in found} <= set(RULES)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_function_is_found_with_its_code(name: str) -> None:
    """The report has the expected code and no other error or warning: one cause gives one finding."""
    (expected,) = EXPECTED[name]
    if name in PREMISES and not PREMISES[name][0]():
        pytest.skip(PREMISES[name][1])
    report = report_on(name)
    assert codes(report, hints=RULES[expected].severity is Severity.HINT) == {expected}, str(report)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_function_is_not_scolded(name: str) -> None:
    """No error, no warning: what looks suspicious here is right or declared."""
    report = report_on(name)
    assert codes(report) == set(), str(report)
    assert report.ok


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_finding_says_where_and_what_to_do(name: str) -> None:
    """Each finding names the Function, the place, what happened, and a remedy."""
    for finding in report_on(name).findings:
        assert finding.function == name
        assert finding.where
        assert finding.message
        assert finding.remedy
        assert finding.probe in PROBES


@pytest.mark.parametrize("name", sorted(WRONG))
def test_the_lines_of_a_finding_show_the_fault(name: str) -> None:
    """Pasted and run, at most fifteen fail by themselves: in an assertion with both numbers, or the very error."""
    for finding in report_on(name).findings:
        assert len(finding.repro.splitlines()) <= 15
        # A class that a function made can't be imported: the lines say where it is defined, and leave it at that.
        assert shows_the_fault(finding, **{name: WRONG[name]}), f"{shown(finding)}\n\nfrom\n{finding.repro}"


def test_the_rules_without_an_inhabitant_are_known() -> None:
    """Every fault that shows in a run lives in the zoo; what only source shows has an example of the linter's."""
    refused_when_defined = {"PB101", "PB102", "PB103", "PB104", "PB105", "PB106", "PB107"}
    of_the_caller = {"PB108", "PB130", "PB301", "PB307"}
    of_the_checker = {"PB120", "PB121", "PB123", "PB124"}
    seen_first_as_another = {"PB221"}  # a forward that can't be replayed depends on state outside the call
    refused_when_called = {"PB112", "PB223", "PB510", "PB511", "PB512", "PB513", "PB514", "PB516", "PB521"}  # by name
    lived_in = {code for found in EXPECTED.values() for code in found}
    elsewhere = refused_when_defined | of_the_caller | of_the_checker | seen_first_as_another | refused_when_called
    shown_by_source = {folder.name for folder in (HERE.parent / "lint" / "examples").iterdir()}
    assert set(RULES) - lived_in == elsewhere | (shown_by_source - lived_in)


@pytest.mark.parametrize("probe", [name for name in PROBES if name != FIRST])
def test_without_a_probe_something_is_missed(probe: str) -> None:
    """Each probe but the first, which can't be left out, earns its place: without it some answer is another one."""
    found_by_it = [
        name for name in sorted(WRONG) if any(finding.probe == probe for finding in report_on(name).findings)
    ]
    assert found_by_it, f"no finding in the zoo comes from {probe}"
    slow = () if probe == "compiled" else ("compiled",)  # it finds nothing that is another one's
    assert any(
        codes(check(WRONG[name], skip=(probe, *slow)), hints=True) != codes(report_on(name), hints=True)
        for name in found_by_it
    )
