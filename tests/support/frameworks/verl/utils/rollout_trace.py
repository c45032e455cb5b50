"""Fake of ``verl.utils.rollout_trace``."""

import contextlib


class RolloutTraceConfig:
    _instance = None
    backend = project_name = experiment_name = None

    @classmethod
    def get_instance(cls):
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @classmethod
    def init(
        cls,
        project_name,
        experiment_name,
        backend,
        token2text=False,
        max_samples_per_step_per_worker=None,
    ):
        config = cls.get_instance()
        config.project_name, config.experiment_name, config.backend = (
            project_name,
            experiment_name,
            backend,
        )

    @classmethod
    def get_backend(cls):
        return cls.get_instance().backend


@contextlib.contextmanager
def rollout_trace_attr(
    sample_index=None,
    step=None,
    rollout_n=None,
    name="rollout_trace",
    validate=False,
    trace: bool = True,
):
    yield


def rollout_trace_op(func):
    return func
