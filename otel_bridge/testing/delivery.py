"""Give records to a writer as the bridge's delivery does, in the caller's thread: for tests of writers.

Consecutive records of one kind go in one call; a permanent error costs the record it names and the rest goes on; a
retryable one is tried again; configs of `RunInfo` come right after open; what the writer says it holds is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import cast

from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
    WritesAlerts,
    WritesMedia,
    WritesPlainTraces,
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
            return _opened(exporter.open(run, settings, memory), run)
        except RetryableError as exc:  # noqa: PERF203  # three tries
            failures += 1
            if failures == OPEN_TRIES:
                raise
            time.sleep(min(exc.retry_after_s or PAUSE_S, 2.0))


def _opened(writer: RunWriter, run: RunInfo) -> RunWriter:
    for role, config in run.configs.items():
        writer.write_config(role, config)
    for role, values in run.summaries.items() if isinstance(writer, WritesSummary) else ():
        cast("WritesSummary", writer).write_summary(role, values)
    return writer


def deliver(
    writer: RunWriter, records: Sequence[Record], *, held: int | None = None, tries: int = 3
) -> list[int]:
    """Write *records* (placed) in order.

    Args:
        writer: An open writer.
        records: With positions, increasing.
        held: What `RunWriter.durable` said right after open: records up to it are left out; ``None``: none are.
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
    for _, group in groupby(due, key=type):
        batch = list(group)
        for start in range(0, len(batch), CALL_RECORDS):
            refused += _deliver_call(writer, batch[start : start + CALL_RECORDS], tries)
    return refused


def _deliver_call(writer: RunWriter, batch: list[Record], tries: int) -> list[int]:
    refused: list[int] = []
    failures = 0
    while batch:
        try:
            write(writer, batch)
            break
        except PermanentError as exc:
            if exc.position not in {record.position for record in batch}:
                raise AssertionError(
                    f"PermanentError names position {exc.position}, which the call had not"
                ) from exc
            refused.append(exc.position)
            batch = [record for record in batch if record.position > exc.position]
        except RetryableError as exc:
            failures += 1
            if failures == tries:
                raise
            batch = (
                batch if exc.position is None else [r for r in batch if r.position >= exc.position]
            )
            time.sleep(min(exc.retry_after_s or PAUSE_S, 2.0))
    return refused


def write(writer: RunWriter, batch: Sequence[Record]) -> None:  # noqa: C901, PLR0912  # one case for each kind
    """Give *batch*, records of one kind, to *writer*; raises as its methods do."""
    match batch[0]:
        case Row():
            writer.write_rows(cast("Sequence[Row]", batch))
        case RolloutRecord():
            writer.write_rollouts(cast("Sequence[RolloutRecord]", batch))
        case PlainTrace():
            if isinstance(writer, WritesPlainTraces):  # others are not given any
                writer.write_traces(cast("Sequence[PlainTrace]", batch))
        case MediaRecord():
            if isinstance(writer, WritesMedia):  # of others they are left out
                writer.write_media(cast("Sequence[MediaRecord]", batch))
        case Evaluation():
            writer.write_evaluations(cast("Sequence[Evaluation]", batch))
        case Config():
            for config in cast("Sequence[Config]", batch):
                writer.write_config(config.role, config.config)
        case Alert():
            if isinstance(writer, WritesAlerts):
                writer.write_alerts(cast("Sequence[Alert]", batch))
        case Summary():
            for summary in (
                cast("Sequence[Summary]", batch) if isinstance(writer, WritesSummary) else ()
            ):
                cast("WritesSummary", writer).write_summary(summary.role, summary.values)
        case End(status=status):
            writer.end(status)
