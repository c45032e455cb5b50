"""Where a run's entries go: the local database, its inbox, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from otel_bridge.exporter import RunInfo
from otel_bridge_trackio.inbox import Inbox
from otel_bridge_trackio.payload import Payload
from otel_bridge_trackio.remote import RemoteStore
from otel_bridge_trackio.settings import TrackioSettings, project_of
from otel_bridge_trackio.store import Entry, Store


class Sink(Protocol):
    """Takes the entries of one run; the same entry again changes nothing."""

    def rows(self) -> int:
        """Return how many records are held of the run, 0 when that is not known."""
        ...

    def config(self) -> Payload:
        """Return the run's config as it is held, empty when there is none or it is not known."""
        ...

    def write(self, entries: Sequence[Entry], config: Payload | None = None) -> None:
        """Store *entries*, and *config* with them; raises as a writer does."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_sink(settings: TrackioSettings, run: RunInfo) -> Sink:
    """Open where *settings* say.

    Raises:
        RetryableError: A server cannot be reached now.
        BlockedError: A person must act.
    """
    project = project_of(run)
    if settings.remote is not None:
        return RemoteStore(settings.remote, project, run.id, run.name)
    if settings.inbox:
        return Inbox(settings.directory, project, run.id, run.name)
    return Store(settings.directory, project, run.id, run.name)
