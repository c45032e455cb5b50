"""Stock metric instruments -> the segment, by a reader that keeps every step.

A gauge is read as delta, so that each point is exported once. Cumulative temporality would repeat every step at each
collection, and fold steps beyond 2,000 into one (`facts/otel.md`, fact 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.sdk.metrics import _Gauge as Gauge
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_bridge.capabilities import accepts
from otel_bridge.emit.sdk.appender import SdkAppender
from otel_bridge.settings import environment

_KEPT_ATTRIBUTE_SETS: Final = 1_000_000
_LIMITS: Final[Mapping[str, Any]] = (
    {"cardinality_limits": {Gauge: _KEPT_ATTRIBUTE_SETS}}
    if accepts(PeriodicExportingMetricReader, "__init__", "cardinality_limits")
    else {}
)
"""Arguments of the limit; the SDK 1.39 has no limit and no argument for it."""
_EVERY_MS: Final = 10_000.0
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
"""Variable that the SDK reads by its own rules."""


class _Appending(MetricExporter):
    def __init__(self, appender: SdkAppender | None) -> None:
        super().__init__(preferred_temporality={Gauge: AggregationTemporality.DELTA})
        self._appender = appender

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:  # noqa: ARG002
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
        own = None if environment().get(_INTERVAL) else _EVERY_MS
        interval = math.inf if appender is None else own
        super().__init__(
            _Appending(appender),
            export_interval_millis=interval,
            **_LIMITS,
        )

    def flush(self) -> None:
        """Collect now; do nothing before registration, or after shutdown of the provider."""
        self.force_flush()
