"""What a service says: one line a thing on stderr, plain or JSON, from any thread."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import Final

import orjson

_LOGGERS: Final = ("otel_bridge_collector", "uvicorn.error", "asyncio")
"""The receiver's, and those of what it is built on: all that a service says has one form."""


class ServiceLog(logging.Handler):
    """Writes lines; as a handler it takes the receiver's.

    Args:
        as_json: One JSON object a line (``time``, ``level``, ``message`` and, for one run's, ``run``) instead of text.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._writing = threading.Lock()

    def say(self, line: str, *, level: str = "info", **facts: object) -> None:
        """Write one line; a closed stderr is no error."""
        now_s = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s % 1 * 1000):03d}Z"
        if self._as_json:
            written = orjson.dumps({"time": stamp, "level": level, "message": line, **facts}).decode()
        else:
            written = f"{stamp} otel-bridge: {_on_lines_of_its_own(line)}"
        with self._writing, contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{written}\n")
            sys.stderr.flush()

    def say_of_run(self, line: str) -> None:
        """Write a line of a host: it begins with the run's id."""
        run, colon, rest = line.partition(": ")
        if colon and " " not in run and self._as_json:
            self.say(rest, run=run)
        else:
            self.say(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {logging.Formatter().formatException(record.exc_info)}"
        self.say(text, level=record.levelname.lower())

    def __enter__(self) -> ServiceLog:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.propagate = True


def _on_lines_of_its_own(text: str) -> str:
    """Return *text* so that no client, whose words it may hold, can write a line of the log or move the cursor."""
    shown = "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
    return shown.replace("\n", "\n    ")
