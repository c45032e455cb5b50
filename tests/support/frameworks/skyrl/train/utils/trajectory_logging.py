"""Fake of ``skyrl.train.utils.trajectory_logging``."""

from __future__ import annotations


class TrajectoryLogger:
    columns = ("step", "idx", "reward", "num_turns", "trajectory")

    def log(
        self,
        *,
        tracker,
        num_samples,
        prompts,
        generator_output,
        tokenizer,
        global_step,
        num_turns_list=None,
        wandb_key,
        include_idx=True,
        **kwargs,
    ):
        print(f"TrajectoryLogger {num_samples} {wandb_key} {tracker.backend}")
