"""The documentation's site: it builds without a warning, has a page for everything, and asks nothing of a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import pullback
from pullback.rules import RULES

ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    """What a page fetches by itself when it is opened, and the identifiers that links may lead to."""

    def __init__(self, path: Path) -> None:
        """Read the page."""
        super().__init__()
        self.fetched: list[str] = []
        self.identifiers: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        named = {name: value or "" for name, value in attributes}
        if "id" in named:
            self.identifiers.add(named["id"])
        if "src" in named:
            self.fetched.append(named["src"])
        if tag == "link" and named.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(named["href"])


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run what `make docs` runs, with the result elsewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all tests of this file."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """Each name of pullback, its operations, modules and errors has an entry, with a link to lead to it."""
    identifiers = {name for path in (site / "reference").glob("*.html") for name in Page(path).identifiers}
    names = {f"pullback.{name}" for name in pullback.__all__ if name not in {"nn", "ops", "__version__"}}
    names |= {f"pullback.ops.{name}" for name in pullback.ops.__all__}
    names |= {f"pullback.nn.{name}" for name in pullback.nn.__all__}
    errors = (ROOT / "src" / "pullback" / "errors.py").read_text("utf-8")
    names |= {f"pullback.errors.{name}" for name in re.findall(r"^class (\w+)", errors, re.MULTILINE)}
    assert names - identifiers == set()


def test_every_rule_has_a_page_in_the_menu(site: Path) -> None:
    """The menu of each page leads to the page of each rule."""
    index = (site / "index.html").read_text("utf-8")
    missing = [code for code in RULES if f'href="rules/{code}.html"' not in index]
    assert missing == []
    assert all((site / "rules" / f"{code}.html").exists() for code in RULES)


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    """Fonts, scripts, styles and pictures lie beside the pages, each one where it is said to be."""
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    for path in pages:
        for link in Page(path).fetched:
            assert "//" not in link, f"{path.name}: {link}"
            assert (path.parent / link.partition("?")[0]).exists(), f"{path.name}: {link}"
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\s]*", styles) == []


def test_sources_are_shown(site: Path) -> None:
    """A link to an example leads to a page with its text, since the file lies outside the site."""
    page = (site / "prove.html").read_text("utf-8")
    (link,) = set(re.findall(r'href="([^"#]*activations[^"#]*)"', page))
    text = (site / link).read_text("utf-8")
    assert "Softsign" in text


def test_examples_in_docstrings_have_no_stray_marks(site: Path) -> None:
    """The double colons that head an example in a docstring aren't shown."""
    assert all("<p>::</p>" not in path.read_text("utf-8") for path in (site / "reference").glob("*.html"))


def test_what_does_not_hold_stops_the_build(tmp_path: Path) -> None:
    """A link, an anchor or a page that leads nowhere is an error: the test of the whole site can fail."""
    docs = tmp_path / "docs"
    (docs / "rules").mkdir(parents=True)
    (docs / "site").mkdir()
    (docs / "rules" / "README.md").write_text("# The rulebook\n")
    (docs / "site" / "hooks.py").write_bytes((ROOT / "docs" / "site" / "hooks.py").read_bytes())
    (docs / "index.md").write_text("# A page\n\n[a](gone.md), [b](#gone), [c](rules/README.md#gone)\n")
    (docs / "lost.md").write_text("# Lost\n")
    configuration = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0].replace("[src]", f"[{ROOT}/src]")
    (tmp_path / "mkdocs.yml").write_text(f"{configuration}\nnav: [index.md, Rules: rules/]\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for warning in (
        "contains a link 'gone.md', but the target is not found",
        "contains a link '#gone', but there is no such anchor on this page",
        "contains a link 'rules/README.md#gone', but the doc 'rules/README.md' does not contain an anchor '#gone'",
        'not included in the "nav" configuration:\n  - lost.md',
    ):
        assert warning in done.stderr
