"""What mkdocs doesn't do by itself: a page for each rule in the menu, and a page for each source that a page links to.

The documents link to files beside the folder of documents, such as the examples. On a code forge these links lead to
the file; here they lead to a page that shows it, and that is made while the site is built.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".cu": "cpp", ".toml": "toml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the rules into the menu, group by group: the rulebook's index first."""
    rules = ROOT / "docs" / "rules"
    pages: list[Any] = ["rules/README.md"]
    for theme in re.findall(r"^## (PB\d)xx: (.*)$", (rules / "README.md").read_text("utf-8"), re.MULTILINE):
        code, title = theme
        pages.append(
            {f"{code}xx {title}": [{path.stem: f"rules/{path.name}"} for path in sorted(rules.glob(f"{code}*.md"))]}
        )
    assert config.nav is not None
    config.nav = [{"Rules": pages} if entry == {"Rules": "rules/"} else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each source outside the documents that one of them links to."""
    for file in [*files.documentation_pages()]:
        for link in LINK.findall(file.content_string):
            source = _outside(file.src_uri, link)
            if source is not None and files.get_file_from_path(_page_of(source)) is None:
                files.append(File.generated(config, _page_of(source), content=_shown(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to sources lead to their pages."""

    def replaced(match: re.Match[str]) -> str:
        source = _outside(page.file.src_uri, match[1])
        if source is None:
            return match[1]
        return posixpath.relpath(_page_of(source), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(replaced, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop the double colons that head an example in a docstring."""
    return html.replace("<p>::</p>", "")


def _outside(page: str, link: str) -> str | None:
    """What a link leads to, from the root, if that is a file or folder beside the documents."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    is_beside = not target.startswith(("docs/", "..")) and (ROOT / target).exists()
    return target if is_beside else None


def _page_of(source: str) -> str:
    return f"source/{source.removesuffix('.md')}.md"


def _shown(source: str) -> str:
    """The page of a source: its text, or for a folder the text of each file in it."""
    path = ROOT / source
    if source.endswith(".md"):
        return path.read_text("utf-8")
    parts = [path] if path.is_file() else sorted(part for part in path.iterdir() if part.suffix in LANGUAGES)
    text = [f"# {source}\n"]
    for part in parts:
        text += [f"## {part.name}\n"] if len(parts) > 1 else []
        text.append(f"````{LANGUAGES[part.suffix]}\n{part.read_text('utf-8')}````\n")
    return "\n".join(text)
