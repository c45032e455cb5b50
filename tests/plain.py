"""Check that lines stay plain: `python tests/plain.py` counts what is hard to read, and exits with 1 if it grew.

`python tests/plain.py complexity otel_bridge/journal` lists the places of one kind in a module or below a folder.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("otel_bridge", "exporters", "collector")
CEILINGS = {
    "complexity": 1,
    "nested-ternary": 0,
    "packed-assignment": 3,
    "generic-name": 59,
    "attributes": 2,
}
"""How many places of each kind the product has at most. Lower a number when the check prints that it can be lowered."""
MAX_COMPLEXITY = 12
MAX_ATTRIBUTES = 12
GENERIC = """
found one given known at named asked shown came kept told taken made left held wanted needed gone got seen met put
other others another each which who whose what where whether when how why there here this that these those such same
both own again further before after since until once still already yet also else more most less least all any none
thing things stuff it its them they
"""
GENERIC_NAMES = frozenset(GENERIC.split())
"""Participles, pronouns and adverbs: as a name, each sends the reader to look up which thing it is."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.match_case,
)


def below(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of *scope* in order, without those of functions and classes inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node
            yield from below(node)


def complexity(function: ast.AST) -> int:
    """Return the number of ways through *function*: also those of operators, ternaries, comprehensions."""
    ways = 1
    for node in below(function):
        if isinstance(node, BRANCHES):
            ways += 1
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
    return ways


def complex_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and description of each function with too many ways through it."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            ways = complexity(node)
            if ways > MAX_COMPLEXITY:
                yield (
                    node.lineno,
                    f"{node.name} has a complexity of {ways}, at most {MAX_COMPLEXITY}",
                )


def nested_ternaries(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and description of each conditional expression that has another one inside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            parts = [part for part in ast.walk(node) if isinstance(part, ast.IfExp)]
            if len(parts) > 1:
                yield (
                    node.lineno,
                    "a ternary inside a ternary: use if and elif, or a table",
                )


def packed_assignments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and description of each assignment of several values to several names, or of one value to several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            both_tuples = isinstance(node.targets[0], ast.Tuple) and isinstance(
                node.value, ast.Tuple
            )
            if both_tuples or len(node.targets) > 1:
                yield node.lineno, "several assignments in one statement: one a line"


def generic_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and description of each binding and parameter whose name says nothing of its thing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        else:
            continue
        if name.strip("_") in GENERIC_NAMES:
            yield line, f"{name!r} is not the name of a thing"


def large_classes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and description of each class whose methods assign too many attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            number = len({part.attr for part in ast.walk(node) if stores_to_self(part)})
            if number > MAX_ATTRIBUTES:
                yield (
                    node.lineno,
                    f"{node.name} has {number} attributes, at most {MAX_ATTRIBUTES}",
                )


def stores_to_self(node: ast.AST) -> bool:
    """Return whether *node* is an attribute of ``self`` that is assigned."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "self"


KINDS: dict[str, Callable[[ast.AST], Iterator[tuple[int, str]]]] = {
    "complexity": complex_functions,
    "nested-ternary": nested_ternaries,
    "packed-assignment": packed_assignments,
    "generic-name": generic_names,
    "attributes": large_classes,
}


def modules(root: Path) -> list[Path]:
    """Return the modules below the folder *root*, or *root* if it is one."""
    return [root] if root.is_file() else sorted(root.rglob("*.py"))


def changed_modules() -> list[str]:
    """Return the product's modules that differ from the branch ``main``; empty without git or that branch."""
    command = ["git", "diff", "--name-only", "--merge-base", "main", "--", *PRODUCT]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [name for name in answer.stdout.split() if (ROOT / name).is_file()]


def places(kind: str, *roots: str) -> list[str]:
    """Return a line for each place of *kind* in the modules *roots*, or below those that are folders."""
    lines: list[str] = []
    for root in roots:
        for path in modules(ROOT / root):
            tree = ast.parse(path.read_text("utf-8"))
            lines += [
                f"{path.relative_to(ROOT)}:{line}: {text}"
                for line, text in sorted(KINDS[kind](tree))
            ]
    return lines


def verdict(kind: str, number: int, ceiling: int) -> str:
    """Return what to do about *number* places of *kind*; empty if they are as many as they may be."""
    if number > ceiling:
        found_in = "\n  ".join(["", *places(kind, *changed_modules())])
        return f"{kind}: {number} places, at most {ceiling}; in what you changed:{found_in}"
    if number < ceiling:
        return f"{kind}: lower the ceiling in tests/plain.py from {ceiling} to {number}"
    return ""


def main(arguments: list[str]) -> int:
    """Print the places of one kind, or a verdict on every kind; return 1 if a kind has more places than its ceiling."""
    if arguments:
        kind, *roots = arguments
        missing = [root for root in roots if not (ROOT / root).exists()]
        if kind not in KINDS or missing:
            print(f"kinds: {', '.join(KINDS)}; missing: {', '.join(missing) or 'none'}")
            return 2
        print("\n".join(places(kind, *(roots or PRODUCT))))
        return 0
    grew = False
    for kind, ceiling in CEILINGS.items():
        number = len(places(kind, *PRODUCT))
        grew = grew or number > ceiling
        print(
            verdict(kind, number, ceiling) or f"{kind}: {number} of at most {ceiling}"
        )
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
