"""Opens the sink of a run's entries: the local database, its inbox, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from otel_bridge.exporter import RunInfo, WriterMemory
from otel_bridge.records import Alert, Evaluation
from otel_bridge_trackio.inbox import Inbox
from otel_bridge_trackio.media import Put
from otel_bridge_trackio.payload import Payload
from otel_bridge_trackio.remote import RemoteStore, abilities_at
from otel_bridge_trackio.settings import TrackioSettings, project_of
from otel_bridge_trackio.store import LocalStore, StoreEntry, abilities_in
from otel_bridge_trackio.versions import TrackioAbilities, of_inbox


class EntrySink(Protocol):
    """Stores the entries of one run; a redelivered entry changes nothing."""

    @property
    def abilities(self) -> TrackioAbilities:
        """Return what the Trackio that stores the entries can do."""
        ...

    def rows(self) -> int:
        """Return how many records of the run are stored, 0 when that is not known."""
        ...

    def config(self) -> Payload:
        """Return the stored config of the run, empty when there is none or it is not known."""
        ...

    def name_held(self) -> str:
        """Return the name of the run's rows, empty when it has none or that is not known."""
        ...

    def rename(self, name: str) -> bool:
        """Give the run's rows another name; return whether that is possible."""
        ...

    def write(self, entries: Sequence[StoreEntry], config: Payload | None = None) -> None:
        """Store *entries*, and *config* with them; raises as a writer does."""
        ...

    def add_late_values(self, values: Sequence[Evaluation]) -> Sequence[Evaluation]:
        """Add *values* to the traces of their rollouts.

        Return those that need a trace of their own; raises as a writer does.
        """
        ...

    def alert(self, alerts: Sequence[Alert]) -> bool:
        """Store *alerts*, each once by its id.

        Return whether this Trackio has alerts; raises as a writer does.
        """
        ...

    def media(self) -> Put | None:
        """Return what stores the files of media, ``None`` when none can be stored."""
        ...

    def close(self) -> None:
        """Release the sink."""
        ...


def open_sink(settings: TrackioSettings, run: RunInfo, memory: WriterMemory) -> EntrySink:
    """Open the sink that *settings* name; *memory* keeps the size of a request to a server.

    Raises:
        RetryableError: A server cannot be reached now.
        BlockedError: A person must act.
    """
    project = project_of(run)
    if settings.remote is not None:
        return RemoteStore(settings.remote, project, run.id, run.name, memory)
    if settings.inbox:
        return Inbox(settings.directory, project, run.id, run.name)
    return LocalStore(settings.directory, project, run.id, run.name)


def abilities_of(settings: TrackioSettings) -> TrackioAbilities:
    """Return what the Trackio that *settings* name can do; opens no run.

    Raises:
        RetryableError: A server cannot be reached now.
        BlockedError: A person must act.
    """
    if settings.remote is not None:
        return abilities_at(settings.remote)
    if settings.inbox:
        return of_inbox()
    return abilities_in(settings.directory)
