"""Fake of ``skyrl.train.entrypoints.main_base``."""

from __future__ import annotations

import asyncio

from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.trajectory_logging import TrajectoryLogger


class BasePPOExp:
    def __init__(self, cfg):
        self.cfg = cfg

    def get_trainer(
        self,
        cfg,
        tracker,
        tokenizer,
        train_dataset,
        eval_dataset,
        inference_engine_client,
        generator,
        colocate_pg,
    ):
        raise NotImplementedError

    def get_tracker(self):
        given = self.cfg.trainer
        return Tracking(
            given.project_name, given.run_name, given.logger, self.cfg, given.tags
        )

    def get_trajectory_logger(self):
        return TrajectoryLogger()

    def _setup_trainer(self):
        tracker = self.get_tracker()
        self.trainer = self.get_trainer(
            self.cfg, tracker, None, None, None, None, None, None
        )
        self.trainer.trajectory_logger = self.get_trajectory_logger()
        return self.trainer

    def run(self):
        self.trainer = None
        try:
            trainer = self._setup_trainer()
            asyncio.run(trainer.train())
        except Exception as e:
            if self.trainer is not None and self.trainer.tracker is not None:
                self.trainer.flush_pending_metrics()
                self.trainer.tracker.log_exception(e, step=self.trainer.global_step)
            raise
