"""Each oldest version that an adapter or its page names is one that tests/frameworks is run with."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"([a-z_-]+(?:\[[a-z]+\])?)>=([0-9.]*[0-9])")


def test_a_floor_in_a_message_or_on_a_page_is_a_version_that_is_tried() -> None:
    paths = [
        *(ROOT / "otel_bridge" / "adapters").rglob("*.py"),
        *(ROOT / "docs" / "frameworks").glob("*.md"),
    ]
    named = {
        found for path in paths for found in NAMED.findall(path.read_text("utf-8"))
    }

    assert len(named) >= 8
    untried = {f"{name}=={version}" for name, version in named} - pins()
    assert untried == set(), (
        "pin each in a tests/frameworks/requirements*.txt, or name one that is"
    )


def pins() -> set[str]:
    """The pinned packages of all environments, a version also without the zeros at its end."""
    found: set[str] = set()
    for path in (ROOT / "tests" / "frameworks").glob("requirements*.txt"):
        for line in path.read_text("utf-8").splitlines():
            text = line.partition("#")[0].strip()
            if "==" in text:
                Requirement(text)
                found |= {text, re.sub(r"(\.0)+$", "", text)}
    return found
