"""Documents that tell a story: files are written, commands are run, and what these print is shown.

In such a document a block of Python under ``<!-- file: ops.py -->`` is that file. A block under ``<!-- output -->``
shows what the command in the ``console`` block before it printed, which is run in the folder of these files; under
``<!-- output until "  probes:" -->`` up to the first line that begins so, and three dots. Beside what readers see,
``<!-- copy: examples/ops.py -->`` brings a file of the repository, and ``<!-- change: ops.py: 2 * x => 3 * x -->``
changes a file.

    python -m tests.story README.md docs/tutorial.md      writes what is shown anew (make docs-shown)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^<!-- (?P<hidden>change|copy): (?P<what>.*?) -->\n"
    r"|(?:^<!-- (?P<mark>file|output)(?:: (?P<name>\S+))?(?: until \"(?P<until>[^\"]+)\")? -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MORE = "…"


@dataclass(frozen=True)
class Shown:
    """What a document shows of a command, and what that printed.

    Attributes:
        command: The command.
        shown: What stands in the document.
        printed: What it printed now, cut as the document cuts it.
        span: Where the shown text stands in the document.
    """

    command: str
    shown: str
    printed: str
    span: tuple[int, int]


def tell(text: str, folder: Path) -> list[Shown]:
    """Write the files and run the commands of a document in a folder, from its top to its end."""
    found: list[Shown] = []
    commands: list[str] = []
    for block in BLOCK.finditer(text):
        if block["hidden"] == "change":
            change(folder, *re.split(r": | => ", block["what"]))
        elif block["hidden"] == "copy":
            (folder / Path(block["what"]).name).write_bytes((ROOT / block["what"]).read_bytes())
        elif block["mark"] == "file":
            (folder / block["name"]).write_text(block["text"], "utf-8")
        elif block["mark"] == "output":
            assert commands, "what is shown was printed by no command"
            printed = [run(command, folder) for command in commands]
            found.append(Shown(commands[-1], block["text"], until(printed[-1], block["until"]), block.span("text")))
            commands = []
        elif block["language"] == "console":  # run only if the document shows what it prints
            commands = re.findall(r"^\$ (.*)$", block["text"], re.MULTILINE)
    return found


def change(folder: Path, name: str, before: str, after: str) -> None:
    """Put one text of a file in another's place, which must be there once."""
    text = (folder / name).read_text("utf-8")
    assert text.count(before) == 1, f"{before!r} isn't in {name} once"
    (folder / name).write_text(text.replace(before, after), "utf-8")


def run(command: str, folder: Path) -> str:
    """What a command prints, paths as they are seen from the folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def until(printed: str, end: str | None) -> str:
    """The lines before the first that begins with `end`, and the sign that there are more."""
    if end is None:
        return printed.strip("\n") + "\n"
    lines = printed.splitlines()
    last = next(number for number, line in enumerate(lines) if line.startswith(end))
    return "\n".join([*lines[:last], MORE]).strip("\n") + "\n"


def timeless(text: str) -> str:
    """A text without what differs from run to run: how long something took, and that it was long."""
    text = re.sub(r"^ +- \w+: took \d+\.\d s: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\b\d+\.\d+ ?s\b", "0.0 s", text)


def main(paths: list[str]) -> None:
    """Write what the documents show anew."""
    for path in map(Path, paths):
        text = path.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder:
            shown = tell(text, Path(folder))
        for one in reversed(shown):
            if timeless(one.shown) != timeless(one.printed):
                text = text[: one.span[0]] + one.printed + text[one.span[1] :]
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
