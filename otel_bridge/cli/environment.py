"""The environment of a command that delivers: that of its process, with its options in it."""

from __future__ import annotations

from otel_bridge import settings

OF_SIGNALS = (
    settings.METRICS_EXPORTER,
    settings.TRACES_EXPORTER,
    settings.LOGS_EXPORTER,
)
"""Settings that name the exporters of one signal."""


def own_environment(
    *, exporters: str, directory: str, new_run: bool = False
) -> dict[str, str]:
    """Return this process's environment with the options in it.

    ``--exporters`` overrides all variables. The variables of single signals are removed, because
    they would win over it. An option that was not given (empty) changes nothing.
    """
    env = settings.environment()
    if exporters:
        for setting in OF_SIGNALS:
            env.pop(setting.name, None)
        env[settings.EXPORTERS.name] = exporters
    if new_run:
        env[settings.NEW_RUN.name] = "1"
    if directory:
        env[settings.DIR.name] = directory
    return env
