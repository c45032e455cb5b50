"""Fake of ``skyrl.train.config``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DynamicSamplingConfig:
    type: str | None = None


@dataclass
class AlgorithmConfig:
    dynamic_sampling: DynamicSamplingConfig = field(
        default_factory=DynamicSamplingConfig
    )


@dataclass
class TrainerConfig:
    project_name: str = "skyrl"
    run_name: str = "test_run"
    logger: str = "wandb"
    tags: list[str] | None = None
    num_logger_train_samples: int = -1
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)


@dataclass
class SkyRLTrainConfig:
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
