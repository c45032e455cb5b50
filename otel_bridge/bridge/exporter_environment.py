"""Determines which exporters a run has, for which signals, and where each delivers.

A list given to the bridge (``--exporters``) decides, else the living processes together, else the
last choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from otel_bridge.bridge.delivery.context import Names
from otel_bridge.destination_seal import (
    is_sealed_here,
    names_file,
    names_server,
    sealed,
    without_seal,
)
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.exporter import (
    NONE,
    OTLP,
    SIGNALS,
    Exporter,
    ExporterSettings,
    destination_of,
    load,
)
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.otlp.destination import signals_with_endpoint
from otel_bridge.otlp.destination import variables as endpoint_variables
from otel_bridge.settings import content_of
from otel_bridge.translation.options import OtherTraces

TRUST_OPTION = "--trust-folders"
"""Option of ``drain`` by which credentials go to servers that other people's folders name."""
Load: TypeAlias = Callable[[str], Exporter]


def by_exporter(by_signal: Mapping[str, Iterable[str]]) -> Names:
    """Return exporter to signals, from signal to exporters; ``none`` names no exporter.

    A signal that this version does not know, as a newer process may name, is left out. The order of
    the signals is always that of `SIGNALS`, so that equal choices compare equal.
    """
    names: Names = {}
    for signal in SIGNALS:
        for name in by_signal.get(signal, ()):
            signals = names.get(name, ())
            if name != NONE and signal not in signals:
                names[name] = (*signals, signal)
    return names


def together(headers: Iterable[SegmentHeader]) -> Names:
    """Return the exporters that the processes of *headers* name, together."""
    by_signal: dict[str, list[str]] = {}
    for header in headers:
        for signal, names in header.exporters.items():
            by_signal.setdefault(signal, []).extend(names)
    return by_exporter(by_signal)


def variables_named(headers: Iterable[SegmentHeader]) -> dict[str, dict[str, str]]:
    """Return the destination that the processes of *headers* set for each exporter.

    The first process counts: a run has one destination an exporter, whatever a later one sets.
    """
    destinations: dict[str, dict[str, str]] = {}
    for header in headers:
        for name, variables in header.destinations.items():
            destinations.setdefault(name, dict(variables))
    return destinations


def other_traces(names: Names) -> OtherTraces:
    """Return how traces that are not rollouts are treated.

    Counted only where no exporter shows them, and also shown where some do, so that the count names
    what an exporter of the run does not show. `OTLP` does not count: it forwards them with the
    segments. An exporter that cannot be loaded shows none.
    """
    answers: set[bool] = set()
    for name, signals in names.items():
        if "traces" in signals and name != OTLP:
            answers.add(_takes_traces(name))
    if True not in answers:
        return OtherTraces.COUNTED
    if False in answers:
        return OtherTraces.SHOWN_AND_COUNTED
    return OtherTraces.SHOWN


@lru_cache(maxsize=64)
def _takes_traces(name: str) -> bool:
    """Return whether an exporter shows plain traces; ``False`` for one that cannot be loaded.

    Remembered, because loading searches the installed packages, and this is asked at every choice.
    So one that is installed while the bridge runs counts from the next bridge on.
    """
    try:
        return load(name).takes_traces
    except OtelBridgeError:  # the exporter is blocked, and its state has the reason
        return False


def chosen(
    requested_names: Mapping[str, Iterable[str]] | None,
    living: Iterable[SegmentHeader],
    last: Names,
) -> Names:
    """Return the exporters of a run.

    Empty when none was ever named: its records are then kept until one is.

    Args:
        requested_names: Signal to exporters, as given to the bridge; ``None``: the processes
            decide.
        living: Headers of the living processes.
        last: The last choice; empty when there is none yet.
    """
    if requested_names is not None:
        return by_exporter(requested_names)
    return together(living) or last


@dataclass(frozen=True, slots=True)
class ExporterEnvironment:
    """Describes the environment in which exporters deliver.

    Attributes:
        env: The bridge's own environment, credentials included.
        cwd: Working folder of relative paths.
        load: Finds an exporter by its name.
        from_segments: Whether variables that *env* does not set are taken from the segments
            (``drain``).
        trusts_folders: Whether destinations that a folder of another user or machine names are used
            too.
    """

    env: Mapping[str, str]
    cwd: Path
    load: Load = load
    from_segments: bool = False
    trusts_folders: bool = False

    def resolve(
        self, name: str, segment_variables: Mapping[str, str], *, run_id: str
    ) -> tuple[Exporter, ExporterSettings]:
        """Return the exporter *name* and its settings.

        Args:
            name: The exporter.
            segment_variables: Its variables, as the segments name them, with the seal of the user
                who named them.
            run_id: The run whose segments they are.

        Raises:
            ConfigError: The exporter is unknown or not installed, a variable cannot be used, or the
                segments name a server or file that the user of this process did not name. It
                blocks the exporter, which asks again every minute.
        """
        exporter = self.load(name)
        # Read for its error alone: a wrong mode must block the exporter before it gets any text.
        content_of(name).read(self.env)
        # The bridge of a job has the environment of that job, which names everything.
        if not self.from_segments:
            return exporter, exporter.read_settings(self.env, self.cwd)
        variables = without_seal(segment_variables)
        # The person's own variables win over those of the folder.
        settings = exporter.read_settings(self._over(variables), self.cwd)
        if self._trusts(run_id, name, segment_variables):
            return exporter, settings
        # The destination as the exporter reads it: it may strip or normalise what stands in the
        # folder.
        destination = destination_of(settings)
        own_destination = destination_of(exporter.read_settings(self.env, self.cwd))
        _refuse_others(name, destination, own_destination)
        # A folder names a destination and nothing else, such as a file of tokens.
        allowed = {
            variable: variables[variable] for variable in variables.keys() & destination
        }
        return exporter, exporter.read_settings(self._over(allowed), self.cwd)

    def forwarding(self, segment_variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables of ``otlp``: the segments' endpoints count if none is set here."""
        if not self.from_segments or signals_with_endpoint(self.env):
            return self.env
        return self._over(segment_variables)

    def announced_endpoints(self, run_id: str) -> dict[str, str]:
        """Return the own endpoints of ``otlp`` with this user's seal, as a process announces its own."""
        return sealed(run_id, OTLP, endpoint_variables(self.env))

    def check_forwarding(
        self, segment_variables: Mapping[str, str], *, run_id: str
    ) -> None:
        """Raise `ConfigError` if `forwarding` takes an endpoint that the user of this process did not name.

        Asked before each connection, because the headers of the endpoint hold credentials. The error
        blocks the signal, and nothing is sent.
        """
        if self.forwarding(segment_variables) is self.env:
            return
        if not self._trusts(run_id, OTLP, segment_variables):
            _refuse_others(OTLP, without_seal(segment_variables), {})

    def _over(self, segment_variables: Mapping[str, str]) -> dict[str, str]:
        """Return the own variables, with *segment_variables* where these are not set.

        An empty one counts as unset, as everywhere: it must not lead records elsewhere than the
        folder.
        """
        set_here = {name: value for name, value in self.env.items() if value.strip()}
        return {**self.env, **segment_variables, **set_here}

    def _trusts(
        self, run_id: str, name: str, segment_variables: Mapping[str, str]
    ) -> bool:
        return self.trusts_folders or is_sealed_here(run_id, name, segment_variables)


def _refuse_others(
    name: str, destination: Mapping[str, str], own_destination: Mapping[str, str]
) -> None:
    """Raise `ConfigError` if *destination* has a server or file that *own_destination* does not name.

    A file too: what is written there may belong to another user, and a store of MLflow names
    servers of its own.
    """
    for variable, value in destination.items():
        if own_destination.get(variable) == value:
            continue
        if names_server(variable, value):
            target = f"the server {value}, which would get your credentials"
        elif names_file(value):
            target = f"{value}, where you would write"
        else:
            continue
        raise ConfigError(
            f"{name}: this folder was not made by you on this machine, and it names {target}; set {variable} to where "
            f"it shall go, or, if you know that place, run drain with {TRUST_OPTION}"
        )
