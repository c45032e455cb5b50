"""The folder ``wandb.run.dir`` of a captured run: its files are not recorded, but kept and counted."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice

from otel_bridge.capture.counts import counts
from otel_bridge.emit.console import notify

_MAX_FILES = 10_000
"""Most files that are counted by name."""


class RunFiles:
    """Makes the folder when the program asks for it, and removes it at the end of the process if it is empty.

    Args:
        count: Counts one file that is not recorded, by name.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._folder = ""
        self._process = 0

    def folder(self) -> str:
        """Return the folder.

        It is made once, below the folder for temporary files. Raises `OSError` where it cannot be
        made.
        """
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="otel-bridge-wandb-")
            # The folder is that of this process: a forked child neither counts nor removes it.
            self._process = os.getpid()
            atexit.register(self._remove_if_empty)
        return self._folder

    def end(self) -> None:
        """Count and name the files that the program has left, which W&B would upload.

        A forked child leaves that.

        At most 10,000 are named. Without files, or without the folder, nothing happens.
        """
        if self._process != os.getpid():
            return
        names = list(islice(self._files(), _MAX_FILES))
        for name in names:
            counts.not_captured("files in wandb.run.dir")
            self._count(f"wandb.run.dir: {name}")
        if names:
            notify(
                f"files in wandb.run.dir are not recorded; they are kept in {self._folder}",
                always=True,
            )

    def _files(self) -> Iterator[str]:
        return (name for _, _, names in os.walk(self._folder) for name in names)

    def _remove_if_empty(self) -> None:
        """Remove the folder at the exit of its process; with files it stays, since the program may still need them."""
        if self._process == os.getpid() and next(self._files(), None) is None:
            shutil.rmtree(self._folder, ignore_errors=True)
