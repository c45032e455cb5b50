"""Entry points for stock OpenTelemetry SDKs: ``OTEL_TRACES_EXPORTER=trackio`` and the like.

Importing this module imports no tracker. Constructors accept any argument and never raise.
Exporters only append, since trackers live in the bridge. An exporter whose package is missing is
logged and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, cast

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_bridge.emit.sdk.appender import NothingWaits
from otel_bridge.emit.sdk.metric_reader import AppendingReader
from otel_bridge.emit.sdk.run import NAMES, appender_for


class JournalSpanExporter(NothingWaits, SpanExporter):
    """Appends spans; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(
        self, **_: Any
    ) -> None:  # declarative configuration passes the content of its file
        self._appender = appender_for(self.name, "traces")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append *spans*; once this returns, they survive a kill of this process.

        Success also where nothing is appended: the SDK would log each failure.
        """
        if self._appender is not None:
            self._appender.spans(spans)
        return SpanExportResult.SUCCESS


class JournalLogExporter(NothingWaits, LogRecordExporter):
    """Appends log records; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(self, **_: Any) -> None:
        self._appender = appender_for(self.name, "logs")

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Append *batch*; once this returns, the records survive a kill of this process.

        Success also where nothing is appended, as for spans.
        """
        if self._appender is not None:
            self._appender.logs(batch)
        return LogRecordExportResult.SUCCESS


class JournalMetricReader(AppendingReader):
    """Collects and appends metrics; its subclasses are the entry points."""

    name: ClassVar[str]

    def __init__(self, **_: Any) -> None:
        super().__init__(appender_for(self.name, "metrics"))


_T = TypeVar("_T", JournalSpanExporter, JournalLogExporter, JournalMetricReader)


def _entry_points(base: type[_T]) -> list[type[_T]]:
    """Return a subclass of *base* for each exporter that stock SDKs know by name, in the order of `NAMES`."""
    kind = base.__name__.removeprefix("Journal")
    return [
        cast(
            "type[_T]",
            type(
                f"{name.capitalize()}{kind}",
                (base,),
                {"name": name, "__module__": __name__},
            ),
        )
        for name in NAMES
    ]


# Named by the entry points in pyproject.toml: ``OTEL_TRACES_EXPORTER=wandb`` and the like.
WandbSpanExporter, MlflowSpanExporter, TrackioSpanExporter, FileSpanExporter = (
    _entry_points(JournalSpanExporter)
)
WandbLogExporter, MlflowLogExporter, TrackioLogExporter, FileLogExporter = (
    _entry_points(JournalLogExporter)
)
WandbMetricReader, MlflowMetricReader, TrackioMetricReader, FileMetricReader = (
    _entry_points(JournalMetricReader)
)
