"""Runs the exporter ``otlp``: a thread that sends the content of the segments, and stores its positions.

It reads the segments, not the ledger. Each signal has its own position in each process's segments
(`signal_lane`). Delivery is at least once: a request may have been accepted although its answer was
lost. The other end deduplicates records by their identity.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from otel_bridge.bridge.delivery.context import DeliveryRequests
from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.forwarding.requests import bodies
from otel_bridge.bridge.forwarding.segments import ForwardedSegments
from otel_bridge.bridge.forwarding.signal_lane import (
    SIGNAL_NAMES,
    LaneFailure,
    RequestSender,
    SegmentOffset,
    SignalLane,
)
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.errors import FormatVersionError, JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.otlp.destination import addresses, signals_sent, unset_without_grpc
from otel_bridge.records import Position
from otel_bridge.text.printable import shown

_NO_GRPC = (
    "otlp goes by http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL is unset, and gRPC, the default, needs "
    "pip install 'otel-bridge[collector]'"
)
_UNREAD_S = 1.0
"""Seconds until segments or a ledger that could not be read are read again."""
_ACCEPTED = "otlp_accepted"
"""Key of the ledger's facts: server to the signals of this run that it has accepted."""
_REFUSED = "otlp_refused"
"""Key of the ledger's facts: how many items of this run were refused for good."""


class Forwarder(ExporterWorker):
    """Serves ``otlp`` for one run.

    What belongs to one signal is in its `SignalLane`. A setting that cannot be used raises nothing
    here: the first request of its signal finds that, and the signal is blocked.

    Args:
        folder: The run folder.
        ledger: Stores how far each process is forwarded.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        every_process: Whether to forward all processes, whatever exporters their segments name.
        log_line: Takes one line for the log.
        progressed: Called on the thread after each step that changed something; must be quick.
        check_endpoints: Raises `ConfigError` when the endpoints in *env* must not be used.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        env: Mapping[str, str],
        *,
        every_process: bool,
        log_line: Callable[[str], None],
        progressed: Callable[[], None],
        check_endpoints: Callable[[], None] = lambda: None,
    ) -> None:
        # Requests about records have no effect: the segment of each process decides what it sends.
        super().__init__("forward-otlp", DeliveryRequests(()), progressed)
        self._state = ExporterState(
            exporter=OTLP, resolved=True, destination=addresses(env)
        )
        self._folder = folder
        self._ledger = ledger
        self._every_process = every_process
        self._log_line = log_line
        self._segments: dict[str, ForwardedSegments] = {}
        self._lanes: list[SignalLane] = []
        for signal, name in SIGNAL_NAMES.items():
            if name not in signals_sent(env):
                continue
            sender = RequestSender(
                signal,
                env,
                folder.run_id,
                check_endpoints=check_endpoints,
                log_line=log_line,
            )
            self._lanes.append(SignalLane(signal, sender))
        self._unstored: set[str] = set()
        self._accepted: dict[str, list[str]] = {}
        self._stored_refused = 0
        self._backoff = Backoff()
        if unset_without_grpc(env):
            log_line(_NO_GRPC)

    @property
    def exporter_state(self) -> ExporterState:
        """Return the state of the exporter."""
        return self._state

    @property
    def requested_wait_s(self) -> float:
        """Return the seconds that the first server to be tried again still requests."""
        return min((lane.requested_s for lane in self._waiting()), default=0.0)

    def start(self) -> None:
        """Begin to forward, from the positions that the ledger stores.

        Raises `JournalError` when it cannot be read, and `RuntimeError` as every worker does.
        """
        view = self._ledger.view()
        try:
            self._accepted.update(view.meta(_ACCEPTED) or {})
            self._stored_refused = int(view.meta(_REFUSED) or 0)
            self._show(dead_letters=self._stored_refused)
            for source in view.sources():
                self._follow(
                    source.instance_id,
                    source.forwarded_number,
                    read_before=SegmentOffset(source.number, source.offset),
                )
                slowest = SegmentOffset(
                    source.forwarded_number, source.forwarded_offset
                )
                ahead = view.forwarded_ahead(source.instance_id)
                for lane in self._lanes:
                    lane.positions[source.instance_id] = SegmentOffset(
                        *ahead.get(lane.name, slowest)
                    )
        finally:
            view.close()
        super().start()

    def close(self) -> None:
        """Close the connections of all signals."""
        for lane in self._lanes:
            lane.sender.close()

    def step(self) -> float | None:
        """Forward the data of every process once; new data retries failed work too, see `SignalLane`.

        Outcomes of requests, segments that cannot be read and a failing ledger raise nothing here;
        any other error is for `failed`.
        """
        # Before the segments are read: what is committed later may be of frames not sent yet.
        position = self._ledger.position
        for lane in self._lanes:
            lane.open_if_due(retry=self.notice.retry, flush=self.notice.flush)
        return self._forwarded(position)

    def _forwarded(self, position: Position) -> float | None:
        """Forward some data of every process.

        Return the seconds to wait, ``None`` until new data arrives. Segments or a ledger that
        cannot be read are shown as retrying and read again after a second: a full disk may have
        room by then.
        """
        try:
            has_moved = self._forward_all()
            self._end_missing()
            self._log_failures()
        except JournalError as exc:
            self._show_failure(LaneFailure("retrying", shown(str(exc))))
            return _UNREAD_S
        waiting = self._waiting()
        if has_moved:
            self._show(state="writing")
            return 0.0
        if waiting:
            self._show_waiting()
            # Also of a blocked signal, which is tried again by itself after a minute.
            return min(lane.due_in_s for lane in waiting)
        # The other end has accepted everything that was in the segments when the ledger was at
        # *position*.
        self._show(
            state="idle",
            reason="",
            help="",
            failing_since_s=None,
            written=position,
            durable=position,
        )
        return None

    def _follow(
        self,
        instance_id: str,
        number: int,
        *,
        read_before: SegmentOffset | None = None,
    ) -> None:
        """Follow a process, whose first segment is *number*; see `ForwardedSegments`."""
        segments = ProcessSegments(self._folder, instance_id, number)
        self._segments[instance_id] = ForwardedSegments(segments, read_before)

    def _list(self) -> None:
        """List the segments, follow new processes, and forget those whose segments are gone.

        The folder is listed, not asked of the bridge's reader, which runs on another thread. One that
        cannot be listed now, as without a free file, changes nothing.
        """
        listed: set[str] = set()
        for segment in self._folder.segments():
            instance_id = segment.instance_id
            listed.add(instance_id)
            # New since the last look: it is forwarded from its first segment on.
            if instance_id not in self._segments:
                self._follow(instance_id, segment.number)
                for lane in self._lanes:
                    lane.positions[instance_id] = SegmentOffset(segment.number, 0)
            self._segments[instance_id].segments.listed(segment.number)
        for instance_id in self._segments.keys() - listed:
            segments = self._segments[instance_id].segments
            # Listed or not: a process that is forgotten would be sent again from its first segment.
            if segments.size(segments.last_number) is not None:
                continue
            del self._segments[instance_id]
            # Its segments are gone, so its position is of use to no later bridge.
            self._unstored.discard(instance_id)
            for lane in self._lanes:
                lane.positions.pop(instance_id, None)

    def _forward_all(self) -> bool:
        """Forward some data of every process; return whether to continue at once.

        Raises:
            JournalError: The segments of a process cannot be read, or the ledger fails, and there
                was nothing else to do.
        """
        self._store_positions()
        has_moved = False
        unread: JournalError | None = None
        self._list()
        for instance_id in self._segments:
            # Between processes, so that a stop does not wait for the requests of all of them.
            if self._stopping:
                return True
            try:
                has_moved = self._forward_process(instance_id) or has_moved
            except (
                FormatVersionError
            ):  # a newer version's: left as it is; the reader reports it
                continue
            except JournalError as exc:
                unread = exc
        # While other processes go on, the failure is tried again by the next step anyway.
        if unread is not None and not has_moved:
            raise unread
        return has_moved

    def _forward_process(self, instance_id: str) -> bool:
        """Forward some data of one process; return whether any signal went on.

        Signals at the same position are read and sent together, in the order in which they were
        written: an event may be the statistics of a step, which rollouts of the next would close.
        Raises as `_forward_lanes` does, or `JournalError` when the ledger fails.
        """
        has_moved = False
        lanes = [lane for lane in self._lanes if self._may_send(lane)]
        for position in sorted({lane.positions[instance_id] for lane in lanes}):
            # With those that have come to this position just now.
            together = [
                lane for lane in lanes if lane.positions[instance_id] == position
            ]
            has_moved = self._forward_lanes(instance_id, together) or has_moved
        if has_moved:
            self._unstored.add(instance_id)
            self._store_positions()
        return has_moved

    def _forward_lanes(self, instance_id: str, lanes: list[SignalLane]) -> bool:
        """Forward some data of one process and of signals at one position.

        Return whether any went on; ``False`` when nothing is new or every signal failed. Raises
        `JournalError` for a segment that cannot be read, `FormatVersionError` for one of a newer
        version.
        """
        lane_of_signal = {lane.signal: lane for lane in lanes}
        for lane in lanes:
            lane.sender.refused = 0
        frames_read = self._segments[instance_id].read(
            lanes[0].positions[instance_id],
            signals=lane_of_signal.keys(),
            limit_bytes=min(lane.sender.limit_bytes for lane in lanes),
            every_process=self._every_process,
        )
        if frames_read is None:
            return False
        for signal, datas in bodies(frames_read.parts):
            self._send(lane_of_signal[signal], datas)
        # A signal that failed meanwhile stays, and is read again from here.
        forwarded = [lane for lane in lanes if self._may_send(lane)]
        for lane in forwarded:
            # Only of accepted frames: after a kill they are sent again, never passed over.
            lane.positions[instance_id] = frames_read.end
        # Of these too: what was refused before a failure is sent, and refused, again.
        refused = sum(lane.sender.refused for lane in forwarded)
        self._show(dead_letters=self._state.dead_letters + refused)
        return bool(forwarded)

    def _waiting(self) -> list[SignalLane]:
        """Return the lanes whose last request failed, which wait to send it again."""
        return [lane for lane in self._lanes if lane.waits]

    def _may_send(self, lane: SignalLane) -> bool:
        """Return whether requests of *lane* may be sent now.

        No signal overtakes one that waits to be retried at the same otel-bridge, so that the end of
        a process comes after its rows. A blocked signal holds up no other: only a person can mend it.
        To other servers, and before the first accepted request, each signal is sent by itself.
        """
        if lane.waits or not lane.sender.to_bridge:
            return not lane.waits
        for waiting_lane in self._lanes:
            failure = waiting_lane.failure
            is_retrying = (
                waiting_lane.waits
                and failure is not None
                and failure.state == "retrying"
            )
            if is_retrying and waiting_lane.sender.server == lane.sender.server:
                return False
        return True

    def _send(self, lane: SignalLane, datas: Sequence[bytes]) -> None:
        """Send *datas*, unless the signal waits since an earlier request of the same read.

        What a server accepts is noted in the ledger: a later bridge then knows that its address is
        right. Raises `JournalError` when that fails; the request is sent again.
        """
        if not self._may_send(lane) or not lane.send(datas):
            return
        server = lane.sender.server
        signals = self._accepted.get(server, [])
        if lane.name not in signals:
            accepted = {**self._accepted, server: [*signals, lane.name]}
            self._ledger.set_meta(_ACCEPTED, accepted)
            self._accepted = accepted

    def _log_failures(self) -> None:
        """Log each new failure.

        Of retried signals one a server, because the server is down, not the signals. A blocked
        signal has a line of its own: its help names what to do for this signal.
        """
        retried_servers: set[str] = set()
        for lane in self._lanes:
            failure = lane.failure
            if failure is None:
                lane.logged_failure = failure
                continue
            # One line for each failure, since it is tried again for as long as it lasts.
            is_repeated = failure == lane.logged_failure
            if failure.state == "retrying":
                is_repeated = is_repeated or lane.sender.server in retried_servers
                retried_servers.add(lane.sender.server)
            if not is_repeated:
                help_text = ""
                if failure.help:
                    help_text = f"; {failure.help}"
                self._log_line(f"otlp is {failure.state}: {failure.reason}{help_text}")
            lane.logged_failure = failure

    def _is_missing(self, lane: SignalLane) -> bool:
        """Return whether the other end lacks the signal of *lane* for good: it has accepted other signals alone.

        Before that, and when it lacks every signal, the address may be wrong; then the signal is
        blocked, and kept. So is one that it has accepted before: a proxy answers 404 too while the
        server behind it is replaced.
        """
        accepted = self._accepted.get(lane.sender.server, [])
        if not _lacks_signal(lane) or not accepted or lane.name in accepted:
            return False
        return not all(map(_lacks_signal, self._lanes))

    def _end_missing(self) -> None:
        """End the signals that the other end lacks, name each once, and stop keeping segments for them.

        Otherwise a backend that takes traces only would be owed metrics for ever. The next bridge
        of the run tries them again. Raises `JournalError`.
        """
        # A copy, because lanes leave the list.
        for lane in list(self._lanes):
            if not self._is_missing(lane):
                continue
            self._lanes.remove(lane)
            lane.sender.close()
            sentence = (
                f"{lane.name} are not sent: {cast('LaneFailure', lane.failure).reason}"
            )
            self._log_line(
                f"otlp: {sentence}; the other end takes other signals, which go on"
            )
            self._show(degraded=[*self._state.degraded, sentence])
            # The slowest signal is another one now, so that segments may be deleted sooner.
            self._unstored.update(self._segments)
        self._store_positions()

    def _store_positions(self) -> None:
        """Store what the other end has accepted.

        Positions that the ledger does not store are stored at the next step. Raises `JournalError`
        when the ledger fails.

        The number of refused items is stored before, or a later bridge would not know of them.

        This includes processes of which the reader has committed nothing yet: else their segments
        would be sent again.
        """
        refused = self._state.dead_letters
        if refused != self._stored_refused:
            self._ledger.set_meta(_REFUSED, refused)
            self._stored_refused = refused
        for instance_id in list(self._unstored):
            slowest = min(lane.positions[instance_id] for lane in self._lanes)
            ahead: dict[str, SegmentOffset] = {}
            for lane in self._lanes:
                if lane.positions[instance_id] > slowest:
                    ahead[lane.name] = lane.positions[instance_id]
            # Else the reader has not committed the process yet, and a later step stores it.
            if self._ledger.forwarded(instance_id, *slowest, ahead=ahead):
                self._unstored.discard(instance_id)

    def failed(self, exc: BaseException) -> float:
        """Handle an error that is not an outcome of a request: shown as retrying, tried again with backoff."""
        self._show_failure(
            LaneFailure("retrying", shown(f"{type(exc).__name__}: {exc}"))
        )
        return self._backoff.failed()

    def _show_waiting(self) -> None:
        """Show the failure of a signal that waits: a blocked one first, because a person must act."""
        failures = [lane.failure for lane in self._lanes if lane.failure is not None]
        self._show_state(min(failures, key=lambda failure: failure.state != "blocked"))

    def _show_failure(self, failure: LaneFailure) -> None:
        """Show and log a failure that is not of one signal."""
        if (self._state.state, self._state.reason) != (failure.state, failure.reason):
            self._log_line(f"otlp is {failure.state}: {failure.reason}")
        self._show_state(failure)

    def _show_state(self, failure: LaneFailure) -> None:
        """Show a failure; the time of the first one since data was accepted stays."""
        self._show(
            state=failure.state,
            reason=failure.reason,
            help=failure.help,
            # Kept over retries, as in `DeliveryPosition.show`.
            failing_since_s=self._state.failing_since_s or time.monotonic(),
        )

    def _show(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type]  # fields by name


def _lacks_signal(lane: SignalLane) -> bool:
    """Return whether the other end answered that it does not have the signal."""
    return lane.failure is not None and lane.failure.is_missing
