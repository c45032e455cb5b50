"""Fake of ``verl.utils.tracking``."""

import dataclasses


class Tracking:
    supported_backend = ["console"]  # noqa: RUF012

    def __init__(
        self, project_name, experiment_name, default_backend="console", config=None
    ):
        for backend in (
            [default_backend] if isinstance(default_backend, str) else default_backend
        ):
            assert backend in self.supported_backend, f"{backend} is not supported"
        self.logger = {}
        self._finished = False

    def log(self, data, step, backend=None):
        for name, logger in self.logger.items():
            if backend is None or name in backend:
                logger.log(data=data, step=step)

    def finish(self, exit_code=0):
        if getattr(self, "_finished", False):
            return
        self._finished = True

    def __del__(self):
        self.finish()


@dataclasses.dataclass
class ValidationGenerationsLogger:
    project_name: str = None
    experiment_name: str = None

    def log(self, loggers, samples, step): ...
