"""The exporters ``console`` (text on standard output), ``file`` (JSON lines) and ``webhook`` (alerts by HTTP)."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_local.console import ConsoleSettings, open_console
from otel_bridge_local.file import FileSettings, open_file, tracker_counts
from otel_bridge_local.webhook_settings import WebhookSettings, open_webhook

__all__ = ["console", "file", "webhook"]

console = Exporter(
    read_settings=ConsoleSettings.from_environment,
    ordered=True,
    open=open_console,
    takes_traces=True,
)
file = Exporter(
    read_settings=FileSettings.from_environment,
    ordered=True,
    open=open_file,
    read_back=tracker_counts,
    takes_traces=True,
)
webhook = Exporter(
    read_settings=WebhookSettings.from_environment, ordered=True, open=open_webhook
)
