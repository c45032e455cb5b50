"""Adds files to the site: pages of the repository's root, with links as seen from ``docs/``, and a style sheet."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[1]
_STYLE = "assets/site.css"
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""The head by which the theme leaves a page out of its search."""
_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the style sheet, and the pages of the root, to the files of ``docs/``."""
    files.append(
        File.generated(
            config,
            _STYLE,
            content=(_ROOT / "docs_site" / "site.css").read_text("utf-8"),
        )
    )
    for source, target in _PAGES.items():
        text = (_ROOT / source).read_text("utf-8").replace("](docs/", "](")
        for other, page in _PAGES.items():
            text = text.replace(f"]({other}", f"]({page}")
        if source == "CHANGELOG.md":
            text = _NOT_SEARCHED + text
        files.append(File.generated(config, target, content=text))
    return files
