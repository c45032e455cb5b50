"""Entry point ``opentelemetry_configurator``, for ``opentelemetry-instrument`` with our exporters by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk._configuration import (  # distros are to subclass it, says its docstring
    _initialize_components,  # pyright: ignore[reportPrivateUsage]
    _OTelSDKConfigurator,  # pyright: ignore[reportPrivateUsage]
)
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from otel_bridge.emit import otel_run
from otel_bridge.settings import environment


class OtelBridgeConfigurator(_OTelSDKConfigurator):
    """The SDK's own configurator; where one of our exporters is named, its records are appended as they are made."""

    def _configure(self, **kwargs: Any) -> None:  # as the SDK's
        if otel_run.named(environment()):
            otel_run.start()
            kwargs = {**_processors(), **kwargs}
        super()._configure(**kwargs)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]


def _processors() -> dict[str, Callable[..., object]]:
    """Return processors that give our exporters each record at once, others batches; as far as this SDK takes them."""
    from otel_bridge.emit.otel_exporters import OwnLogExporter, OwnSpanExporter  # noqa: PLC0415  # after the run began

    def span_processor(exporter: Any, *args: Any, **kwargs: Any) -> object:
        made = SimpleSpanProcessor if isinstance(exporter, OwnSpanExporter) else BatchSpanProcessor
        return made(exporter, *args, **kwargs)

    def log_processor(exporter: Any, *args: Any, **kwargs: Any) -> object:
        made = SimpleLogRecordProcessor if isinstance(exporter, OwnLogExporter) else BatchLogRecordProcessor
        return made(exporter, *args, **kwargs)

    wanted = {"export_span_processor": span_processor, "export_log_record_processor": log_processor}
    taken = inspect.signature(_initialize_components).parameters
    return {name: processor for name, processor in wanted.items() if name in taken}
