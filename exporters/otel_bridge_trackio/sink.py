"""Opens the sink of a run's entries: the local database, its inbox, or a server."""

from __future__ import annotations

from typing import TypeAlias

from otel_bridge.exporter import RunInfo, WriterMemory
from otel_bridge_trackio.inbox import Inbox
from otel_bridge_trackio.remote import RemoteStore, abilities_at
from otel_bridge_trackio.settings import TrackioSettings, project_of
from otel_bridge_trackio.store import LocalStore, abilities_in
from otel_bridge_trackio.versions import TrackioAbilities, of_inbox

EntrySink: TypeAlias = LocalStore | RemoteStore | Inbox
"""Stores the entries of one run."""


def open_sink(
    settings: TrackioSettings, run: RunInfo, memory: WriterMemory
) -> EntrySink:
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
