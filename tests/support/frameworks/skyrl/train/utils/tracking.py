"""Fake of ``skyrl.train.utils.tracking``."""

from __future__ import annotations


class Tracking:
    def __init__(
        self, project_name, experiment_name, backend="console", config=None, tags=None
    ):
        self.backend = backend
        if backend == "wandb":
            import wandb

            self.run = wandb.init(project=project_name, name=experiment_name, tags=tags)

    def log(self, data, step, commit=False):
        if self.backend == "wandb":
            self.run.log(data=data, step=step, commit=commit)
        print(f"Step {step}: {data}")

    def finish(self):
        if self.backend == "wandb":
            self.run.finish(exit_code=0)
        print("Tracking finished")

    def log_exception(self, e, step=0):
        print(f"Training failed at step {step} with {type(e).__name__}")

    def log_samples_to_table(self, key, columns, samples, step): ...
