"""The arguments of every command."""

from __future__ import annotations

import argparse

from pullback import __version__
from pullback.report.names import FORMATS

FAIL_ON = ("error", "warning")
CONFIDENCES = ("certain", "likely", "possible")
"""How sure a finding of the linter is, surest first."""

_CHECK = """\
Checks Functions by experiment: values, gradients, higher orders, writes, layouts and more.

CHECKING RUNS CODE: each file is imported and its Functions are called, in a process of its own, with your rights.
Check only what you would run.

A target is a file, a file and a class (ops.py:Square), a module and a class (package.ops:Square), or a folder. In a
folder, files in whose source no Function can be seen aren't imported.
"""

_SAVED = """\
Lists what the graph keeps alive between forward and backward: bytes by module, operation and argument.

RUNS THE SCRIPT, in a process of its own, with your rights, up to its first call of backward (or of autograd.grad):
there the step's graph is complete, the ledger is written, and the script ends. One that never gets there is measured at
its end; one that fails before gives the ledger of what was kept up to there, and its traceback. What the script prints
goes to standard error. Options of this command stand before SCRIPT; those after it go to the script.
"""

_LINT = """\
Finds wrong Functions in source. Runs nothing and needs no torch: what the text alone shows is told, and where that
isn't sure, nothing is. What a Function computes is for pullback check.

A path is a file or a folder; without any, it is the folder that this runs in. A finding is set aside by a comment on
its line, or on the line of the class: # pullback: ignore[PB403] reason
"""

_LINT_EPILOG = """\
Each option but --statistics, --hints and --update-known-failures may stand in [tool.pullback.lint] of the nearest
pyproject.toml, under its long name without the dashes in front; so may paths, and per-file-ignores, a table of patterns
of files and lists of codes. An option given here replaces the one given there.

Exit codes: 0 clean, 1 findings, 2 usage or internal error, 130 interrupted.
"""

_EPILOG = """\
Each option but --list and --update-known-failures may stand in [tool.pullback.check] of the nearest pyproject.toml,
under its long name without the dashes in front; so may targets. An option given here replaces the one given there.

Exit codes: 0 clean, 1 findings, 2 usage or internal error, 130 interrupted.
"""


def build() -> argparse.ArgumentParser:
    """The parser of ``pullback``."""
    parser = argparse.ArgumentParser(
        prog="pullback",
        description="Custom autograd Functions, proved right.",
        epilog="Exit codes: 0 clean, 1 findings, 2 usage or internal error.",
    )
    parser.add_argument("--version", action="version", version=f"pullback {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_check(commands)
    _add_lint(commands)
    _add_saved(commands)
    _add_explain(commands)
    commands.add_parser(
        "env",
        help="what pullback runs on",
        description="Prints versions, the machine, and which private names of torch are missing or behave otherwise.",
    )
    return parser


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="check Functions by experiment (runs the code of the files given)",
        description=_CHECK,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("targets", nargs="*", metavar="TARGET", help="file.py, file.py:Class, module:Class or a folder")
    check.add_argument("--list", action="store_true", help="list the probes and what each proves, and end")
    report = check.add_argument_group("what to report")
    report.add_argument(
        "--output-format",
        choices=FORMATS,
        help="what goes to standard output: full text (default), one line a finding, JSON, JUnit's XML, annotations "
        "for GitHub Actions, SARIF 2.1.0 or a page",
    )
    report.add_argument(
        "--output-file",
        action="append",
        metavar="FILE",
        help="write the report to a file, too, in the format that its name ends in: .txt (full), .json, .xml (JUnit), "
        ".sarif or .html; may be given several times",
    )
    report.add_argument(
        "--select", action="append", metavar="CODE", help="only findings of these rules (PB203, or PB2 for all PB2xx)"
    )
    report.add_argument("--ignore", action="append", metavar="CODE", help="no findings of these rules")
    report.add_argument(
        "--fail-on", choices=FAIL_ON, help="the least severity that makes the exit code 1 (default: warning)"
    )
    report.add_argument(
        "--known-failures", metavar="FILE", help="TOML file of findings that are expected, each with its reason"
    )
    report.add_argument(
        "--update-known-failures", action="store_true", help="rewrite that file with the findings of this run"
    )
    how = check.add_argument_group("what to run")
    how.add_argument("--only", action="append", metavar="PROBE", help="run these probes only")
    how.add_argument("--skip", action="append", metavar="PROBE", help="leave these probes out")
    how.add_argument("--orders", type=int, choices=(1, 2), help="highest order of derivatives to prove (default: 2)")
    how.add_argument(
        "--samples", metavar="MODULE:MAPPING", help="mapping of a class, or its name, to samples (or file.py:MAPPING)"
    )
    how.add_argument("--seed", type=int, help="seed of everything random (default: 0)")
    how.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="time limit for each probe, for the import of each file and for making samples (default: 120)",
    )
    how.add_argument(
        "--show-output", action="store_true", default=None, help="let what the checked code prints through, to stderr"
    )


def _add_lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lint = commands.add_parser(
        "lint",
        help="find wrong Functions in source (runs nothing, needs no torch)",
        description=_LINT,
        epilog=_LINT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lint.add_argument("paths", nargs="*", metavar="PATH", help="a file or a folder (default: the current one)")
    lint.add_argument(
        "--output-format",
        choices=FORMATS,
        help="what goes to standard output: one line a finding (concise, the default), full text, JSON, JUnit's XML, "
        "annotations for GitHub Actions, SARIF 2.1.0 or a page",
    )
    lint.add_argument(
        "--output-file",
        action="append",
        metavar="FILE",
        help="write the report to a file, too, in the format that its name ends in: .txt (full), .json, .xml (JUnit), "
        ".sarif or .html; may be given several times",
    )
    lint.add_argument("--statistics", action="store_true", help="print how often each rule was broken, and no findings")
    lint.add_argument(
        "--select", action="append", metavar="CODE", help="only findings of these rules (PB403, or PB4 for all PB4xx)"
    )
    lint.add_argument("--ignore", action="append", metavar="CODE", help="no findings of these rules")
    lint.add_argument(
        "--exclude",
        action="append",
        metavar="PATTERN",
        help="leave out files and folders of this name or path, with * and ? as in a shell; may be given several times",
    )
    lint.add_argument(
        "--confidence",
        choices=CONFIDENCES,
        help="show findings that are at least this sure (default: likely); possible ones are hints, and never fail",
    )
    lint.add_argument("--hints", action="store_true", help="the same as --confidence possible")
    lint.add_argument(
        "--fail-on", choices=FAIL_ON, help="the least severity that makes the exit code 1 (default: warning)"
    )
    lint.add_argument(
        "--known-failures", metavar="FILE", help="TOML file of findings that are expected, each with its reason"
    )
    lint.add_argument(
        "--update-known-failures", action="store_true", help="rewrite that file with the findings of this run"
    )


def _depth(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _add_saved(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    saved = commands.add_parser(
        "saved",
        help="what the graph of a script's first step keeps in memory (runs the script)",
        description=_SAVED,
        epilog="Exit codes: 0 measured, 2 usage error or a script that failed before backward, 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    saved.add_argument("--json", action="store_true", help="print the ledger as JSON")
    saved.add_argument("--plot", metavar="FILE", help="draw it as bars, too (needs matplotlib: pullback[plot])")
    saved.add_argument("--depth", type=_depth, metavar="N", help="sum modules up by the first N names of their paths")
    saved.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    saved.add_argument("script", metavar="SCRIPT", help="the script, a file; with -m the name of a module")
    saved.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="all that follows SCRIPT goes to the script"
    )


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser(
        "explain",
        help="what a rule means, why, and what to do",
        description="Prints a rule of the rulebook: its title, its reason and its remedy.",
    )
    explain.add_argument(
        "codes", nargs="*", metavar="CODE", help="a rule's code, such as PB203, or PB2 for a list of its group"
    )
    explain.add_argument("--list", action="store_true", help="list every rule by its title")
    explain.add_argument("--markdown", metavar="DIR", help="write one page for each rule and an index into a folder")
    explain.add_argument("--examples", metavar="DIR", help="show examples there, from DIR/PB403/wrong.py and right.py")
