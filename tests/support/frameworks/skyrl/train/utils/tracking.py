"""Fake of ``skyrl.train.utils.tracking``."""

from __future__ import annotations


class Tracking:
    def __init__(self, project_name, experiment_name, backend="console", config=None, tags=None):
        self.backend = backend

    def log(self, data, step, commit=False):
        print(f"Step {step}: {data}")

    def finish(self):
        print("Tracking finished")

    def log_exception(self, e, step=0):
        print(f"Training failed at step {step} with {type(e).__name__}")

    def log_samples_to_table(self, key, columns, samples, step): ...
