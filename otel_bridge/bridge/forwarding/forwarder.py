"""Runs the exporter ``otlp``: a thread that sends the content of the segments, and stores its positions.

It reads the segments, not the ledger; each process has its own position. Delivery is at least once: a request may have
been accepted although its answer was lost. The other end deduplicates records by their identity.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_bridge.bridge.delivery.context import LastWanted, Progress
from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.delivery.worker import DeliveryThread
from otel_bridge.bridge.forwarding.client import Client, client_for
from otel_bridge.bridge.forwarding.endpoint import endpoint_for, unset_without_grpc
from otel_bridge.bridge.forwarding.request_split import halves
from otel_bridge.bridge.forwarding.requests import REQUEST_BYTES, bodies
from otel_bridge.bridge.ingest.segment_tailer import ForwardedSegments, FramesToForward
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    FormatVersionError,
    JournalError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.records import Position
from otel_bridge.request_size import RequestSize
from otel_bridge.text.printable import shown

BLOCKED_S: Final = 60.0
_NEWS_S: Final = 1.0
_WHOLE_BYTES: Final = 64 << 10
"""Size down to which refused requests are split, or down to one span or record: other ends accept that much."""
_NO_GRPC: Final = (
    "otlp goes by http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL is unset, and gRPC, the default, needs "
    "pip install 'otel-bridge[collector]'"
)
_SIGNALS: Final = {Signal.METRICS: "metrics", Signal.TRACES: "traces", Signal.LOGS: "logs"}
_THIRD_PARTY_HINT: Final = (
    "otlp: the other end is not otel-bridge; before Prometheus delete the attribute rl.step there "
    '(processor transform: delete_key(attributes, "rl.step")), or each step becomes a series of its own'
)


class Forwarder:
    """Serves ``otlp`` for one run; an `ExporterWorker`.

    Args:
        folder: The run folder.
        ledger: Stores how far each process is forwarded.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        every_process: Whether to forward all processes, whatever exporters their segments name.
        say: Takes one line for the log.
        progressed: Called on the thread after each step that changed something; must be quick.
    """

    destination_id: int | None = None

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        env: Mapping[str, str],
        *,
        every_process: bool,
        say: Callable[[str], None],
        progressed: Callable[[], None],
    ) -> None:
        self.progress = Progress(OTLP, destination=_place(env), resolved=True)
        self._folder, self._ledger, self._env = folder, ledger, env
        self._every_process, self._say, self._progressed = every_process, say, progressed
        self._followers: dict[str, ForwardedSegments] = {}
        self._taken: dict[str, tuple[int, int]] = {}
        self._clients: dict[Signal, Client] = {}
        self._backoff = Backoff()
        self._size = RequestSize(REQUEST_BYTES, least=_WHOLE_BYTES)
        self._hinted = False
        self._failed_s, self._asked_to_wait = 0.0, False
        self._thread = DeliveryThread(
            self._step_and_notify, failed=self._failed_strangely, ended=self._close, name="forward-otlp"
        )

    def start(self) -> None:
        """Begin to forward."""
        view = self._ledger.view()
        try:
            for source in view.sources():
                self._followers[source.instance_id] = ForwardedSegments(
                    self._folder, source.instance_id, source.forwarded_number, source.forwarded_offset
                )
        finally:
            view.close()
        if unset_without_grpc(self._env):
            self._say(_NO_GRPC)
        self._thread.start()

    def notify(self, *, retry: bool = False) -> None:
        """Notify the worker of new data; with *retry* it also retries failed work at once.

        New data retries it at once too, at most once a second, unless the other end asked for time.
        """
        rested = not self._asked_to_wait and time.monotonic() - self._failed_s >= _NEWS_S
        self._thread.notify(retry=retry or (self.progress.state == "retrying" and rested))

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Read the segments again: each process's own segment determines which signals it sends."""
        del signals
        self.notify()

    def stop_at(self, last: LastWanted | None) -> None:
        """Do nothing: each process's own segment determines whether it is forwarded, not a position."""
        del last

    def skip_through(self, through: Position) -> None:
        """Do nothing: the ledger holds no records for ``otlp``."""
        del through

    def reopen(self) -> None:
        """Do nothing: ``otlp`` opens no run."""

    def retry_dead_letters(self, ids: Sequence[int]) -> None:
        """Do nothing: records that the other end refused are not kept."""

    def dead_letters_waiting(self) -> int:
        """Return 0."""
        return 0

    def stop(self) -> None:
        """Request that the worker stops; return at once."""
        self._thread.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until the worker has stopped; return whether it has. A request may hang."""
        return self._thread.join(timeout_s)

    def _step_and_notify(self) -> tuple[float | None, bool]:
        before = self.progress
        wait_s = self._step()
        if self.progress is not before:
            self._progressed()
        return wait_s, wait_s is None

    def _close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _step(self) -> float | None:
        """Forward the data of every process once; return the seconds to wait, ``None`` until new data arrives."""
        position = self._ledger.position
        try:
            if self._forward_all():
                self._show(state="writing")
                return 0.0
        except RetryableError as exc:
            self._failed_s, self._asked_to_wait = time.monotonic(), exc.retry_after_s is not None
            return self._failed("retrying", str(exc), "", self._backoff.failed(exc.retry_after_s))
        except BlockedError as exc:
            return self._failed("blocked", str(exc), exc.help, BLOCKED_S)
        except ConfigError as exc:
            return self._failed("blocked", str(exc), "", BLOCKED_S)
        except JournalError as exc:
            return self._failed("retrying", str(exc), "", 1.0)
        # The other end has accepted everything that was in the segments when the ledger was at *position*.
        self._show(state="idle", written=position, durable=position)
        return None

    def _newest(self) -> dict[str, int]:
        """Return the number of each process's newest segment, and follow each process."""
        newest: dict[str, int] = {}
        for segment in self._folder.segments():
            newest[segment.instance_id] = max(segment.number, newest.get(segment.instance_id, 0))
            if segment.instance_id not in self._followers:
                self._followers[segment.instance_id] = ForwardedSegments(
                    self._folder, segment.instance_id, segment.number, 0
                )
        for gone in self._followers.keys() - newest.keys():
            del self._followers[gone]
            self._taken.pop(gone, None)
        return newest

    def _forward_all(self) -> bool:
        """Forward some data of every process; return whether to continue at once.

        Raises:
            JournalError: The segments of a process cannot be read, or the ledger fails, and there was nothing else to
                do.
        """
        self._note()
        moved, unread = False, None
        for instance_id, last_number in self._newest().items():
            if self._thread.stopping:
                return True
            follower = self._followers[instance_id]
            try:
                taken = follower.read(last_number, limit_bytes=self._size.now, every_process=self._every_process)
            except FormatVersionError:  # a newer version's: left as it is; the reader reports it
                continue
            except JournalError as exc:
                unread = exc
                continue
            if taken is not None:
                self._send(taken)
                follower.done(taken)
                self._taken[instance_id] = taken.number, taken.offset
                self._note()
                moved = True
        if unread is not None and not moved:
            raise unread
        return moved

    def _note(self) -> None:
        """Store what the other end has accepted; positions that the ledger does not store are stored at the next step.

        This includes processes of which the reader has committed nothing yet: else their segments would be sent again.
        """
        for instance_id, (number, offset) in list(self._taken.items()):
            if self._ledger.forwarded(instance_id, number, offset):
                del self._taken[instance_id]

    def _send(self, taken: FramesToForward) -> None:
        for signal, datas in bodies(taken.parts):
            self._send_parts(signal, datas)
            self._backoff.succeeded()

    def _send_parts(self, signal: Signal, datas: Sequence[bytes]) -> None:
        """Send *datas* as one request; items that are refused for good are found by halving and left out.

        After a request that timed out, *datas* are sent in several requests.
        """
        size = sum(map(len, datas))
        if size > self._size.now and size > _WHOLE_BYTES:
            pieces = datas if len(datas) > 1 else halves(signal, datas[0])
            if len(pieces) > 1:
                middle = len(pieces) // 2
                self._send_parts(signal, pieces[:middle])
                self._send_parts(signal, pieces[middle:])
                return
        try:
            with self._size.request(size):
                reply = self._client(signal).send(b"".join(datas), self._folder.run_id)
        except PermanentError as exc:
            if len(datas) == 1 and len(datas[0]) > _WHOLE_BYTES:
                datas = halves(signal, datas[0]) or datas
            if len(datas) == 1:
                self._say(f"otlp: a record of {len(datas[0])} bytes was refused for good: {exc}")
                self._show(dead_letters=self.progress.dead_letters + 1)
                return
            middle = len(datas) // 2
            self._send_parts(signal, datas[:middle])
            self._send_parts(signal, datas[middle:])
            return
        if reply.rejected:
            self._say(f"otlp: the other end refused {reply.rejected} of a request's items: {reply.message}")
            self._show(dead_letters=self.progress.dead_letters + reply.rejected)
        if not reply.from_bridge and not self._hinted:
            self._hinted = True
            self._say(_THIRD_PARTY_HINT)

    def _client(self, signal: Signal) -> Client:
        if signal not in self._clients:
            self._clients[signal] = client_for(endpoint_for(_SIGNALS[signal], self._env))
        return self._clients[signal]

    def _failed(self, state: str, reason: str, help_text: str, wait_s: float) -> float:
        reason, help_text = shown(reason), shown(help_text)
        if (self.progress.state, self.progress.reason) != (state, reason):
            self._say(f"otlp is {state}: {reason}" + (f"; {help_text}" if help_text else ""))
        since = self.progress.failing_since_s
        self._show(
            state=state, reason=reason, help=help_text, failing_since_s=time.monotonic() if since is None else since
        )
        return wait_s

    def _failed_strangely(self, exc: BaseException) -> float:
        """Handle an error that is not an outcome of a request: shown as retrying, tried again with backoff."""
        wait_s = self._failed("retrying", f"{type(exc).__name__}: {exc}", "", self._backoff.failed(None))
        self._progressed()
        return wait_s

    def _show(self, **changes: object) -> None:
        if changes.get("state") in {"idle", "writing"}:
            changes = {"reason": "", "help": "", "failing_since_s": None, **changes}
        changed = dataclasses.replace(self.progress, **changes)  # type: ignore[arg-type]  # fields by name
        if changed != self.progress:
            self.progress = changed


def _place(env: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses that it sends to, as the report shows them."""
    places: dict[str, str] = {}
    for signal in _SIGNALS.values():
        try:
            places[signal] = endpoint_for(signal, env).address
        except ConfigError:  # noqa: PERF203  # three signals
            continue
    return places
