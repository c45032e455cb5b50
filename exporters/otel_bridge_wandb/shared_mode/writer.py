"""Writes a shared run: records of listed roles to the shared run, records of each other role to a separate run.

The axes of a role that is not in the list would be lost at the next upload of another writer; a
separate run keeps them. That run is in the group of the job and has one writer, like any ordinary
run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import WriterMemory
from otel_bridge.records import (
    Alert,
    Evaluation,
    Json,
    MediaRecord,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
)
from otel_bridge_wandb.shared_mode.settings import ROLES, Sharing
from otel_bridge_wandb.writer import WandbRunWriter

_UNLISTED = "shared_mode/unlisted"
_PRIMARY = "shared_mode/primary"
_log = logging.getLogger("otel_bridge.wandb")
R = TypeVar("R", Row, RolloutRecord, Evaluation, MediaRecord)


class SharedWriter:
    """Writes one run to Weights & Biases beside other machines, from one delivery thread.

    Each call raises as the same one of `WandbRunWriter`, and calls that write as `_writer`.

    Args:
        sharing: Settings of shared mode.
        main: Writes the shared run.
        open_own: Opens the run of one role that is not listed.
        memory: Memory of this destination.
        primary: Whether this bridge ends the run.

    Raises:
        ExporterError: A run of one role cannot be opened; all are closed then.
    """

    def __init__(
        self,
        sharing: Sharing,
        main: WandbRunWriter,
        *,
        open_own: Callable[[str | None], WandbRunWriter],
        memory: WriterMemory,
        primary: bool,
    ) -> None:
        self._sharing = sharing
        self._main = main
        self._open_own = open_own
        self._memory = memory
        self._primary = primary
        self._own: dict[str | None, WandbRunWriter] = {}
        self.tracker_run_id = main.tracker_run_id
        self.found = main.found
        self.degraded = main.degraded
        try:
            # Records from before a kill must be known before any is durable.
            for role in _unlisted(memory):
                self._own[role] = open_own(role)
        except BaseException:
            # Opened already: without this, the next try finds their run ids in use in wandb's
            # service.
            self.close()
            raise

    @property
    def url(self) -> str | None:
        """Return the address of the shared run's page."""
        return self._main.url

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Log *rows*."""
        self._write_by_role(rows, WandbRunWriter.write_rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Log one increment per key."""
        self._write_by_role(rollouts, WandbRunWriter.write_rollouts)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Log *media*."""
        self._write_by_role(media, WandbRunWriter.write_media)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Return what W&B could not show since this writer was opened: reason to count."""
        left_out: Counter[str] = Counter()
        for writer in (self._main, *self._own.values()):
            left_out.update(writer.left_out)
        return left_out

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Log one increment per rollout key."""
        self._write_by_role(values, WandbRunWriter.write_evaluations)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the config of *role* in the run that has its rows.

        A config without a role is the shared run's.
        """
        self._writer_of_role(role).write_config(role, config)

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Raise *alerts* in the run that has the role's rows.

        Those without a role in the shared run.
        """
        for role, group in groupby(alerts, attrgetter("role")):
            self._writer_of_role(role).write_alerts(list(group))

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Set entries of the summary in the run that has the role's rows."""
        self._writer_of_role(role).write_summary(role, values)

    def durable(self) -> Position | None:
        """Return the last position up to which every run holds its records.

        ``None`` when none can know.
        """
        slowest = None
        for writer in (self._main, *self._own.values()):
            position = writer.durable()
            # The slowest run decides, because one position counts for all of them.
            if position is not None and (slowest is None or position < slowest):
                slowest = position
        return slowest

    def end(self, status: Status) -> None:
        """End the runs of single roles, and the shared one if this is the primary.

        A run that cannot be ended keeps those after it from ending, until the bridge ends all again.
        """
        # The shared run last: its end is that of the job.
        for writer in (*self._own.values(), self._main):
            writer.end(status)

    def close(self) -> None:
        """Release all runs.

        One that cannot be closed must not keep the others open. Its exception is raised in the end.
        """
        with contextlib.ExitStack() as stack:  # each is called, whatever another raises
            for writer in (self._main, *self._own.values()):
                stack.callback(writer.close)

    def _writer_of_role(self, role: str | None) -> WandbRunWriter:
        """Return the writer of facts of *role*; those of the whole run are in the shared run."""
        if role is None:
            return self._main
        return self._writer(role)

    def _writer(self, role: str | None) -> WandbRunWriter:
        """Return the writer of the records of *role*.

        The first time a role is not listed, its run is opened.

        Raises:
            RetryableError: The role makes this machine the primary one, so that the shared run must
                be opened anew.
            BlockedError: As `open_writer`, for the run of one role.
        """
        if role is not None and role in self._sharing.roles:
            # wandb decides at init() which writer ends the run, so that it must be opened again.
            if role == self._sharing.primary and not self._primary:
                self._memory.put(_PRIMARY, b"1")
                raise RetryableError(
                    f"W&B: role {role} makes this machine the primary one; the run is opened anew",
                    retry_after_s=0.0,
                )
            return self._main
        writer = self._own.get(role)
        if writer is None:
            listed = ", ".join(self._sharing.roles)
            _log.warning(
                "W&B: %s is not in %s (%s) and gets a run of its own", f"role {role}" if role else "a row without role",
                ROLES.name, listed,
            )  # fmt: skip
            # Before the run is opened: after a kill its records must be known before any is
            # durable.
            self._memory.put(
                _UNLISTED,
                json.dumps(
                    list(dict.fromkeys([*_unlisted(self._memory), role]))
                ).encode(),
            )
            writer = self._open_own(role)
            self._own[role] = writer
        return writer

    def _write_by_role(
        self,
        records: Sequence[R],
        write: Callable[[WandbRunWriter, Sequence[R]], None],
    ) -> None:
        """Give *records* to the writers of their roles by *write*; raises as it and as `_writer`.

        Every run then notes that they went by: one without a line for them must not hold up
        `durable`.
        """
        for role, group in groupby(records, attrgetter("role")):
            write(self._writer(role), list(group))
        if not records:
            return
        for writer in (self._main, *self._own.values()):
            # Closed meanwhile: it is opened again.
            with contextlib.suppress(RetryableError):
                writer.passed(records[-1].position)


def became_primary(memory: WriterMemory) -> bool:
    """Return whether the primary's role was seen here although it had not been when the run was opened."""
    return memory.get(_PRIMARY) is not None


def _unlisted(memory: WriterMemory) -> list[str | None]:
    """Return the roles that got a run of their own, each once, in the order in which they came."""
    stored = memory.get(_UNLISTED)
    if stored:
        return list(dict.fromkeys(json.loads(stored)))
    return []


class PrefixedMemory:
    """Provides a part of a destination's memory to one of several runs.

    Without prefixes the lines of one run would be read as those of another after a restart.

    Args:
        memory: The whole memory.
        prefix: Prefix of the keys of this part.
    """

    def __init__(self, memory: WriterMemory, prefix: str) -> None:
        self._memory = memory
        self._prefix = prefix

    def get(self, key: str) -> bytes | None:
        """Return the value, ``None`` when *key* is unknown."""
        return self._memory.get(self._prefix + key)

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        self._memory.put(self._prefix + key, value)

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._memory.delete(self._prefix + key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        for key, value in self._memory.items(self._prefix + prefix):
            yield key.removeprefix(self._prefix), value
