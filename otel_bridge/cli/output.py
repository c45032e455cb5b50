"""Output of a command: files, and standard streams that may be closed, full or without a reader.

A command that only shows something ends when its output cannot be written. A command that works
continues, and only its text is lost: it calls `work_without_output` first.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, TextIO, cast

import click

from otel_bridge.text.printable import json_escape

_ESCAPES = "otel_bridge.escapes"
"""Name of the error handler of `_escaped`."""


class OutputStream:
    """Writes to a standard stream and keeps its first error.

    Other attributes (``buffer``) are those of the stream.

    Args:
        stream: The stream.
        raises: Whether the first failed write, and every later one, raises.
    """

    def __init__(self, stream: TextIO, *, raises: bool) -> None:
        self._stream = stream
        self.raises = raises
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write *text*; raises `OSError` as the class describes."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write *lines*; raises `OSError` as the class describes."""
        self._try(lambda: self._stream.writelines(lines))

    def flush(self) -> None:
        """Flush the stream; raises `OSError` as the class describes."""
        self._try(self._stream.flush)

    def ignore_failures(self) -> None:
        """Drop what cannot be written from now on, and raise nothing."""
        self.raises = False

    def _try(self, write: Callable[[], object]) -> None:
        """Call *write* unless a write has failed before, since the rest of a text would be of no use.

        Raises:
            OSError: The first failure, at each call, if the stream `raises`.
        """
        if self.failure is None:
            try:
                write()
            except OSError as exc:
                self.failure = exc
                # The interpreter writes its buffer again at exit, and would print a traceback.
                self._discard_buffer()
        # At each call, because a library may test the stream first and ignore the error.
        if self.failure is not None and self.raises:
            raise self.failure

    def _discard_buffer(self) -> None:
        """Send to the null device what the interpreter would try to write again at its exit."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def work_without_output() -> None:
    """Declare that this command does its work also when its output cannot be written."""
    if isinstance(output := cast("object", sys.stdout), OutputStream):
        output.ignore_failures()


def end_process(code: int, *, hangs: bool) -> NoReturn:
    """Write what is printed so far, and exit with *code*.

    At once if a thread *hangs*, for which Python would wait.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if hangs:
        os._exit(code)
    sys.exit(code)


def write_file(path: Path, content: bytes) -> None:
    """Write *content* to a file that the user named, in place of what it held.

    Raises:
        click.ClickException: The file cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise click.ClickException(
            f"{path}: {exc.strerror}; choose a file that can be written"
        ) from exc


def call_with_streams(command: Callable[[], object]) -> object:
    """Call *command* with standard streams that never show a traceback.

    When stdout cannot be written, one line on stderr reports why, unless the reader of a pipe has
    gone, which is not an error. The exit code is then 1, or the command's own after
    `work_without_output`.
    """
    _open_closed_descriptors()
    _escape_what_has_no_code(sys.stdout)
    streams = (sys.stdout, sys.stderr)
    output = OutputStream(sys.stdout, raises=True)
    errors = OutputStream(sys.stderr, raises=False)
    sys.stdout = cast("TextIO", output)
    sys.stderr = cast("TextIO", errors)
    try:
        try:
            return command()
        finally:
            output.flush()
    except OSError as exc:
        # An error of the command itself, which is not about its output.
        if exc is not output.failure:
            raise
        sys.exit(1)
    finally:
        if output.failure is not None and output.failure.errno != errno.EPIPE:
            errors.write(
                f"Error: standard output cannot be written: {output.failure.strerror}\n"
            )
            errors.flush()
        sys.stdout, sys.stderr = streams


def _open_closed_descriptors() -> None:
    """Open standard descriptors that are closed, or a file of the command would get their numbers.

    Then a line that a library prints would be written into a ledger or a segment. The stdout opened
    here is for reading, so that a write fails and the command notices it. A failure of stderr could
    not be shown.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        # Gets the lowest free number, which is this one; a child finds it closed again.
        os.open(os.devnull, flags)
    sys.stdout = _text_stream(sys.stdout, 1)
    sys.stderr = _text_stream(sys.stderr, 2)


def _escape_what_has_no_code(stream: TextIO) -> None:
    """Let *stream* escape characters that its encoding lacks, as of a terminal that is not UTF-8.

    Names and texts of models come from elsewhere, and a check mark is ours: none may end a command.
    """
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        codecs.register_error(_ESCAPES, _escaped)
        stream.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return the characters that *error* is about as escapes, which keep JSON valid, and where to go on.

    Raises *error* if it is not about encoding.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(json_escape, characters)), error.end


def _text_stream(stream: TextIO | None, number: int) -> TextIO:
    """Return *stream*, or a new one for descriptor *number* if Python started without it."""
    return stream or open(
        number, "w", encoding="utf-8", errors="backslashreplace", closefd=False
    )
