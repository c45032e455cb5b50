"""Give records to a writer as the bridge's delivery does, in the caller's thread: for tests of writers.

Consecutive records of one kind go in one call; a permanent error costs the record it names and the
rest goes on; a retryable one is tried again; configs of `RunInfo` come right after open; what the
writer says it holds is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
    WritesSummary,
)
from otel_bridge.records import (
    Alert,
    Config,
    End,
    Evaluation,
    MediaRecord,
    PlainTrace,
    Record,
    RolloutRecord,
    Row,
    Summary,
)

CALL_RECORDS = 1000
"""Most records of one call."""
OPEN_TRIES = 3
PAUSE_S = 0.2
"""Between two tries, where the tracker does not say how long to wait."""


def open_writer(
    exporter: Exporter, run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> RunWriter:
    """Open a writer and give it the run's configs, as the bridge does after every open."""
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
    for role, config in run.configs.items():
        writer.write_config(role, config)
    for role, values in (
        run.summaries.items() if isinstance(writer, WritesSummary) else ()
    ):
        cast("WritesSummary", writer).write_summary(role, values)
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
    due = [record for record in records if held is None or record.position > held]
    # Consecutive only: the order of the ledger stays.
    for _, group in groupby(due, key=type):
        batch = list(group)
        for start in range(0, len(batch), CALL_RECORDS):
            refused += _deliver_call(writer, batch[start : start + CALL_RECORDS], tries)
    return refused


def _deliver_call(writer: RunWriter, batch: list[Record], tries: int) -> list[int]:
    """Write *batch*, of one kind, and return the positions that the writer refused for good."""
    refused: list[int] = []
    failures = 0
    while batch:
        try:
            write(writer, batch)
            break
        except PermanentError as exc:
            # An error that names another record would make the bridge skip a good one.
            if exc.position not in {record.position for record in batch}:
                raise AssertionError(
                    f"PermanentError names position {exc.position}, which the call had not"
                ) from exc
            refused.append(exc.position)
            # The records before it are written, by the contract of `PermanentError`.
            batch = _from(batch, exc.position + 1)
        except RetryableError as exc:
            failures += 1
            if failures == tries:
                raise
            # Those before the position are written; without one, all of the call comes again.
            if exc.position is not None:
                batch = _from(batch, exc.position)
            time.sleep(min(exc.retry_after_s or PAUSE_S, 2.0))
    return refused


def _from(batch: list[Record], position: int) -> list[Record]:
    return [record for record in batch if record.position >= position]


def write(writer: RunWriter, batch: Sequence[Record]) -> None:
    """Give *batch*, records of one kind, to *writer*; raises as its methods do.

    Records of a kind for which the writer has no method are left out.
    """
    first = batch[0]
    if isinstance(first, End):
        writer.end(first.status)
    elif isinstance(first, Config):
        for config in cast("Sequence[Config]", batch):
            writer.write_config(config.role, config.config)
    elif isinstance(first, Summary):
        for summary in (
            cast("Sequence[Summary]", batch)
            if isinstance(writer, WritesSummary)
            else ()
        ):
            cast("WritesSummary", writer).write_summary(summary.role, summary.values)
    else:
        method: Callable[[Sequence[Record]], object] | None = getattr(
            writer, _METHODS[type(first)], None
        )
        if method is not None:
            method(batch)


_METHODS: dict[type[Record], str] = {
    Row: "write_rows",
    RolloutRecord: "write_rollouts",
    Evaluation: "write_evaluations",
    PlainTrace: "write_traces",
    MediaRecord: "write_media",
    Alert: "write_alerts",
}
"""Kind of record to the method that writes many of them."""
