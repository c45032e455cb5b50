"""The exporter ``wandb``: one ordinary Weights & Biases run, online or offline, rollouts as incremental tables."""

from __future__ import annotations

from otel_bridge.exporter import Exporter
from otel_bridge_wandb.opening import open_writer
from otel_bridge_wandb.reading import held
from otel_bridge_wandb.settings import RESUME, SETTINGS, WandbSettings

__all__ = ["exporter"]

exporter = Exporter(
    settings=WandbSettings.from_environment,
    ordered=True,
    open=open_writer,
    requires=("wandb",),
    extra="wandb",
    held=held,
    declares=(*SETTINGS, RESUME),
)
