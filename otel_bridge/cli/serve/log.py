"""Writes the log of a service: one line per message on stderr, plain or JSON, from any thread.

Libraries log by `logging`, or print. Each record that reaches the root logger becomes a line of
this log: warnings and errors, unless a library lowers its level. With JSON, so does all that Python
code prints.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TextIO, cast

from otel_bridge.cli.errors import exit_code_of, text_of
from otel_bridge.records import Json
from otel_bridge.text.printable import shown
from otel_bridge.values.plain import dumps

_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVEL_CHARS = 80
"""Beginning of a printed line in which its level stands; further on the word is part of a text."""
_LONGEST_LINE = 64 << 10


class ServiceLog(logging.Handler):
    """Writes log lines to stderr; as a logging handler it also writes the records of other loggers.

    Args:
        as_json: Write one JSON object per line instead of text. Its keys are ``time``, ``level``,
            ``message`` and, for a message of one run, ``run``. While the log is open, printed lines
            are written so too, each to its stream.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._streams: tuple[TextIO, TextIO] | None = None

    def log_line(self, line: str, *, level: str = "info", **facts: str) -> None:
        """Write one line; *level* and *facts* are shown with JSON only. A closed stderr is not an error."""
        self._log_to(
            sys.stderr if self._streams is None else self._streams[1],
            line,
            level,
            facts,
        )

    def log_run_line(self, line: str, *, level: str = "info") -> None:
        """Write a line that begins with a run's id, which is ``run`` with JSON."""
        run, colon, rest = line.partition(": ")
        # An id has no space; other lines may have a colon too.
        if colon and " " not in run and self._as_json:
            self.log_line(rest, level=level, run=run)
        else:
            self.log_line(line, level=level)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record, with the traceback of its exception.

        One whose message does not fit its arguments is printed to stderr by `logging`, as by any
        handler: raised here, it would end the library's work that it is about.
        """
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  # arguments may be objects of any library
            self.handleError(record)
        else:
            self.log_line(text, level=record.levelname.lower())

    def __enter__(self) -> ServiceLog:
        """Open the log: records of other loggers are lines of it from now on, with JSON prints too."""
        logging.getLogger().addHandler(self)
        if self._as_json:
            logging.captureWarnings(capture=True)
            self._streams = streams = sys.stdout, sys.stderr
            # What trackers print would otherwise stand between the objects of the log.
            sys.stdout, sys.stderr = (self._lines_of(stream) for stream in streams)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: object
    ) -> None:
        """Close the log.

        With JSON, first log the exception that ends the service, or Python prints it as text; then
        `SystemExit` with its exit code takes its place.
        """
        logging.getLogger().removeHandler(self)
        if self._streams is None:
            return
        for stream in (sys.stdout, sys.stderr):
            if isinstance(cast("object", stream), PrintedLines):
                cast("PrintedLines", stream).end_lines()
        if isinstance(exc, Exception):
            self.log_line(text_of(exc), level="error")
        sys.stdout, sys.stderr = self._streams
        self._streams = None
        logging.captureWarnings(capture=False)
        if isinstance(exc, Exception):
            raise SystemExit(exit_code_of(exc)) from exc

    def _lines_of(self, stream: TextIO) -> TextIO:
        """Return what takes the place of *stream*: a line that names no level near its beginning is ``info``."""

        def log(line: str) -> None:
            level = _LEVEL.search(line[:_LEVEL_CHARS])
            self._log_to(stream, line, level[0].lower() if level else "info", {})

        return cast("TextIO", PrintedLines(stream, log))

    def _log_to(
        self, stream: TextIO, line: str, level: str, facts: dict[str, str]
    ) -> None:
        """Write one line to *stream*, which may be closed or full: the service goes on without the line."""
        now_s = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s % 1 * 1000):03d}Z"
        if self._as_json:
            entry: Json = {"time": stamp, "level": level, "message": line, **facts}
            # Names of files may hold half a surrogate pair, which becomes a question mark.
            written = dumps(entry).decode()
        else:
            written = f"{stamp} otel-bridge: {_on_lines_of_its_own(line)}"
        # Lines of several threads must not mix within a line. The handler's own lock, which `logging`
        # holds already: with a second one two threads could wait for each other.
        self.acquire()
        try:
            # RuntimeError: a finaliser logs while this thread writes, and its line is left out.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                stream.write(f"{written}\n")
                stream.flush()
        finally:
            self.release()


class PrintedLines:
    """Takes what is printed to a stream, and logs each line once it is whole.

    Of a progress bar it logs the last state.

    What goes to the stream's ``buffer`` or descriptor is not logged.

    Args:
        stream: The stream to replace. Other attributes come from it.
        log: Logs one line; called by the thread that printed it.
    """

    def __init__(self, stream: TextIO, log: Callable[[str], None]) -> None:
        self._stream = stream
        self._log = log
        # By thread, because two that print at a time would mix their lines.
        self._unfinished: dict[threading.Thread, str] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Take *text*; its last line is kept until it is ended, its thread has ended, or the log is closed.

        A line that grows beyond `_LONGEST_LINE` is logged in pieces.
        """
        self._end_lines_of_ended_threads()
        thread = threading.current_thread()
        *lines, rest = (self._unfinished.pop(thread, "") + text).split("\n")
        # A text without line breaks would grow in memory.
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
            rest = ""
        if rest:
            self._unfinished[thread] = rest
        self._log_all(lines)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def _end_lines_of_ended_threads(self) -> None:
        """Log the unfinished lines of threads that have ended, since no further text will end them."""
        # A copy, since other threads print meanwhile.
        for thread in tuple(self._unfinished):
            if not thread.is_alive():
                self._log_all([self._unfinished.pop(thread, "")])

    def end_lines(self) -> None:
        """Log the lines that no thread has ended."""
        unfinished = self._unfinished
        self._unfinished = {}
        self._log_all(unfinished.values())

    def _log_all(self, lines: Iterable[str]) -> None:
        """Log *lines* without empty ones, each from behind its last carriage return: a bar's last state."""
        for line in lines:
            if last := line.rstrip("\r").rpartition("\r")[2].strip():
                self._log(last)

    def flush(self) -> None:
        """Do nothing: whole lines are written at once."""

    def isatty(self) -> bool:
        """Return ``False``, so that libraries print no colours and progress bars."""
        return False


def _on_lines_of_its_own(text: str) -> str:
    """Return *text* escaped, so that it can neither begin a log line nor move the cursor."""
    return shown(text).replace("\n", "\n    ")
