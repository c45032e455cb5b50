"""Starts the command of ``otel-bridge run``, forwards signals to it and waits for its exit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

import click

from otel_bridge.records import Status

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT})
_LOOK_S = 0.2


class NotStartedError(click.ClickException):
    """Raised when the command cannot be started.

    The exit code is that of shells for one that is not found.
    """

    exit_code = 127


class Child:
    """Runs one command, and forwards the signals that this process receives while the command runs.

    Args:
        command: Program and arguments.
        env: Its environment.

    Raises:
        NotStartedError: The command cannot be started.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(list(command), env=dict(env))
        except OSError as exc:
            raise NotStartedError(
                f"{command[0]}: {exc.strerror}; expected a program that can be run"
            ) from exc
        # After the start, because the handler needs the process.
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    @property
    def pid(self) -> int:
        """Return the command's process id."""
        return self._process.pid

    def wait(self) -> int:
        """Wait until the command exits.

        Return its exit code as a shell does: 128 + n when signal n killed it.
        """
        while True:
            # Another thread may receive the signal; its handler runs here, once the wait times out.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_LOOK_S)
                if code < 0:
                    return 128 - code
                return code

    def status(self) -> Status:
        """Return how the command ended: killed by a signal, failed by its code, or finished.

        Only after `wait`: a command that runs would count as finished.
        """
        code = self._process.returncode
        if code is not None and code < 0:
            return Status.KILLED
        if code:
            return Status.FAILED
        return Status.FINISHED

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        """Send the signal to the command, unless it has it already or has exited."""
        if number in _FROM_TERMINAL and _in_foreground():
            return  # the terminal has sent the signal to the command too
        # Its id may belong to another process once it was waited for.
        if self._process.poll() is None:
            self._process.send_signal(number)


def _in_foreground() -> bool:
    """Return whether a key of the terminal signals this process and its command, which is in its group.

    The terminal is the process's own, whatever its stdin is: behind a pipe, or closed, a key
    signals both all the same.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no terminal, so nothing was sent to the command by one
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # the terminal has hung up
        return False
    finally:
        os.close(terminal)
