"""Fake of ``lightning.pytorch``: a ``Trainer`` that calls loggers and callbacks as the real one does."""

from importlib.metadata import entry_points

from lightning_utilities.core import rank_zero

from lightning.pytorch import loggers as loggers


class Callback:
    def setup(self, trainer, pl_module, stage): ...


class Profiler:
    def start(self, action_name): ...

    def stop(self, action_name): ...


class Trainer:
    def __init__(
        self, logger=None, default_root_dir=".", fast_dev_run=False, barebones=False
    ):
        self.fast_dev_run, self.barebones = fast_dev_run, barebones
        self.loggers = (
            [] if not logger else list(logger) if isinstance(logger, list) else [logger]
        )
        self.default_root_dir = default_root_dir
        self.profiler = Profiler()
        self.callbacks = [one for point in entry_points(group="lightning.pytorch.callbacks_factory")
                          for one in point.load()()]  # fmt: skip
        assert all(isinstance(one, Callback) for one in self.callbacks), self.callbacks
        assert rank_zero.rank_zero_only.rank == 0

    @property
    def log_dir(self):
        return self.loggers[0].save_dir if self.loggers else self.default_root_dir

    def run(self, stage, *rows, error=None):
        """Run a phase that logs *rows*, pairs of a step and values, and then fails with *error*, if one is given."""
        for logger in self.loggers:
            _ = logger.experiment
        for callback in self.callbacks:
            callback.setup(self, None, stage)
        for logger in self.loggers:
            logger.log_hyperparams({"lr": 0.1})
            logger.log_graph(None)
        for step, values in rows:
            for logger in self.loggers:
                logger.log_metrics(metrics=values, step=step)
                logger.save()
        for logger in self.loggers:
            logger.finalize("success" if error is None else "failed")
        if error is not None:
            raise error
