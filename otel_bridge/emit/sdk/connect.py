"""``init(otel=True)``: data of this process's stock OpenTelemetry instruments also go into the run.

A program's own SDK providers stay and get one more destination. A program without providers gets
new ones. Only this module touches global state.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk._logs import (
    LoggerProvider,
    LogRecordProcessor,
    ReadableLogRecord,
    ReadWriteLogRecord,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from otel_bridge import semconv
from otel_bridge.capabilities import accepts
from otel_bridge.emit.rollouts.live_spans import UrandomIdGenerator
from otel_bridge.emit.rollouts.open_trace import mark_instrumented
from otel_bridge.emit.sdk.appender import NothingWaits, SdkAppender
from otel_bridge.emit.sdk.metric_reader import AppendingReader, flush_readers
from otel_bridge.errors import any_error_but_signals

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

FLUSH_MS = 5_000
_log = logging.getLogger("otel_bridge")


class AppendingSpanProcessor(SpanProcessor):
    """Appends each sampled span when it ends, on the thread that ends it.

    Nothing waits in memory.
    """

    def __init__(self, appender: SdkAppender) -> None:
        self._appender = appender

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """Mark a live rollout as instrumented."""
        mark_instrumented(span.get_span_context().trace_id)

    def on_end(self, span: ReadableSpan) -> None:
        """Append *span*."""
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            self._appender.spans([span])


class AppendingLogProcessor(NothingWaits, LogRecordProcessor):
    """Appends each log record when it is emitted."""

    def __init__(self, appender: SdkAppender) -> None:
        self._appender = appender

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Append *log_record*."""
        record = ReadableLogRecord(
            log_record.log_record,
            log_record.resource or Resource({}),
            log_record.instrumentation_scope,
            log_record.limits,
        )
        self._appender.logs([record])


def connect(run: Run) -> None:
    """Connect the process's OpenTelemetry SDK to *run*, once per run; failures are logged.

    A provider that is not the SDK's is left alone, with a warning: it has no place for another
    destination.
    """
    appender = SdkAppender(run)
    reader = AppendingReader(appender)
    _try("spans", lambda: _connect_traces(run, appender))
    _try("metrics", lambda: _connect_metrics(run, reader))
    _try("log records", lambda: _connect_logs(run, appender))
    flush_before_end(run, [flush_readers, *_flushes()])


def _try(signal_name: str, step: Callable[[], None]) -> None:
    """Call *step*.

    What it raises is logged with the signal, and the other signals are connected all the same.
    """
    try:
        step()
    except any_error_but_signals():
        # A provider of the user's own; the others are connected all the same.
        _log.exception(
            "OpenTelemetry %s of this process are not connected", signal_name
        )


def flush_before_end(run: Run, flushes: list[Callable[[], object]]) -> None:
    """Let *run* collect waiting data of the SDK before the run ends, also at exit.

    Readers collect every ten seconds: without this the last points would be lost. What a provider
    raises is ignored.
    """

    def flush() -> None:
        for flush_provider in flushes:
            try:
                flush_provider()
            except any_error_but_signals():  # noqa: PERF203  # a provider of the user's own; the others are flushed all the same
                pass

    def flush_now(_run: Run) -> None:
        # The run ends before the exit, where nothing is left to collect into it.
        atexit.unregister(flush)
        flush()

    run.call_before_end(flush_now)
    # Registered last, so it runs first at exit, before earlier providers shut down.
    atexit.register(flush)


def _flushes() -> list[Callable[[], object]]:
    """Return what makes the process's providers of spans and logs export what waits.

    A provider without a flush has nothing. That of metrics is left out: it would have our readers
    collect a second time, and cumulative values would come twice.
    """
    providers: list[object] = [
        trace.get_tracer_provider(),
        _logs.get_logger_provider(),
    ]
    flushes: list[Callable[[], object]] = []
    for provider in providers:
        flush: Any = getattr(provider, "force_flush", None)
        if flush is not None:
            flushes.append(partial(flush, FLUSH_MS))
    return flushes


def _resource(run: Run) -> Resource:
    """Return the resource of a provider that is made here: what the environment names, and the role as the service."""
    # Without the run: the provider outlives it, and the appender of each run adds its own.
    attributes: dict[str, Any] = {}
    if run.role:
        attributes[semconv.SERVICE_NAME] = run.role
    return Resource.create(attributes)


def _connect_traces(run: Run, appender: SdkAppender) -> None:
    """Add a processor to the process's tracer provider, which is made where there is none.

    Another provider than the SDK's is left alone, with a warning.
    """
    provider: object = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        # The SDK's own generator draws from the global `random`, whose seed is the program's.
        provider = TracerProvider(
            resource=_resource(run), id_generator=UrandomIdGenerator()
        )
        trace.set_tracer_provider(provider)
    if not isinstance(provider, TracerProvider):
        _warn_of(provider, "tracer", "its spans are not recorded")
        return
    provider.add_span_processor(AppendingSpanProcessor(appender))


def _connect_metrics(run: Run, reader: MetricReader) -> None:
    """Add a reader to the process's meter provider, which is made where there is none.

    SDK 1.39 takes readers only when a provider is made; then a warning says which version to
    install.
    """
    provider: object = metrics.get_meter_provider()
    if isinstance(provider, MeterProvider) and not accepts(
        provider, "add_metric_reader"
    ):
        _log.warning(
            "opentelemetry-sdk %s cannot add a reader to the meter provider of this program: its metrics are not in "
            "the run; install opentelemetry-sdk 1.40 or newer, or let init(otel=True) make the provider",
            version("opentelemetry-sdk"),
        )
    elif isinstance(provider, MeterProvider):
        provider.add_metric_reader(reader)
    elif type(provider).__module__.startswith("opentelemetry.metrics"):
        # The API's own placeholder for no provider.
        metrics.set_meter_provider(
            MeterProvider(metric_readers=[reader], resource=_resource(run))
        )
    else:
        _warn_of(provider, "meter", "not recorded")


def _connect_logs(run: Run, appender: SdkAppender) -> None:
    """Add a processor to the process's logger provider, which is made where there is none.

    A placeholder of the API counts as none. Another provider is left alone, with a warning.
    """
    provider: object = _logs.get_logger_provider()
    if type(provider).__module__.startswith("opentelemetry._logs"):
        provider = LoggerProvider(resource=_resource(run))
        _logs.set_logger_provider(provider)
    if isinstance(provider, LoggerProvider):
        provider.add_log_record_processor(AppendingLogProcessor(appender))
    else:
        _warn_of(provider, "logger", "not recorded")


def _warn_of(provider: object, kind: str, consequence: str) -> None:
    _log.warning(
        "the %s provider is a %s, not the SDK's: %s",
        kind,
        type(provider).__name__,
        consequence,
    )
