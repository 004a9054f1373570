"""The plugin for pytest: a fixture that checks Functions, a marker that says how, and a seed for the whole run.

pytest loads this module with every run in an environment that has pullback, so it imports next to nothing: torch and
the battery come when a test first calls the fixture. A run that doesn't use it sees one more option, and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import random
import shlex
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import pullback

if TYPE_CHECKING:
    from pullback.finding import Report

OPTIONS = ("only", "skip", "orders", "device")
"""What ``@pytest.mark.pullback(…)`` may set for the calls of ``check_function`` in a test."""

_CHECKERS = ("pullback.battery.check", "pullback.battery.battery")  # what refuses options of `pullback.check`
_DIGITS = 20  # of a seed, zeros in front included: Python refuses to read thousands
_SEED = pytest.StashKey[int]()
_PASSED = pytest.StashKey[bool]()
_PENDING = pytest.StashKey[list[tuple[tuple[str, str], dict[str, Any]]]]()


class CheckFunction:
    """What the fixture ``check_function`` gives: `pullback.check`, as a step of a test.

    A report with an error or a warning fails the test. The test's own report then has a line for each finding, and
    pullback's report in a section of its own; there is no traceback, since all of it would be pullback's.

    Where ``only`` names probes and each of them is skipped, for instance a probe of ``jvp`` on a Function that has
    none, the test is skipped with their reasons, because nothing that it asks for was tried.
    """

    called: bool
    """Whether the test has called it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node: pytest.Item = request.node
        self._test = _from_here(request.node.nodeid, request.config)
        self._seed: int = request.config.stash[_SEED]
        self._options = _from_markers(self._node)
        self.called = False

    def __call__(self, function: Any, *samples: object, **options: Any) -> Report:
        """Check a Function, and fail the test if something is wrong with it.

        Args:
            function: What `pullback.check` takes: a Function's class, or any differentiable callable.
            samples: The arguments to try it with, each a tuple or a `Sample`; without any they are found as there.
            options: Those of `pullback.check`. They go before the marker's; ``seed`` before ``--pullback-seed``.

        Returns:
            The report, without errors and warnings.
        """
        __tracebackhide__ = True
        from pullback.report.characters import flat

        self.called = True
        chosen = {"seed": self._seed, **self._options, **_settled(options, "check_function")}
        report = _checked(function, samples, chosen)
        name = flat(report.function)
        section = f"pullback: {name}", str(report)
        self._node.stash.setdefault(_PENDING, []).append((section, _numbers(report)))
        if not report.ok:
            pytest.fail(_failure(report, self._test, own_seed="seed" in options), pytrace=False)
        only = chosen.get("only", ())
        reasons = _skipped(report, (only,) if isinstance(only, str) else tuple(only))
        if reasons:
            pytest.skip(f"{name}: {'; '.join(reasons)}")
        return report


@pytest.fixture
def check_function(request: pytest.FixtureRequest) -> Iterator[CheckFunction]:
    """What checks a Function and fails the test with pullback's report: call it as you would `pullback.check`.

    A test that asks for it and passes without a call has checked nothing, and is warned of: a warning and no failure,
    since a test may have its reasons; ``-W error::pytest.PytestWarning`` makes a failure of it.
    """
    check = CheckFunction(request)
    yield check
    if not check.called and request.node.stash.get(_PASSED, False) and _asks_itself(request):
        fault = "the test asks for check_function and never calls it, so nothing was checked"
        request.node.warn(pytest.PytestWarning(f"{fault}: call it with the Function, as in check_function(Square)"))


def _asks_itself(request: pytest.FixtureRequest) -> bool:
    """Whether the test has the fixture by name; one that another fixture hands on isn't due in each test."""
    named = [name for marker in request.node.iter_markers("usefixtures") for name in marker.args]
    return "check_function" in (*inspect.signature(request.function).parameters, *named)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pullback-seed``."""
    parser.getgroup("pullback", "derivatives of custom Functions").addoption(
        "--pullback-seed",
        type=_seed,
        metavar="N",
        help="seed of everything random in check_function: a number (default: 0), or 'random' for another one each run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and settle the seed, of which workers of pytest-xdist are told."""
    config.addinivalue_line(
        "markers",
        f"pullback({', '.join(f'{name}=…' for name in OPTIONS)}): a test that checks Functions; the arguments hold for "
        "its calls of check_function, as in pullback.check.",
    )
    given = getattr(config, "workerinput", {}).get("pullback_seed", config.getoption("pullback_seed"))
    config.stash[_SEED] = _drawn() if given == "random" else int(given or 0)
    config.pluginmanager.register(_Tally(config), "pullback-tally")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist the seed, which it would draw anew otherwise."""
    node.workerinput["pullback_seed"] = node.config.stash[_SEED]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say the seed at the start of a run that asked for one."""
    return [] if config.getoption("pullback_seed") is None else [f"pullback: seed {config.stash[_SEED]}"]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Give the test's report what was checked since the last one: a section each, and the numbers for the summary."""
    outcome = yield
    if call.when == "call":
        item.stash[_PASSED] = call.excinfo is None
    pending = item.stash.get(_PENDING, [])
    if pending:
        item.stash[_PENDING] = []
        report = outcome.get_result()
        report.sections += [section for section, _ in pending]
        report.pullback = [numbers for _, numbers in pending]  # xdist sends it with the rest of the report


class _Tally:
    """Adds up the probes of all checks, and says at the end how many there were, and how many were skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._checks = 0
        self._probes: Counter[str] = Counter()
        self._hints = 0
        self._reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for numbers in getattr(report, "pullback", []):
            self._checks += 1
            self._probes.update(numbers["probes"])
            self._hints += numbers["hints"]
            self._reasons.update(f"{name} skipped: {reason}" for name, reason in numbers["skipped"].items())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._checks:
            return
        terminalreporter.write_sep("=", "pullback")
        seed = self._config.stash[_SEED]
        ended = ", ".join(f"{self._probes[status]} {status}" for status in ("passed", "failed", "skipped"))
        ended = ended.replace(", 0 failed", "")
        text = f"{_plural(self._checks, 'check')} with seed {seed}; probes: {ended}"
        text += f"; {_plural(self._hints, 'hint')} (-rP shows them)" if self._hints else ""
        verbose = self._config.getoption("verbose") > 0
        text += " (-v says why)" if self._reasons and not verbose else ""
        terminalreporter.write_line(text)
        if verbose:
            for reason, times in sorted(self._reasons.items()):
                terminalreporter.write_line(f"  {times} x {reason}")


def _checked(function: Any, samples: tuple[object, ...], options: Mapping[str, Any]) -> Report:
    """The report; what keeps pullback from checking fails the test in its own words, without a traceback."""
    __tracebackhide__ = True
    from pullback.errors import PullbackError
    from pullback.report.characters import visible

    try:
        return pullback.check(function, *samples, **options)
    except PullbackError as error:
        said = str(error)
    except ValueError as error:
        if _source(error) not in _CHECKERS:
            raise
        said = f"pullback.check can't be called so: {error}"
    except ImportError as error:
        if error.name != "torch":
            raise
        said = str(error)
    pytest.fail(visible(said), pytrace=False)  # outside of the handlers, whose exceptions pytest would show as well


def _from_here(test: str, config: pytest.Config) -> str:
    """The test as pytest takes it where it was started; its own names start from the root of the project."""
    path, colons, name = test.partition("::")
    try:
        shown = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    except ValueError:  # on another drive
        return test
    return f"{shown.replace(os.sep, '/')}{colons}{name}"


def _source(error: BaseException) -> str:
    """The name of the module that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))


def _failure(report: Report, test: str, *, own_seed: bool) -> str:
    """What the test says of a faulty Function: a line each finding, and how to repeat it.

    Here and below whatever the checked code may have worded is made visible, on one line: a terminal would obey its
    control characters, and pytest-xdist can't send halves of surrogate pairs.
    """
    from pullback.report.characters import flat

    severities = Counter(str(finding.severity) for finding in report.findings)
    counts = ", ".join(_plural(number, severity) for severity, number in severities.items())
    rules = ", ".join(dict.fromkeys(finding.rule for finding in report.findings))
    # pytest's summary has this line alone, cut off at the terminal's width.
    lines = [f"{flat(report.function)} is not right: {rules} ({counts})"]
    for finding in report.findings:
        where = f" ({flat(finding.where)})" if finding.where else ""
        lines.append(f"  {finding.rule} {finding.severity}: {flat(finding.message)}{where}")
    seed = "" if own_seed else f" --pullback-seed {report.seed}"
    lines.append(f"repeat it: pytest {shlex.quote(test)}{seed}")
    return "\n".join(lines)


def _skipped(report: Report, only: tuple[str, ...]) -> list[str]:
    """Why each of these probes was skipped; nothing if one of them ran."""
    from pullback.report.characters import flat

    outcomes = {name: report.outcomes[name] for name in only if name in report.outcomes}
    if any(outcome.status != "skipped" for outcome in outcomes.values()):
        return []
    return [f"{name} skipped: {flat(outcome.reason)}" for name, outcome in outcomes.items()]


def _numbers(report: Report) -> dict[str, Any]:
    """What the summary adds up, of the plain types that xdist can send."""
    from pullback.report.characters import flat

    skipped = {name: outcome.reason for name, outcome in report.outcomes.items() if outcome.status == "skipped"}
    return {
        "probes": dict(Counter(str(outcome.status) for outcome in report.outcomes.values())),
        "hints": sum(finding.severity == "hint" for finding in report.findings),
        "skipped": {flat(name): flat(reason) for name, reason in skipped.items()},
    }


def _from_markers(node: pytest.Item) -> dict[str, Any]:
    """The options of the test's markers; the one that stands nearest to the test goes first."""
    marker_name = "@pytest.mark.pullback"
    usage = f"\n  expected: some of {', '.join(f'{name}=…' for name in OPTIONS)}"
    options: dict[str, Any] = {}
    for marker in node.iter_markers("pullback"):
        if marker.args:
            _misused(marker_name, f"it takes no argument by position, and {marker.args[0]!r} came{usage}")
        for name, value in marker.kwargs.items():
            if name not in OPTIONS:
                close = difflib.get_close_matches(name, OPTIONS, n=1)
                hint = f": did you mean {close[0]!r}?" if close else ""
                _misused(marker_name, f"there is no {name!r}{hint}{usage}")
            options.setdefault(name, value)
    return _settled(options, marker_name)


def _settled(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The options, each of a type that a check can take; what can be gone through only once is kept for good."""
    settled = dict(options)
    for name in ("only", "skip"):
        value = options.get(name, ())
        if isinstance(value, str):
            continue
        names = tuple(value) if isinstance(value, Iterable) else (value,)
        if not all(isinstance(entry, str) for entry in names):
            _misused(what, f"{name} is a probe's name or several of them, and {value!r} came")
        if name in options:
            settled[name] = names
    if options.get("orders", 1) not in (1, 2):
        _misused(what, f"orders is 1 or 2, and {options['orders']!r} came")
    return settled


def _misused(what: str, fault: str) -> NoReturn:
    from pullback.report.characters import visible

    pytest.fail(visible(f"{what} can't be used so: {fault}"), pytrace=False)


def _seed(text: str) -> int | str:
    """What ``--pullback-seed`` was given."""
    from pullback.finding import LARGEST_SEED

    if text == "random":
        return text
    if not text.isdecimal() or len(text) > _DIGITS or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 to {LARGEST_SEED} nor 'random'")
    return int(text)


def _drawn() -> int:
    from pullback.finding import LARGEST_SEED

    return random.SystemRandom().randrange(LARGEST_SEED + 1)


def _plural(number: int, one: str) -> str:
    return f"{number} {one}" + ("" if number == 1 else "s")
