"""Fake of ``lightning.fabric``: a ``Fabric`` that calls loggers and callbacks as the real one does."""

from importlib.metadata import entry_points

from lightning.fabric import loggers as loggers


class Fabric:
    def __init__(self, loggers=None):
        self.loggers = loggers if loggers is not None else []
        self._callbacks = [one for point in entry_points(group="lightning.fabric.callbacks_factory")
                           for one in point.load()()]  # fmt: skip

    def setup(self, module):
        self.call("on_after_setup", fabric=self, module=module)
        return module

    def call(self, hook_name, *args, **kwargs):
        for callback in self._callbacks:
            if hasattr(callback, hook_name):
                getattr(callback, hook_name)(*args, **kwargs)

    def log_dict(self, metrics, step=None):
        for logger in self.loggers:
            logger.log_metrics(metrics=metrics, step=step)
