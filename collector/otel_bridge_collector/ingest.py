"""Appends the bytes of requests to run folders; reads only their resources, never their points.

It runs on the event loop, except for the check of large requests. A request of several runs is
split by run, and every payload consists of the bytes as they arrived. A request is parsed once, in
C, only to refuse data that is not OTLP.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from otel_bridge import settings
from otel_bridge.bridge.serving.process_limits import (
    DescriptorShares,
    descriptor_limit,
    exhausted,
)
from otel_bridge.errors import (
    FormatVersionError,
    InvalidRecordError,
    JournalError,
    JournalFullError,
)
from otel_bridge.journal.folder import RunFolder, put_file, run_folders
from otel_bridge.journal.frames import HEAD_BYTES, MAX_RECORD_BYTES, Signal
from otel_bridge.journal.quota import FREE_SPACE, Quota
from otel_bridge.translation.decode.resources import RunIdentity, attributes_of, run_of
from otel_bridge_collector.error_table import (
    TooLargeError,
    TooManyRunsError,
    UnavailableError,
)
from otel_bridge_collector.export_request import (
    REQUESTS,
    check_well_formed,
    count_items,
    parts,
)
from otel_bridge_collector.group_sync import GroupSync
from otel_bridge_collector.run_segment import RunSegment
from otel_bridge_collector.telemetry.counters import Counters

_RUNS = 256
"""Most runs of one request, because a new run takes ten milliseconds, in which no other request is
answered."""
_COUNT_S = 60.0
_IDLE_S = 60.0
_NAME_CHARACTERS = 1024
_OPENED_BYTES = 4 << 10
"""Bytes of an open segment without a record: its header, and the small files of its folder."""
_INLINE_BYTES = 256 << 10
"""Size above which requests are checked outside the event loop."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Holds where and how requests are stored.

    Attributes:
        base: Base directory.
        max_bytes: Limit of that directory.
        fsync: Whether to wait for the disk before a request is acknowledged.
        segment_bytes: Size at which a segment is closed.
        max_runs: Most run folders in *base*.
    """

    base: Path
    max_bytes: int
    fsync: bool
    segment_bytes: int
    max_runs: int = settings.MAX_RUNS.default


@dataclass(slots=True)
class Rejected:
    """Counts the rejected part of an accepted request.

    Attributes:
        items: Number of points, spans or records.
        reason: The first reason.
    """

    items: int = 0
    reason: str = ""


Accept: TypeAlias = Callable[[Signal, bytes, int], Awaitable[Rejected | None]]
"""Stores a request, as `Ingest.accept` does."""


class Ingest:
    """Stores requests. For the event loop's thread; `refuse` is for any thread.

    The servers answer what is raised by `error_table`: invalid and too large requests, and those of
    too many runs, are final, and for anything else the client sends the request again.

    Args:
        chosen: Settings of the storage of requests.
        counters: Counts requests and bytes.
    """

    def __init__(self, chosen: IngestSettings, counters: Counters) -> None:
        self._settings = chosen
        self._counters = counters
        self._runs: OrderedDict[str, RunSegment] = OrderedDict()
        self._tokens = _TokensOfRuns()
        self._folders = _FolderCount(chosen.base, chosen.max_runs)
        self._quota = Quota(chosen.base, chosen.max_bytes)
        # Before the first request: those that arrive during a count use the one before it.
        self._quota.full()
        self.sync = GroupSync() if chosen.fsync else None
        self._refusing = ""
        self._counting = False
        self._disk_full = False
        # Checks of large requests and of space, one at a time: together they take no more memory
        # than one.
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="otlp-check")

    @property
    def open_runs(self) -> int:
        """Return how many runs have an open segment."""
        return len(self._runs)

    @property
    def refusing(self) -> str:
        """Return why every request is refused now; empty when requests are accepted."""
        return self._refusing

    def same_token(self, run_id: str, other_run_id: str) -> bool:
        """Return whether all data of both runs came with one token, as far as they came since the start.

        May be called by any thread.
        """
        return self._tokens.are_same(run_id, other_run_id)

    async def lacks_space(self) -> str:
        """Return why every request is refused for lack of space; empty when there is space.

        This counts the directory when that is due. No request does while a failing probe keeps all
        requests away.
        """
        # The reason of a shutdown is reported elsewhere; here the question is space alone.
        with suppress(UnavailableError):
            await self._count_when_due()
        if self._quota.was_full:
            return self._full()
        if self._disk_full:
            # Not in the loop's own threads: in all of those pages may be waiting for this answer.
            reason = await asyncio.get_running_loop().run_in_executor(
                self._checking, _unwritable, self._settings.base
            )
            self._disk_full = bool(reason)
            return reason
        return ""

    async def accept(
        self, signal: Signal, body: bytes, token: int = 0
    ) -> Rejected | None:
        """Append a serialised export request. When this returns, the request is stored and may be acknowledged.

        Args:
            signal: Signal of the request.
            body: The request.
            token: Number of the token that its client sent.

        Returns:
            The part that can never be accepted, for ``partial_success``.

        Raises:
            InvalidRecordError: The bytes are not such a request, or none of it can ever be
                accepted.
            TooManyRunsError: The request is of a run beyond the limit of run folders.
            TooLargeError: It is larger than a record may be, or has too many runs, resources or
                scopes.
            UnavailableError: The receiver is closing, or the directory's limit is reached.
            JournalError: The request could not be stored.
            OSError: No more files can be opened to sync the request; clients may retry.
        """
        if self._refusing:
            raise UnavailableError(self._refusing)
        if len(body) > MAX_RECORD_BYTES:
            raise TooLargeError(
                f"request of {len(body)} bytes, at most {MAX_RECORD_BYTES}; send smaller batches"
            )
        if len(body) > _INLINE_BYTES:
            resources = await asyncio.get_running_loop().run_in_executor(
                self._checking, _checked_parts, signal, body
            )
            # Again: the receiver may have begun to close while the thread checked.
            if self._refusing:
                raise UnavailableError(self._refusing)
        else:
            resources = _checked_parts(signal, body)
        await self._count_when_due()
        by_run, rejected = self._by_run(signal, body, resources)
        # From here to the end of the append nothing awaits: the order of requests is that of the
        # segment.
        try:
            waited_for = self._append(signal, by_run, rejected, token)
        except JournalFullError:
            self._disk_full = True
            raise
        try:
            for sync in waited_for:
                await sync
        except JournalError:
            # After a failed sync the state of the file on the disk is unknown: nothing more is
            # appended to it.
            for identity in by_run:
                if identity.id in self._runs:
                    self._runs.pop(identity.id).close()
            raise
        self._counters.accept(signal.name.lower(), rejected.items)
        if rejected.reason:
            return rejected
        return None

    def refuse(self, reason: str) -> None:
        """Refuse all requests from now on, also those not yet appended.

        Clients get *reason* and may retry.
        """
        self._refusing = reason

    def close_idle(self, now_s: float | None = None) -> None:
        """Close the segments of runs without data for a minute, so that their folders can be closed too."""
        before_s = (time.monotonic() if now_s is None else now_s) - _IDLE_S
        for run_id, run in list(self._runs.items()):
            if run.used_s <= before_s:
                self._runs.pop(run_id).close()

    async def close(self) -> None:
        """Close all segments; data that requests wait for is synced first.

        Requests that come later are refused, and clients may retry.
        """
        self._refusing = (
            self._refusing or "the receiver is shutting down; send it again"
        )
        runs = list(self._runs.values())
        # Forgotten first: a request that still comes must not append to a segment that is being
        # closed.
        self._runs = OrderedDict()
        for run in runs:
            run.close()
        if self.sync is not None:
            await self.sync.stop()
        self._checking.shutdown(wait=False, cancel_futures=True)

    async def _count_when_due(self) -> None:
        """Count the directory outside the event loop when that is due.

        Requests meanwhile use the last count, since counting thousands of files takes long. Raises
        `UnavailableError` when the receiver began to close during the count.
        """
        if self._counting or not self._quota.is_due():
            return
        self._counting = True
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._checking, self._quota.full
            )
        finally:
            self._counting = False
        if self._refusing:
            raise UnavailableError(self._refusing)

    def _by_run(
        self, signal: Signal, body: bytes, resources: Sequence[tuple[bytes, bytes]]
    ) -> tuple[dict[RunIdentity, bytes], Rejected]:
        """Split a request by run; a request of a single run stays unchanged.

        Resources whose names are too long are the rejected part. A request without any resource has
        no run: nothing is stored, and it is acknowledged.

        Raises:
            InvalidRecordError: None of it can be accepted.
            TooLargeError: It has more than `_RUNS` runs.
        """
        parts_by_run: dict[RunIdentity, list[bytes]] = {}
        rejected = Rejected()
        for resource, part in resources:
            identity = _identity(resource)
            if isinstance(identity, RunIdentity):
                parts_by_run.setdefault(identity, []).append(part)
            else:
                _reject(rejected, signal, part, identity)
        if rejected.reason and not parts_by_run:
            raise InvalidRecordError(rejected.reason)
        if len(parts_by_run) > _RUNS:
            raise TooLargeError(
                f"request of {len(parts_by_run)} runs, at most {_RUNS}; send smaller batches"
            )
        # The usual request: its bytes are kept as they came.
        if len(parts_by_run) == 1 and not rejected.reason:
            return dict.fromkeys(parts_by_run, body), rejected
        joined: dict[RunIdentity, bytes] = {}
        for identity, run_parts in parts_by_run.items():
            joined[identity] = b"".join(run_parts)
        return joined, rejected

    def _append(
        self,
        signal: Signal,
        by_run: Mapping[RunIdentity, bytes],
        rejected: Rejected,
        token: int,
    ) -> list[asyncio.Future[None]]:
        """Append each run's part of a request; return what to wait for until all is on the disk.

        A run that can never be stored (a newer format, beyond the limit of runs) is the rejected
        part; if it is alone, its error is raised. Any other error is raised at once: a retry
        appends what was stored before it a second time, and the bridge drops what was redelivered.
        """
        now_ns = time.time_ns()
        waited_for: list[asyncio.Future[None]] = []
        for identity, payload in by_run.items():
            try:
                segment = self._segment(identity)
                # Before the data is there: an error of a later run leaves what is stored by then.
                self._tokens.note(identity.id, token)
                future = segment.append(signal, payload, now_ns)
            except (FormatVersionError, TooManyRunsError) as exc:
                # A retry would be refused forever, and would block other runs behind it in a
                # client's queue.
                is_alone = len(by_run) == 1
                if is_alone and isinstance(exc, FormatVersionError):
                    raise InvalidRecordError(str(exc)) from exc
                if is_alone:
                    raise
                _reject(rejected, signal, payload, exc)
                continue
            self._counters.append(len(payload))
            # Between two counts the limit is held by what was appended here.
            self._quota.took(HEAD_BYTES + len(payload))
            if future is not None:
                waited_for.append(future)
        return waited_for

    def _segment(self, identity: RunIdentity) -> RunSegment:
        """Return the open segment of a run.

        Open one if there is none, and close the one used longest ago. Raises `UnavailableError` at
        the limit of the directory, else as `_opened`. A segment whose file was deleted is replaced.
        """
        if self._quota.was_full:
            raise UnavailableError(self._full())
        run = self._runs.get(identity.id)
        if run is not None and run.usable():
            self._runs.move_to_end(identity.id)
            return run
        if run is not None:
            self._runs.pop(identity.id).close()
        try:
            run = self._opened(identity)
        except JournalError as exc:
            if not exhausted(exc):
                raise
            # An open segment only saves time, a new run is data.
            self._close_oldest(len(self._runs) // 2)
            run = self._opened(identity)
        self._runs[identity.id] = run
        self._close_oldest(DescriptorShares.of(descriptor_limit()).segments)
        return run

    def _full(self) -> str:
        """Return why the directory takes no more, with what to do.

        The message names the limit that was reached.
        """
        limit = settings.MAX_BYTES.name
        if self._quota.of_disk:
            limit = "half of the free disk"
        return f"{self._settings.base} has reached its limit ({limit}); {FREE_SPACE}"

    def _opened(self, identity: RunIdentity) -> RunSegment:
        """Return a new segment of a run.

        Raises:
            TooManyRunsError: The run is new, and the limit of run folders is reached.
            FormatVersionError: A newer version wrote the folder.
            JournalError: The folder cannot be used.
        """
        folder = RunFolder(self._settings.base, identity.id)
        is_new = not folder.exists()
        if is_new:
            self._folders.refuse_more(identity.id)
        opened = RunSegment(
            folder,
            identity,
            instance_id=os.urandom(8).hex(),
            segment_bytes=self._settings.segment_bytes,
            sync=self.sync,
        )
        self._folders.made += is_new
        self._quota.took(_OPENED_BYTES)
        return opened

    def _close_oldest(self, keep: int) -> None:
        """Close the segments that were used longest ago, all but *keep*.

        A closed segment loses nothing: the next request of its run opens a new one.
        """
        while len(self._runs) > keep:
            self._runs.popitem(last=False)[1].close()


class _TokensOfRuns:
    """Remembers with which tokens the data of each run came, so that no client reaches the run of another.

    The event loop notes, any thread asks: what is stored of a run is replaced and never changed.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, frozenset[int]] = {}

    def note(self, run_id: str, token: int) -> None:
        """Note that data of a run came with *token*."""
        tokens = self._tokens.get(run_id, frozenset())
        if token not in tokens:
            self._tokens[run_id] = tokens | {token}

    def are_same(self, run_id: str, other_run_id: str) -> bool:
        """Return whether both runs have one token, the same."""
        tokens = self._tokens.get(run_id, frozenset())
        return len(tokens) == 1 and tokens == self._tokens.get(other_run_id)


def _unwritable(base: Path) -> str:
    """Return why nothing can be stored in *base*, by writing a small file there.

    Empty when data can be stored. Only tried after a request did not fit.
    """
    probe = base / f".probe-{os.getpid()}.tmp"
    try:
        put_file(probe, bytes(_OPENED_BYTES))
    except OSError as exc:
        return (
            f"{base} cannot be written: {exc.strerror or exc}; free space on that disk"
        )
    finally:
        with suppress(OSError):
            probe.unlink()
    return ""


def _checked_parts(signal: Signal, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the resources of a request and the fields that hold them.

    Raises `InvalidRecordError` and `TooLargeError` as `Ingest.accept` does.
    """
    # First, because it refuses data that would take a hundred times its size when parsed.
    resources = list(parts(body))
    check_well_formed(REQUESTS[signal], body)
    return resources


def _identity(resource: bytes) -> RunIdentity | InvalidRecordError:
    """Return the run of a resource, or why it can have none.

    Returned and not raised, since the other resources of the request are stored. A resource that
    names no run belongs to one that is derived from its names, see `run_of`.
    """
    identity = run_of(attributes_of(resource))
    longest = max(len(identity.id), len(identity.project), len(identity.name))
    if longest > _NAME_CHARACTERS:
        return InvalidRecordError(
            f"a run's id, project or name has {longest} characters, at most {_NAME_CHARACTERS}; shorten it"
        )
    return identity


class _FolderCount:
    """Counts the folders of a directory, rarely.

    Attributes:
        made: Number of folders created since the last count.
    """

    def __init__(self, base: Path, limit: int) -> None:
        self._base = base
        self._limit = limit
        self._counted = 0
        self._again_s = float("-inf")
        self.made = 0

    def refuse_more(self, run_id: str) -> None:
        """Raise `TooManyRunsError` when the limit of folders is reached.

        Counted once a minute: a directory may hold thousands.
        """
        now_s = time.monotonic()
        # Counted again, because folders are deleted, and programs of this machine create some.
        if now_s >= self._again_s:
            self._counted = len(run_folders(self._base))
            self.made = 0
            self._again_s = now_s + _COUNT_S
        if self._counted + self.made >= self._limit:
            raise TooManyRunsError(
                f"run {run_id} is refused: {self._base} has {self._counted + self.made} runs, at most {self._limit} "
                f"({settings.MAX_RUNS.name}); delete folders of ended runs, or raise it"
            )


def _reject(rejected: Rejected, signal: Signal, part: bytes, error: Exception) -> None:
    """Add a part of a request to the rejected one; the first reason counts.

    Only this part is parsed for its points: those of an accepted one are counted by the bridge. It
    can be parsed, because `_checked_parts` has checked the whole request.
    """
    rejected.items += count_items(REQUESTS[signal].FromString(part))
    rejected.reason = rejected.reason or str(error)
