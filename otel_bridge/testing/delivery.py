"""Give records to a writer as the bridge's delivery does, in the caller's thread: for tests of writers.

Consecutive records of one kind go in one call; a permanent error costs the record it names and the
rest goes on; a retryable one is tried again; configs of `RunInfo` come right after open; what the
writer says it holds is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from otel_bridge.bridge.delivery.batch import WriterCall, calls_of
from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
    WritesSummary,
)
from otel_bridge.records import End, Record

CALL_RECORDS = 1000
"""Most records of one call."""
OPEN_TRIES = 3
PAUSE_S = 0.2
"""Between two tries, where the tracker does not say how long to wait."""


def open_writer(
    exporter: Exporter, run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> RunWriter:
    """Open a writer and give it the run's configs, as the bridge does after every open.

    Raises:
        RetryableError: `OPEN_TRIES` tries failed.
        BlockedError: As the exporter raised it.
    """
    failures = 0
    while True:
        try:
            # As the bridge does: configs and summaries come right after each open.
            return _opened(exporter.open(run, settings, memory), run)
        except RetryableError as exc:  # noqa: PERF203  # three tries
            failures += 1
            if failures == OPEN_TRIES:
                raise
            time.sleep(min(exc.retry_after_s or PAUSE_S, 2.0))


def _opened(writer: RunWriter, run: RunInfo) -> RunWriter:
    """Give *writer* configs and summaries of *run*, as the bridge does right after each open.

    Raises as the methods of *writer*; the writer is not closed then.
    """
    for role, config in run.configs.items():
        writer.write_config(role, config)
    if isinstance(writer, WritesSummary):
        for role, values in run.summaries.items():
            writer.write_summary(role, values)
    return writer


def deliver(
    writer: RunWriter,
    records: Sequence[Record],
    *,
    held: int | None = None,
    tries: int = 3,
) -> list[int]:
    """Write *records* (placed) in order.

    Args:
        writer: An open writer.
        records: With positions, increasing.
        held: What `RunWriter.durable` said right after open: records up to it are left out;
            ``None``: none are.
        tries: How often a call that may be repeated is made before its error is raised.

    Returns:
        Positions that the writer refused for good.

    Raises:
        RetryableError: *tries* calls failed.
        BlockedError: As the writer raised it.
        AssertionError: A permanent error named no record of its call.
    """
    refused: list[int] = []
    due = records if held is None else _from(records, held + 1)
    for call in calls_of(due, ordered=True):
        for start in range(0, len(call.records), CALL_RECORDS):
            part = WriterCall(call.records[start : start + CALL_RECORDS])
            refused += _deliver_call(writer, part, tries)
    return refused


def _deliver_call(writer: RunWriter, call: WriterCall, tries: int) -> list[int]:
    """Make *call* and return the positions that the writer refused for good.

    Raises as `deliver`.
    """
    refused: list[int] = []
    failures = 0
    records = call.records
    while records:
        try:
            write(writer, records)
            break
        except PermanentError as exc:
            # An error that names another record would make the bridge skip a good one.
            if exc.position not in {record.position for record in records}:
                raise AssertionError(
                    f"PermanentError names position {exc.position}, which the call had not"
                ) from exc
            refused.append(exc.position)
            # The records before it are written, by the contract of `PermanentError`.
            records = _from(records, exc.position + 1)
        except RetryableError as exc:
            failures += 1
            if failures == tries:
                raise
            # Those before the position are written; without one, all of the call comes again.
            records = _from(records, exc.position or 0)
            time.sleep(min(exc.retry_after_s or PAUSE_S, 2.0))
    return refused


def _from(records: Sequence[Record], position: int) -> list[Record]:
    """Return the records from *position* on, which remain to be sent."""
    return [record for record in records if record.position >= position]


def write(writer: RunWriter, records: Sequence[Record]) -> None:
    """Make one call with *records*, of one kind, as the bridge does.

    Raises as the methods of *writer*.

    Records of a kind for which the writer has no method are left out.
    """
    # An end is not a call among others: the bridge decides when to act on it.
    if isinstance(records[0], End):
        writer.end(records[0].status)
    else:
        WriterCall(records).call(writer)
