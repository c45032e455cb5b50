"""The exporters ``console`` (records as text on standard output) and ``file`` (JSON lines in the run folder)."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_local.console import ConsoleSettings, open_console
from otel_bridge_local.file import FileSettings, held, open_file

__all__ = ["console", "file"]

console = Exporter(settings=ConsoleSettings.from_environment, ordered=True, open=open_console, takes_traces=True)
file = Exporter(settings=FileSettings.from_environment, ordered=True, open=open_file, held=held, takes_traces=True)
