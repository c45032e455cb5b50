"""A signal handler may raise inside `log()`, as Ctrl-C does: only that row may be missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from otel_bridge.emit.encode import row
from otel_bridge.emit.encode.row import RowShape, _layout

BEFORE = [(step, "trainer") for step in (125, 126, 127)]
AT = [(128, "explorer"), (128, "trainer"), (1 << 14, "trainer"), (-1, "trainer")]
AFTER = [
    (128, "trainer"),
    (129, "explorer"),
    (127, "trainer"),
    (1 << 14, "trainer"),
    (-3, "trainer"),
    (130, "trainer"),
]

VALUES = {"x": 1.0, "y": 2.0}
SHAPE = RowShape(VALUES)


def encoded(step: int, role: str) -> bytes:
    return SHAPE.encode(VALUES, 7, step, role, step & 0xFFFF)


def interrupting(line: int) -> tuple[Callable[..., Any], list[int]]:
    """Return a trace function that raises at the given line of the encoder, and how many lines there were."""
    lines = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != row.__file__:
            return None
        lines[0] += event == "line"
        if event == "line" and lines[0] == line:
            raise KeyboardInterrupt
        return trace

    return trace, lines


def warm() -> None:
    _layout.cache_clear()
    for step, role in BEFORE:
        encoded(step, role)


@pytest.mark.parametrize(("step", "role"), AT)
def test_rows_after_an_interrupt_anywhere_are_whole(step: int, role: str) -> None:
    expected = [encoded(*one) for one in AFTER]
    total, _ = interrupted(step, role, 0)

    wrong = [
        line
        for line in range(1, total + 1)
        if interrupted(step, role, line)[1] != expected
    ]

    assert total > 10
    assert wrong == []


def interrupted(step: int, role: str, line: int) -> tuple[int, list[bytes]]:
    """Encode a row that an interrupt ends at *line*, 0 for none; return its lines until then, and the rows after it."""
    warm()
    before = sys.gettrace()
    trace, lines = interrupting(line)
    sys.settrace(trace)
    try:
        encoded(step, role)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return lines[0], [encoded(*one) for one in AFTER]
