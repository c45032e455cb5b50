"""Fake of ``ray.tune.experiment``."""

from __future__ import annotations


class Trial:
    """One trial, with what a result of Tune has."""

    def __init__(self, number, *, name=None, experiment="search", **config):
        self.trial_id, self.config, self.experiment = (
            f"a1b2c_{number:05d}",
            config,
            experiment,
        )
        self.experiment_tag, self.name = f"{number}_lr={config.get('lr')}", name
        self.iteration = 0

    @property
    def experiment_dir_name(self):
        return self.experiment

    def __str__(self):
        return self.name or f"train_{self.trial_id}"

    def result(self, **metrics):
        self.iteration += 1
        return {
            **metrics, "training_iteration": self.iteration, "config": dict(self.config), "date": "2026-11-24_10-00-00",
            "timestamp": 1_700_000_000, "time_this_iter_s": 0.5, "time_total_s": 0.5 * self.iteration, "pid": 7,
            "hostname": "host", "node_ip": "10.0.0.1", "trial_id": self.trial_id, "done": False,
            "experiment_tag": self.experiment_tag, "time_since_restore": 1.0, "iterations_since_restore": 1,
            "timesteps_total": None, "checkpoint_dir_name": None,
        }  # fmt: skip
