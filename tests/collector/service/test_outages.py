"""Trackers under fire behind a service: away, slow, hanging, refusing, blocked. The others do not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.bridge.delivery import retry
from otel_bridge.bridge.forwarding import signal_lane
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import (
    BlockedError,
    OtelBridgeError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report
from otel_bridge.records import Row, Status
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.bridge_doubles import options, report_when, served, serving, until
from support.bridge.recording_tracker import RecordingTracker
from support.collector.service_senders import Sender
from support.free_ports import free_port
from support.otlp.otlp_samples import RUN

ROWS = 300
AWAY = RetryableError("503 Service Unavailable", retry_after_s=0.05)


def how(**recorders: RecordingTracker) -> BridgeOptions:
    """What ``serve`` asks of its bridge."""
    named = dict.fromkeys(("metrics", "traces", "logs"), tuple(recorders))
    return options(*recorders.items(), exporters=named, lazy=True, idle_s=60.0)


@contextmanager
def service(
    base: Path, chosen: BridgeOptions
) -> Iterator[tuple[BridgeSupervisor, Sender]]:
    receiver = Receiver(ReceiverSettings.from_environment({}, base, grpc_port=None))
    sender = Sender("http", int(receiver.http_endpoint.rpartition(":")[2]), "a-http")
    try:
        with serving(base, chosen) as host:
            yield host, sender
    finally:
        receiver.stop()


def sent(sender: Sender, rows: int = ROWS) -> None:
    """Send for as long as it takes, then say the end."""
    sender.start()
    until(lambda: sender.acknowledged >= rows)
    sender.finish()


def state(name: str, wanted: str) -> object:
    def fulfilled(report: Report) -> bool:
        return name in report.exporters and report.exporters[name].state == wanted

    return fulfilled


def folder(base: Path) -> RunFolder:
    return RunFolder(base, RUN)


def all_of(recorder: RecordingTracker, sender: Sender) -> bool:
    held = recorder.run(RUN)
    return list(held.rows) == sender.row_ids and held.status is Status.FINISHED


@pytest.mark.parametrize("fault", ["away", "refuses to open", "answers some", "hangs"])
def test_a_tracker_that_fails_keeps_no_other_waiting_and_catches_up_in_order(
    tmp_path: Path, fault: str
) -> None:
    bad, good, release = RecordingTracker(), RecordingTracker(), threading.Event()
    if fault == "hangs":
        bad.hang(release, kind="rows")
    else:
        kind = {"away": None, "refuses to open": "open", "answers some": "rows"}[fault]
        bad.fail(AWAY, kind=kind, times=6 if fault == "answers some" else None)
    with service(tmp_path, how(bad=bad, good=good)) as (_, sender):
        sent(sender)
        until(lambda: all_of(good, sender))
        before = list(bad.run(RUN).rows)

        release.set()
        bad.heal()

        until(lambda: all_of(bad, sender))
    assert before == sender.row_ids[: len(before)]
    assert (len(before) < ROWS) or fault == "answers some"
    assert (bad.run(RUN).repeated, good.run(RUN).repeated) == (0, 0)


class Slow:
    """A writer that takes its time, before one of a recorder."""

    def __init__(self, inner: RunWriter, pace_s: float) -> None:
        self._inner, self._pace_s = inner, pace_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def write_rows(self, rows: list[Row]) -> None:
        time.sleep(self._pace_s)
        self._inner.write_rows(rows)


def test_a_slow_tracker_keeps_no_other_waiting(tmp_path: Path) -> None:
    slow, good = RecordingTracker(), RecordingTracker()
    gate = threading.Event()

    def opened(
        run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> RunWriter:
        gate.wait()  # as slow as it must be to be behind
        return Slow(slow.exporter.open(run, settings, memory), 0.02)  # type: ignore[return-value]

    chosen = how(slow=slow, good=good)
    slowly = Exporter(
        read_settings=slow.exporter.read_settings, ordered=True, open=opened
    )
    trackers = {"slow": slowly, "good": good.exporter}
    chosen = replace(
        chosen, exporter_env=replace(chosen.exporter_env, load=trackers.__getitem__)
    )
    with service(tmp_path, chosen) as (_, sender):
        sent(sender)

        until(lambda: all_of(good, sender))

        assert list(slow.run(RUN).rows) == []
        gate.set()
        until(lambda: all_of(slow, sender))


@pytest.mark.parametrize(
    "error",
    [
        BlockedError("403 Forbidden", help="wandb login"),
        PermanentError("404 no such project"),
    ],
    ids=["blocked", "permanent"],
)
def test_what_a_person_must_mend_is_shown_and_goes_on_by_itself_once_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OtelBridgeError
) -> None:
    monkeypatch.setattr(retry, "BLOCKED_S", 0.2)
    bad, good = RecordingTracker(), RecordingTracker()
    bad.fail(error, kind="open", times=None)  # type: ignore[arg-type]
    with service(tmp_path, how(bad=bad, good=good)) as (_, sender):
        sent(sender)
        report = report_when(folder(tmp_path), state("bad", "blocked"))  # type: ignore[arg-type]
        until(lambda: all_of(good, sender))

        bad.heal()

        until(lambda: all_of(bad, sender))
    assert report.exporters["bad"].reason == str(error)
    assert report.exporters["bad"].dead_letters == 0


def test_a_token_that_the_next_service_takes_again_lets_otlp_go_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_lane, "BLOCKED_S", 0.2)
    port, far = free_port(), tmp_path / "far"

    def listening(token: str) -> Receiver:
        return Receiver(
            ReceiverSettings.from_environment(
                {"OTEL_BRIDGE_TOKEN": token}, far, grpc_port=port
            )
        )

    endpoint = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_BRIDGE_TOKEN": "old",
    }
    good, arrived = RecordingTracker(), RecordingTracker()
    chosen = how(good=good)
    names = dict.fromkeys(("metrics", "traces", "logs"), ("otlp", "good"))
    chosen = replace(
        chosen, exporters=names, exporter_env=replace(chosen.exporter_env, env=endpoint)
    )
    other = listening("new")
    try:
        with service(tmp_path / "near", chosen) as (_, sender):
            sent(sender)
            report = report_when(folder(tmp_path / "near"), state("otlp", "blocked"))  # type: ignore[arg-type]
            until(lambda: all_of(good, sender))
            other.stop()
            other = listening("new,old")

            with serving(far, how(arrived=arrived)):
                until(lambda: all_of(arrived, sender))
    finally:
        other.stop()
    assert (
        "OTEL_BRIDGE_TOKEN"
        in report.exporters["otlp"].help + report.exporters["otlp"].reason
    )


def test_a_tracker_that_was_away_for_the_whole_run_gets_all_from_the_next_one_on_the_directory(
    tmp_path: Path,
) -> None:
    bad, good = RecordingTracker(), RecordingTracker()
    bad.fail(AWAY, times=None)
    with service(tmp_path, how(bad=bad, good=good)) as (host, sender):
        sent(sender)
        until(lambda: all_of(good, sender))
        host.drain()
        assert not host.wait(0.5)
    behind = report_when(
        folder(tmp_path), lambda report: "bad" in report.exporters
    ).exporters["bad"]
    bad.heal()

    served(
        tmp_path,
        replace(how(bad=bad, good=good), lazy=False, idle_s=None, closing=True),
    )  # as drain does

    assert (behind.written, behind.rows) == (0, 0)
    assert all_of(bad, sender)
    assert (bad.run(RUN).repeated, good.run(RUN).repeated) == (0, 0)
