"""The environment of a command that delivers: that of its process, with its options in it; and addresses in options."""

from __future__ import annotations

from otel_bridge import settings
from otel_bridge.errors import ConfigError

OF_SIGNALS = (
    settings.METRICS_EXPORTER,
    settings.TRACES_EXPORTER,
    settings.LOGS_EXPORTER,
)
"""Settings that name the exporters of one signal."""


def host_and_port(
    option: str, address: str, *, expected: str, highest: int = 65535
) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, which *option* has as its value; port 0 means any free port.

    Raises:
        ConfigError: It is not one, or the port is above *highest*; the message has what is
            *expected*. Without a host it is refused too: it could mean this machine or all
            networks.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > highest:
        raise ConfigError(f"{option}={address!r}: expected HOST:PORT, {expected}")
    return host.strip("[]"), int(port)


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
