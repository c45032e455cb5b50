"""The exporter ``trackio``: writes a run to Trackio's store, inbox or server, rollouts as ``trackio.Trace`` records."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_trackio.settings import ALL_SERIES, TIMEOUT_S, TrackioSettings
from otel_bridge_trackio.versions import TESTED_WITH
from otel_bridge_trackio.writer import open_writer, probe, tracker_counts

__all__ = ["exporter"]

exporter = Exporter(
    read_settings=TrackioSettings.from_environment,
    ordered=False,
    open=open_writer,
    requires=("trackio",),
    extra="trackio",
    read_back=tracker_counts,
    takes_late_spans=True,
    probe=probe,
    tested_with=TESTED_WITH,
    settings=(ALL_SERIES, TIMEOUT_S),
    window_records=4_000,  # each call of Trackio's store first runs its whole schema, which takes 3 to 6 ms
)
