"""Counts the media files that W&B refused, from wandb's own log of the run: no call of wandb reports them.

wandb uploads a file once its line was logged. An answer that is not worth a retry, such as 403, is
written to ``debug-internal.log`` and the file is given up (core/internal/filetransfer,
core/internal/runfiles).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

# Most bytes of one look, which are held in memory.
_MAX_READ_BYTES = 16 << 20
_REFUSED = re.compile(
    rb"file ?transfer: upload: failed to upload: (?:status: (\d+))?[^\n]*? Name: media/",
    re.IGNORECASE,
)
_UNNAMED = re.compile(rb"runfiles: CreateRunFiles returned error: returned error (\d+)")


class RefusedFiles:
    """Reads wandb's log of one run as it grows. For one thread.

    Args:
        log_file: The log.
    """

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._offset = 0
        self.counts: Counter[str] = Counter()
        """Reason to number of files, or of requests for the addresses of files."""

    def look(self) -> None:
        """Count what was refused since the last look; nothing while the log cannot be read.

        Of more than `_MAX_READ_BYTES`, the rest is read at the next look.
        """
        try:
            with self._log_file.open("rb") as opened:
                opened.seek(self._offset)
                new = opened.read(_MAX_READ_BYTES)
        except OSError:
            # wandb has not made it yet, or the run was finished and its copies are deleted.
            return
        # A line that wandb is still writing is read at the next look.
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for status in _REFUSED.findall(whole):
            self.counts[
                f"media files that W&B did not take{_shown(status)}; their lines are there"
            ] += 1
        for status in _UNNAMED.findall(whole):
            self.counts[
                f"requests to upload files that W&B refused{_shown(status)}; media may be missing"
            ] += 1


def _shown(status: bytes) -> str:
    if status:
        return f" (HTTP {status.decode()})"
    return ""
