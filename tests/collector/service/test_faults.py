"""A service whose disk, files or clock fail, and one that begins again and again."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Status
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.bridge_doubles import options, report_when, serving, until
from support.bridge.recording_tracker import RecordingTracker
from support.collector.service_senders import Sender, post
from support.free_ports import free_port
from support.otlp.otlp_samples import RUN, metrics_request, row, who

STARTS = 40


def how(recorder: RecordingTracker) -> BridgeOptions:
    named = dict.fromkeys(("metrics", "traces", "logs"), ("memory",))
    return options(("memory", recorder), exporters=named, lazy=True, idle_s=60.0)


@contextmanager
def receiving(base: Path, http: int = 0, **env: str) -> Iterator[Receiver]:
    receiver = Receiver(
        ReceiverSettings.from_environment(env, base, grpc_port=None, http_port=http)
    )
    try:
        yield receiver
    finally:
        receiver.stop()


def sender_to(receiver: Receiver) -> Sender:
    return Sender("http", int(receiver.http_endpoint.rpartition(":")[2]), "a-http")


def all_of(recorder: RecordingTracker, sender: Sender) -> bool:
    held = recorder.run(RUN)
    return list(held.rows) == sender.row_ids and held.status is Status.FINISHED


def overwrite(path: Path, offset: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(count))


def test_a_disk_that_takes_nothing_is_a_503_and_what_was_answered_for_is_delivered_once_there_is_room(
    tmp_path: Path,
) -> None:
    recorder = RecordingTracker()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with receiving(tmp_path) as receiver, serving(tmp_path, how(recorder)):
        sender = sender_to(receiver)
        sender.send(20)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
            full = post(
                receiver.http_endpoint,
                metrics_request((who("x"), [row(1, {"loss": 0.5})])),
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        sender.send(20)
        sender.finish()
        until(lambda: all_of(recorder, sender))

    status, headers, body = full
    said = RpcStatus.FromString(body)
    details = [one for one in said.details if one.Is(RetryInfo.DESCRIPTOR)]
    assert (status, headers["retry-after"], said.code, len(details)) == (
        503,
        "1",
        14,
        1,
    )
    assert recorder.run(RUN).repeated == 0


def test_a_segment_that_was_damaged_costs_the_requests_that_stood_there_and_that_is_counted(
    tmp_path: Path,
) -> None:
    recorder, folder = RecordingTracker(), RunFolder(tmp_path, RUN)
    with receiving(tmp_path) as receiver:
        sender = sender_to(receiver)
        for _ in range(40):
            sender.send(1)
        sender.finish()
    (segment,) = folder.segments()
    overwrite(segment.path, segment.size_bytes // 2, 40)

    with serving(tmp_path, how(recorder)):
        report = report_when(folder, lambda report: report.ended)

    held = list(recorder.run(RUN).rows)
    lost = 40 - len(held)
    assert held == [name for name in sender.row_ids if name in recorder.run(RUN).rows]
    assert lost in {1, 2}
    assert (report.missing_rows, report.drops) == (lost, {"segment_gaps": 1})


def test_a_ledger_that_is_damaged_under_a_service_is_made_anew_and_no_row_is_lost(
    tmp_path: Path,
) -> None:
    recorder, folder = RecordingTracker(), RunFolder(tmp_path, RUN)
    with receiving(tmp_path) as receiver, serving(tmp_path, how(recorder)):
        sender = sender_to(receiver)
        sender.send(100)
        until(lambda: len(recorder.run(RUN).rows) == 100)
        for path in (folder.ledger_path, Path(f"{folder.ledger_path}-wal")):
            overwrite(path, 0, path.stat().st_size)
        sender.send(100)
        sender.finish()

        until(lambda: all_of(recorder, sender))

    assert len(list(folder.path.glob("ledger.sqlite.damaged-*[0-9]"))) == 1


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_steps_keeps_rows_whole_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    recorder, real, stepped = RecordingTracker(), time.time_ns, threading.Event()
    monkeypatch.setattr(
        time, "time_ns", lambda: real() + (int(step_s * 1e9) if stepped.is_set() else 0)
    )
    with receiving(tmp_path) as receiver, serving(tmp_path, how(recorder)):
        sender = sender_to(receiver)
        sender.send(50)
        stepped.set()
        for _ in range(10):
            sender.send(5)
        sender.finish()

        until(lambda: all_of(recorder, sender))

    assert recorder.run(RUN).repeated == 0


@pytest.mark.long
def test_a_service_begun_again_and_again_delivers_each_row_once_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    recorder, folder, port = RecordingTracker(), RunFolder(tmp_path, RUN), free_port()
    sender = Sender("http", port, "a-http")
    open_files: list[int] = []
    for number in range(STARTS):
        with (
            receiving(tmp_path, port) as receiver,
            serving(tmp_path, how(recorder)) as host,
        ):
            sender.send(2)
            if number == STARTS - 1:
                sender.finish()
                receiver.release_connections()
                assert host.wait(20)
        open_files.append(len(os.listdir("/proc/self/fd")))

    report = report_when(folder, lambda report: report.ended)
    assert all_of(recorder, sender)
    assert (
        report.rows,
        report.missing_rows,
        report.drops,
        recorder.run(RUN).repeated,
    ) == (
        2 * STARTS,
        0,
        {},
        0,
    )
    assert folder.segments() == []
    assert max(open_files[10:]) <= open_files[10] + 3
    assert threading.active_count() < 20
