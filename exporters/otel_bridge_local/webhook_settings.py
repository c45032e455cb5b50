"""Where alerts are posted; read in each training process too, which sends none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import (
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
    settings_as,
)
from otel_bridge.settings import ALERT_WEBHOOK


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Holds the address.

    Attributes:
        url: Where alerts are posted; a secret.
    """

    url: str = field(repr=False)

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> WebhookSettings:
        """Read the address.

        Raises:
            ConfigError: There is none, or it cannot be used.
        """
        del cwd
        url = ALERT_WEBHOOK.read(env)
        if not url:
            raise ConfigError(
                f"the exporter webhook needs {ALERT_WEBHOOK.name}: {ALERT_WEBHOOK.doc}"
            )
        return cls(url)

    @property
    def destination(self) -> Mapping[str, str]:
        """Return an empty mapping: the address is a secret, and another one gets no old alerts."""
        return {}

    def view(self, run: RunInfo) -> str:
        """Return an empty text, because a webhook shows nothing."""
        del run
        return ""


def open_webhook(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> RunWriter:
    """Return a writer that posts the alerts of *run*. Nothing is sent before the first alert."""
    # Imports requests, which would be a third of the time that a training process takes to begin
    # a run with any exporter of this package.
    from otel_bridge_local.webhook_writer import WebhookRunWriter  # noqa: PLC0415

    return WebhookRunWriter(run, settings_as(settings, WebhookSettings).url, memory)
