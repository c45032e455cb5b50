"""Fake of ``lightning.fabric.loggers``."""

from abc import ABC, abstractmethod


class Logger(ABC):
    @property
    @abstractmethod
    def name(self): ...

    @property
    @abstractmethod
    def version(self): ...

    @abstractmethod
    def log_metrics(self, metrics, step=None): ...

    @abstractmethod
    def log_hyperparams(self, params, *args, **kwargs): ...

    def log_graph(self, model, input_array=None): ...

    def save(self): ...

    def finalize(self, status): ...
