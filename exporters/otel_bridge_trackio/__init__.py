"""The exporter ``trackio``: a run in Trackio's local store, rollouts as ``trackio.Trace`` records."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_trackio.settings import TrackioSettings
from otel_bridge_trackio.writer import held, open_writer

__all__ = ["exporter"]

exporter = Exporter(
    settings=TrackioSettings.from_environment,
    ordered=False,
    open=open_writer,
    requires=("trackio",),
    extra="trackio",
    held=held,
)
