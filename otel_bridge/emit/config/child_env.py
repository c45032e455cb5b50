"""Environment variables through which children of this process join its run.

The next ``init()`` of this process must not mistake them for the user's settings, so `restore`
reverts `set`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import cast

from otel_bridge.emit.config.capture_env import inherited_capture
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import OTLP, SIGNALS
from otel_bridge.journal.machine import start_ticks
from otel_bridge.otlp import destination
from otel_bridge.settings import (
    EXPORTERS,
    LAUNCHER,
    LAUNCHER_DESTINATIONS,
    LAUNCHER_EXPORTERS,
    NEW_RUN,
    TOKEN,
)
from otel_bridge.text.addresses import is_loopback


class ChildEnvironment:
    """Sets variables for children, and restores their previous values."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}
        self._given: dict[str, str] = {}

    def set(self, variables: Mapping[str, str | None]) -> None:
        """Set *variables*; the value ``None`` removes a variable.

        Null characters are left out: no environment can hold them, and Python would raise. The
        first value of a variable is kept for `restore`.
        """
        for name, value in variables.items():
            # The first value is the user's; later ones were set here.
            self._before.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                text = value.replace("\0", "")  # which no environment can hold
                os.environ[name] = text
                self._given[name] = text

    def before(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return *env* without what `set` added."""
        variables = dict(env)
        self._revert(variables)
        return variables

    def _revert(self, variables: MutableMapping[str, str]) -> None:
        """Give *variables* their values from before `set`.

        Those that the program has changed since stay: they are its own.
        """
        for name, previous_value in self._before.items():
            # The program has set it since, so that it stays.
            if variables.get(name) != self._given.get(name):
                continue
            if previous_value is None:
                variables.pop(name, None)
            else:
                variables[name] = previous_value

    def keep(self) -> None:
        """Keep the variables for good, because this process is itself a (forked) child with its parent's variables."""
        self._before.clear()
        self._given.clear()

    def restore(self) -> None:
        """Restore the previous values of variables that were not changed since."""
        self._revert(os.environ)
        self.keep()


def refuse_unencodable(variables: Mapping[str, str]) -> None:
    """Refuse *variables* that the environment of this process cannot hold, as with names in a locale of Latin-1.

    Children would not find the run under other names.

    Raises:
        ConfigError: A value has characters that this Python cannot encode for the environment.
    """
    for name, value in variables.items():
        if not _is_encodable(value):
            raise ConfigError(
                f"{name}={value!a}: this Python's environment is in {sys.getfilesystemencoding()}, which lacks some of "
                "these characters; set PYTHONUTF8=1 for the program, or use another name"
            )


def _is_encodable(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


# Environment variables that let a worker on another machine join this run.


def variables_for_others(
    env: Mapping[str, str], names: Sequence[str]
) -> dict[str, str]:
    """Return the variables that others need besides the run: the endpoint, with its token, and the capture.

    A worker whose environment asks for a new run, as this one's does, joins all the same. Empty
    without such a request, an endpoint for other machines, and a capture.

    Args:
        env: This process's environment.
        names: Exporters of this process.
    """
    joins = {NEW_RUN.name: "0"} if env.get(NEW_RUN.name) else {}
    return {**joins, **_endpoint(env, names), **inherited_capture(env)}


def _endpoint(env: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables of the endpoint, credentials included.

    Empty without an endpoint for other machines: one of loopback would lead a worker to its own
    machine. Under a launcher its children send to its receiver, whatever exporters it has.

    Args:
        env: This process's environment.
        names: Exporters of this process. Under ``otel-bridge run --listen`` the endpoint is the
            launcher's receiver.
    """
    launched = launcher_alive(env)
    if not launched and OTLP not in names:
        return {}
    if launched and is_loopback(destination.host(env)):
        return {}
    variables = {
        name: value
        for name, value in env.items()
        if name.startswith(destination.PREFIX) and value
    }
    if TOKEN.read(env):
        variables[TOKEN.name] = env[TOKEN.name]
    if launched:
        return {**variables, EXPORTERS.name: OTLP}
    return variables


# The launcher ``otel-bridge run``: while the launcher of this process lives, it is the bridge and
# chose the exporters.

NO_SYSTEM_METRICS = ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "system_metrics")
"""Default that disables system metrics in programs. The extra ``system`` installs this instrumentation for the bridge;
``opentelemetry-instrument`` would record 150 keys of the machine and interpreter inside each
program."""


def launcher_mark() -> str:
    """Return the value of ``OTEL_BRIDGE_LAUNCHER`` for the children of this process."""
    pid = os.getpid()
    return f"{pid}:{start_ticks(pid)}"


def launcher_alive(env: Mapping[str, str]) -> bool:
    """Return whether the launcher that *env* names still runs; a reused pid does not count.

    False for a mark that cannot be read, and where the system shows no start time.
    """
    pid, _, started = LAUNCHER.read(env).partition(":")
    if not (pid.isdigit() and started.isdigit()):
        return False
    return int(started) > 0 and start_ticks(int(pid)) == int(started)


def launcher_environment(
    exporters: Mapping[str, tuple[str, ...]],
    destinations: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, str]:
    """Return the variables that describe this process, as a launcher, and its exporters to its children.

    Args:
        exporters: Signal to the exporters that it chose.
        destinations: Exporter to the variables that name its destination, without credentials.
    """
    return {
        LAUNCHER_DESTINATIONS.name: json.dumps(destinations or {}),
        LAUNCHER.name: launcher_mark(),
        LAUNCHER_EXPORTERS.name: ";".join(
            f"{signal}={','.join(exporters.get(signal, ()))}" for signal in SIGNALS
        ),
    }


def launcher_exporters(env: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the launcher's choice, signal to exporters.

    Without one those of the environment, for every signal.
    """
    chosen = LAUNCHER_EXPORTERS.read(env)
    if not chosen:
        return dict.fromkeys(SIGNALS, EXPORTERS.read(env))
    return {**dict.fromkeys(SIGNALS, ()), **chosen}


def launcher_destinations(env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the variables that name the launcher's destinations, by exporter.

    Empty without any, and where something else than a launcher has set the variable.
    """
    try:
        destinations: object = json.loads(LAUNCHER_DESTINATIONS.read(env) or "{}")
    except ValueError:
        return {}
    if isinstance(destinations, dict):
        return cast("dict[str, dict[str, str]]", destinations)
    return {}
