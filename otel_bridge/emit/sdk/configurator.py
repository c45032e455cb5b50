"""Entry point ``opentelemetry_configurator``, for ``opentelemetry-instrument`` with our exporters by name."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk import _configuration
from opentelemetry.sdk._configuration import (  # by its docstring, distros subclass it
    _initialize_components,  # pyright: ignore[reportPrivateUsage]
    _OTelSDKConfigurator,  # pyright: ignore[reportPrivateUsage]
)
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from otel_bridge.emit.config.child_env import NO_SYSTEM_METRICS, ChildEnvironment
from otel_bridge.emit.config.exporters import SETTING_BY_SIGNAL
from otel_bridge.emit.sdk import run
from otel_bridge.exporter import NONE
from otel_bridge.settings import environment

_BUILT_IN = frozenset({"otlp", NONE})  # names that the SDK itself translates
_BATCHES = {
    "export_span_processor": "BatchSpanProcessor",
    "export_log_record_processor": "BatchLogRecordProcessor",
}
"""Argument of a newer SDK to the class that an older SDK creates instead."""
_log = logging.getLogger("otel_bridge")


class OtelBridgeConfigurator(_OTelSDKConfigurator):
    """Configures the SDK as its own configurator does, but appends at once where one of our exporters is named."""

    def _configure(self, **kwargs: Any) -> None:  # as the SDK's
        """Configure the SDK; a run begins only where one of our exporters is named.

        What the SDK raises is raised: ``opentelemetry-instrument`` logs it. A run that cannot begin
        is logged, and the SDK is configured without it.
        """
        if run.named(environment()):
            run.start()
            os.environ.setdefault(
                *NO_SYSTEM_METRICS
            )  # instrumentations are loaded after this
            processors = _processors()
            parameters = inspect.signature(_initialize_components).parameters
            kwargs = {
                **{
                    name: processor
                    for name, processor in processors.items()
                    if name in parameters
                },
                **kwargs,
            }
            # Below 1.40 the SDK batches for every exporter: a kill would lose up to 5 s of
            # otel-bridge's records.
            batches = {} if parameters.keys() >= processors.keys() else _BATCHES
            with (
                _without_unknown(environment()),
                _replaced({batches[name]: processors[name] for name in batches}),
            ):
                super()._configure(**kwargs)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]
        else:
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def _without_unknown(env: Mapping[str, str]) -> Generator[None, None, None]:
    """Hide unknown exporters, each named in a warning, while the SDK reads its variables.

    With one unknown name the SDK would configure no signal at all. What the SDK raises passes
    through, and the variables are restored all the same.
    """
    hidden = ChildEnvironment()
    for signal, setting in SETTING_BY_SIGNAL.items():
        names = setting.read(env)
        offered = [
            name for name in names if name in _BUILT_IN or _is_offered(name, signal)
        ]
        if len(offered) < len(names):
            unknown = ", ".join(name for name in names if name not in offered)
            _log.warning(
                "%s: no exporter of %s has this name; the others continue",
                unknown,
                signal,
            )
            hidden.set({setting.name: ",".join(offered) or NONE})
    try:
        yield
    finally:
        # Children configure themselves by the variables that the user has set.
        hidden.restore()


def _is_offered(name: str, signal: str) -> bool:
    """Return whether any installed package offers an exporter of this name.

    A name that no package offers is hidden from the SDK, which would refuse to start.
    """
    return bool(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))


@contextmanager
def _replaced(
    names: Mapping[str, Callable[..., object]],
) -> Generator[None, None, None]:
    """Let the SDK's configuration module find *names* while it configures.

    Names that it lacks are left out. They are restored after an exception too.
    """
    originals = {
        name: getattr(_configuration, name)
        for name in names
        if hasattr(_configuration, name)
    }
    try:
        for name in originals:
            setattr(_configuration, name, names[name])
        yield
    finally:
        for name, value in originals.items():
            setattr(_configuration, name, value)


def _processors() -> dict[str, Callable[..., object]]:
    """Return processors by the SDK's argument.

    Our exporters get each record at once, others get batches. At once, so that a kill loses no
    record that has ended; the network of others would make the program wait for each.
    """
    from otel_bridge.emit.sdk.exporters import JournalLogExporter, JournalSpanExporter  # noqa: PLC0415  # after the run began

    def span_processor(exporter: Any, *args: Any, **kwargs: Any) -> object:
        if isinstance(exporter, JournalSpanExporter):
            return SimpleSpanProcessor(exporter, *args, **kwargs)
        return BatchSpanProcessor(exporter, *args, **kwargs)

    def log_processor(exporter: Any, *args: Any, **kwargs: Any) -> object:
        if isinstance(exporter, JournalLogExporter):
            return SimpleLogRecordProcessor(exporter, *args, **kwargs)
        return BatchLogRecordProcessor(exporter, *args, **kwargs)

    return {
        "export_span_processor": span_processor,
        "export_log_record_processor": log_processor,
    }
