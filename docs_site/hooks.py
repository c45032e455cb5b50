"""Adds pages of the repository's root to the site, with their links as they are from inside ``docs/``."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root to those of ``docs/``."""
    for source, target in _PAGES.items():
        text = (_ROOT / source).read_text("utf-8").replace("](docs/", "](")
        for other, page in _PAGES.items():
            text = text.replace(f"]({other}", f"]({page}")
        files.append(File.generated(config, target, content=text))
    return files
