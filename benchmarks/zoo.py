"""What `pullback check` finds in the zoo of small Functions, beside PyTorch's gradcheck and gradgradcheck.

    python benchmarks/zoo.py            the summary that the README shows
    python benchmarks/zoo.py --full     a row for each Function

A tool finds a wrong Function if it says anything against it, raising for whatever reason included; it scolds a right
one likewise. gradcheck runs with its default settings on the Function's own samples.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from overhead import provenance
from torch.autograd import gradcheck, gradgradcheck

from pullback import Severity, check

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.zoo.test_zoo import EXPECTED, RIGHT, WRONG  # the same Functions, and the same expectations, as in the tests


@dataclass(frozen=True)
class Verdict:
    """What one tool says of one Function: what it found (empty for nothing), and how long it took in seconds."""

    found: str
    seconds: float


def by_gradcheck(function: Any) -> str:
    """Run gradcheck on each sample."""
    return _raised(gradcheck, function)


def by_gradgradcheck(function: Any) -> str:
    """Run gradcheck and then gradgradcheck on each sample."""
    return by_gradcheck(function) or _raised(gradgradcheck, function)


def by_pullback(function: Any) -> str:
    """Run the battery; hints don't count."""
    report = check(function)
    return (
        ""
        if report.ok
        else ", ".join(sorted({finding.rule for finding in report.findings if finding.severity is not Severity.HINT}))
    )


TOOLS: dict[str, Callable[[Any], str]] = {
    "gradcheck": by_gradcheck,
    "gradcheck and gradgradcheck": by_gradgradcheck,
    "pullback check": by_pullback,
}


def _raised(judge: Callable[..., object], function: Any) -> str:
    for sample in function.samples():
        call = functools.partial(function.apply, **getattr(sample, "kwargs", {}))
        try:
            judge(call, tuple(getattr(sample, "args", sample)))
        except Exception as error:
            return type(error).__name__
    return ""


def verdicts(functions: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Verdict]]]:
    """Ask every tool about every Function."""
    for function in functions:
        said = {}
        for name, tool in TOOLS.items():
            torch.manual_seed(0)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = tool(function)
            said[name] = Verdict(found, time.perf_counter() - start)
        yield function, said


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit with 1 if a right Function was scolded by pullback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="What pullback check finds in the zoo, beside gradcheck.")
    parser.add_argument("--full", action="store_true", help="a row for each Function")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # Hints are advice about right Functions; the zoo's examples of them are neither wrong nor scolded.
    wrong = dict(verdicts([function for name, function in WRONG.items() if EXPECTED[name] != ["PB601"]]))
    right = dict(verdicts(list(RIGHT.values())))
    if options.full:
        print_rows(wrong, right)
    print_summary(wrong, right)
    facts = provenance(1, ["--full"] if options.full else [])
    del facts["rounds"]
    facts["command"] = facts["command"].replace("overhead.py", "zoo.py")
    print(f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}.")
    return int(any(said["pullback check"].found for said in right.values()))


def print_summary(wrong: dict[Any, dict[str, Verdict]], right: dict[Any, dict[str, Verdict]]) -> None:
    """Count for each tool."""
    print("| | wrong ones found | right ones scolded | seconds |")
    print("| --- | ---: | ---: | ---: |")
    for tool in TOOLS:
        found = sum(bool(said[tool].found) for said in wrong.values())
        scolded = sum(bool(said[tool].found) for said in right.values())
        seconds = sum(said[tool].seconds for said in (*wrong.values(), *right.values()))
        print(f"| {tool} | {found} of {len(wrong)} | {scolded} of {len(right)} | {seconds:.1f} |")


def print_rows(wrong: dict[Any, dict[str, Verdict]], right: dict[Any, dict[str, Verdict]]) -> None:
    """Print one row for each Function."""
    print(f"| Function | what is wrong | {' | '.join(TOOLS)} |\n|{' --- |' * (2 + len(TOOLS))}")
    for function, said in (*wrong.items(), *right.items()):
        what = (function.__doc__ or "").splitlines()[0] if function in wrong else "nothing"
        cells = [verdict.found or "nothing" for verdict in said.values()]
        print(f"| {function.__name__} | {what} | {' | '.join(cells)} |")
    print()


if __name__ == "__main__":
    sys.exit(main())
