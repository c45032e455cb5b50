"""Stock metric instruments -> the segment, by a reader that keeps every step.

A gauge is read as delta, so that each point is exported once. Cumulative temporality would repeat
every step at each collection, and fold steps beyond 2,000 into one (`facts/otel.md`, fact 1).

The SDK's readers keep the parent's points in a forked child. Here the child begins with none, so
that its own points are recorded as those of another process.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping
from multiprocessing.util import register_after_fork
from typing import Any

from opentelemetry.sdk.metrics import _Gauge as Gauge
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_bridge.capabilities import accepts
from otel_bridge.emit.process_end import call_at_worker_end
from otel_bridge.emit.sdk.appender import SdkAppender
from otel_bridge.settings import environment
from otel_bridge.values.mappings import living

_KEPT_ATTRIBUTE_SETS = 1_000_000
_LIMITS: Mapping[str, Any] = (
    {"cardinality_limits": {Gauge: _KEPT_ATTRIBUTE_SETS}}
    if accepts(PeriodicExportingMetricReader, "__init__", "cardinality_limits")
    else {}
)
"""Arguments of the limit; the SDK 1.39 has no limit and no argument for it."""
_EVERY_MS = 10_000.0
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
"""Variable that the SDK reads by its own rules."""


class _Appending(MetricExporter):
    def __init__(self, appender: SdkAppender | None) -> None:
        super().__init__(preferred_temporality={Gauge: AggregationTemporality.DELTA})
        self._appender = appender

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,  # noqa: ARG002
        **_: Any,
    ) -> MetricExportResult:
        if self._appender is not None:
            self._appender.metrics(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: no point waits here."""


class AppendingReader(PeriodicExportingMetricReader):
    """Collects every ten seconds (``OTEL_METRIC_EXPORT_INTERVAL``) and appends, if it has an appender.

    Args:
        appender: Appender of the metrics.
    """

    def __init__(self, appender: SdkAppender | None) -> None:
        """Begin to collect, on a thread of the SDK, every ten seconds unless a variable says otherwise.

        Without an *appender* never.
        """
        default_ms = None if environment().get(_INTERVAL) else _EVERY_MS
        # For an infinite interval the SDK starts no thread (metrics/_internal/export, 1.45).
        interval = math.inf if appender is None else default_ms
        super().__init__(
            _Appending(appender),
            export_interval_millis=interval,
            **_LIMITS,
        )
        self._appender = appender
        if appender is not None:
            _readers[self] = None
            register_after_fork(self, AppendingReader.flush_at_worker_end)

    def begin_in_child(self) -> None:
        """Forget the parent's points in a forked child.

        If this SDK keeps them elsewhere, the appender counts them.

        Another thread of the parent may have collected during the fork: the child has no such
        thread, and would wait for its locks forever. So each lock of the way from a collection to
        the export is free.
        """
        export_lock: Any = self._export_lock
        export_lock._at_fork_reinit()  # as `threading` and `logging` do
        consumer: Any = getattr(self._collect, "__self__", None)
        storages: Any = getattr(consumer, "_reader_storages", {})
        storage: Any = storages.get(self)
        points: Any = getattr(storage, "_instrument_view_instrument_matches", None)
        if isinstance(points, dict) and self._appender is not None:
            consumer._lock._at_fork_reinit()
            storage._lock._at_fork_reinit()
            points.clear()  # pyright: ignore[reportUnknownMemberType]  # the SDK makes new ones at the next measurement
            self._appender.begin_in_child()

    def flush_at_worker_end(self) -> None:
        """Collect once more at the end of a forked worker, which runs no exit handlers.

        Before its run ends.
        """
        call_at_worker_end(lambda _status: self.flush(), first=True)

    def flush(self) -> None:
        """Collect now; do nothing before registration, or after shutdown of the provider."""
        self.force_flush()


_readers: weakref.WeakKeyDictionary[AppendingReader, None] = weakref.WeakKeyDictionary()


def flush_readers() -> None:
    """Collect now with each reader of this process that appends."""
    for reader in living(_readers):
        reader.flush()


def _after_fork_in_child() -> None:
    for reader in living(_readers):
        reader.begin_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
