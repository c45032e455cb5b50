"""Fake of ``trinity.common.config``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MonitorConfig:
    monitor_type: str = "tensorboard"
    monitor_args: dict | None = None


@dataclass
class NamedRole:
    name: str = ""


@dataclass
class Config:
    project: str = "Trinity-RFT"
    group: str = ""
    name: str = "rft"
    seed: int = 42
    explorer: NamedRole = field(default_factory=lambda: NamedRole("explorer"))
    trainer: NamedRole = field(default_factory=lambda: NamedRole("trainer"))
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
