"""Each piece of code in the documents holds: Python runs, other text is what it is cut from or can be read as.

A block of Python is a file by itself, and each Function in it that has samples is found right; or it is a file of a
story, whose commands are run (`tests.story`), and what these print is compared with what the document shows.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pullback
from pullback.battery.battery import PROBES
from pullback.cli import parser, toml
from tests import story

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
HOW_TO = ROOT / "docs" / "how-to.md"
PROVE = ROOT / "docs" / "prove.md"
COMMAND_LINE = ROOT / "docs" / "reference" / "command-line.md"
# The page of the command line shows a list alone, which has a test of its own that starts no process.
STORIES = [path for path in DOCUMENTS if "<!-- output" in path.read_text("utf-8") and path != COMMAND_LINE]

# The languages of blocks, each with its test below. `py` is a piece of Python that isn't whole, and so doesn't run: it
# is cut from an example that does. `text` is what something prints, or a drawing.
READ = {"python", "py", "console", "toml", "yaml", "cpp", "text"}

# Commands that no test runs and no parser of this project knows, each with the reason.
ELSEWHERE = {
    "pip install": "it would change the environment that the tests run in; the wheel is tested in test_project",
    "python examples/train_tiny_llama.py": "it takes minutes; its own tests run it with fewer steps",
    "python examples/kernel/softcap.py": "tests/examples/test_kernel.py runs it",
    "python examples/kernel/softcap_triton.py": "tests/examples/test_kernel.py runs it",
}


def blocks(path: Path, language: str = "python") -> list[tuple[int, str]]:
    """Return the blocks of a language in a document, each with its line; without those that tell a story."""
    text = path.read_text("utf-8")
    found = re.finditer(rf"(<!-- file: \S+ -->\n)?^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start()].count("\n") + 1, match[2]) for match in found if not match[1]]


def each_block(language: str = "python") -> Iterator[object]:
    """Give each block of each document as a parameter, named by its place."""
    for path in DOCUMENTS:
        if path.parent.name == "rules":  # wrong on purpose, and held by tests/lint/test_examples.py
            continue
        for line, source in blocks(path, language):
            yield pytest.param(source, id=f"{path.relative_to(ROOT)}:{line}")


def imported(path: Path) -> ModuleType:
    """Import a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
@pytest.mark.parametrize("source", [*each_block()])
def test_code_in_the_documents_runs(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A block runs as a file by itself; what it proves with an assert holds, and a test in it passes."""
    path = tmp_path / "ops.py"
    path.write_text(source, "utf-8")
    monkeypatch.setitem(sys.modules, "ops", ModuleType("ops"))  # so that it is put back afterwards
    module = imported(path)
    functions = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, "samples")]
    for function in functions:
        assert issubclass(function, torch.autograd.Function)
        report = pullback.check(function)
        assert not report.findings, str(report)
    for name, value in list(vars(module).items()):
        if name.startswith("test_"):
            assert set(inspect.signature(value).parameters) <= {"check_function"}
            value(*map(request.getfixturevalue, inspect.signature(value).parameters))


def test_each_declaration_has_an_example() -> None:
    """What a class can declare is shown in the how-to."""
    shown = "\n".join(source for _, source in blocks(HOW_TO))
    declared = ["samples", "reference", "surrogate", "double_backward", "expected_backward"]
    assert [name for name in declared if f"def {name}(" not in shown] == []
    flags = ["nonlinear_backward", "contiguous_grads", "nondiff_argnames"]
    assert [name for name in flags if f"    {name} = " not in shown] == []
    assert "constants=(" in shown


def test_each_way_to_vary_a_sample_is_explained() -> None:
    """The table in the how-to has the entries of Sample.vary, no more and no less."""
    section = HOW_TO.read_text("utf-8").partition("what it may vary:")[2].partition("\n## ")[0]
    assert tuple(re.findall(r'^\| `"(\w+)"`', section, re.MULTILINE)) == pullback.Sample(()).vary


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_hold(path: Path) -> None:
    """A link to a part of the same page leads to a heading."""
    text = path.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {anchor for anchor in re.findall(r"\]\(#([^)]+)\)", text)} <= anchors


def test_every_block_is_of_a_language_that_is_tested() -> None:
    """No block hides behind a name such as `py`, or none at all, which no test would look at."""
    for path in DOCUMENTS:
        fences = re.findall(r"^ *(?:```+|~~~+)(.*)$", path.read_text("utf-8"), re.MULTILINE)
        assert {*fences[::2]} <= READ, path
        assert {*fences[1::2]} <= {""}, path


@pytest.mark.parametrize("source", [*each_block("toml")])
def test_toml_can_be_read(source: str, tmp_path: Path) -> None:
    """A block of TOML is read by what pullback reads its configuration with."""
    path = tmp_path / "shown.toml"
    path.write_text(source, "utf-8")
    assert toml.read(path)


@pytest.mark.parametrize("source", [*each_block("cpp"), *each_block("py")])
def test_pieces_are_cut_from_the_examples(source: str) -> None:
    """A block of C++, or a piece of Python, stands in a file of examples, word for word."""
    files = [path for suffix in ("h", "cpp", "cu", "py") for path in (ROOT / "examples").rglob(f"*.{suffix}")]
    assert any(source in path.read_text("utf-8") for path in files)


def commands() -> Iterator[object]:
    """Give each command that a document shows, from consoles and from the steps of continuous integration."""
    for path in DOCUMENTS:
        shown = "".join(source for language in ("console", "yaml") for _, source in blocks(path, language))
        for command in re.findall(r"^(?:\$|  - run:) (.*)$", shown, re.MULTILINE):
            yield pytest.param(command, path, id=f"{path.relative_to(ROOT)}: {command}")


@pytest.mark.parametrize(("command", "path"), [*commands()])
def test_commands_of_the_documents_can_be_given(command: str, path: Path) -> None:
    """A command that is shown is run by its story, or its parser or Makefile takes it, or it has a reason not to be."""
    told = re.findall(r"^```console\n([^`]*)```\n\n<!-- output", path.read_text("utf-8"), re.MULTILINE)
    if f"$ {command}\n" in told:
        return
    program, *arguments = shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", command), comments=True)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    elif program == "pullback":
        parser.build().parse_args(arguments)
    elif program == "pytest":
        assert arguments == ["--pullback-seed", "random"]
    else:
        assert any(command.startswith(known) for known in ELSEWHERE), command


def release(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", STORIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_stories_print_what_they_show(path: Path, tmp_path: Path) -> None:
    """The commands of a document, run one after the other, print what it shows, up to the time that they took.

    On another release of torch a probe more or less is skipped; there the rules that are found are the same.
    """
    written = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert written is not None
    told = story.tell(path.read_text("utf-8"), tmp_path)
    assert told
    for one in told:
        assert re.findall(r"PB\d{3}", one.printed) == re.findall(r"PB\d{3}", one.shown), one.command
        if release(torch.__version__) == release(written[1]):
            assert story.timeless(one.printed) == story.timeless(one.shown), f"{one.command}: make docs-shown"


def test_a_story_that_prints_something_else_is_seen(tmp_path: Path) -> None:
    """What a command prints is compared: the test above can fail, on a line, on an end, and not on the time."""
    text = "```console\n$ echo one; echo took 1.5 s; echo two\n```\n\n<!-- output{} -->\n```text\n{}\n```\n"
    (same,) = story.tell(text.format("", "one\ntook 2.75 s\ntwo"), tmp_path)
    assert story.timeless(same.printed) == story.timeless(same.shown)
    (cut,) = story.tell(text.format(' until "two"', "one\ntook 1.5 s\n…"), tmp_path)
    assert story.timeless(cut.printed) == story.timeless(cut.shown)
    (other,) = story.tell(text.format("", "one\ntook 1.5 s"), tmp_path)
    assert story.timeless(other.printed) != story.timeless(other.shown)


def test_the_test_file_is_the_examples_own() -> None:
    """The test file for ten Functions that is shown is examples/test_activations.py, and has ten lines."""
    shown = re.search(r"<!-- file: test_activations.py -->\n```python\n(.*?)```", PROVE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "examples" / "test_activations.py").read_text("utf-8")
    assert len(shown[1].splitlines()) == 10


def test_the_listed_probes_are_those_that_run() -> None:
    """The page of the command line lists the probes as `pullback check --list` does."""
    shown = COMMAND_LINE.read_text("utf-8").partition("<!-- output -->\n```text\n")[2].partition("```")[0]
    assert shown == "".join(f"{probe.name}\n    {probe.proves}\n" for probe in PROBES.values()), "make docs-shown"


def test_every_option_is_on_the_page_of_the_command_line() -> None:
    """Each option of a command is in the table below its heading, and no other."""
    sections = COMMAND_LINE.read_text("utf-8").split("\n## ")
    (commands,) = (action for action in parser.build()._actions if action.dest == "command")
    assert commands.choices is not None
    for name, command in dict(commands.choices).items():
        (section,) = (section for section in sections if section.startswith(f"`pullback {name}`"))
        rows = "".join(line for line in section.splitlines() if line.startswith("| `-"))
        options = {option for action in command._actions for option in action.option_strings}
        shown = {*re.findall(r"`(--?[a-z][a-z-]*)", rows.replace("`python -m`", ""))}
        assert shown == options - {"-h", "--help"}, name


def examples() -> Iterator[object]:
    """Give the example of each public name that has one in its docstring."""
    for name in pullback.__all__:
        found = re.search(
            r"^( *)(?:Example:\n *)?::\n\n((?:\1 +.*\n|\n)+)", getattr(pullback, name).__doc__ or "", re.M
        )
        if found:
            yield pytest.param(textwrap.dedent(found[2]), id=name)


@pytest.mark.parametrize("source", [*examples()])
def test_examples_in_docstrings_run(source: str) -> None:
    """An example in the reference runs, given what it speaks of: a model with its batch, or another's Function."""
    model, batch = torch.nn.Linear(2, 2), torch.ones(3, 2)
    theirs = type("TheirFunction", (torch.autograd.Function,), {"forward": staticmethod(lambda ctx, x, n: x * n)})
    exec(source, {"pullback": pullback, "torch": torch, "model": model, "batch": batch, "TheirFunction": theirs})
