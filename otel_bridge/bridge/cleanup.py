"""Deleting segments that are read and forwarded, and what was kept of processes that are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.reader import Reader
from otel_bridge.bridge.tables import Source
from otel_bridge.bridge.tail import Tail
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder


def delete_read_segments(folder: RunFolder, ledger: Ledger, reader: Reader, forwarding: Sequence[Source] | None) -> int:
    """Delete the segments that nobody needs, whole; the ledger is on the disk before. Returns how many.

    Args:
        folder: The run folder.
        ledger: Its ledger.
        reader: Its reader, all it used committed.
        forwarding: How far ``otlp`` is with each process; ``None``: the run has no ``otlp``.

    Raises:
        OSError: One cannot be deleted; the others are.
        JournalError: The ledger cannot be brought to the disk.
    """
    forwarded = None if forwarding is None else {item.instance_id: item for item in forwarding}
    due = {name: _keep_from(tail, forwarded) for name, tail in reader.tails.items()}
    work = {name: keep for name, keep in due.items() if keep > reader.tails[name].first_number}
    if not work:
        return 0
    ledger.database.sync()
    deleted, failed = 0, None
    for name, keep in work.items():
        try:
            deleted += _delete_of(folder, ledger, reader, name, keep)
        except OSError as exc:  # noqa: PERF203  # the others go all the same
            failed = exc
    if failed is not None:
        raise failed
    return deleted


def forget_own(folder: RunFolder, ledger: Ledger, reader: Reader, instance_id: str) -> None:
    """Delete the bridge's own segments, all read; what cannot be deleted now is the next bridge's to delete."""
    tail = reader.tails.get(instance_id)
    if tail is None:
        return
    with contextlib.suppress(JournalError, OSError):
        ledger.database.sync()
        for number in range(tail.first_number, tail.last_number + 1):
            folder.segment_path(instance_id, number).unlink()
        ledger.forget_source(instance_id)


def _delete_of(folder: RunFolder, ledger: Ledger, reader: Reader, name: str, keep: int) -> int:
    """Delete the segments of one process before number *keep*."""
    tail, deleted = reader.tails[name], 0
    for number in range(tail.first_number, keep):
        with contextlib.suppress(FileNotFoundError):
            folder.segment_path(name, number).unlink()
            deleted += 1
        tail.first_number = number + 1
    if keep > tail.last_number and tail.used_up:
        # The files go first: a source without files is harmless, files without a source are read again.
        with contextlib.suppress(FileNotFoundError):
            folder.life_path(name).unlink()
        ledger.forget_source(name)
        del reader.tails[name]
    return deleted


def _keep_from(tail: Tail, forwarded: dict[str, Source] | None) -> int:
    """Return the number of the first segment that is still needed."""
    if tail.refused:
        return tail.first_number
    keep = tail.source.number
    if tail.used_up and tail.ended:
        keep = tail.last_number + 1
    if forwarded is None:
        return keep
    at = forwarded.get(tail.instance_id)
    if at is None:
        return tail.first_number
    if (at.forwarded_number, at.forwarded_offset) >= tail.data_end:
        return keep
    return min(keep, at.forwarded_number)
