"""What a worker on another machine must know to reach this run: the endpoint that gathers the job, and its token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from otel_bridge.emit.launcher import launcher_alive
from otel_bridge.exporter import OTLP
from otel_bridge.settings import EXPORTERS, TOKEN

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def endpoint_for_others(env: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables of the endpoint, credentials included; none where there is no endpoint for others.

    Args:
        env: This process's environment.
        names: Its exporters. Under ``otel-bridge run --listen`` the endpoint is the launcher's receiver.
    """
    launched = launcher_alive(env)
    if not launched and OTLP not in names:
        return {}
    if launched and (urlsplit(env.get(f"{_PREFIX}ENDPOINT", "")).hostname or "localhost") in _HERE:
        return {}
    told = {name: value for name, value in env.items() if name.startswith(_PREFIX) and value}
    if TOKEN.read(env):
        told[TOKEN.name] = env[TOKEN.name]
    return {**told, EXPORTERS.name: OTLP} if launched else told
