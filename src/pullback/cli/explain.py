"""``pullback explain``: the rulebook on a terminal, and as pages."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from pullback.cli import output
from pullback.cli.failure import CLEAN, UsageError
from pullback.rules import RULES, Rule

THEMES = {
    "PB1": "Definition and calls",
    "PB2": "Gradients",
    "PB3": "Saved tensors and memory",
    "PB4": "Writes and aliases",
    "PB5": "Transforms and surroundings",
    "PB6": "Speed",
}
"""What the hundreds of the codes stand for."""

_INDEX = "README.md"
# A call, or a name that has a dot, an underscore or an @: what prose never has.
_CODE = re.compile(
    r"(?:def |\w = )?[\w.]*\w(?:\((?:[^()]|\([^()]*\))*\))+(?:\.\w+\([^()]*\))*"
    r"|(?:@\w+|\w*_\w+|\w+\.\w+)(?:\.\w+)*(?:\[\w+\])?(?: = True)?"
)


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command.

    Args:
        arguments: What argparse made of the command line.

    Returns:
        The exit code.

    Raises:
        UsageError: A code is unknown, or nothing was asked for.
    """
    parts = [_part(code) for code in arguments.codes]
    if not parts and not arguments.list and not arguments.markdown:
        raise UsageError("name a rule, such as PB203, or use --list or --markdown DIR")
    if parts:
        output.write("\n\n".join(parts))
    if arguments.list:
        output.write(_listed(RULES.values()))
    if arguments.markdown:
        write_pages(Path(arguments.markdown), Path(arguments.examples) if arguments.examples else None)
    return CLEAN


def pages(examples: Path | None = None) -> dict[str, str]:
    """Every page of the rulebook in Markdown, by file name: one a rule, and an index.

    Args:
        examples: A folder that has, for some of the rules, ``PB403/wrong.py`` and ``PB403/right.py``.

    Raises:
        UsageError: An example can't be read.
    """
    return {_INDEX: _index(), **{f"{rule.code}.md": _page(rule, examples) for rule in RULES.values()}}


def write_pages(folder: Path, examples: Path | None = None) -> None:
    """Writes the pages into a folder and removes the pages of rules that are no more.

    Args:
        folder: Where to; it is made if need be.
        examples: As `pages` takes it.

    Raises:
        UsageError: The folder can't be written to, or there are no examples.
    """
    if examples is not None and not examples.is_dir():
        raise UsageError(f"{examples} is no folder; name the one that has the examples, such as PB403/wrong.py")
    current = pages(examples)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("PB[0-9][0-9][0-9].md"):
            if path.name not in current:
                path.unlink()
        for name, content in current.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write to {folder}: {error.strerror or error}") from error


def _part(code: str) -> str:
    """A rule in full, or the titles of the rules whose codes begin so, which is how --select takes a code."""
    code = code.upper()
    if code in RULES:
        return _text(RULES[code])
    prefix = code.rstrip("X")
    group = [rule for rule in RULES.values() if rule.code.startswith(prefix)]
    if group and prefix.startswith("PB"):
        theme = THEMES.get(prefix)
        return (f"{theme}\n" if theme else "") + _listed(group)
    close = difflib.get_close_matches(code, RULES, n=3)
    raise UsageError(f"there is no rule {code}; {f'did you mean {close[0]}?' if close else 'see explain --list'}")


def _listed(rules: Iterable[Rule]) -> str:
    return "\n".join(f"{rule.code} {rule.severity:<8} {rule.title}" for rule in rules)


def _text(rule: Rule) -> str:
    lines = [f"{rule.code} {rule.severity}: {rule.title}"]
    for label, words in (("why", rule.reason), ("remedy", rule.remedy)):
        head = f"  {label}:".ljust(11)
        lines += textwrap.wrap(words, max(40, output.width()), initial_indent=head, subsequent_indent=" " * len(head))
    return "\n".join(lines)


def _page(rule: Rule, examples: Path | None) -> str:
    theme = THEMES[rule.code[:3]]
    return (
        f"# {rule.code}: {_markdown(rule.title)}\n\n"
        f"Severity: {rule.severity}. Theme: {theme.lower()}.\n\n"
        f"## Why\n\n{_markdown(rule.reason)}\n\n"
        f"## What to do\n\n{_markdown(rule.remedy)}\n\n"
        f"{_shown(rule, examples) if examples is not None else ''}"
        f"[All rules]({_INDEX})\n"
    )


def _shown(rule: Rule, examples: Path) -> str:
    """What `pullback lint` finds, and what it doesn't, of rules that show in source."""
    paths = [examples / rule.code / f"{name}.py" for name in ("wrong", "right")]
    if not all(path.is_file() for path in paths):
        return ""
    try:
        wrong, right = (path.read_text("utf-8").strip() for path in paths)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read the examples of {rule.code}: {error}") from error
    return (
        f"## In source\n\n`pullback lint` finds it on the line that is marked:\n\n```python\n{wrong}\n```\n\n"
        f"And nothing here:\n\n```python\n{right}\n```\n\n"
    )


def _index() -> str:
    return "\n".join(_index_lines()) + "\n"


def _index_lines() -> Iterator[str]:
    yield "# The rulebook"
    yield ""
    yield "Each way to get a Function wrong has one permanent code. These pages are written by"
    yield "`pullback explain --markdown`, from the same rules that every error and report quotes."
    for prefix, theme in THEMES.items():
        yield from ("", f"## {prefix}xx: {theme}", "", "| code | severity | what is wrong |", "| --- | --- | --- |")
        for rule in RULES.values():
            if rule.code.startswith(prefix):
                yield f"| [{rule.code}]({rule.code}.md) | {rule.severity} | {_markdown(rule.title)} |"


def _markdown(words: str) -> str:
    """Prose with its code set as code, and nothing left that Markdown would read as a mark."""
    parts, end = [], 0
    for match in _CODE.finditer(words):
        parts += [_escaped(words[end : match.start()]), f"`{match[0]}`"]
        end = match.end()
    return "".join((*parts, _escaped(words[end:])))


def _escaped(words: str) -> str:
    return re.sub(r"([*<>|`_])", r"\\\1", words)
