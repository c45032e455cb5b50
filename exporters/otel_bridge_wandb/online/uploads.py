"""Asks the server, from a separate thread, how many lines of the run it holds and which increments are committed.

``run.log`` only passes a line to wandb's service, which does not report whether the line arrives.
One answer 403 ends the upload for good, while all calls still return normally. Only the server's
line count is reliable (``historyLineCount``, which a resume uses). If the server answers and its
count does not grow, the upload is dead.
"""

from __future__ import annotations

import base64
import inspect
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge_wandb.errors import outcome, tail_of
from otel_bridge_wandb.settings import UploadLimits

_ENTRY = re.compile(r"^(?:\d+|None)-(\d+)\.")
_FATAL = re.compile(r"filestream: fatal error:? *([^\n\"]*?)(?: url=[^\n]*|[\"\n])")
# A table has at most 100 increments (`INCREMENTS`), each of which is a version.
_MAX_VERSIONS = 200
_SAMPLES = 1_000
"""Most lines that a question samples. Only the highest number counts: too low, and lines after a kill come twice."""
_HASTE_S = 0.05
"""The first of the growing intervals at which the server is asked while a caller waits."""
_TABLE_TYPE = "wandb-run-incremental-table"
_MISSING = re.compile(
    r"not found|could not find|does not exist|unable to parse", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ServerRun:
    """Describes a run as the server has it."""

    lines: int
    state: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Holds what the server stores of a run with several writers.

    Attributes:
        config: As stored, wandb's own part (``_wandb``) included.
        keys: Every key in the run's history.
    """

    config: Mapping[str, Any]
    keys: tuple[str, ...] = ()


class Server:
    """Queries the server about one run, through ``wandb.Api``; for one thread at a time.

    Its memory is flushed before each question: ``wandb.Api`` would answer with a former answer.

    Args:
        api: ``wandb.Api``.
        entity: The entity; empty for the API key's default.
        marker: In shared mode, the key under which this writer numbers its own lines, which are the
            only ones counted.

    Raises:
        Exception: wandb's own, when it does not know the default entity without the server.
    """

    def __init__(
        self, api: Any, *, entity: str, project: str, run_id: str, marker: str = ""
    ) -> None:
        self._api = api
        self._marker = marker
        self._path = f"{entity or self._api.default_entity}/{project}"
        self._run_id = run_id

    def find(self) -> ServerRun | None:
        """Return the run, ``None`` when it, its project or its entity does not exist.

        It is searched for and not read: a missing run is then an empty answer, not an error.

        Raises:
            Exception: wandb's own, for any other failure.
        """
        self._api.flush()  # it remembers runs
        try:
            for run in self._api.runs(
                self._path, filters={"name": self._run_id}, per_page=1
            ):
                if str(run.id) == self._run_id:
                    lines = int(run.historyLineCount or 0)
                    if self._marker:
                        lines = self._marked(run)
                    return ServerRun(lines, str(run.state))
        except Exception as exc:
            if not _MISSING.search(str(exc)):
                raise
        return None

    def parameters(self) -> dict[str, Any]:
        """Return the user's part of the run's config: of a sweep's trial that has not begun, its parameters.

        Raises as `stored`.
        """
        return dict(self._run().config)

    def stored(self) -> Stored:
        """Return config and keys of the run; no keys when the server does not list them.

        Raises:
            Exception: wandb's own, also when the run does not exist.
        """
        run = self._run()
        history: object = getattr(run, "history_keys", None)
        keys = None
        if isinstance(history, dict):
            keys = cast("Mapping[str, object]", history).get("keys")
        return Stored(
            dict(run.rawconfig),
            tuple(cast("Mapping[str, object]", keys)) if isinstance(keys, dict) else (),
        )

    def _run(self) -> Any:
        self._api.flush()
        return self._api.run(f"{self._path}/{self._run_id}")

    def _marked(self, run: Any) -> int:
        """Return the highest number of a line of this writer that the server names.

        The server's history is sampled, and its summary is the last derived value. Each may lag;
        neither runs ahead. 0 when it names none.
        """
        sampled = run.history(samples=_SAMPLES, keys=[self._marker], pandas=False)
        highest = 0
        for row in (*sampled, run.summary):
            number = row.get(self._marker)
            if isinstance(number, (int, float)):
                highest = max(highest, int(number))
        return highest

    def history(self, lines: int) -> list[dict[str, object]]:
        """Return the run's history, *lines* lines of it; raises as `stored`."""
        return list(self._run().history(samples=max(1, lines), pandas=False))

    def committed_of(self, tables: Mapping[str, int]) -> dict[str, list[int]]:
        """Return what `committed` returns for each of *tables*: key to the time of its oldest awaited increment.

        One answer for all tables, because each poll needs all of them.
        """
        return {key: self.committed(key, first_ms) for key, first_ms in tables.items()}

    def committed(self, key: str, since_unix_ms: int) -> list[int]:
        """Return the times (Unix milliseconds) in the names of committed increments of table *key*, in order.

        Each increment is a version of one artifact. Versions may be made concurrently, so that a
        later version need not list the files of an earlier one. So all versions are read, back to
        one without files since *since_unix_ms*. Empty when the server has no such artifact yet.

        Raises:
            Exception: wandb's own, for any other failure.
        """
        name = f"{self._path}/{artifact_name(self._run_id, key)}"
        times: set[int] = set()
        try:
            for version in islice(self._versions(name), _MAX_VERSIONS):
                entries: Iterable[str] = version.manifest.entries
                version_times: set[int] = set()
                for entry in entries:
                    match = _ENTRY.match(entry)
                    if match:
                        version_times.add(int(match[1]))
                times |= version_times
                # Newest first: what follows is older than anything awaited.
                if version_times and max(version_times) < since_unix_ms:
                    break
        except Exception as exc:
            if not _MISSING.search(str(exc)):
                raise
        return sorted(times)

    def _versions(self, name: str) -> Iterable[Any]:
        """Return the versions of the artifact *name*, newest first where this wandb can order them.

        Reading them asks the server, and raises wandb's own exceptions.
        """
        listing: Callable[..., Iterable[Any]] = self._api.artifacts
        order = {}
        if "order" in inspect.signature(listing).parameters:
            order = {"order": "-createdAt"}
        return listing(_TABLE_TYPE, name, per_page=20, **order)


@dataclass(slots=True)
class ServerProgress:
    """Holds the last answer of the server.

    Attributes:
        lines: Its line count.
        committed: Table key to times of its committed increments.
        error: Why a newer answer is missing, when the last query failed.
    """

    lines: int
    committed: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    error: RetryableError | BlockedError | None = None

    @property
    def files(self) -> int:
        """Return the number of committed increments.

        Growth of this number shows that an upload works although no line is added.
        """
        return sum(map(len, self.committed.values()))


class Uploads:
    """Watches the upload of one open run.

    Args:
        connect: Creates the `Server`, in the watching thread.
        lines: Lines that the server held when the run was opened.
        limits: Intervals and timeouts.
        log_file: wandb's own log of the run, which has the reason why an upload died.
    """

    def __init__(
        self,
        connect: Callable[[], Server],
        lines: int,
        limits: UploadLimits,
        log_file: Path,
    ) -> None:
        self._connect = connect
        self._limits = limits
        self._log_file = log_file
        self._changed = threading.Condition()
        self._progress = ServerProgress(lines)
        self._expected = lines
        self._tables: dict[str, int] = {}
        self._grown_s = time.monotonic()
        self._fatal = ""
        self._closing = False
        self._pause_s = limits.poll_s
        # A daemon: a request that hangs must not keep the bridge from ending.
        self._thread = threading.Thread(
            target=self._watch,
            name=f"wandb-uploads-{log_file.parent.name}",
            daemon=True,
        )
        self._thread.start()

    def expect(self, lines: int, tables: Mapping[str, int]) -> None:
        """Expect *lines* lines, and the increments of *tables*, logged from these times on.

        The time of the last growth starts anew when nothing was awaited, or an idle run would count
        as stalled at its next row.
        """
        with self._changed:
            if self._expected <= self._progress.lines and not self._tables:
                self._grown_s = time.monotonic()  # nothing was awaited till now
            self._expected = lines
            self._tables = dict(tables)

    def hasten(self) -> None:
        """Query at once, then at growing intervals up to the usual one, because a caller waits for the answer."""
        with self._changed:
            self._pause_s = 0.0
            self._changed.notify_all()

    def progress(self) -> ServerProgress:
        """Return the last answer of the server."""
        with self._changed:
            return self._progress

    def wait(self, last_progress: ServerProgress, timeout_s: float) -> bool:
        """Wait for an answer other than *last_progress*; return whether one came in time.

        A failed question is an answer too, with its error.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._progress is not last_progress, timeout_s
            )

    def wait_lines(self, lines: int, timeout_s: float) -> None:
        """Wait until the server holds *lines*, the upload is dead, or the time is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._progress.lines >= lines or bool(self._fatal), timeout_s
            )

    def dead(self) -> RetryableError | BlockedError | None:
        """Return the error because of which no more data of this run arrives, ``None`` while the upload works.

        In this order: the server refuses the question, wandb's log has a fatal error, or the server
        answers and its count stands still for `UploadLimits.stall_s`. One that does not answer
        proves nothing.
        """
        with self._changed:
            progress = self._progress
            fatal = self._fatal
            # No access: wandb's own upload gets the same answer.
            if isinstance(progress.error, BlockedError):
                return progress.error
            if fatal:
                return outcome(RuntimeError(fatal), "uploading")
            waited_s = time.monotonic() - self._grown_s
            awaited = self._expected > progress.lines or bool(self._tables)
            # A server that does not answer is an outage, which wandb itself outlasts by retries.
            if (
                progress.error is not None
                or not awaited
                or waited_s < self._limits.stall_s
            ):
                return None
            missing = ", ".join(self._tables)
            if self._expected > progress.lines:
                missing = f"{self._expected - progress.lines} lines"
        return RetryableError(
            f"W&B answers, but {missing} did not arrive within {self._limits.stall_s:g} s"
        )

    def close(self) -> None:
        """Stop watching; may be called twice. A question that is under way ends by itself."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _watch(self) -> None:
        """Ask the server at each turn, for as long as the run is open.

        No exception ends the thread.

        A failed question keeps the last counts and carries the error, which `dead` judges.
        """
        server: Server | None = None
        while True:
            with self._changed:
                self._await_turn()
                if self._closing:
                    return
                tables = self._tables
                last_progress = self._progress
                # Nothing is awaited: an idle run costs the server no requests.
                if self._expected <= last_progress.lines and not tables:
                    continue
            try:
                # In this thread, because wandb.Api is for one thread; and again after an error.
                server = server or self._connect()
                server_run = server.find()
                progress = ServerProgress(
                    server_run.lines if server_run else 0, server.committed_of(tables)
                )
            except Exception as exc:  # noqa: BLE001  # whatever it is: the server did not say
                progress = ServerProgress(
                    last_progress.lines,
                    last_progress.committed,
                    error=outcome(exc, "asking which lines it holds"),
                )
            self._publish(last_progress, progress)

    def _await_turn(self) -> None:
        """Wait until the next query is due, or the watch ends; the lock is held."""
        began_s = time.monotonic()
        self._changed.wait_for(
            lambda: self._closing or time.monotonic() - began_s >= self._pause_s,
            timeout=self._pause_s,
        )
        self._pause_s = min(max(2 * self._pause_s, _HASTE_S), self._limits.poll_s)

    def _publish(self, last_progress: ServerProgress, progress: ServerProgress) -> None:
        """Show *progress* to the other threads, and note when something last arrived.

        After a failed question half of the stall time is granted anew, because wandb, too, needs
        time to go on after an outage.
        """
        grown = (
            progress.lines > last_progress.lines or progress.files > last_progress.files
        )
        # The log is read only when nothing arrived: it may have an error that wandb got over.
        fatal = "" if grown else fatal_error(self._log_file)
        with self._changed:
            now = time.monotonic()
            if grown:
                self._grown_s = now
            elif (
                progress.error is not None
            ):  # after an outage wandb, too, needs time to go on
                self._grown_s = max(self._grown_s, now - self._limits.stall_s / 2)
            self._progress = progress
            self._fatal = fatal
            self._changed.notify_all()


def fatal_error(log_file: Path) -> str:
    """Return the line of wandb's log with the reason why the upload ended for good, ``""`` when there is none."""
    messages = _FATAL.findall(tail_of(log_file))
    if messages:
        return redact_and_cut(messages[-1], 500)
    return ""


def artifact_name(run_id: str, key: str) -> str:
    """Return the name of the artifact behind a table (``sanitize_artifact_name`` of wandb, which is not public).

    Keys with other characters lose them and get a checksum, so that different keys stay different.
    """
    name = f"run-{run_id}-incr-{key}"
    cleaned = re.sub(r"[^a-zA-Z0-9_\-.]+", "", name)
    if cleaned == name:
        return name
    suffix = (
        base64.urlsafe_b64encode(zlib.crc32(name.encode()).to_bytes(4, "big"))
        .rstrip(b"=")
        .decode()
    )
    return f"{cleaned}-{suffix}"
