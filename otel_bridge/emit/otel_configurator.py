"""Entry point ``opentelemetry_configurator``, for ``opentelemetry-instrument`` with our exporters by name."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk._configuration import (  # distros are to subclass it, says its docstring
    _initialize_components,  # pyright: ignore[reportPrivateUsage]
    _OTelSDKConfigurator,  # pyright: ignore[reportPrivateUsage]
)
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from otel_bridge.emit import otel_run
from otel_bridge.emit.handover import Handover
from otel_bridge.emit.launcher import NO_SYSTEM_METRICS
from otel_bridge.exporter import NONE
from otel_bridge.settings import environment

_BUILT_IN: Final = frozenset({"otlp", NONE})  # names that the SDK itself turns into others
_log = logging.getLogger("otel_bridge")


class OtelBridgeConfigurator(_OTelSDKConfigurator):
    """The SDK's own configurator; where one of our exporters is named, its records are appended as they are made."""

    def _configure(self, **kwargs: Any) -> None:  # as the SDK's
        if otel_run.named(environment()):
            otel_run.start()
            os.environ.setdefault(*NO_SYSTEM_METRICS)  # instrumentations are loaded after this
            kwargs = {**_processors(), **kwargs}
            with _without_unknown(environment()):
                super()._configure(**kwargs)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]
        else:
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def _without_unknown(env: Mapping[str, str]) -> Generator[None, None, None]:
    """Hide the exporters that nobody offers: for one such name the SDK would configure no signal at all."""
    hidden = Handover()
    for signal, setting in otel_run.VARIABLES.items():
        names = setting.read(env)
        known = [name for name in names if name in _BUILT_IN or _is_offered(name, signal)]
        if len(known) < len(names):
            unknown = ", ".join(name for name in names if name not in known)
            _log.warning("%s: no exporter of %s is called so; the others go on", unknown, signal)
            hidden.hand_over({setting.name: ",".join(known) or NONE})
    try:
        yield
    finally:
        hidden.take_back()


def _is_offered(name: str, signal: str) -> bool:
    return bool(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))


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
