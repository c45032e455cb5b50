"""The exporter ``wandb``: writes a run to Weights & Biases, online or offline, with rollouts as incremental tables."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_wandb.opening import open_writer, probe
from otel_bridge_wandb.read_back import tracker_counts
from otel_bridge_wandb.settings import SETTINGS, WandbSettings
from otel_bridge_wandb.versions import TESTED_WITH

__all__ = ["exporter"]

exporter = Exporter(
    read_settings=WandbSettings.from_environment,
    ordered=True,
    open=open_writer,
    requires=("wandb",),
    extra="wandb",
    read_back=tracker_counts,
    probe=probe,
    tested_with=TESTED_WITH,
    settings=SETTINGS,
)
