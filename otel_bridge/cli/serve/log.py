"""Writes the log of a service: one line per message on stderr, plain or JSON, from any thread."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import Final

import orjson

from otel_bridge.text.printable import shown

_LOGGERS: Final = ("otel_bridge_collector", "uvicorn.error", "asyncio")
"""Loggers of the receiver and of its libraries, whose messages get the form of this log."""


class ServiceLog(logging.Handler):
    """Writes log lines to stderr; as a logging handler it also writes the records of `_LOGGERS`.

    Args:
        as_json: Write one JSON object per line instead of text. Its keys are ``time``, ``level``, ``message`` and, for
            a message of one run, ``run``.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._writing = threading.Lock()

    def log_line(self, line: str, *, level: str = "info", **facts: object) -> None:
        """Write one line; a closed stderr is not an error."""
        now_s = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s % 1 * 1000):03d}Z"
        if self._as_json:
            written = orjson.dumps({"time": stamp, "level": level, "message": line, **facts}).decode()
        else:
            written = f"{stamp} otel-bridge: {_on_lines_of_its_own(line)}"
        with self._writing, contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{written}\n")
            sys.stderr.flush()

    def log_run_line(self, line: str) -> None:
        """Write a line of the bridge supervisor, which begins with the run's id."""
        run, colon, rest = line.partition(": ")
        if colon and " " not in run and self._as_json:
            self.log_line(rest, run=run)
        else:
            self.log_line(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {logging.Formatter().formatException(record.exc_info)}"
        self.log_line(text, level=record.levelname.lower())

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
    """Return *text* escaped: a client's text within it can neither begin a log line nor move the cursor."""
    return shown(text).replace("\n", "\n    ")
