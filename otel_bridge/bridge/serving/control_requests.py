"""Carries out the control requests of one run folder, each once, and deletes what is done. One thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from otel_bridge.bridge.run_pipeline import RunPipeline
from otel_bridge.bridge.serving.shutdown import ShutdownState
from otel_bridge.journal.control import (
    ControlRequest,
    delete_control_request,
    receive_control,
)
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Status
from otel_bridge.translation.state import count


@dataclass(slots=True)
class ControlRequests:
    """Receives the requests to one run's bridge.

    A request stays on disk until it is done, so that a killed bridge leaves it to the next one. A
    handover is deleted first: the bridge that requested it must not find it.

    Attributes:
        folder: The run folder.
        pipeline: Parts of the run, which carry the requests out.
        shutdown: Shutdown requests of the run.
        log_line: Takes one line for the log.
        handed_over: Whether another bridge requested the folder.
        unanswered: Whether carrying out a request failed, so that the request is received again.
    """

    folder: RunFolder
    pipeline: RunPipeline
    shutdown: ShutdownState
    log_line: Callable[[str], None]
    unanswered: bool = False
    handed_over: bool = False
    _acted_on: dict[str, ControlRequest] = field(
        default_factory=dict[str, ControlRequest]
    )
    _dead_letters: dict[str, Sequence[int]] = field(
        default_factory=dict[str, Sequence[int]]
    )

    @property
    def retries_dead_letters(self) -> bool:
        """Return whether dead letters wait for `retry_dead_letters`."""
        return bool(self._dead_letters)

    def receive(self) -> None:
        """Carry out every new request; an exception leaves the request unanswered.

        A malformed one is counted as ``control_request``, logged and left out. Raises
        `JournalError` when the ledger or the folder fails: the request stays on the disk and is
        received again.
        """
        requests = receive_control(self.folder, self._malformed, self._acted_on)
        # Set before the work: an exception leaves it set, and the bridge stays for another try.
        self.unanswered = bool(requests)
        for request in requests:
            if request.kind != "handover" or delete_control_request(
                self.folder, request
            ):
                self._carry_out(request)
                self._acted_on[request.name] = request
        self.unanswered = False
        if self._acted_on:
            self.delete_done()

    def retry_dead_letters(self) -> None:
        """Give the dead letters of a retry to their exporters, which have been chosen by now."""
        dead_letters = self._dead_letters
        self._dead_letters = {}
        self.pipeline.workers.retry_dead_letters(dead_letters)

    def delete_done(self, *, all_of: bool = False) -> None:
        """Delete the requests that are done.

        With *all_of* also those that cannot be carried out now: a closed run would else be opened
        for them again and again. What cannot be deleted stays noted, so that it is not carried out
        twice.
        """
        for name, request in list(self._acted_on.items()):
            if all_of or self._is_done(request):
                delete_control_request(self.folder, request)
                # A request that could not be deleted stays here, else it would be carried out
                # again.
                if not (self.folder.control_dir / name).exists():
                    del self._acted_on[name]

    def _carry_out(self, request: ControlRequest) -> None:
        """Carry out one request; raises `JournalError`, after which it is received again.

        Dead letters are only noted here: the exporters may not have been chosen yet.
        """
        match request.kind:
            case "retry":
                self._dead_letters |= request.dead_letters
                self.pipeline.workers.notify(retry=True)
            case "handover":
                self.handed_over = True
            case "finish":
                self._finish(request.values)
            case "discard":
                self._discard(request)
        self.pipeline.report.set_due()

    def _finish(self, values: Mapping[str, object]) -> None:
        """Request the end of the run.

        An unknown status makes the request a malformed one, which is counted.
        """
        try:
            self.shutdown.request(
                Status(str(values.get("status", Status.FINISHED.value)))
            )
        except ValueError as exc:
            self._malformed(f"finish: {exc}")

    def _discard(self, request: ControlRequest) -> None:
        """Give up undelivered records, or delete dead letters: all, of one exporter, or single ones.

        Undelivered records are given up of destinations only that no exporter of the run has any
        more. Raises `JournalError`.
        """
        exporter = request.values.get("exporter")
        ledger = self.pipeline.ledger
        if request.values.get("what") == "waiting":
            ledger.evict_from_unnamed(ledger.position)
        else:
            ledger.discard_dead_letters(
                None if exporter is None else str(exporter), request.dead_letters
            )

    def _malformed(self, reason: str) -> None:
        """Count and report a malformed request; other requests are carried out."""
        count(self.pipeline.reader.state, "control_request")
        self.log_line(f"a control request is left out: {reason}")

    def _is_done(self, request: ControlRequest) -> bool:
        """Return whether a request was carried out to its end.

        Only then may a kill of the bridge forget it.
        """
        if request.kind == "finish":
            return self.shutdown.requested_status is None
        if request.kind == "retry":
            workers = self.pipeline.workers.by_name.values()
            is_waiting = any(worker.dead_letters_waiting() for worker in workers)
            return not (self._dead_letters or is_waiting)
        return True
