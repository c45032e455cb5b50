"""Source text -> syntax tree, beside threads of other libraries."""

from __future__ import annotations

import ast
from contextlib import suppress

_TRIES = 9


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of *source*.

    Tried again where another thread parses at the same time, as it does to log a traceback: they
    share the parser's count of its depth until Python 3.12 (CPython, gh-106905).
    """
    for _ in range(_TRIES):
        with suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)
