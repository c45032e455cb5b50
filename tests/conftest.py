"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Undo what the shell did to a job in the background: its children would ignore SIGINT, and some tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
