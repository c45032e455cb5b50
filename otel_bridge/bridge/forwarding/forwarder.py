"""Runs the exporter ``otlp``: a thread that sends the content of the segments, and stores its positions.

It reads the segments, not the ledger; each process has its own position. Delivery is at least once: a request may have
been accepted although its answer was lost. The other end deduplicates records by their identity.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_bridge.bridge.delivery.context import FinalPosition, Progress
from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.delivery.worker import DeliveryThread
from otel_bridge.bridge.forwarding.requests import bodies
from otel_bridge.bridge.forwarding.segments import ForwardedSegments
from otel_bridge.bridge.forwarding.sender import RequestSender
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    FormatVersionError,
    JournalError,
    RetryableError,
)
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.otlp.destination import addresses
from otel_bridge.records import Position
from otel_bridge.text.printable import shown

BLOCKED_S: Final = 60.0
_NEWS_S: Final = 1.0


class ForwardRetry:
    """Counts failed requests, and decides when the next is due. The worker's thread changes it, any thread reads it."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._failed_s, self._requested_time = 0.0, False

    @property
    def requested_s(self) -> float:
        """Return the seconds of the wait that the other end requested."""
        return self._backoff.requested_s

    def failed(self, exc: RetryableError) -> float:
        """Count a failed request; return the seconds to wait, at least as long as the other end requested."""
        self._failed_s, self._requested_time = time.monotonic(), exc.retry_after_s is not None
        return self._backoff.failed(exc.retry_after_s)

    def failed_strangely(self) -> float:
        """Count an error that is not an outcome of a request; return the seconds to wait."""
        return self._backoff.failed(None)

    def succeeded(self) -> None:
        """Reset the count."""
        self._backoff.succeeded()

    def may_retry_for_news(self) -> bool:
        """Return whether new data ends the wait: at most once a second, and not if the other end requested time."""
        return not self._requested_time and time.monotonic() - self._failed_s >= _NEWS_S


class Forwarder:
    """Serves ``otlp`` for one run; an `ExporterWorker`.

    Args:
        folder: The run folder.
        ledger: Stores how far each process is forwarded.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        every_process: Whether to forward all processes, whatever exporters their segments name.
        log_line: Takes one line for the log.
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
        log_line: Callable[[str], None],
        progressed: Callable[[], None],
    ) -> None:
        self.progress = Progress(OTLP, destination=addresses(env), resolved=True)
        self._folder, self._ledger = folder, ledger
        self._every_process, self._log_line, self._progressed = every_process, log_line, progressed
        self._followers: dict[str, ForwardedSegments] = {}
        self._unstored: dict[str, tuple[int, int]] = {}
        self._sender = RequestSender(env, folder.run_id, refused=self._refused, log_line=log_line)
        self._retry = ForwardRetry()
        self._thread = DeliveryThread(
            self._step_and_notify,
            failed=self._failed_strangely,
            ended=self._close,
            name="forward-otlp",
            requested_s=lambda: self._retry.requested_s if self.progress.state == "retrying" else 0.0,
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
        self._sender.report_protocol()
        self._thread.start()

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify the worker of new data; with *retry* it also retries failed work at once.

        With *flush* it does so too, but not before the time that the other end requested.
        New data retries it at once too, at most once a second, unless the other end requested time.
        """
        rested = self.progress.state == "retrying" and self._retry.may_retry_for_news()
        self._thread.notify(retry=retry or rested, flush=flush)

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Read the segments again: each process's own segment determines which signals it sends."""
        del signals
        self.notify()

    def stop_at(self, last: FinalPosition | None) -> None:
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
        self._sender.close()

    def _step(self) -> float | None:
        """Forward the data of every process once; return the seconds to wait, ``None`` until new data arrives."""
        position = self._ledger.position
        try:
            if self._forward_all():
                self._show(state="writing")
                return 0.0
        except RetryableError as exc:
            return self._failed("retrying", str(exc), "", self._retry.failed(exc))
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
            self._unstored.pop(gone, None)
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
                frames_read = follower.read(
                    last_number, limit_bytes=self._sender.limit_bytes, every_process=self._every_process
                )
            except FormatVersionError:  # a newer version's: left as it is; the reader reports it
                continue
            except JournalError as exc:
                unread = exc
                continue
            if frames_read is not None:
                for signal, datas in bodies(frames_read.parts):
                    self._sender.send(signal, datas)
                    self._retry.succeeded()
                follower.done(frames_read)
                self._unstored[instance_id] = frames_read.number, frames_read.offset
                self._note()
                moved = True
        if unread is not None and not moved:
            raise unread
        return moved

    def _note(self) -> None:
        """Store what the other end has accepted; positions that the ledger does not store are stored at the next step.

        This includes processes of which the reader has committed nothing yet: else their segments would be sent again.
        """
        for instance_id, (number, offset) in list(self._unstored.items()):
            if self._ledger.forwarded(instance_id, number, offset):
                del self._unstored[instance_id]

    def _refused(self, count: int) -> None:
        self._show(dead_letters=self.progress.dead_letters + count)

    def _failed(self, state: str, reason: str, help_text: str, wait_s: float) -> float:
        reason, help_text = shown(reason), shown(help_text)
        if (self.progress.state, self.progress.reason) != (state, reason):
            self._log_line(f"otlp is {state}: {reason}" + (f"; {help_text}" if help_text else ""))
        since = self.progress.failing_since_s
        self._show(
            state=state, reason=reason, help=help_text, failing_since_s=time.monotonic() if since is None else since
        )
        return wait_s

    def _failed_strangely(self, exc: BaseException) -> float:
        """Handle an error that is not an outcome of a request: shown as retrying, tried again with backoff."""
        wait_s = self._failed("retrying", f"{type(exc).__name__}: {exc}", "", self._retry.failed_strangely())
        self._progressed()
        return wait_s

    def _show(self, **changes: object) -> None:
        if changes.get("state") in {"idle", "writing"}:
            changes = {"reason": "", "help": "", "failing_since_s": None, **changes}
        changed = dataclasses.replace(self.progress, **changes)  # type: ignore[arg-type]  # fields by name
        if changed != self.progress:
            self.progress = changed
