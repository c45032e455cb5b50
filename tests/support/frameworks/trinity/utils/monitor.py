"""Fake of ``trinity.utils.monitor``."""

from __future__ import annotations

from abc import ABC, abstractmethod

from trinity.utils.registry import Registry

MONITOR = Registry("monitor")


class Monitor(ABC):
    def __init__(self, project, name, role, config=None):
        self.project, self.name, self.role, self.config = project, name, role, config

    def log_table(self, table_name, experiences_table, step): ...

    @abstractmethod
    def log(self, data, step, commit=False): ...

    @abstractmethod
    def close(self): ...

    def __del__(self):
        self.close()

    @classmethod
    def default_args(cls):
        return {}

    def format_data_str(self, data, step):
        return f"Step {step}: {data}"


class WandbMonitor(Monitor):
    """One of Trinity's own: with the constructor that Trinity calls."""

    def __init__(self, project, group, name, role, config=None):
        super().__init__(project, name, role, config)

    def log(self, data, step, commit=False): ...

    def close(self): ...
