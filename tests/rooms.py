"""Check the rooms of the product: `python tests/rooms.py` lists what breaks a rule. Part of the tests.

No import circle, type-only imports and those inside functions included, which import-linter does not follow; at most
13 modules a folder. A module is as long as its idea.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = (ROOT, ROOT / "exporters", ROOT / "collector")
MAX_MODULES = 13


def modules() -> dict[str, Path]:
    """Return the file of each module of the product, by its import name."""
    found: dict[str, Path] = {}
    for root in SOURCE_ROOTS:
        for path in root.glob("otel_bridge*/**/*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, known: Mapping[str, object]) -> set[str]:
    """Return the modules of *known* that *source* names in any import statement."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{item.name}" for item in node.names}
            names |= {name if name in known else node.module for name in below}
    return names & set(known)


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one import circle, in order; empty without one."""
    try:
        TopologicalSorter(
            {name: others - {name} for name, others in imports.items()}
        ).prepare()
    except CycleError as exc:
        found: list[str] = exc.args[1]
        return found
    return []


def problems() -> Iterator[str]:
    """Yield a line for each rule that is broken."""
    known = modules()
    if found := circle(
        {name: imported(path.read_text("utf-8"), known) for name, path in known.items()}
    ):
        yield f"import circle: {' <- '.join(found)}"
    sizes = Counter(
        path.parent for path in known.values() if path.name != "__init__.py"
    )
    for folder, number in sizes.items():
        if number > MAX_MODULES:
            yield f"{folder.relative_to(ROOT)}: {number} modules, at most {MAX_MODULES}"


if __name__ == "__main__":
    print("\n".join(problems()))
