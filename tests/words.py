"""Check the words of docs/glossary.md: `python tests/words.py` prints what breaks them and exits with 1.

Names, docstrings, comments, messages and pages are all read as words: ``is_told`` is "is told". The docstring of a
class begins with a verb in the third person ("Reads …", "Holds …"); that of an error may begin with "Raised".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("otel_bridge", "exporters", "collector")
READ = (
    *PRODUCT,
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "docs_site",
    "semconv",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
)
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".js", ".mjs", ""}
THE_LIST_ITSELF = {
    Path("docs/glossary.md"),
    Path("tests/words.py"),
    Path("tests/plain.py"),
    Path("tests/docs/test_house.py"),
}
REFUSED = re.compile(
    r"\b(told|tells|heard|hears|hearing|voices?|speakers?|speaks|speaking|spoken|lets? go|taken for|kept waiting|"
    r"struck out|strikes? out|whoever|errands?|buried|exhumed?|strangers?|of ours|say whether|tell whether|"
    r"(?<!there )(?:is|are) no (?!longer|more|less|other|such|one|way|need)[a-z]+)\b",
    re.IGNORECASE,
)

THIRD_PARTY = "# third-party name"
"""Ends a line of code with a word that another library writes, such as a key of its messages."""
VERB = re.compile(r"Raised\b|[A-Z][a-z]*[a-rt-z]s (?!of )")
"""A word that ends like a verb, and is not a noun: "Numbers of …"."""
ROOMS_WITHOUT_VERBS = tuple(
    Path("otel_bridge") / room for room in ("bridge", "capture")
)
"""Rooms whose classes are not checked for a verb yet."""


def refused(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and word of each refused word in *text*, lines of third-party names left out."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith(THIRD_PARTY):
            continue
        for match in REFUSED.finditer(line.replace("_", " ")):
            yield number, match[0]


def defined_twice(sources: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each class name that two of *sources*, path and text, define."""
    first: dict[str, str] = {}
    for path, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                if node.name in first:
                    yield f"{path}:{node.lineno}: class {node.name} is defined in {first[node.name]} too"
                first.setdefault(node.name, f"{path}:{node.lineno}")


def without_verb(path: str, text: str) -> Iterator[str]:
    """Yield a line for each class of *text* whose docstring does not begin with a verb in the third person."""
    for node in ast.walk(ast.parse(text)):
        words = ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None
        if isinstance(node, ast.ClassDef) and words and not VERB.match(words):
            line = words.splitlines()[0]
            yield f"{path}:{node.lineno}: class {node.name} is described by {line!r}, expected a verb: 'Holds …'"


def files(*below: str) -> Iterator[Path]:
    """Yield the files that are read, below the root."""
    for name in below:
        for path in (
            [ROOT / name]
            if (ROOT / name).is_file()
            else sorted((ROOT / name).rglob("*"))
        ):
            relative = path.relative_to(ROOT)
            hidden = any(
                part.startswith(".") or part in {"__pycache__", "node_modules"}
                for part in relative.parts
            )
            if (
                path.is_file()
                and path.suffix in SUFFIXES
                and not hidden
                and relative not in THE_LIST_ITSELF
            ):
                yield relative


def problems() -> list[str]:
    """Return a line for each refused word, class name that is defined twice, and class described without a verb."""
    found = [
        f"{path}:{number}: {word!r} is a word that tests/words.py refuses, by docs/glossary.md; the name of "
        f"another library stays, with {THIRD_PARTY!r} at the end of its line"
        for path in files(*READ)
        for number, word in refused((ROOT / path).read_text("utf-8", "replace"))
    ]
    code = {
        path: (ROOT / path).read_text("utf-8")
        for path in files(*PRODUCT)
        if path.suffix == ".py"
    }
    found += defined_twice((str(path), text) for path, text in code.items())
    for path, text in code.items():
        if not any(path.is_relative_to(room) for room in ROOMS_WITHOUT_VERBS):
            found += without_verb(str(path), text)
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "words: all of the glossary")
    sys.exit(1 if lines else 0)
