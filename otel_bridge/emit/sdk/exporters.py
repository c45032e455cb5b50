"""Entry points for stock OpenTelemetry SDKs: ``OTEL_TRACES_EXPORTER=trackio`` and the like.

Importing this imports no tracker. Constructors take anything, never raise, and append: trackers live in the bridge. One
whose package is missing is logged, and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_bridge.emit.sdk.reader import AppendingReader
from otel_bridge.emit.sdk.run import appender_for


class JournalSpanExporter(SpanExporter):
    """Appends spans; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(self, **_: Any) -> None:  # declarative configuration passes what its file says
        self._appender = appender_for(self.name, "traces")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append *spans*: they are safe when this returns."""
        if self._appender is not None:
            self._appender.spans(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing waits here; the run ends by itself."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Nothing waits here."""
        return True


class JournalLogExporter(LogRecordExporter):
    """Appends log records; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(self, **_: Any) -> None:
        self._appender = appender_for(self.name, "logs")

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Append *batch*: it is safe when this returns."""
        if self._appender is not None:
            self._appender.logs(batch)
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing waits here; the run ends by itself."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Nothing waits here."""
        return True


class JournalMetricReader(AppendingReader):
    """Collects and appends metrics; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(self, **_: Any) -> None:
        super().__init__(appender_for(self.name, "metrics"))


class WandbSpanExporter(JournalSpanExporter):
    """``OTEL_TRACES_EXPORTER=wandb``."""

    name = "wandb"


class WandbLogExporter(JournalLogExporter):
    """``OTEL_LOGS_EXPORTER=wandb``."""

    name = "wandb"


class WandbMetricReader(JournalMetricReader):
    """``OTEL_METRICS_EXPORTER=wandb``."""

    name = "wandb"


class MlflowSpanExporter(JournalSpanExporter):
    """``OTEL_TRACES_EXPORTER=mlflow``."""

    name = "mlflow"


class MlflowLogExporter(JournalLogExporter):
    """``OTEL_LOGS_EXPORTER=mlflow``."""

    name = "mlflow"


class MlflowMetricReader(JournalMetricReader):
    """``OTEL_METRICS_EXPORTER=mlflow``."""

    name = "mlflow"


class TrackioSpanExporter(JournalSpanExporter):
    """``OTEL_TRACES_EXPORTER=trackio``."""

    name = "trackio"


class TrackioLogExporter(JournalLogExporter):
    """``OTEL_LOGS_EXPORTER=trackio``."""

    name = "trackio"


class TrackioMetricReader(JournalMetricReader):
    """``OTEL_METRICS_EXPORTER=trackio``."""

    name = "trackio"


class FileSpanExporter(JournalSpanExporter):
    """``OTEL_TRACES_EXPORTER=file``."""

    name = "file"


class FileLogExporter(JournalLogExporter):
    """``OTEL_LOGS_EXPORTER=file``."""

    name = "file"


class FileMetricReader(JournalMetricReader):
    """``OTEL_METRICS_EXPORTER=file``."""

    name = "file"
