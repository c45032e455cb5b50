"""Count stores to attributes of other modules' objects: `python tests/stores.py` lists them. Part of the tests.

``setattr(other, …)`` and ``object.__setattr__(other, …)`` count too, whatever attribute they name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("otel_bridge", "exporters", "collector")
AS_USERS = ("otel_bridge/adapters", "otel_bridge/capture", "otel_bridge/demo")
"""Rooms that set the public fields of live rollouts, as users do, or replace functions of other packages."""
OF_OTHERS = frozenset({
    "value", "key", "name", "trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano",
    "string_value", "bytes_value", "message", "code", "position", "help", "retry_after_s",
})  # fmt: skip
"""Fields of protobuf messages and of exceptions that are raised with them."""


def defined(tree: ast.AST) -> set[str]:
    """Return the attributes that the classes of a module define."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_self(node.value)
        ):
            names.add(node.attr)
    return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def sets_other(node: ast.AST) -> bool:
    """Return whether *node* calls ``setattr`` or ``__setattr__`` of ``object`` for an object other than ``self``."""
    if not (isinstance(node, ast.Call) and node.args) or _is_self(node.args[0]):
        return False
    return ast.unparse(node.func) in {"setattr", "object.__setattr__"}


def stores() -> Iterator[str]:
    """Yield a line for each store to an attribute that only classes of other modules define."""
    trees = {
        path: ast.parse(path.read_text("utf-8"))
        for root in PRODUCT
        for path in (ROOT / root).rglob("*.py")
    }
    own = {path: defined(tree) for path, tree in trees.items()}
    anywhere = set().union(*own.values()) - OF_OTHERS
    for path, tree in sorted(trees.items()):
        if path.relative_to(ROOT).as_posix().startswith(AS_USERS):
            continue
        for node in ast.walk(tree):
            if sets_other(node):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
            if not (
                isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            ) or _is_self(node.value):
                continue
            if node.attr in anywhere - own[path]:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


if __name__ == "__main__":
    print("\n".join(stores()))
